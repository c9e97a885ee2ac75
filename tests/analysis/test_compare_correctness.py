"""What contrasts are decided by: which inputs two runs have right, of those that silos know and of foreign ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from caveat.analysis.compare.correctness import differences, place_of
from caveat.core import DataError
from caveat.files import to_bytes
from caveat.files.schema import Contrast


def kept(folder: Path, own: list[int], whole: list[int], foreign: list[int] | None) -> Path:
    """A run whose only silo has these right: by its own prediction, by the federation's model, of foreign inputs."""
    found = {
        "input": torch.arange(len(own)), "own": torch.tensor(own, dtype=torch.uint8),
        "global": torch.tensor(whole, dtype=torch.uint8),
    }  # fmt: skip
    if foreign is not None:
        right = torch.tensor(foreign, dtype=torch.uint8)
        found |= {"ood_local/input": torch.arange(10, 10 + len(foreign)), "ood_local/own": right}
        found |= {"ood_local/global": torch.ones_like(right)}
    place_of(folder).write_bytes(to_bytes({"a": found}))
    return folder


def test_known_and_foreign_inputs_count_by_their_shares(tmp_path: Path) -> None:
    one = kept(tmp_path / "one", [1, 1, 1, 1], [1, 0, 1, 1], [1, 0])
    two = kept(tmp_path / "two", [1, 0, 1, 0], [0, 0, 0, 0], [0, 0])
    found = differences(Contrast("", "x", "y", known=0.75), one, two)
    assert found.values.tolist() == [0, 1, 0, 1, 1, 0]
    assert found.weights.tolist() == pytest.approx([0.75 / 4] * 4 + [0.25 / 2] * 2)
    assert found.silos.tolist() == [0, 0, 0, 0, 1, 1]  # parts of a silo's inputs have means of their own
    alone = differences(Contrast("", "x", "y"), one, two)
    assert alone.values.tolist() == [0, 1, 0, 1]
    assert alone.weights.sum() == pytest.approx(1.0)


def test_the_models_of_both_can_differ(tmp_path: Path) -> None:
    one = kept(tmp_path / "one", [1, 1, 1, 1], [1, 0, 1, 1], [1, 0])
    itself = differences(Contrast("", "x", "x", b_model="global"), one, one)
    assert itself.values.tolist() == [0, 1, 0, 0]
    with pytest.raises(DataError, match="no predictions of the 'local' model at silo 'a'"):
        differences(Contrast("", "x", "x", b_model="local"), one, one)


def test_a_contrast_of_foreign_inputs_needs_some(tmp_path: Path) -> None:
    one = kept(tmp_path / "one", [1, 1], [1, 0], None)
    with pytest.raises(DataError, match="no out-of-distribution inputs of silo 'a'"):
        differences(Contrast("", "x", "y", known=0.5), one, one)


def test_a_contrast_can_be_of_the_silos_that_were_left_out(tmp_path: Path) -> None:
    folders = []
    for name, right in (("one", [1, 1]), ("two", [0, 1])):
        found = {"input": torch.arange(2), "own": torch.tensor(right, dtype=torch.uint8)}
        inside = {"input": torch.arange(2, 4), "own": torch.ones(2, dtype=torch.uint8)}
        folders.append(tmp_path / name)
        place_of(folders[-1]).write_bytes(to_bytes({"inside": inside, "outside": found}))
    one, two = folders
    assert differences(Contrast("", "x", "y", silos=("outside",)), one, two).values.tolist() == [1, 0]
    assert differences(Contrast("", "x", "y"), one, two).values.tolist() == [0, 0, 1, 0]
    with pytest.raises(DataError, match="no silo 'nowhere'; there are: inside, outside"):
        differences(Contrast("", "x", "y", silos=("nowhere",)), one, two)
