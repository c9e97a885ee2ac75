"""One schema per file: what is written is what its schema reads, and what a later version wrote is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import old_calls
import pytest
from commands import TINY, sets
from commands import caveat as command
from fake_run import fake_run

import caveat
from caveat.analysis.compare.folder import FinishedRun
from caveat.analysis.compare.runner import grid_of
from caveat.core import DataError, RunError
from caveat.federation.kept_member import open_member
from caveat.federation.resume import resume_federation
from caveat.files.atomic import write_json, write_record
from caveat.files.checkpoints import ServerStore
from caveat.files.ledger import read_ledger
from caveat.files.ledger_totals import read_sent
from caveat.files.reading import read
from caveat.files.run_folder import read_run
from caveat.files.schema.audit import AuditFile, AuditPlan
from caveat.files.schema.comparison import Comparison, read_comparison
from caveat.files.schema.federation import FederationFile
from caveat.files.schema.figures import Metrics
from caveat.files.schema.gallery import Features, Gallery
from caveat.files.schema.grid import SCHEMA, grid_record
from caveat.files.schema.ledger import Form, Message
from caveat.files.schema.preparation import PreparationFile
from caveat.files.schema.record import FROM_FILE, Record, as_json
from caveat.files.schema.rounds import LeftOut, RoundRow
from caveat.files.schema.small_files import (
    BegunData,
    BegunInit,
    Checkpoint,
    Failure,
    KeptState,
    ModelFile,
    Origin,
    OwnState,
    SettingsFile,
    SiloKeeps,
    Started,
)
from caveat.files.schema.summary import Summary
from caveat.files.seals import sealed
from caveat.html.pages.run.page import write_report
from caveat.runs.begun import check_same

SCHEMAS: dict[str, type[Record]] = {
    "summary.json": Summary, "gallery.json": Gallery, "features.json": Features, "origin.json": Origin,
    "model.json": ModelFile, "checkpoint.json": Checkpoint, "checkpoint-durable.json": Checkpoint,
    "federation.json": FederationFile, "started.json": Started, "silo.json": SiloKeeps, "kept.json": OwnState,
    "settings.json": SettingsFile, "failure.json": Failure,
    "init.json": BegunInit, "preparation.json": PreparationFile,
    "data.json": BegunData, "comparison.json": Comparison, "audit.json": AuditFile, "plan.json": AuditPlan,
}  # fmt: skip
FINGERPRINTS = {"splits.json", "call.json"}
"""Files that are compared as a whole, and that nothing reads a field of."""


def lines_read(path: Path) -> Iterator[Record]:
    """The records of a file with one per line."""
    for line in path.read_text().splitlines():
        value = json.loads(line)
        kinds: tuple[type[Record], ...] = (Form, Message) if path.name == "ledger.jsonl" else (LeftOut, RoundRow)
        if path.name == "states.jsonl":
            kinds = (KeptState, KeptState)
        first = "tensors" if path.name == "ledger.jsonl" else "left_out"
        yield kinds[first not in value].model_validate(value, context=FROM_FILE)


def rewritten(path: Path) -> str:
    """A file's text again, from the record that it is read as."""
    if path.suffix == ".jsonl":
        return "".join(json.dumps(as_json(record)) + "\n" for record in lines_read(path))
    copy = path.with_name("copy")
    if path.name == "grid.json":
        grid = grid_record(grid_of(path.parent))
        # Version 0.1 wrote no checksums.
        write_json(copy, sealed({"schema": SCHEMA, **grid}) if '"sha256": "' in path.read_text()[-90:] else grid)
    else:
        record = read(path, SCHEMAS[path.name])
        # Version 0.1 wrote no checksums.
        write = (
            write_record
            if '"sha256": "' in path.read_text()[-90:]
            else lambda place, it: write_json(place, as_json(it))
        )
        write(copy, record)
    return copy.read_text()


