"""The battery of foreign inputs: what they are, what is measured of them, and the command that does it."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import caveat as command
from commands import one_error

import caveat
from caveat.analysis.ood import OWN, Row, foreign, measure
from caveat.config import load
from caveat.core import Data, Silo
from caveat.data.user_data import from_arrays
from caveat.methods import METHODS
from caveat.uncertainty.typicality import SCORE

SMALL = {"rounds": 2, "model": caveat.ModelSettings(name="mlp", width=8, features=4, hidden=8)}


def silo(x: torch.Tensor) -> Silo:
    data = Data(x, torch.zeros(len(x), dtype=torch.long))
    return Silo("a", "", data, data, data, data, streams={"ood_global": Data(x + 1, data.y - 1)})


@pytest.fixture(scope="module")
def table() -> caveat.Run:
    draw = np.random.default_rng(0)
    label = np.arange(400) % 2
    arrays = {name: (draw.normal(size=(400, 4)) + 1.5 * label[:, None], label) for name in "ab"}
    return caveat.run(from_arrays(arrays), caveat.FedAvg(), seed=3, **SMALL)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rows(table: caveat.Run) -> list[Row]:
    return measure(table, "two clinics", 3)


def test_familiarity_notices_moved_rows_of_a_quantity() -> None:
    draw = np.random.default_rng(0)
    x = {name: draw.normal(size=(400, 4)) for name in "ab"}
    made = from_arrays({name: (each, 5 * each[:, 0]) for name, each in x.items()}, predict="quantity")
    rows = measure(caveat.run(made, caveat.FedAvg(), seed=3, **SMALL), "two clinics", 3)  # type: ignore[arg-type]
    assert all(row.wrong is None for row in rows)
    far = {row.score: row.auroc for row in rows if row.inputs == "moved by 20 sd"}
    assert far[SCORE] > 0.99
    assert "spread" in far


def test_images_are_moved_as_their_kinds_say() -> None:
    x = torch.rand(6, 1, 8, 8) * 2 - 1
    x[0, 0, 0, 0], x[0, 0, 0, 1] = -1.0, 1.0
    found = {each.kind: each for each in foreign(silo(x), 0)}
    assert torch.equal(found["black"].x, torch.full_like(x, -1))
    assert torch.equal(found["inverted"].x, -x)
    assert torch.equal(found["shuffled pixels"].x.flatten(1).sort().values, x.flatten(1).sort().values)
    assert not torch.equal(found["shuffled pixels"].x, x)
    added = found["noise of 255"].x - x
    assert float(added.std()) == pytest.approx(2.0, rel=0.15)
    torch.testing.assert_close(found["noise of 24"].x - x, added * 24 / 255)
    assert torch.equal(found["other data"].x, x + 1)
    far = {kind for kind, each in found.items() if each.far}
    assert {"noise of 24", "black", "other data"} <= far
    assert far.isdisjoint({"noise of 8", "inverted", "blurred", "shifted"})


def test_rows_of_tables_are_moved_where_they_hold_numbers() -> None:
    x = torch.randn(200, 3)
    x[:, 1] = (x[:, 1] > 0).float()  # a code
    found = {each.kind: each.x for each in foreign(silo(x), 0)}
    moved = (found["moved by 5 sd"] - x).abs() / x.std(0)
    assert torch.allclose(moved[:, [0, 2]], torch.tensor(5.0), rtol=1e-4)
    assert not moved[:, 1].any()
    assert torch.equal(found["columns swapped"], x[:, [2, 1, 0]])
    assert torch.equal((found["one column by 10 sd"] != x).any(0), torch.tensor([True, False, False]))


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    one, same, other = (
        [each.x for each in foreign(silo(torch.rand(5, 3, 9, 9, generator=torch.Generator().manual_seed(1))), seed)]
        for seed in (0, 0, 1)
    )
    assert all(map(torch.equal, one, same))
    assert not all(map(torch.equal, one, other))


def test_far_rows_are_told_from_own_ones_by_every_silo(rows: list[Row]) -> None:
    told = {(row.inputs, row.score): row for row in rows}
    far = told["moved by 20 sd", SCORE]
    assert (far.federation, far.method, far.seed, far.silos, far.far) == ("two clinics", "fedavg", 3, 2, True)
    assert far.auroc is not None
    assert far.worst_silo is not None
    assert far.auroc >= far.worst_silo > 0.99
    assert far.fpr95 == pytest.approx(0, abs=0.02)
    assert far.unfamiliar > 0.95
    assert {score for kind, score in told if kind == "moved by 20 sd"} >= {"total", "epistemic", SCORE}


def test_own_inputs_have_false_alarms_and_errors_and_nothing_to_be_told_from(
    rows: list[Row], table: caveat.Run
) -> None:
    (own,) = [row for row in rows if row.inputs == OWN]
    silos = table.summary["silos"]
    assert own.auroc is None
    for name in ("unfamiliar", "novel", "unsure"):
        assert getattr(own, name) == pytest.approx(np.mean([each["test"][name] for each in silos]))
    assert own.wrong == pytest.approx(1 - np.mean([each["test"]["accuracy"] for each in silos]))
    assert own.answered == 1


def test_every_federation_of_the_table_is_a_configuration() -> None:
    folder = Path(__file__).parents[2] / "benchmarks" / "ood"
    files = sorted(set(folder.glob("*.toml")) - {folder / "methods.toml"})
    assert len(files) == 9
    for file in files:
        assert load(str(file)).data.split.calibration * 100 >= 20
    for sets in tomllib.loads((folder / "methods.toml").read_text()).values():
        assert load(str(folder / "digits.toml"), sets.split()).method.name in METHODS


@pytest.mark.long
def test_the_command_measures_runs_and_writes_rows(tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    few = ("rounds=1", "training.local_epochs=1", "data.n_silos=3", "baselines=[]")
    assert command("run", "digits", *(f"--set={each}" for each in few), "--out", run, "--quiet").exit_code == 0
    found = command("ood", run, "--out", out)
    assert found.exit_code == 0, found.stderr
    assert "noise of 38 *" in found.stdout
    rows = list(csv.DictReader((out / "ood.csv").read_text().splitlines()))
    assert {"black", "noise of 38", OWN} <= {row["inputs"] for row in rows}


def test_a_folder_that_cannot_be_made_is_named_before_runs_are_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = one_error(command("ood", tmp_path / "run", "--out", tmp_path / "file" / "x"), 2)
    assert "--out" in line
    assert "Not a directory" in line
