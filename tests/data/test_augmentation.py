"""Random changes of training batches: what they do, who sees them, and that they follow from the seed alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import caveat
from caveat import data
from caveat.core import AugmentedData, ConfigurationError, Data, RunError, seeded
from caveat.data.augmentation import (
    CHANGES,
    random_brightness,
    random_crop,
    random_erasing,
    random_flip,
    random_rotation,
)
from caveat.data.settings import DataSettings
from caveat.data.user_data import from_arrays
from caveat.methods import METHODS

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
PICTURES = RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)


def test_flipped_images_are_mirrored_about_half_of_them() -> None:
    x = torch.randn(400, 2, 3, 5)
    with seeded("flip"):
        changed = random_flip(x)
    mirrored = (changed == x.flip(3)).flatten(1).all(1)
    assert bool((mirrored ^ (changed == x).flatten(1).all(1)).all())
    assert 0.4 < float(mirrored.float().mean()) < 0.6


def test_cropped_images_are_moved_over_repeated_edges() -> None:
    x = torch.randn(200, 1, 8, 16)
    with seeded("crop"):
        changed = random_crop(x)
    padded = F.pad(x, (2, 2, 1, 1), mode="replicate")
    places = set()
    for one, many in zip(changed, padded, strict=True):
        found = [(r, c) for r in range(3) for c in range(5) if torch.equal(one, many[:, r : r + 8, c : c + 16])]
        assert found
        places.add(found[0])
    assert len(places) == 15


def test_turned_images_keep_their_middle_and_their_circles() -> None:
    rows, columns = torch.meshgrid(torch.arange(33.0) - 16, torch.arange(33.0) - 16, indexing="ij")
    circles = torch.exp(-(rows.square() + columns.square()) / 40).expand(20, 1, 33, 33)
    torch.testing.assert_close(random_rotation(circles), circles, atol=0.02, rtol=0)
    slope = columns.expand(20, 1, 33, 33).contiguous()
    with seeded("rotate"):
        turned = random_rotation(slope)
    # Along a column of a turned slope the values change by the sine of its angle.
    sines = (turned[:, 0, 20, 16] - turned[:, 0, 12, 16]).abs() / 8
    assert float(sines.min()) > 0
    assert 0.15 < float(sines.max()) < float(np.sin(np.radians(15.001)))


def test_erased_images_have_a_rectangle_of_their_mean() -> None:
    x = torch.randn(100, 2, 16, 24)
    with seeded("erase"):
        changed = random_erasing(x)
    gone = (changed != x).any(1)
    torch.testing.assert_close(changed[0][:, gone[0]], x[0].mean((1, 2))[:, None].expand(2, int(gone[0].sum())))
    sides = torch.stack([gone.any(2).sum(1), gone.any(1).sum(1)], 1)
    assert torch.equal(gone.sum((1, 2)), sides.prod(1))
    assert sides.amin(0).tolist() >= [1, 2]
    assert bool((sides.amax(0) <= torch.tensor([7, 10])).all())


def test_brightness_moves_all_pixels_alike_in_the_units_of_pixels() -> None:
    x = torch.randn(300, 3, 4, 4)
    added = random_brightness(x, (0.5, 0.25, 1.0)) - x
    torch.testing.assert_close(added, added[:, :, :1, :1].expand_as(added), atol=1e-5, rtol=0)
    pixels = added[:, :, 0, 0] * torch.tensor([0.5, 0.25, 1.0])
    torch.testing.assert_close(pixels[:, 0], pixels[:, 1], atol=1e-5, rtol=0)
    assert 0.15 < float(pixels.abs().max()) <= 0.2001


@pytest.mark.parametrize("name", CHANGES)
def test_changes_keep_shape_and_follow_from_the_generator(name: Any) -> None:
    x = torch.randn(7, 3, 9, 13)
    found = []
    for _ in range(2):
        with seeded(1, name):
            found.append(CHANGES[name](x))
    assert found[0].shape == x.shape
    assert torch.equal(*found)
    assert not torch.equal(found[0], x)
    assert bool(found[0].isfinite().all())


class Recorded:
    """A change of batches that remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return x + torch.randn_like(x)


