"""What is written is there whole or not at all, and comes back as it was."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import assert_same

from caveat.core import DataError, RunError, State
from caveat.core.aggregation import size
from caveat.core.devices import cache_folder
from caveat.files import (
    AppendLog,
    FeatureCache,
    Rows,
    ServerStore,
    SiloStore,
    StateLost,
    append,
    from_bytes,
    hashes,
    locked,
    read,
    read_payload,
    refuse_links,
    sum_of,
    to_bytes,
    write_bytes,
    write_json,
    write_record,
)
from caveat.files.schema import KeptState, RunFile, RunState

PAYLOAD = {
    "model": {"a.weight": torch.randn(3, 4), "n": torch.tensor(7), "on": torch.tensor(True)},
    "empty": {},
    "none": {"zero": torch.zeros(0, 5)},
}


def test_payload_survives_bytes_with_empty_groups_and_tensors() -> None:
    back = from_bytes(to_bytes(PAYLOAD))
    assert list(back) == list(PAYLOAD)
    assert_same(back, PAYLOAD)
    assert size(back) == 3 * 4 * 4 + 8 + 1


def test_tensors_in_another_memory_layout_survive() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert torch.equal(from_bytes(to_bytes({"g": {"t": tensor}}))["g"]["t"], tensor)


def value(state: State) -> float:
    return float(state["s"]["t"])


@pytest.fixture
def states(tmp_path: Path) -> SiloStore:
    store = SiloStore(tmp_path / "silos")
    store.begin()
    return store


def save(store: SiloStore, t: int, needed: Collection[int] = (), silo: str = "a") -> KeptState:
    return store.save(silo, t, {"s": {"t": torch.tensor(float(t))}}, needed)


def test_a_silo_has_the_state_that_it_kept_and_the_one_before_it(states: SiloStore) -> None:
    kept = [save(states, t) for t in (2, 5, 9)]
    assert states.versions("a") == [5, 9]
    assert [value(states.load(each)) for each in kept[1:]] == [5, 9]
    states.forget("a", after=5)
    assert states.versions("a") == [5]


def test_the_states_of_rounds_that_are_needed_stay(states: SiloStore) -> None:
    for t in (1, 4):
        save(states, t)
    for t in (6, 7, 8, 9):
        save(states, t, needed=[5])
    assert states.versions("a") == [4, 8, 9]
    save(states, 10, needed=[3, 5, 8])
    assert states.versions("a") == [4, 8, 9, 10]


def test_the_last_checkpoints_of_training_stay_and_no_others(tmp_path: Path) -> None:
    store = ServerStore(tmp_path / "state", keep=3)
    for t in range(8):
        store.save(t, {"model": {"w": torch.tensor(float(t))}}, RunState(), {}, durable=t == 1, trains=t not in (4, 7))
    found = {path.name for path in store.root.iterdir()}
    assert found == {
        "checkpoint.json", "checkpoint-durable.json", *(f"checkpoint-{t:06d}.json" for t in (3, 5, 6)),
        *(f"server-{t:06d}.safetensors" for t in (1, 3, 5, 6, 7)),
    }  # fmt: skip
    assert store.needed == [1, 3, 5, 6]
    saved = store.load()
    assert saved is not None
    less = ServerStore(tmp_path / "state")
    less.tidy(saved)
    assert not list(less.root.glob("checkpoint-0*"))
    assert [path.name for path in less.root.glob("server-*")] == ["server-000007.safetensors"]


def test_a_state_that_is_lost_older_damaged_or_another_silos_is_refused(states: SiloStore) -> None:
    older, kept, others = save(states, 1), save(states, 2), save(states, 2, silo="b")
    there = states.root / "a" / "000002.safetensors"
    whole = there.read_bytes()
    for wrong in ((states.root / "a" / "000001.safetensors").read_bytes(), whole[:-1], b"", bytes(len(whole))):
        there.write_bytes(wrong)
        with pytest.raises(StateLost, match=r"silo 'a': its state of round 3 .*000002.safetensors, (is|does)"):
            states.load(kept)
    there.unlink()
    with pytest.raises(StateLost, match=r"000002.safetensors, cannot be read: No such file"):
        states.load(kept)
    assert value(states.load(older)) == 1
    assert value(states.load(others)) == 2


def test_server_checkpoint_is_the_last_one_saved(tmp_path: Path) -> None:
    store = ServerStore(tmp_path / "state")
    assert store.load() is None
    for t in (0, 1):
        store.save(t, {"model": {"w": torch.tensor(float(t))}}, RunState(number=10 * t), {})
    saved = store.load()
    assert saved is not None
    assert (float(saved.server["model"]["w"]), saved.checkpoint.t, saved.checkpoint.number) == (1.0, 1, 10)
    assert saved.damage == ""
    assert len(list((tmp_path / "state").glob("server-*"))) == 1


def durable_and_newest(tmp_path: Path) -> ServerStore:
    store = ServerStore(tmp_path / "state")
    (tmp_path / "run.json").write_text("{}")
    files = {"run.json": sum_of(tmp_path / "run.json")}
    for t in range(4):
        store.save(t, {"model": {"w": torch.tensor(float(t))}}, RunState(), files, durable=t == 1)
    return ServerStore(tmp_path / "state")


@pytest.mark.parametrize("name", ["checkpoint.json", "server-000003.safetensors"])
@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: bytes(len(data)), lambda data: data[::-1]])
def test_a_damaged_checkpoint_is_named_and_the_durable_one_is_continued_from(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    store = durable_and_newest(tmp_path)
    path = tmp_path / "state" / name
    path.write_bytes(damage(path.read_bytes()))
    saved = store.load()
    assert saved is not None
    assert saved.checkpoint.t == float(saved.server["model"]["w"]) == 1
    assert name in saved.damage
    store.save(4, saved.server, RunState(), {})
    assert {each.name for each in (tmp_path / "state").glob("server-*")} == {
        "server-000001.safetensors", "server-000004.safetensors"
    }  # fmt: skip


def test_a_checkpoint_that_is_missing_beside_the_durable_one_is_named(tmp_path: Path) -> None:
    store = durable_and_newest(tmp_path)
    (store.root / "checkpoint.json").unlink()
    saved = store.load()
    assert saved is not None
    assert (saved.checkpoint.t, "checkpoint.json is missing" in saved.damage) == (1, True)


def test_what_a_killed_process_had_no_time_for_is_made_up_for(tmp_path: Path) -> None:
    state = durable_and_newest(tmp_path).root
    (state / "server-000002.safetensors").write_bytes(b"older")
    (state / "checkpoint.json").write_text("{")
    for _ in range(2):
        store = ServerStore(state)
        saved = store.load()
        assert saved is not None
        store.tidy(saved)
        assert (state / "checkpoint.json").read_bytes() == (state / "checkpoint-durable.json").read_bytes()
        assert [each.name for each in state.glob("server-*")] == ["server-000001.safetensors"]
    assert saved.damage == ""


def test_files_that_belong_to_every_checkpoint_are_named(tmp_path: Path) -> None:
    store = durable_and_newest(tmp_path)
    (tmp_path / "run.json").write_text("{ }")
    with pytest.raises(RunError, match=r"run\.json differs from what was written.*; no other checkpoint is intact"):
        store.load()


@pytest.mark.parametrize(("found", "wanted"), [('"t": 1', '"t": 1000000000000'), ('"number": 0', '"number": 7')])
def test_another_digit_in_a_checkpoint_is_noticed(tmp_path: Path, found: str, wanted: str) -> None:
    store = ServerStore(tmp_path / "state")
    store.save(1, {"model": {}}, RunState(), {})
    path = tmp_path / "state" / "checkpoint.json"
    assert found in path.read_text()
    path.write_text(path.read_text().replace(found, wanted))
    with pytest.raises(RunError, match=r"checkpoint\.json: its checksum does not match its content"):
        store.load()


def test_a_sealed_file_needs_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_record(path, RunFile.model_validate({"schema": 1, "spec": {"seed": 1}, "engine": {}}))
    found = json.loads(path.read_text())
    del found["sha256"]
    path.write_text(json.dumps(found))
    with pytest.raises(DataError, match="its checksum 'sha256' is missing"):
        read(path, RunFile)


@pytest.mark.parametrize("at", ["server", "checkpoint"])
def test_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    store = ServerStore(tmp_path)
    store.save(0, {"model": {"w": torch.tensor(1.0)}}, RunState(), {})
    replace = Path.replace

    def full(path: Path, target: Path) -> Path:
        if at in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunError, match="No space left on device; earlier files are kept"):
        store.save(1, {"model": {"w": torch.tensor(2.0)}}, RunState(), {})
    monkeypatch.undo()
    saved = store.load()
    assert saved is not None
    assert (float(saved.server["model"]["w"]), saved.checkpoint.t) == (1.0, 0)
    assert not list(tmp_path.glob(".*.part"))


def test_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for damaged in (b"", b"\x08\0\0\0\0\0\0\0{}", to_bytes(PAYLOAD)[:-3]):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"cannot read .*x\.safetensors"):
            read_payload(path)


def test_json_refuses_what_json_has_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"nan": float("nan")})
    assert not (tmp_path / "x.json").exists()


# Links


@pytest.mark.parametrize("place", ["state", "state/lock", "state/silos", "model", "rounds.jsonl", "summary.json"])
def test_links_in_a_runs_folder_are_refused_before_anything_is_written(tmp_path: Path, place: str) -> None:
    run, theirs = tmp_path / "run", tmp_path / "theirs"
    (run / place).parent.mkdir(parents=True)
    theirs.write_text("mine")
    (run / place).symlink_to(theirs if "." in place or place.endswith("lock") else tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with (
        pytest.raises(RunError, match=f"run/{place} is a link to .*does not write or delete files through links"),
        locked(run / "state"),
    ):
        pytest.fail("locked")
    assert (theirs.read_text(), sorted(tmp_path.rglob("*"))) == ("mine", before)


def test_a_run_may_itself_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "there")
    with locked(tmp_path / "here" / "state"):
        refuse_links(tmp_path / "here")


def test_a_silos_folder_that_is_a_link_is_neither_written_to_nor_cleared(states: SiloStore, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "000007.safetensors").write_text("mine")
    (states.root / "a").symlink_to(theirs)
    for act in (lambda: save(states, 3), lambda: states.forget("a", 0), lambda: states.forget_all(0)):
        with pytest.raises(RunError, match="is a link"):
            act()
    assert [path.name for path in theirs.iterdir()] == ["000007.safetensors"]


def test_what_a_killed_process_left_of_a_file_goes_when_it_is_written_again(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine, others = (tmp_path / f".page.html.{pid}.part" for pid in (ended.pid, os.getppid()))
    others_file = tmp_path / f".page.csv.{ended.pid}.part"
    for part in (mine, others, others_file):
        part.write_text("half")
    write_bytes(tmp_path / "page.html", b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([others, others_file, tmp_path / "page.html"])


def test_a_file_is_put_in_the_place_of_a_link_and_never_through_it(tmp_path: Path) -> None:
    theirs, path = tmp_path / "theirs", tmp_path / "file"
    theirs.write_text("mine")
    path.symlink_to(theirs)
    with pytest.raises(RunError, match="cannot write"):
        append(path, "more")
    write_bytes(path, b"ours")
    assert (theirs.read_text(), path.read_text(), path.is_symlink()) == ("mine", "ours", False)


# Files that grow


@pytest.fixture
def log(tmp_path: Path) -> AppendLog:
    log = AppendLog(tmp_path / "log.jsonl")
    for line in ("one\n", "two\n"):
        log.append(line)
    return log


def test_what_a_log_holds_is_hashed_as_it_grows(log: AppendLog) -> None:
    assert log.sum == sum_of(log.path)


def test_a_log_is_rewound_to_what_was_known(log: AppendLog) -> None:
    known = log.sum
    log.append("three\n")
    again = AppendLog(log.path)
    again.rewind(known)
    assert (again.sum, log.path.read_text()) == (known, "one\ntwo\n")
    again.append("four\n")
    assert again.sum == sum_of(log.path)


def test_lines_of_a_killed_process_stay_where_they_may_have_been_sent(log: AppendLog) -> None:
    known = log.sum
    log.append("three\nfo")
    again = AppendLog(log.path)
    again.recover(known)
    assert (again.sum, log.path.read_text()) == (sum_of(log.path), "one\ntwo\nthree\n")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("one\ntwO\n", "differ from what was written"), ("one\n", "4 bytes, expected the 8"), ("\0" * 8, "differ from"),
        (None, "is missing"),
    ],
)  # fmt: skip
def test_a_log_that_was_damaged_is_refused_and_left_as_it_is(log: AppendLog, content: str | None, told: str) -> None:
    known = log.sum
    log.path.unlink() if content is None else log.path.write_text(content)
    for act in (AppendLog(log.path).rewind, AppendLog(log.path).recover):
        with pytest.raises(RunError, match=rf"log\.jsonl.*{told}"):
            act(known)
    assert (log.path.read_text() if log.path.exists() else None) == content


def test_zeros_after_a_power_cut_are_damage(log: AppendLog) -> None:
    known = log.sum
    log.path.write_bytes(log.path.read_bytes() + bytes(100))
    with pytest.raises(RunError, match="zero bytes follow the first 8"):
        AppendLog(log.path).recover(known)
    AppendLog(log.path).rewind(known)
    assert log.path.read_text() == "one\ntwo\n"


def test_a_log_that_somebody_else_changes_is_not_written_to(log: AppendLog) -> None:
    log.path.write_text("something else\n")
    with pytest.raises(RunError, match="has 15 bytes, but this process wrote 8: another process has changed"):
        log.append("three\n")
    assert log.path.read_text() == "something else\n"


RNG = np.random.default_rng(0)
INPUTS, ROWS = RNG.normal(size=(6, 2, 3)).astype(np.float32), RNG.normal(size=(6, 4)).astype(np.float32)


def taken(cache: FeatureCache, ids: list[bytes]) -> tuple[Rows, list[int]]:
    into = np.full((len(ids), 4), np.nan, dtype=np.float32)
    return into, cache.take(ids, into)


def test_rows_are_found_by_the_content_of_inputs_by_other_processes_too(tmp_path: Path) -> None:
    ids = hashes(INPUTS)
    assert len(set(ids)) == 6
    assert hashes(INPUTS[::-1].copy()) == ids[::-1]
    cache = FeatureCache(tmp_path / "rows", 4)
    assert taken(cache, ids)[1] == [0, 1, 2, 3, 4, 5]
    cache.add(ids[:2], ROWS[:2])
    cache.add(ids[4:], ROWS[4:])
    for each in (cache, FeatureCache(tmp_path / "rows", 4)):
        into, missing = taken(each, [ids[5], ids[2], ids[0], ids[5]])
        assert missing == [1]
        assert np.array_equal(into[[0, 2, 3]], ROWS[[5, 0, 5]])
    assert (tmp_path / "rows").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "no ids", "other ids", "link", "pickle"])
def test_what_is_damaged_counts_as_not_there(damage: str, tmp_path: Path) -> None:
    ids, folder = hashes(INPUTS), tmp_path / "rows"
    FeatureCache(folder, 4).add(ids, ROWS)
    (of_ids,) = folder.glob("*.ids.npy")
    block = folder / of_ids.name.replace(".ids", "")
    data = block.read_bytes()
    if damage == "flip":
        block.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "cut":
        block.write_bytes(data[:-4])
    elif damage == "gone":
        block.unlink()
    elif damage == "no ids":
        of_ids.write_bytes(b"")
    elif damage == "other ids":
        np.save(of_ids, np.zeros((6, 16), np.uint8))
    elif damage == "link":
        block.rename(tmp_path / "elsewhere")
        block.symlink_to(tmp_path / "elsewhere")
    else:
        np.save(block, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    cache = FeatureCache(folder, 4)
    assert taken(cache, ids)[1] == [0, 1, 2, 3, 4, 5]
    if damage != "link":
        cache.add(ids, ROWS)
        assert np.array_equal(taken(FeatureCache(folder, 4), ids)[0], ROWS)


def test_rows_that_are_deleted_while_a_process_knows_them_are_missing(tmp_path: Path) -> None:
    ids, cache = hashes(INPUTS), FeatureCache(tmp_path, 4)
    cache.add(ids, ROWS)
    for file in tmp_path.iterdir():
        file.unlink()
    assert taken(cache, ids)[1] == [0, 1, 2, 3, 4, 5]


def test_another_width_is_another_encoder_s(tmp_path: Path) -> None:
    ids = hashes(INPUTS)
    FeatureCache(tmp_path, 4).add(ids, ROWS)
    into = np.zeros((6, 5), dtype=np.float32)
    assert FeatureCache(tmp_path, 5).take(ids, into) == [0, 1, 2, 3, 4, 5]


def test_the_folder_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "caveat-tests-cache" in os.environ["CAVEAT_CACHE"], "tests must leave the user's own cache alone"
    monkeypatch.setenv("CAVEAT_CACHE", "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else")
    monkeypatch.delenv("CAVEAT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/caveat")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "caveat"


@pytest.mark.parametrize("link", ["features", "features/rows"])
def test_nothing_is_written_through_a_link(link: str, tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "features" / "rows"
    elsewhere.mkdir()
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(elsewhere)
    with pytest.raises(RunError, match="is a link to"):
        FeatureCache(folder, 4).add(hashes(INPUTS), ROWS)
    assert not list(elsewhere.iterdir())
