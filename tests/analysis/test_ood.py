"""The battery of foreign inputs: what they are, what is measured of them, and the command that does it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import caveat as command
from commands import one_error

import caveat
from caveat.analysis.ood import OWN, Row, federations, foreign, measure, variants
from caveat.config import load
from caveat.core import Data, Silo
from caveat.data.user_data import from_arrays
from caveat.methods import METHODS
from caveat.uncertainty.familiarity import SCORE

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


@pytest.mark.parametrize("name", federations())
def test_every_federation_is_a_configuration(name: str) -> None:
    from caveat.analysis.ood import FEDERATIONS

    config = load(str(FEDERATIONS / f"{name}.toml"))
    assert config.rounds is not None
    assert config.data.split.calibration * 100 >= 20


@pytest.mark.parametrize("name", variants())
def test_every_variant_fits_its_method(name: str) -> None:
    from caveat.analysis.ood import FEDERATIONS

    config = load(str(FEDERATIONS / "digits.toml"), variants()[name].partition(": ")[2].split())
    assert config.method.name in METHODS


@pytest.mark.long
def test_the_command_trains_measures_and_writes_rows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = (
        "ood", "--federations", "digits", "--methods", "fedavg", "--seeds", "0", "--out", out, "--workers", "1",
        "--quiet", "--set", "rounds=1", "--set", "training.local_epochs=1", "--set", "data.n_silos=3",
    )  # fmt: skip
    first = command(*asked)
    assert first.exit_code == 0, first.stderr
    assert "digits: AUROC of unfamiliar" in first.stdout.replace("\n", " ")
    assert "digits: % unfamiliar + % novel + % unsure" in first.stdout.replace("\n", " ")
    text = (out / "ood.csv").read_text()
    found = list(csv.DictReader(text.splitlines()))
    assert {row["method"] for row in found} == {"fedavg"}
    assert {"black", "noise of 38", OWN, "inputs of other silos"} <= {row["inputs"] for row in found}
    again = command(*asked)
    assert again.exit_code == 0
    assert (out / "ood.csv").read_text() == text
    runs = command("ood", out / "digits" / "runs" / "fedavg" / "seed-0")
    assert runs.exit_code == 0
    assert "noise of 38 *" in runs.stdout


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "Give either run folders or --federations, not both"),
        (("--federations", "bogus"), "--federations bogus: unknown name (there are: cifar10, digits"),
        (("--federations", "digits", "--methods", "fedavgg"), "--methods fedavgg: unknown name; did you mean"),
        (("--federations", "digits", "--seeds", "x"), "--seeds x: expected comma-separated whole numbers"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_any_work(given: tuple[str, ...], told: str, tmp_path: Path) -> None:
    assert told in one_error(command("ood", *given, "--out", tmp_path / "out"), 2)
    assert not (tmp_path / "out" / "digits").exists()


def test_a_folder_that_cannot_be_made_is_named_before_runs_are_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = one_error(command("ood", tmp_path / "run", "--out", tmp_path / "file" / "x"), 2)
    assert "--out" in line
    assert "Not a directory" in line
