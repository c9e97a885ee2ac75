"""A run's folder cannot lie: what was edited, lost, damaged or put there by others is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TINY, caveat, one_error, sets

import caveat as library
from caveat.files import held
from caveat.methods import SCAFFOLD
from caveat.runs.progress import Silent
from caveat.training.fit import Training

SETTINGS = sets(
    *TINY, "method.name=trfeddis", "rounds=3", "uncertainty.temperature_scaling=false", "uncertainty.familiarity=false"
)
"""Rounds of training alone, so that states are where tests look for them."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert caveat("run", "digits", *SETTINGS, "--out", folder, "--quiet").exit_code == 0
    np.savez(folder.parent / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def interrupted(run: Path) -> Path:
    """The run as it was killed before its result was written."""
    (run / "summary.json").unlink()
    shutil.rmtree(run / "model")
    return run


def predict(run: Path) -> object:
    return caveat("predict", run, run.parent / "x.npz", "--silo", "silo-0")


def model(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def flip(path: Path, at: int = -20) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def edit(run: Path, found: str, wanted: str) -> None:
    text = (run / "config.toml").read_text()
    assert found in text
    (run / "config.toml").write_text(text.replace(found, wanted))


# Configurations


@pytest.mark.parametrize(("found", "wanted"), [('"seed": 0', '"seed": 1'), ('"rounds": 3', '"rounds": 4')])
@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_description_that_was_edited_is_refused(interrupted: Path, found: str, wanted: str, command: str) -> None:
    text = (interrupted / "run.json").read_text()
    assert found in text
    (interrupted / "run.json").write_text(text.replace(found, wanted))
    before = model_and_state(interrupted)
    assert "run.json" in one_error(caveat(command, interrupted), 3)
    assert model_and_state(interrupted) == before


def model_and_state(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}


def test_the_configuration_is_for_readers_alone(interrupted: Path, finished: Path) -> None:
    edit(interrupted, "seed = 0", "seed = 7")
    assert caveat("resume", interrupted, "--quiet").exit_code == 0
    assert model(interrupted) == model(finished)


def test_it_can_be_run_again(finished: Path, tmp_path: Path) -> None:
    assert caveat("run", finished / "config.toml", "--out", tmp_path / "again", "--quiet").exit_code == 0
    assert model(tmp_path / "again") == model(finished)


def test_data_may_have_moved_and_other_settings_stay(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv")
    settings = sets(f"data.source=csv:{source}", "data.target=ill", "training.batch_size=8", "data.n_silos=2")
    result = caveat("run", "digits", *SETTINGS, *settings, "--out", tmp_path / "run", "--quiet")
    assert result.exit_code == 0, result.stderr
    before = model(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    shutil.move(source, tmp_path / "elsewhere" / "t.csv")
    assert "t.csv" in one_error(caveat("resume", tmp_path / "run", "--quiet"), 3)
    told = one_error(caveat("resume", tmp_path / "run", *sets("training.lr=1")), 2)
    assert "--set training.lr: a run continues with its original settings, except for" in told
    moved = sets(f"data.source=csv:{tmp_path / 'elsewhere' / 't.csv'}")
    result = caveat("resume", tmp_path / "run", *moved, "--quiet")
    assert result.exit_code == 0, result.stderr
    assert model(tmp_path / "run") == before


@pytest.mark.parametrize("whose", [0, 3])
def test_other_data_of_any_silo_are_noticed_when_a_run_goes_on(tmp_path: Path, whose: int) -> None:
    x = np.sin(np.arange(4 * 90 * 4)).reshape(4, 90, 4).astype(np.float32)

    def federation(y: np.ndarray) -> library.data.Silos:
        return library.data.from_arrays({f"ward-{k}": (x[k], y[k]) for k in range(4)})

    y = (x.sum(2) > 0).astype(int)
    method = library.FedAvg(rounds=2, training=Training(batch_size=16))
    library.run(federation(y), method, out=tmp_path / "run", n_silos=1)
    (tmp_path / "run" / "summary.json").unlink()
    y[whose] = 1 - y[whose]
    with pytest.raises(library.core.RunError, match="have changed since the run started"):
        library.run(federation(y), method, out=tmp_path / "run", n_silos=1)


# States of silos


def test_a_lost_state_is_refused_by_silo_and_round_and_can_be_reset(interrupted: Path, finished: Path) -> None:
    shutil.rmtree(interrupted / "state" / "silos" / "silo-1")
    for _ in range(2):
        told = one_error(caveat("resume", interrupted, "--quiet"), 4)
        assert "silo 'silo-1': its state of round 3 of the schedule" in told
        assert "--reset silo-1" in told
    result = caveat("resume", interrupted, "--quiet", "--reset", "silo-1")
    assert result.exit_code == 0, result.stderr
    summary = json.loads((interrupted / "summary.json").read_text())
    assert summary["reset"] == [{"silo": "silo-1", "round": 3}]
    assert "reset" not in json.loads((finished / "summary.json").read_text())
    assert "silo-1" in result.stdout
    assert "restarted because their states were lost: silo-1 (after round 3)" in result.stdout
    assert "<strong>Restarted silos</strong>" in (interrupted / "report.html").read_text()


@pytest.mark.parametrize("name", ["silo-1", "fedavg"])
def test_what_cannot_be_reset_is_refused(interrupted: Path, finished: Path, name: str) -> None:
    shutil.rmtree(interrupted / "state" / "silos")
    assert "--reset nobody" in one_error(caveat("resume", interrupted, "--quiet", "--reset", "nobody"), 2)
    assert "the run is finished" in one_error(caveat("resume", finished, "--reset", name), 2)


def test_a_run_without_states_has_none_to_reset(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stateless = sets(*TINY, "uncertainty.temperature_scaling=false", "uncertainty.familiarity=false")
    assert caveat("run", "digits", *stateless, "--out", run, "--quiet").exit_code == 0
    (run / "summary.json").unlink()
    told = one_error(caveat("resume", run, "--quiet", "--reset", "silo-1"), 2)
    assert told == f"error: --reset silo-1: no silo has a state in {run}"


@pytest.mark.parametrize("what", ["older", "another's", "flipped"])
def test_a_state_that_is_not_the_one_that_was_kept_is_refused(run: Path, what: str) -> None:
    states = run / "state" / "silos" / "silo-0"
    if what == "flipped":
        flip(states / "000002.safetensors")
    else:
        other = states / "000001.safetensors" if what == "older" else states.with_name("silo-1") / "000002.safetensors"
        shutil.copyfile(other, states / "000002.safetensors")
    np.savez(run.parent / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    assert "does not match its hash" in one_error(predict(run), 4)  # type: ignore[arg-type]


def test_a_state_that_is_lost_in_mid_run_ends_the_run(tmp_path: Path) -> None:
    x = np.sin(np.arange(2 * 90 * 4)).reshape(2, 90, 4).astype(np.float32)
    silos = library.data.from_arrays({f"ward-{k}": (x[k], (x[k].sum(1) > 0).astype(int)) for k in range(2)})

    class Losing(Silent):
        def round(self, number: int, phase: str, metrics: object) -> None:
            if number == 2:
                shutil.rmtree(tmp_path / "run" / "state" / "silos")

    method = SCAFFOLD(rounds=4, training=Training(batch_size=16, lr=0.1, optimizer="sgd"))
    with pytest.raises(library.core.RunError, match="silo 'ward-0': its state of round 2 of the schedule"):
        library.run(silos, method, out=tmp_path / "run", progress=Losing())
    again = library.run(silos, method, out=tmp_path / "run", reset=["ward-0", "ward-1"])
    assert [each["silo"] for each in again.summary["reset"]] == ["ward-0", "ward-1"]


# Files


@pytest.mark.parametrize(
    "name",
    [
        "model/model.safetensors",
        "model/model.json",
        "state/states.jsonl",
        "splits.json",
        "run.json",
        "summary.json",
    ],
)
def test_a_flipped_bit_is_refused_by_what_predicts(run: Path, name: str) -> None:
    np.savez(run.parent / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    assert predict(run).exit_code == 0  # type: ignore[attr-defined]
    flip(run / name)
    assert str(run / name) in one_error(predict(run), 3)  # type: ignore[arg-type]
    with pytest.raises((library.core.DataError, library.core.RunError), match=name.rpartition("/")[2]):
        library.load(run).predictor("silo-0")


@pytest.mark.parametrize("name", ["rounds.jsonl", "ledger.jsonl", "gallery.json", "features.json", "summary.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_bytes(bytes(path.stat().st_size))])
def test_a_page_is_made_of_what_was_written_or_not_at_all(
    run: Path, name: str, damage: Callable[[Path], object]
) -> None:
    (run / "report.html").unlink()
    damage(run / name)
    result = caveat("report", run)
    if name == "summary.json" and not (run / name).exists():
        return  # a run without a summary is one that is not finished
    assert name in one_error(result, 3)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("name", ["rounds.jsonl", "ledger.jsonl", "state/states.jsonl", "run.json"])
def test_damage_to_an_interrupted_run_is_named(interrupted: Path, name: str) -> None:
    flip(interrupted / name, 30)
    result = caveat("resume", interrupted, "--quiet")
    assert result.exit_code in (3, 4)
    assert name in result.stderr
    assert "Traceback" not in result.stderr


def test_after_a_damaged_checkpoint_the_durable_one_goes_on_to_the_same_bits(tmp_path: Path, finished: Path) -> None:
    settings = [*SETTINGS, "--set", "engine.sync_seconds=0"]
    assert caveat("run", "digits", *settings, "--out", tmp_path / "run", "--quiet").exit_code == 0
    (tmp_path / "run" / "summary.json").unlink()
    flip(tmp_path / "run" / "state" / "checkpoint.json")
    result = caveat("resume", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    assert "checkpoint.json" in result.stderr
    assert "continuing from the previous checkpoint" in result.stderr
    assert model(tmp_path / "run") == model(finished)


# Others in the same folder


def test_who_comes_second_changes_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    end, go = os.pipe()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with held(run / "state" / "lock", "busy"):
            os.write(tell, b"1")
            os.read(end, 1)
        os._exit(0)
    os.read(ready, 1)
    told = one_error(caveat("run", "digits", *SETTINGS, "--out", run, "--quiet"), 4)
    assert "is being run by another process" in told
    assert {path.name for path in run.rglob("*")} == {"state", "lock"}
    os.write(go, b"1")
    os.waitpid(child, 0)
    assert caveat("run", "digits", *SETTINGS, "--out", run, "--quiet").exit_code == 0
    for descriptor in (end, go, ready, tell):
        os.close(descriptor)


def test_nothing_is_written_through_a_link(interrupted: Path) -> None:
    theirs = interrupted.parent / "theirs"
    theirs.write_text("mine")
    (interrupted / "state" / "lock").unlink()
    (interrupted / "state" / "lock").symlink_to(theirs)
    assert "lock is a link to" in one_error(caveat("resume", interrupted, "--quiet"), 4)
    assert theirs.read_text() == "mine"


# What belongs together


def table(path: Path, columns: str = "age,dose", classes: tuple[str, str] = ("no", "yes")) -> Path:
    rows = [f"{20 + i * 7 % 50},{i * 37 % 11},{classes[i * 7 % 50 > 25]}" for i in range(90)]
    path.write_text("\n".join([f"{columns},ill", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"columns": "dose,age"}, "names or categories of columns"), ({"classes": ("nay", "yea")}, "names of classes")],
)
def test_columns_and_classes_mean_what_they_meant(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    source = table(tmp_path / "t.csv")
    settings = [*SETTINGS, *sets(f"data.source=csv:{source}", "data.target=ill", "training.batch_size=8")]
    settings = [each.replace("data.n_silos=3", "data.n_silos=2") for each in settings]
    result = caveat("run", "digits", *settings, "--out", tmp_path / "run", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert caveat("predict", tmp_path / "run", source, "--silo", "silo-0").exit_code == 0
    table(source, **changed)
    with pytest.raises(library.core.RunError, match=f"the {told} have changed since the run started"):
        library.load(tmp_path / "run").silos  # noqa: B018


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs with a method beside them, of other seeds."""
    folders = tmp_path_factory.mktemp("baselines") / "one", tmp_path_factory.mktemp("baselines") / "other"
    for seed, folder in enumerate(folders):
        more = sets('baselines=["local"]', f"seed={seed}")
        assert caveat("run", "digits", *SETTINGS, *more, "--out", folder, "--quiet").exit_code == 0
    return folders


def test_what_ran_beside_another_run_is_refused(beside: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(beside[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "baselines")
    shutil.copytree(beside[1] / "baselines", tmp_path / "run" / "baselines")
    assert "it belongs to another run" in one_error(caveat("report", tmp_path / "run"), 3)
    (tmp_path / "run" / "baselines" / "local" / "summary.json").unlink()
    assert "seed" in one_error(caveat("resume", tmp_path / "run", "--quiet"), 2)
    shutil.rmtree(tmp_path / "run" / "baselines")
    shutil.copytree(beside[0] / "baselines" / "local", tmp_path / "run" / "baselines" / "zz")
    assert "belongs to method local, expected zz" in one_error(caveat("report", tmp_path / "run"), 3)


def test_a_ledger_is_printed_as_it_was_written_or_not_at_all(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join(line for line in lines if '"silo-1"' not in line))
    assert "ledger.jsonl differs from what was written" in one_error(caveat("flower", "ledger", run), 3)


@pytest.mark.parametrize("name", ["state/lock", "state/silos/silo-0/000002.safetensors", "rounds.jsonl"])
def test_nobody_waits_for_a_pipe(interrupted: Path, name: str) -> None:
    (interrupted / name).unlink()
    os.mkfifo(interrupted / name)
    result = caveat("resume", interrupted, "--quiet")
    assert result.exit_code in (3, 4)
    assert name.rpartition("/")[2] in result.stderr


def test_a_copy_that_shares_its_files_stays_as_it_is(interrupted: Path) -> None:
    shared = interrupted.parent / "shared.jsonl"
    os.link(interrupted / "rounds.jsonl", shared)
    with (interrupted / "rounds.jsonl").open("a") as file:
        file.write("of a round that was never counted\n")
    before = shared.read_bytes()
    assert caveat("resume", interrupted, "--quiet").exit_code == 0
    assert shared.read_bytes() == before


def test_runs_of_another_audit_are_refused(tmp_path: Path) -> None:
    asked = [*sets(*TINY[1:], "method.name=fedavg"), "--seeds", "0,1", "--fractions", "1/2,1", "--quiet"]
    for name, lr in (("one", "0.01"), ("other", "0.1")):
        result = caveat("audit", "digits", *asked, *sets(f"training.lr={lr}"), "--out", tmp_path / name)
        assert result.exit_code == 0, result.stderr
    mine, theirs = (tmp_path / name / "runs" / "share-1-seed-0" for name in ("one", "other"))
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
    line = one_error(caveat("audit", "digits", *asked, *sets("training.lr=0.01"), "--out", tmp_path / "one"), 2)
    assert "training.lr = 0.1, not 0.01" in line


@pytest.mark.parametrize("name", ["run.json", "summary.json", "rounds.jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_one_line_that_names_it(name: str, make: Callable[[Path], None], run: Path) -> None:
    """Nobody waits for somebody to write to a pipe."""
    (run / name).unlink()
    make(run / name)
    for command in (["resume", run, "--quiet"], ["report", run]):
        result = caveat(*command)
        assert result.exit_code in (2, 3, 4)
        assert name in result.stderr.splitlines()[-1]


def test_a_reset_is_for_what_a_silo_keeps_alone(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "mine", run, run / "model"):
        before = sorted(folder.rglob("*"))
        assert "expected STATE/FEDERATION/METHOD" in one_error(caveat("flower", "reset", folder), 2)
        assert sorted(folder.rglob("*")) == before