def assert_same_again(folder: Path) -> set[str]:
    """Every file of a folder is the same text when it is read and written; return their names."""
    paths = [path for path in (*folder.rglob("*.json"), *folder.rglob("*.jsonl")) if path.name not in FINGERPRINTS]
    for path in paths:
        assert rewritten(path) == path.read_text(), path
    return {path.name for path in paths}


RUN = {"summary.json", "rounds.jsonl", "ledger.jsonl", "gallery.json", "features.json", "model.json", "checkpoint.json"}


@pytest.mark.parametrize("name", ["finished", "interrupted", "call", "comparison", "audit", "federation"])
def test_files_of_0_1_are_the_same_when_read_and_written(tmp_path: Path, name: str) -> None:
    shutil.copytree(old_calls.HERE / name, tmp_path / "old")
    assert assert_same_again(tmp_path / "old")


def test_a_run_with_a_choice_of_models_and_newcomers_is_the_same_when_read_and_written(tmp_path: Path) -> None:
    old_calls.call(tmp_path / "run")
    assert assert_same_again(tmp_path / "run") == {*RUN, "states.jsonl", "data.json", "preparation.json"}
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {"newcomers", "policy"} <= kept.keys()
    assert "absent" not in kept
    assert [silo.get("newcomer") for silo in kept["silos"]] == [None, None, True]


def test_a_run_with_private_codewords_and_one_with_privacy_are_the_same_when_read_and_written(tmp_path: Path) -> None:
    for name, settings in (("uefl", ["method.name=uefl", "method.iterations=1"]), ("private", ["privacy.clip=1"])):
        result = command("run", "digits", *sets(*TINY, *settings), "--out", tmp_path / name, "--quiet")
        assert result.exit_code == 0, result.stderr
        assert_same_again(tmp_path / name)
    assert json.loads((tmp_path / "private" / "summary.json").read_text())["privacy"]["clip"] == 1.0


