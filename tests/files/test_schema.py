"""One schema per file: what is written is what its schema reads, and what a later version wrote is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TINY, sets
from commands import caveat as command
from fake_run import fake_run, rewrite
from hospitals import Federation

import caveat
from caveat.analysis.compare.compared_run import FinishedRun
from caveat.analysis.compare.runner import grid_of
from caveat.core import DataError, RunError
from caveat.federation.project import resume_federation
from caveat.federation.server.run import StartCommand
from caveat.federation.silo.member import open_member
from caveat.files import (
    ServerStore,
    read,
    read_comparison,
    read_ledger,
    read_rows,
    read_run,
    read_sent,
    write_json,
    write_record,
)
from caveat.files.schema import (
    FROM_FILE,
    SCHEMA,
    AuditFile,
    AuditPlan,
    Checkpoint,
    Comparison,
    Failure,
    Features,
    FederationFile,
    Form,
    Gallery,
    KeptState,
    LeftOut,
    Message,
    Metrics,
    ModelFile,
    OwnState,
    PreparationFile,
    Record,
    RoundRow,
    RunFile,
    SiloKeeps,
    Started,
    Summary,
    as_json,
    grid_record,
    sealed,
)
from caveat.html.run.page import write_report
from caveat.runs.stored_preparation import kept_preparation

SCHEMAS: dict[str, type[Record]] = {
    "summary.json": Summary, "gallery.json": Gallery, "features.json": Features, "run.json": RunFile,
    "model.json": ModelFile, "checkpoint.json": Checkpoint, "checkpoint-durable.json": Checkpoint,
    "federation.json": FederationFile, "started.json": Started, "silo.json": SiloKeeps, "kept.json": OwnState,
    "failure.json": Failure, "preparation.json": PreparationFile,
    "comparison.json": Comparison, "audit.json": AuditFile, "plan.json": AuditPlan,
}  # fmt: skip
FINGERPRINTS = {"splits.json"}
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
        write_json(copy, sealed({"schema": SCHEMA, **grid_record(grid_of(path.parent))}))
    else:
        write_record(copy, read(path, SCHEMAS[path.name]))
    return copy.read_text()


def assert_same_again(folder: Path) -> set[str]:
    """Every file of a folder is the same text when it is read and written; return their names."""
    paths = [path for path in (*folder.rglob("*.json"), *folder.rglob("*.jsonl")) if path.name not in FINGERPRINTS]
    for path in paths:
        assert rewritten(path) == path.read_text(), path
    return {path.name for path in paths}


RUN = {"summary.json", "rounds.jsonl", "ledger.jsonl", "gallery.json", "features.json", "model.json", "checkpoint.json"}


def test_a_run_with_a_choice_of_models_and_newcomers_is_the_same_when_read_and_written(tmp_path: Path) -> None:
    call(tmp_path / "run")
    assert assert_same_again(tmp_path / "run") == {*RUN, "run.json", "states.jsonl", "preparation.json"}
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {"newcomers", "policy"} <= kept.keys()
    assert "absent" not in kept
    assert [silo.get("newcomer") for silo in kept["silos"]] == [None, None, True]


def test_a_run_with_private_codewords_and_one_with_privacy_are_the_same_when_read_and_written(tmp_path: Path) -> None:
    for name, settings in (("uefl", ["method.name=uefl", "method.iterations=1"]), ("private", ["privacy.clip_norm=1"])):
        result = command("run", "digits", *sets(*TINY, *settings), "--out", tmp_path / name, "--quiet")
        assert result.exit_code == 0, result.stderr
        assert_same_again(tmp_path / name)
    assert json.loads((tmp_path / "private" / "summary.json").read_text())["privacy"]["clip_norm"] == 1.0


@pytest.mark.parametrize("more", [[], pytest.param(["--sweep", "data.n_silos=3,6"], marks=pytest.mark.long)])
def test_a_comparison_is_the_same_when_read_and_written(more: list[str], tmp_path: Path) -> None:
    asked = ["--methods", "fedavg,local", "--seeds", "0,1", "--tune", "training.lr=0.1,0.2", *more]
    tiny = sets(*(each for each in TINY if not each.startswith(("method.", "baselines", "data.n_silos"))))
    result = command("compare", "digits", *tiny, *asked, "--out", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert assert_same_again(tmp_path / "out") >= {*RUN, "comparison.json", "grid.json"}


@pytest.mark.parametrize("method", ["fedavg", "fedpn"])
@pytest.mark.long
def test_an_audit_is_the_same_when_read_and_written(tmp_path: Path, method: str) -> None:
    asked = ("--seeds", "0,1", "--fractions", "1/2,1")
    settings = sets(*TINY[1:], f"method.name={method}")
    result = command("audit", "digits", *settings, *asked, "--out", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert assert_same_again(tmp_path / "out") >= {*RUN, "audit.json", "plan.json"}


# Files of other versions


def call(folder: Path) -> caveat.Run:
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    silos = caveat.data.from_arrays({f"silo-{k}": (draw.normal(0, 1, (60, 4)) + y[:, None], y) for k in range(3)})
    training = caveat.Training(batch_size=16, lr=0.01, local_steps=2)
    return caveat.run(
        silos, caveat.TrFedDis(), rounds=2, model=caveat.ModelSettings(name="mlp", width=8, features=4, hidden=8),
        training=training, out=folder,
        uncertainty=caveat.Uncertainty(policy="switch", handover_rate=0.2, abstain_rate=0.2),
        newcomers=["silo-2"], every=2,
    )  # fmt: skip


def audit(folder: Path) -> None:
    asked = ("--seeds", "0", "--fractions", "1", "--out", folder, "--quiet")
    result = command("audit", "digits", *sets(*TINY), *asked)
    if isinstance(result.exception, SystemExit):
        raise DataError(result.stderr.removeprefix("error: ").strip())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a call from Python, a comparison, an audit and a federation, each finished."""
    here = tmp_path_factory.mktemp("folders")
    compared = (*sets(*TINY[1:5], *TINY[6:]), "--methods", "fedavg", "--seeds", "0")
    for name, asked in (("run", sets(*TINY)), ("compare", compared)):
        result = command(name, "digits", *asked, "--out", here / name, "--quiet")
        assert result.exit_code == 0, result.stderr
    call(here / "call")
    audit(here / "audit")
    Federation(here / "federation", "fedavg", 1).serve(start=StartCommand("project", ()))
    return here