@pytest.mark.parametrize("method", ["fedavg", "moon", "fedpn", "fedbabu", "perfedavg"])
def test_only_batches_of_training_are_changed(method: str) -> None:
    recorded = Recorded()
    silos = from_arrays({"a": (X, Y), "b": (X[::-1], Y)}, augment=recorded)
    training = caveat.Training(batch_size=8)
    caveat.run(silos, METHODS[method](rounds=2, training=training))
    rows = {row.numpy().tobytes() for silo in silos for row in silo.train.x}
    seen = [row.numpy().tobytes() for x in recorded.seen for row in x]
    assert set(seen) <= rows
    assert len(seen) >= 2 * len(rows)


def test_changes_are_the_same_for_any_number_of_workers_and_others_each_round(tmp_path: Path) -> None:
    silos = from_arrays({"a": (PICTURES, Y), "b": (PICTURES[::-1], Y)}, augment=["flip", "crop"])
    method = caveat.FedAvg(rounds=2, training=caveat.Training(batch_size=8))
    model = caveat.ModelSettings(name="cnn", width=4)
    runs = [caveat.run(silos, method, model=model, out=tmp_path / str(w), workers=w) for w in (1, 2)]
    plain = caveat.run(from_arrays({"a": (PICTURES, Y), "b": (PICTURES[::-1], Y)}), method, model=model)
    probs = [run.predictor("a")(PICTURES).probs for run in (*runs, plain)]
    assert torch.equal(probs[0], probs[1])
    assert not torch.equal(probs[0], probs[2])


def test_a_run_goes_on_with_the_changes_that_it_began_with(tmp_path: Path) -> None:
    method = caveat.FedAvg(rounds=1, training=caveat.Training(batch_size=8))
    model = caveat.ModelSettings(name="cnn", width=4)
    silos = {names: from_arrays({"a": (PICTURES, Y)}, augment=list(names)) for names in (("flip",), ("crop",))}
    caveat.run(silos["flip",], method, model=model, out=tmp_path / "run")
    record = data.splits_record(silos["flip",])["a"]
    assert record["train"]["augment"] == ["flip"]  # type: ignore[index]
    assert "augment" not in record["test"]  # type: ignore[index]
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(RunError, match="the data have changed since the run started"):
        caveat.run(silos["crop",], method, model=model, out=tmp_path / "run")


def test_a_configuration_names_changes() -> None:
    silos = data.load(DataSettings(n_silos=3, augment=("flip", "erase")), 0)
    for silo in silos:
        assert isinstance(silo.train, AugmentedData)
        assert silo.train.names == ("flip", "erase")
        assert not isinstance(silo.test, AugmentedData)
    plain = data.load(DataSettings(n_silos=3), 0)
    assert torch.equal(plain[0].train.x, silos[0].train.x)


def test_parts_of_changed_data_are_changed_too() -> None:
    whole = data.augmented(Data(torch.zeros(6, 2), torch.arange(6)), lambda x: x + 1)
    for each in (whole.part(torch.tensor([1, 4])), whole.labeled(torch.arange(6))):
        assert bool((each.batch(torch.tensor([0]))[0] == 1).all())
        assert bool((each.x == 0).all())


@pytest.mark.parametrize(
    ("x", "augment", "words"),
    [
        (PICTURES, "mirror", "augment = 'mirror': expected a function of a batch, or names among flip, crop"),
        (PICTURES, ["flip", 3], "expected a function of a batch"),
        (PICTURES, [], "expected a function of a batch"),
        (X, "flip", "augment = 'flip' is for images, but these inputs have shape (4,); expected a function"),
    ],
)
def test_what_is_no_change_is_one_line(x: Any, augment: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_arrays({"a": (x, Y)}, augment=augment)
    assert words in str(caught.value)


@pytest.mark.parametrize("wrong", [lambda x: x[:, :2], lambda x: x.double(), lambda x: None])
def test_a_function_that_changes_shapes_is_told(wrong: Any) -> None:
    silos = from_arrays({"a": (X, Y)}, augment=wrong)
    with pytest.raises(
        RunError, match=r"augment '.*lambda.*' changed a batch of shape \(8, 4\) and dtype torch\.float32 to"
    ):
        caveat.run(silos, caveat.FedAvg(rounds=1, training=caveat.Training(batch_size=8)))