def test_a_comparison_is_the_same_when_read_and_written(tmp_path: Path) -> None:
    asked = ["--methods", "fedavg,local", "--seeds", "0,1", "--tune", "training.lr=0.1,0.2"]
    asked += ["--sweep", "data.silos=3,6"]
    tiny = sets(*(each for each in TINY if not each.startswith(("method.", "beside", "data.silos"))))
    result = command("compare", "digits", *tiny, *asked, "--out", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert assert_same_again(tmp_path / "out") >= {*RUN, "comparison.json", "grid.json"}


@pytest.mark.parametrize("method", ["fedavg", "fedpn"])
@pytest.mark.long
def test_an_audit_is_the_same_when_read_and_written(tmp_path: Path, method: str) -> None:
    asked = ("--seeds", "0,1", "--shares", "1/2,1")
    settings = sets(*TINY[1:], f"method.name={method}")
    result = command("audit", "digits", *settings, *asked, "--out", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert assert_same_again(tmp_path / "out") >= {*RUN, "audit.json", "plan.json"}


# Files of later versions


def predict(folder: Path) -> None:
    run = caveat.load(folder)
    run.predictor("silo-0")(run.silos[0].test.x)


def of_call(folder: Path) -> None:
    old_calls.call(folder)


def of_audit(folder: Path) -> None:
    result = command(*old_calls.AUDIT)
    if isinstance(result.exception, SystemExit):
        raise DataError(result.stderr.removeprefix("error: ").strip())


READERS: list[tuple[str, str, Callable[[Path], object]]] = [
    ("finished", "summary.json", read_run),
    ("finished", "summary.json", lambda folder: caveat.load(folder).summary),
    ("finished", "summary.json", lambda folder: FinishedRun(folder).summary),
    ("finished", "rounds.jsonl", read_run),
    ("finished", "rounds.jsonl", lambda folder: FinishedRun(folder).rows),
    ("finished", "ledger.jsonl", lambda folder: read_ledger(folder / "ledger.jsonl")),
    ("finished", "ledger.jsonl", lambda folder: read_sent(folder / "ledger.jsonl")),
    ("finished", "gallery.json", read_run),
    ("finished", "features.json", read_run),
    ("finished", "origin.json", read_run),
    ("finished", "splits.json", lambda folder: FinishedRun(folder).splits),
    ("finished", "splits.json", lambda folder: check_same(folder, old_calls.silos())),
    ("finished", "model/model.json", predict),
    ("finished", "state/checkpoint.json", lambda folder: ServerStore(folder / "state").load()),
    ("call", "call.json", of_call),
    ("comparison", "grid.json", grid_of),
    ("comparison", "comparison.json", read_comparison),
    ("audit", "plan.json", of_audit),
    ("audit", "audit.json", lambda folder: read(folder / "audit.json", AuditFile)),
    ("federation/run", "federation.json", read_run),
    ("federation/run", "started.json", lambda folder: resume_federation(folder, None)),
    ("federation/silos/hill/state/c4752b951369d46d/trfeddis", "silo.json", open_member),
]


@pytest.mark.parametrize(("folder", "name", "reader"), READERS)
def test_a_file_of_a_later_version_is_refused_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str, reader: Callable[[Path], object]
) -> None:
    shutil.copytree(old_calls.HERE, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    path = tmp_path / "old" / folder / name
    text = path.read_text() if path.exists() else "{}"
    found: dict[str, Any] = json.loads(text.splitlines()[0] if path.suffix == ".jsonl" else text)
    known = SCHEMAS[name.rpartition("/")[2]].SCHEMA if name.rpartition("/")[2] in SCHEMAS else 1
    known = SCHEMA if name == "grid.json" else known
    path.write_text(json.dumps(found | {"schema": known + 1}) + "\n")
    with pytest.raises((DataError, RunError)) as refused:
        reader(tmp_path / "old" / folder)
    sentence = str(refused.value)
    assert name.rpartition("/")[2] in sentence
    assert f": schema {known + 1} was written by another version; this one reads schema {known}" in sentence
    assert "\n" not in sentence


# Records


def test_a_number_that_is_none_is_absent_when_read_and_refused_when_written(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"accuracy": NaN, "nll": 1}')
    found = read(tmp_path / "x.json", Metrics)
    assert (found.accuracy, found.nll) == (None, 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(tmp_path / "y.json", Metrics(accuracy=float("nan")))
    assert not (tmp_path / "y.json").exists()


def test_keys_keep_their_order_and_unknown_ones_are_kept() -> None:
    given = {"nll": 1.0, "later": {"b": 1}, "accuracy": 0.5}
    assert list(as_json(Metrics.model_validate(given)).items()) == [
        ("nll", 1.0), ("accuracy", 0.5), ("later", {"b": 1}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("rounds_run",), 10**400), (("rounds_run",), 10**30), (("traffic", "bytes_up"), 10**400),
        (("silos", 0, "n_test"), 10**400), (("silos", 0, "n_test"), -5), (("silos", 0, "test", "accuracy"), 1.5),
        (("silos", 0, "test", "nll"), -1e300), (("silos", 0, "reliability", "count", 0), 1e300),
        (("silos", 0, "reliability", "count", 0), -1),
    ],
)  # fmt: skip
def test_a_sealed_number_that_no_run_comes_to_is_named_with_its_place(
    tmp_path: Path, place: tuple[str | int, ...], value: float
) -> None:
    run = fake_run(tmp_path / "run", beside=False)
    content = inner = json.loads((run / "summary.json").read_text())
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    write_json(run / "summary.json", sealed(content))
    with pytest.raises(DataError, match=rf"summary\.json: {re.escape('.'.join(map(str, place)))}: ") as caught:
        write_report(run)
    assert len(str(caught.value)) < len(str(run)) + 200


def test_a_row_s_number_is_bounded_likewise(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", beside=False)
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    lines[4] = json.dumps({**json.loads(lines[4]), "examples": 10**301}) + "\n"
    (run / "rounds.jsonl").write_text("".join(lines))
    with pytest.raises(DataError, match=r"rounds\.jsonl, line 5: examples: a number beyond"):
        write_report(run)