def predict(folder: Path) -> None:
    run = caveat.load(folder)
    run.predictor("silo-0")(run.silos[0].test.x)


READERS: list[tuple[str, str, Callable[[Path], object]]] = [
    ("run", "summary.json", read_run),
    ("run", "summary.json", lambda folder: caveat.load(folder).summary),
    ("run", "summary.json", lambda folder: FinishedRun(folder).summary),
    ("run", "rounds.jsonl", lambda folder: read_rows(folder / "rounds.jsonl")),
    ("run", "ledger.jsonl", lambda folder: read_ledger(folder / "ledger.jsonl")),
    ("run", "ledger.jsonl", lambda folder: read_sent(folder / "ledger.jsonl")),
    ("run", "gallery.json", lambda folder: read(folder / "gallery.json", Gallery)),
    ("run", "preparation.json", kept_preparation),
    ("run", "model/model.json", lambda folder: read(folder / "model" / "model.json", ModelFile)),
    ("run", "state/checkpoint.json", lambda folder: ServerStore(folder / "state").load()),
    ("call", "run.json", lambda folder: read(folder / "run.json", RunFile)),
    ("compare", "grid.json", grid_of),
    ("compare", "comparison.json", read_comparison),
    ("audit", "plan.json", audit),
    ("audit", "audit.json", lambda folder: read(folder / "audit.json", AuditFile)),
    ("federation/run", "federation.json", lambda folder: read(folder / "federation.json", FederationFile)),
    ("federation/run", "started.json", lambda folder: resume_federation(folder, None)),
    ("federation/silos/hill/state/*/fedavg", "silo.json", open_member),
]


@pytest.mark.parametrize(("folder", "name", "reader"), READERS)
def test_a_file_of_another_version_is_refused_with_both_versions(
    tmp_path: Path, folders: Path, folder: str, name: str, reader: Callable[[Path], object]
) -> None:
    (source,) = folders.glob(folder)
    copy = shutil.copytree(source, tmp_path / "copy")
    path = copy / name
    text = path.read_text()
    found: dict[str, Any] = json.loads(text.splitlines()[0] if path.suffix == ".jsonl" else text)
    path.write_text(json.dumps(found | {"schema": SCHEMA + 1}) + "\n")
    with pytest.raises((DataError, RunError)) as refused:
        reader(copy)
    sentence = str(refused.value)
    assert path.name in sentence
    assert (
        f": schema {SCHEMA + 1} was written by another version of caveat; this version reads schema {SCHEMA}"
        in sentence
    )
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
    rewrite(run / "rounds.jsonl", "".join(lines))
    with pytest.raises(DataError, match=r"rounds\.jsonl, line 5: examples: the number is larger"):
        write_report(run)
