"""Early stopping: when training ends, what comes after it, and that an interruption changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caveat
from caveat import config
from caveat.core import ConfigurationError
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays
from caveat.html.run.page import write_report
from caveat.methods import APFL, FedAvg, FedBABU

ROUNDS = 12
TRAINING = caveat.Training(batch_size=8, lr=0.05, local_epochs=3)


@pytest.fixture(scope="module")
def silos() -> Silos:
    """Labels that are mostly noise, which a model soon learns by heart."""
    draw = np.random.default_rng(0)
    return from_arrays({name: (draw.normal(size=(60, 5)), draw.integers(0, 2, 60)) for name in "abc"})


def losses(folder: Path) -> list[float]:
    """The mean validation loss after each round of training."""
    found: dict[int, list[float]] = {}
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get("split") == "validation" and row["phase"] == "train":
            found.setdefault(row["round"], []).append(row["nll"])
    return [sum(values) / len(values) for _, values in sorted(found.items())]


def stops_at(values: list[float], patience: int) -> int:
    """The round after which training ends, by the definition."""
    for t in range(len(values)):
        best = int(np.argmin(values[: t + 1]))
        if t - best >= patience:
            return t + 1
    return len(values)


def called(silos: Silos, folder: Path, method: Any = None, **more: Any) -> caveat.Run:
    return caveat.run(silos, method or FedAvg(), rounds=ROUNDS, training=TRAINING, out=folder, **more)


@pytest.mark.parametrize("patience", [1, 3])
def test_training_ends_after_so_many_evaluations_without_a_lower_loss(
    silos: Silos, patience: int, tmp_path: Path
) -> None:
    whole = called(silos, tmp_path / "whole")
    expected = stops_at(losses(whole.folder), patience)
    assert 1 < expected < ROUNDS
    run = called(silos, tmp_path / "run", early_stopping_patience=patience)
    assert run.summary["rounds_run"] == expected
    assert run.summary["stopped"] is True
    page = write_report(run.folder).read_text()
    assert "stopped early" in page
    assert "stopped early" not in write_report(whole.folder).read_text()
    assert losses(run.folder) == losses(whole.folder)[:expected]
    assert "stopped" not in json.loads((whole.folder / "summary.json").read_text())


def test_never_is_a_run_without_it(silos: Silos, tmp_path: Path) -> None:
    one = called(silos, tmp_path / "one")
    other = called(silos, tmp_path / "other", early_stopping_patience=ROUNDS)
    assert "stopped" not in json.loads((other.folder / "summary.json").read_text())
    for name in ("rounds.jsonl", "model/model.safetensors"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()


@pytest.mark.parametrize("method", [FedBABU(fine_tune_epochs=1), APFL()])
def test_rounds_after_training_are_made_all_the_same(silos: Silos, method: Any, tmp_path: Path) -> None:
    run = called(silos, tmp_path, method, early_stopping_patience=1)
    assert run.summary["stopped"] is True
    assert run.summary["temperature"]
    assert set(run.answers("a")(run.silos.named("a").test.x)) == set(method.models)


class Cut(Exception):
    """Stops a run."""


class CutsAt:
    def __init__(self, number: int) -> None:
        self.number = number

    def begin(self, title: str, rounds: int) -> None: ...

    def round(self, number: int, phase: str, metrics: object) -> None:
        if number == self.number:
            raise Cut

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


@pytest.mark.parametrize("before", [1, 0])
def test_an_interruption_changes_nothing(silos: Silos, before: int, tmp_path: Path) -> None:
    """Before the round after which training ends, and right after it."""
    whole = called(silos, tmp_path / "whole", early_stopping_patience=2)
    with pytest.raises(Cut):
        called(
            silos, tmp_path / "cut", early_stopping_patience=2, progress=CutsAt(whole.summary["rounds_run"] - before)
        )
    run = called(silos, tmp_path / "cut", early_stopping_patience=2, workers=2)
    for name in ("rounds.jsonl", "ledger.jsonl", "model/model.safetensors"):
        assert (run.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_what_it_cannot_do_is_refused(silos: Silos, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"evaluation\.early_stopping_patience = 2 needs 'validation'"):
        called(silos, tmp_path, early_stopping_patience=2, splits=["test"])
    for source in ("ensemble", "snapshots"):
        expected = f"early_stopping_patience = 2 cannot be combined with .*'{source}'"
        with pytest.raises(ConfigurationError, match=expected):
            called(silos, tmp_path, early_stopping_patience=2, uncertainty=caveat.Uncertainty(source=source))
    with pytest.raises(ConfigurationError, match=r"early_stopping_patience = 0: must be at least 1"):
        config.load(None, ["evaluation.early_stopping_patience=0"])
