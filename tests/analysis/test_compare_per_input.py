"""What differences are decided by: what test inputs contribute to two runs, and which inputs count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from caveat.analysis.compare.compared_run import FinishedRun, inputs_file
from caveat.analysis.compare.per_input import differences, paired
from caveat.analysis.statistics import SeedDifferences
from caveat.core import DataError
from caveat.files import to_bytes
from caveat.files.schema import Contrast, Measure


def between(contrast: Contrast, one: Path, other: Path) -> SeedDifferences:
    return differences(contrast, FinishedRun(one), FinishedRun(other))


def kept(folder: Path, own: list[int], whole: list[int], foreign: list[int] | None) -> Path:
    """A run whose only silo has these right: by its own prediction, by the federation's model, of foreign inputs."""
    found = {
        "input": torch.arange(len(own)), "own/accuracy": torch.tensor(own).float(),
        "global/accuracy": torch.tensor(whole).float(),
    }  # fmt: skip
    if foreign is not None:
        right = torch.tensor(foreign).float()
        found |= {"ood_local/input": torch.arange(10, 10 + len(foreign)), "ood_local/own/accuracy": right}
        found |= {"ood_local/global/accuracy": torch.ones_like(right)}
    inputs_file(folder).write_bytes(to_bytes({"a": found}))
    return folder


def test_known_and_foreign_inputs_count_by_their_shares(tmp_path: Path) -> None:
    one = kept(tmp_path / "one", [1, 1, 1, 1], [1, 0, 1, 1], [1, 0])
    two = kept(tmp_path / "two", [1, 0, 1, 0], [0, 0, 0, 0], [0, 0])
    found = between(Contrast("", "x", "y", known=0.75), one, two)
    assert found.values.tolist() == [0, 1, 0, 1, 1, 0]
    assert found.weights.tolist() == pytest.approx([0.75 / 4] * 4 + [0.25 / 2] * 2)
    assert found.silos.tolist() == [0, 0, 0, 0, 1, 1]  # parts of a silo's inputs have means of their own
    alone = between(Contrast("", "x", "y"), one, two)
    assert alone.values.tolist() == [0, 1, 0, 1]
    assert alone.weights.sum() == pytest.approx(1.0)


def test_the_models_of_both_can_differ(tmp_path: Path) -> None:
    one = kept(tmp_path / "one", [1, 1, 1, 1], [1, 0, 1, 1], [1, 0])
    itself = between(Contrast("", "x", "x", b_model="global"), one, one)
    assert itself.values.tolist() == [0, 1, 0, 0]
    with pytest.raises(DataError, match="no accuracy of the 'local' model at silo 'a'"):
        between(Contrast("", "x", "x", b_model="local"), one, one)


def test_a_contrast_of_foreign_inputs_needs_some(tmp_path: Path) -> None:
    one = kept(tmp_path / "one", [1, 1], [1, 0], None)
    with pytest.raises(DataError, match="no out-of-distribution inputs of silo 'a'"):
        between(Contrast("", "x", "y", known=0.5), one, one)


def test_a_contrast_can_be_of_the_silos_that_were_left_out(tmp_path: Path) -> None:
    folders = []
    for name, right in (("one", [1, 1]), ("two", [0, 1])):
        found = {"input": torch.arange(2), "own/accuracy": torch.tensor(right).float()}
        inside = {"input": torch.arange(2, 4), "own/accuracy": torch.ones(2)}
        folders.append(tmp_path / name)
        inputs_file(folders[-1]).write_bytes(to_bytes({"inside": inside, "outside": found}))
    one, two = folders
    assert between(Contrast("", "x", "y", silos=("outside",)), one, two).values.tolist() == [1, 0]
    assert between(Contrast("", "x", "y"), one, two).values.tolist() == [0, 0, 1, 0]
    with pytest.raises(DataError, match="no silo 'nowhere'; silos: inside, outside"):
        between(Contrast("", "x", "y", silos=("nowhere",)), one, two)


def test_a_contrast_can_be_of_another_figure(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, nll in zip(folders, ([0.25, 1.0], [0.5, 0.5]), strict=True):
        found = {"input": torch.arange(2), "own/accuracy": torch.ones(2), "own/nll": torch.tensor(nll)}
        inputs_file(folder).write_bytes(to_bytes({"a": found}))
    assert between(Contrast("", "x", "y", figure="nll"), *folders).values.tolist() == [-0.25, 0.5]
    with pytest.raises(DataError, match="has no augrc of the 'own' model"):
        between(Contrast("", "x", "y", figure="augrc"), *folders)


@dataclass(frozen=True)
class MadeUp:
    """As much of a finished run as differences need."""

    figures: dict[str, float]
    inputs: dict[str, Any] | None = None

    @property
    def silos(self) -> list[Any]:
        return [SimpleNamespace(name=name, n_test=2) for name in "ab"]

    def of_silos(self, measure: Measure) -> dict[str, float]:
        return self.figures if measure.figure else {}

    def of_run(self, measure: Measure) -> float | None:
        return self.figures["a"] if measure.path else None


def made_up(a: float, b: float, values: list[float] | None, name: str = "own/nll", first: int = 0) -> Any:
    each = {"input": torch.arange(first, first + 2), name: torch.tensor(values)} if values else {}
    return MadeUp({"a": a, "b": b}, {"a": each, "b": each} if values else None)


def test_pairs_use_the_values_of_inputs_and_the_tables_difference() -> None:
    one, two = made_up(0.5, 0.25, [0.5, 1.0]), made_up(0.25, 0.25, [0.25, 0.25])
    found = paired(Measure("nll", "nll"), one, two)
    assert found is not None
    assert (found.mean, found.values.tolist(), found.silos.tolist()) == (0.125, [0.25, 0.75] * 2, [0, 0, 1, 1])
    pooled = paired(Measure("nll", path="models/global/pooled/nll"), *(
        made_up(a, 0, values, "global/nll") for a, values in ((0.5, [1.0, 0.0]), (0.25, [0.0, 0.0]))
    ))  # fmt: skip
    assert pooled is not None
    assert (pooled.mean, pooled.pooled) == (0.25, True)


def test_pairs_without_values_of_inputs_take_inputs_for_fixed() -> None:
    known = made_up(0.5, 0.25, [0.5, 1.0])
    for measure, other in (
        (Measure("nll", "nll"), made_up(0.25, 0.25, None)),  # not recorded
        (Measure("nll", "nll"), made_up(0.25, 0.25, [1.0, 1.0], first=7)),  # other inputs
        (Measure("mine", "metrics/mine"), made_up(0.25, 0.25, [0.25, 0.25])),
        (Measure("nll", "streams/ood_local/models/*/nll"), made_up(0.25, 0.25, [0.25, 0.25])),
    ):
        found = paired(measure, known, other)
        assert found is not None
        assert found.inputs is None
        assert found.values.tolist() == [0.25, 0.0]
    counted = paired(Measure("accuracy", "accuracy"), known, made_up(math.nan, 0.25, None))
    assert counted is not None
    assert (counted.values.tolist(), list(counted.steps)) == ([0.0], [0.5])  # type: ignore[arg-type]
    assert paired(Measure("nll", "nll"), known, MadeUp({})) is None  # type: ignore[arg-type]
