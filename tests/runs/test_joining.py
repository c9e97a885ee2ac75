"""A silo joins a finished federation: it gets what is its own, nobody else changes, and nothing leaves it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import caveat as command
from commands import one_error

import caveat
from caveat.core import ConfigurationError, DataError
from caveat.data.silo_collection import Silos
from caveat.files import lines_of, read_kept
from caveat.methods import FMLU, UEFL, FedAvg, FedBN, FedPer, FedPN, TrFedDis
from caveat.nn.models import ModelSettings
from caveat.runs.finished_run import Run
from caveat.runs.joining import some_of
from caveat.runs.progress import Silent
from caveat.training.fit import Training
from caveat.wrappers.uncertainty_settings import Uncertainty

ROUNDS = 4
FAST: dict[str, Any] = {
    "rounds": ROUNDS,
    "model": ModelSettings(name="mlp", width=16, norm=True),
    "training": Training(batch_size=32, lr=0.01),
    "every": ROUNDS,
}
FEW = {"mc_samples": 2}
METHODS = [
    FedAvg(**FEW), FedBN(**FEW), UEFL(codewords=4, threshold=0.0, margin=0.0, iterations=2, extra_rounds=1, **FEW),
    FedPN(layers=2, personal_epochs=1, personal_steps=5), TrFedDis(), FedPer(**FEW), FMLU(**FEW),
]  # fmt: skip
KEPT = {
    "fedavg": set(), "fedbn": {"model"}, "uefl": {"model", "entropy"}, "fedpn": {"own", "classes"},
    "trfeddis": {"model", "own"}, "fedper": {"model"}, "fmlu": {"own"},
}  # fmt: skip
"""The groups of tensors, beside those of what follows training, that each method keeps at a silo."""
AFTER = {"likelihood", "familiarity", "decision"}
each = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
NEW = "silo-3"


@pytest.fixture(scope="module")
def silos() -> Silos:
    return caveat.data.rotated(
        caveat.data.digits(), (0, 20, 40, 60), silos_per_angle=1, samples_per_silo=150,
        split=caveat.data.Split(calibration=0.1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def others(silos: Silos) -> Silos:
    return some_of(silos, [name for name in silos.names if name != NEW])


@pytest.fixture(scope="module")
def newcomer(silos: Silos) -> Silos:
    return some_of(silos, [NEW])


@pytest.fixture(scope="module")
def finished(others: Silos) -> Run:
    return caveat.run(others, FedBN(**FEW), **FAST)


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@each
def test_it_gets_what_is_its_own_and_nobody_else_changes(
    method: Any, others: Silos, newcomer: Silos, tmp_path: Path
) -> None:
    run = caveat.run(others, method, out=tmp_path / "run", **FAST)
    before = files(run.folder)
    joined = caveat.join(run, newcomer, rounds=2, out=tmp_path / "joined")
    assert files(run.folder) == before
    at = joined.experiment.at(NEW)
    groups = {name for name, tensors in at.state.items() if tensors}
    assert groups - AFTER == KEPT[method.name]
    assert "likelihood" in groups
    assert "familiarity" in groups
    model, theirs = at.down, run.experiment.at(others.names[0]).down
    assert model.keys() == theirs.keys()
    assert all(torch.equal(t, theirs[group][name]) for group in model for name, t in model[group].items())
    # Nothing of training or calibration leaves it; evaluations of its own folder are what it tells its user.
    lines = [line for line, _ in lines_of(joined.folder / "ledger.jsonl")]
    sent = [line["bytes"] for line in lines if "silo" in line and "split" not in line]
    assert sent
    assert not any(sent)


def test_training_changes_nothing_but_what_stays_at_the_silo(finished: Run, newcomer: Silos, tmp_path: Path) -> None:
    """FedBN: the newcomer's normalisation is trained for the finished federation's weights, not for others."""
    one, four = (caveat.join(finished, newcomer, rounds=n, out=tmp_path / str(n)) for n in (0, ROUNDS))
    states = [run.experiment.at(NEW).state.get("model", {}) for run in (one, four)]
    assert not states[0] or any(not torch.equal(states[0][n], t) for n, t in states[1].items())
    nll = [run.summary["silos"][0]["test"]["nll"] for run in (one, four)]
    assert nll[1] < nll[0]


def test_figures_before_are_those_of_a_newcomer(silos: Silos, tmp_path: Path) -> None:
    run = caveat.run(silos, FedBN(**FEW), newcomers=[NEW], **FAST)
    joined = caveat.join(run, rounds=1, out=tmp_path / "joined")
    (record,) = (each["test"] for each in run.summary["silos"] if each["name"] == NEW)
    before = json.loads((joined.folder / "join.json").read_text())["before"][NEW]
    assert {name: record[name] for name in before} == before
    assert [each["name"] for each in joined.summary["silos"]] == [NEW]


def test_the_same_bits_after_an_interruption(finished: Run, newcomer: Silos, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    class Cuts(Silent):
        def round(self, *_: object) -> None:
            raise Cut

    whole = caveat.join(finished, newcomer, rounds=3, out=tmp_path / "whole")
    with pytest.raises(Cut):
        caveat.join(finished, newcomer, rounds=3, out=tmp_path / "cut", progress=Cuts())
    cut = caveat.join(finished, newcomer, rounds=3, out=tmp_path / "cut")
    kept = [read_kept(run.folder / "state" / "states.jsonl")[NEW].sha256 for run in (whole, cut)]
    assert kept[0] == kept[1]


def test_its_folder_opens_without_data(finished: Run, newcomer: Silos, tmp_path: Path) -> None:
    joined = caveat.join(finished, newcomer, rounds=1, out=tmp_path / "joined")
    x = newcomer[0].test.x
    there = caveat.load(joined.folder).predictor(NEW)(x)
    assert torch.equal(there.probs, joined.predictor(NEW)(x).probs)
    with pytest.raises(DataError, match="joined"):
        _ = caveat.load(joined.folder).silos


def test_a_promise_is_its_own_or_there_is_none(others: Silos, newcomer: Silos, tmp_path: Path) -> None:
    """That of the federation was tested without it."""
    promised = Uncertainty(policy="guaranteed", risk=0.4, confidence_level=0.8, mc_samples=2)
    run = caveat.run(others, FedBN(**FEW), uncertainty=promised, **FAST)
    assert run.summary["guarantee"]["guaranteed"]
    joined = caveat.join(run, newcomer, rounds=3, out=tmp_path / "own")
    assert joined.summary.get("guarantee") is None
    assert joined.summary["silos"][0]["promise"]["whose"] == "silo"
    few = dataclasses.replace(newcomer[0], calibration=caveat.Data(*(t[:2] for t in newcomer[0].calibration)))
    without = caveat.join(run, dataclasses.replace(newcomer, silos=(few,)), rounds=3, out=tmp_path / "few")
    assert "promise" not in without.summary["silos"][0]
    assert without.summary["silos"][0]["decisions"]["abstain"] == 1


@pytest.mark.parametrize(
    ("silo", "changes", "told"),
    [
        ("silo-0", {}, "took part"),
        (NEW, {"classes": tuple("abcdefghij")}, "classes"),
        (NEW, {"normalize": caveat.data.Normalize(mean=(0.1,))}, "normalize"),
    ],
)
def test_other_data_are_refused(
    silo: str, changes: Any, told: str, finished: Run, silos: Silos, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=told):
        caveat.join(finished, dataclasses.replace(some_of(silos, [silo]), **changes), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_more_rounds_than_the_federation_made_are_refused(finished: Run, newcomer: Silos, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"rounds = 9, expected 0 to {ROUNDS}"):
        caveat.join(finished, newcomer, rounds=9, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_join_in_the_folder_is_refused(finished: Run, newcomer: Silos, tmp_path: Path) -> None:
    caveat.join(finished, newcomer, rounds=0, out=tmp_path / "out")
    with pytest.raises(ConfigurationError, match="a join with 0 rounds, not 2"):
        caveat.join(finished, newcomer, rounds=2, out=tmp_path / "out")


def test_without_newcomers_data_are_needed(finished: Run) -> None:
    with pytest.raises(ConfigurationError, match="has no newcomers"):
        caveat.join(finished)


# From the command line, with a table of its own.


def table(path: Path, seed: int, labels: tuple[str, ...] = ("ill", "well"), rows: int = 120) -> None:
    random = np.random.default_rng(seed)
    y = random.integers(0, len(labels), rows)
    x = random.normal(y[:, None] + 0.3 * seed, 1.0, (rows, 2))
    lines = [f"{a:.4f},{b:.4f},{'red' if a > 0 else 'blue'},{labels[k]}" for (a, b), k in zip(x, y, strict=True)]
    path.write_text("\n".join(["one,two,colour,state", *lines]) + "\n")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for seed, name in enumerate(("a", "b", "late")):
        table(folder / f"{name}.csv", seed)
    table(folder / "strange.csv", 5, ("ill", "well", "odd"))
    (folder / "c.toml").write_text(
        f'rounds = 3\nbaselines = []\n[data]\nsource = "csv:{folder}/a.csv,{folder}/b.csv"\ntarget = "state"\n'
        '[model]\nname = "mlp"\nwidth = 8\n[method]\nname = "fedper"\n[training]\nbatch_size = 16\n'
        "[uncertainty]\nmc_samples = 2\n"
    )
    assert command("run", str(folder / "c.toml"), "--out", str(folder / "run"), "--quiet").exit_code == 0
    return folder


def test_a_table_joins_from_the_command_line(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "joined"
    done = command("join", str(tables / "run"), f"csv:{tables}/late.csv", "--out", str(out), "--rounds", "2", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert "late" in done.stdout
    assert (out / "report.html").exists()
    asked = command("predict", str(out), str(tables / "late.csv"), "--silo", "late")
    assert asked.exit_code == 0, asked.stderr
    assert len(asked.stdout.splitlines()) == 121


def test_new_labels_are_refused(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "joined"
    done = command("join", str(tables / "run"), f"csv:{tables}/strange.csv", "--out", str(out), "--quiet")
    assert "'odd'" in one_error(done, 3)
    assert not out.exists()
