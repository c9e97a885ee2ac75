"""Images of sources of different shapes, brought to one size and one number of channels."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from data_samples import labeled_images, write_csv, write_images, write_npz
from PIL import Image

from caveat import data
from caveat.core import ConfigurationError, DataError
from caveat.data.settings import DataSettings, OodSettings, Shift
from caveat.data.splits import NAMES


def pictures(count: int, height: int, width: int, channels: int) -> np.ndarray:
    """(N, H, W, C) uint8: waves of several lengths under noise, so that resizing has something to average."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / (2 + i) + i) + np.cos(y / (3 + i)) for i in range(count)])
    noisy = 127 + 40 * waves[..., None] + rng.normal(0, 20, (count, height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def pil(image: np.ndarray, size: int) -> np.ndarray:
    """One image (H, W, C) as Pillow resizes it, bilinearly."""
    resized = Image.fromarray(image.squeeze()).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized).reshape(size, size, -1)


# One size, one number of channels


@pytest.mark.parametrize(("height", "width", "size"), [(8, 8, 28), (32, 32, 28), (64, 64, 9), (16, 40, 20), (5, 5, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_resized_as_pillow_does(height: int, width: int, size: int, channels: int) -> None:
    images = pictures(5, height, width, channels)
    resized = data.resized(images, size)
    assert resized.dtype == np.uint8
    for image, result in zip(images, resized, strict=True):
        # Pillow rounds after each of two passes.
        assert np.abs(result.astype(int) - pil(image, size)).max() <= 1


@pytest.mark.parametrize("size", [3, 7, 13])
def test_an_image_of_one_colour_keeps_it_exactly(size: int) -> None:
    images = np.arange(256, dtype=np.uint8)[:, None, None, None] * np.ones((1, 9, 7, 1), np.uint8)
    assert np.array_equal(data.resized(images, size), np.broadcast_to(images[:, :1, :1], (256, size, size, 1)))


def test_half_the_size_averages_overlapping_pixels() -> None:
    # Triangle of width 4 about the middle of pixels 2i and 2i + 1: weights 1, 3, 3, 1 over 8, cut off at the border.
    row = np.array([0, 0, 160, 0, 0, 80], np.uint8)
    image = np.tile(row, (6, 1))[None, :, :, None]
    assert data.resized(image, 3)[0, 1, :, 0].tolist() == [round(160 / 7), 60, round(3 * 80 / 7)]


def test_nothing_is_copied_where_the_shape_is_right() -> None:
    images = pictures(2, 6, 6, 3)
    assert data.resized(images, 6) is images
    assert data.recolored(images, 3) is images


def test_more_images_than_a_chunk_are_each_resized_as_alone() -> None:
    images = pictures(1100, 6, 6, 1)
    assert np.array_equal(data.resized(images, 4)[1050:], data.resized(images[1050:], 4))


def test_luma_is_pillows_and_undoes_repetition() -> None:
    colors = np.random.default_rng(0).integers(0, 256, (1, 200, 200, 3), np.uint8)
    assert np.array_equal(data.recolored(colors, 1)[0, ..., 0], np.asarray(Image.fromarray(colors[0]).convert("L")))
    grey = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    assert np.array_equal(data.recolored(data.recolored(grey, 3), 1), grey)
    with pytest.raises(DataError, match="cannot convert images with 4 channels to 3 channels, expected 1 or 3"):
        data.recolored(np.zeros((1, 2, 2, 4), np.uint8), 3)


# Domains of different shapes


def three_domains(tmp_path: Path) -> str:
    """Grey 6x6, coloured 9x9, grey 12x8."""
    paths = []
    for name, shape in (("small", (6, 6, 1)), ("colour", (9, 9, 3)), ("wide", (8, 12, 1))):
        x, y = pictures(160, *shape), np.arange(160) % 3
        paths.append(
            write_npz(tmp_path / f"{name}.npz", x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
        )
    return "npz:" + ",".join(map(str, paths))


@pytest.mark.parametrize(("channels", "expected"), [(None, 3), (3, 3), (1, 1)])
def test_domains_of_any_shape_become_silos_of_one(tmp_path: Path, channels: int | None, expected: int) -> None:
    settings = DataSettings(source=three_domains(tmp_path), size=7, channels=channels)  # type: ignore[arg-type]
    silos = data.load(settings, 0)
    assert silos.shape == (expected, 7, 7)
    assert [silo.domain for silo in silos] == ["small", "colour", "wide"]
    for silo in silos:
        raw = data.npz(tmp_path / f"{silo.domain}.npz").x
        for name in NAMES:
            index = silo.indices[name].numpy()
            pixels = data.recolored(data.resized(raw[index], 7), expected)
            assert np.array_equal(silos.to_image(getattr(silo, name).x), pixels)
            assert torch.equal(silos.prepare(raw[index], silo.name), getattr(silo, name).x), "as a user predicts it"


def test_resizing_comes_before_shift(tmp_path: Path) -> None:
    source = three_domains(tmp_path)
    silos = data.load(DataSettings(source=source, size=7, shift=Shift(angles=(0, 0, 90))), 0)
    raw = data.npz(tmp_path / "wide.npz").x[silos[2].indices["test"].numpy()]
    expected = data.shifts.rotate(data.recolored(data.resized(raw, 7), 3), 90)
    assert np.array_equal(silos.to_image(silos[2].test.x), expected)


def test_grey_becomes_colour_without_a_size_where_sizes_agree(tmp_path: Path) -> None:
    x, y = labeled_images(90)
    silos = data.from_arrays({"grey": (x, y), "colour": (np.stack([x, x, 255 - x], -1), y)})
    assert silos.shape == (3, 6, 6)
    assert np.array_equal(silos.to_image(silos.prepare(x[:9])), np.stack([x[:9]] * 3, -1))
    with pytest.raises(DataError, match=r"silo 'a'.*\(6, 6, 1\), silo 'b' of \(4, 6, 1\).*set data.size"):
        data.from_arrays({"a": (x, y), "b": (x[:, :4], y)})
    assert data.from_arrays({"a": (x, y), "b": (x[:, :4], y)}, size=5, channels=3).shape == (3, 5, 5)


def test_folders_of_images_of_any_size(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"east": {"cat": 20, "dog": 20}, "west": {"cat": 20, "dog": 20}})
    odd = folder / "west" / "dog" / "000.png"
    Image.fromarray(pictures(1, 9, 13, 3)[0]).save(odd)
    with pytest.raises(DataError, match=r"13x9.*data\.size"):
        data.load(DataSettings(source=f"images:{folder}"), 0)
    silos = data.load(DataSettings(source=f"images:{folder}", size=5), 0)
    assert silos.shape == (3, 5, 5)
    assert data.read_inputs(folder / "west" / "dog", silos, "west").shape == (20, 3, 5, 5)
    read = silos.to_image(data.read_inputs(odd, silos, "west"))
    assert np.array_equal(read, data.resized(pictures(1, 9, 13, 3), 5))
    grey = data.load(DataSettings(source=f"images:{folder}", size=5, channels=1), 0)
    assert data.read_inputs(odd, grey, "west").shape == (1, 1, 5, 5)


def test_images_of_the_hub_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part(dict):
        features = {"image": None, "label": None}  # noqa: RUF012

    x = [*pictures(30, 6, 6, 1)[..., 0], *pictures(30, 9, 7, 1)[..., 0]]
    fake = ModuleType("datasets")
    fake.load_dataset = lambda name: {"train": Part(image=x, label=[0, 1] * 30)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    with pytest.raises(DataError, match=r"hub:shapes: images have different sizes.*data\.size"):
        data.load(DataSettings(source="hub:shapes", n_silos=2), 0)
    assert data.load(DataSettings(source="hub:shapes", n_silos=2, size=8), 0).shape == (1, 8, 8)


@pytest.mark.parametrize("colored_silos", [True, False])
@pytest.mark.parametrize("size", [None, 7])
def test_what_nobody_knows_gets_the_silos_shape(tmp_path: Path, colored_silos: bool, size: int | None) -> None:
    side = 6 if size is None else 9
    y = np.arange(120) % 3
    color, grey = pictures(120, 6, 6, 3), pictures(120, side, side, 1)
    np.savez(tmp_path / "colour.npz", x=color, y=y)
    np.savez(tmp_path / "grey.npz", x=grey, y=y)
    inside, outside = ("colour", "grey") if colored_silos else ("grey", "colour")
    streams = OodSettings(global_source=f"npz:{tmp_path / outside}.npz", per_silo=1000)
    settings = DataSettings(source=f"npz:{tmp_path / inside}.npz", n_silos=2, size=size, ood=streams)
    silos = data.load(settings, 0)
    pixels = grey if colored_silos else color
    expected = data.recolored(pixels if size is None else data.resized(pixels, size), 3 if colored_silos else 1)
    assert np.array_equal(silos.to_image(silos[0].streams["ood_global"].x), expected)


def test_held_out_classes_of_domains_of_different_shapes(tmp_path: Path) -> None:
    settings = DataSettings(source=three_domains(tmp_path), size=7, ood=OodSettings("domains", "digits", ("2",), 5000))
    silos = data.load(settings, 0)
    assert silos.classes == ("0", "1")
    held_out = sum(int((data.npz(tmp_path / f"{name}.npz").y[120:] == 2).sum()) for name in ("small", "colour", "wide"))
    for silo in silos:
        assert silo.streams["ood_global"].x.shape == (held_out + 1797, 3, 7, 7)
        assert silo.streams["ood_local"].x.shape[1:] == (3, 7, 7)


def test_what_cannot_be_brought_to_one_shape_is_a_clear_error(tmp_path: Path) -> None:
    source = three_domains(tmp_path)
    with pytest.raises(DataError, match=r"small\.npz has .*\(6, 6, 1\), .*colour\.npz of \(9, 9, 3\).*set data\.size"):
        data.load(DataSettings(source=source), 0)
    x, y = labeled_images(90)
    for name in ("size", "channels"):
        with pytest.raises(
            ConfigurationError, match=rf"data\.{name} = 3 is for images, but these inputs are not images"
        ):
            data.from_arrays({"a": (x[:, 0], y)}, **{name: 3})  # type: ignore[arg-type]
    table = DataSettings(source=f"csv:{write_csv(tmp_path / 'a.csv')}", target="ill", n_silos=2, size=8)
    with pytest.raises(ConfigurationError, match=r"data\.size = 8 is for images"):
        data.load(table, 0)
    with pytest.raises(DataError, match=r"expected one shape for all$"):
        data.from_arrays({"a": (x, y), "b": (x[:, 0], y)}, size=8)
    with pytest.raises(DataError, match=r"silo 'b': images have 4 channels, expected 1 or 3"):
        data.from_arrays({"a": (x, y), "b": (np.stack([x] * 4, -1), y)}, channels=3)
    silos = data.from_arrays({"a": (x, y), "b": (x, y)}, size=8)
    with pytest.raises(DataError, match=r"have shape \(6, 6, 2\), expected \(8, 8, 1\)"):
        silos.prepare(np.stack([x] * 2, -1))
    with pytest.raises(DataError, match=r"have shape \(7, 7, 1\), expected \(6, 6, 1\)"):
        data.from_arrays({"a": (x, y)}).prepare(np.zeros((2, 7, 7), np.uint8))


def test_channels_first_are_the_same_images_in_training_and_in_prediction() -> None:
    x, y = pictures(60, 12, 10, 3), np.arange(60) % 2
    last, first = (
        data.from_arrays(dict.fromkeys("ab", (each, y)), channels=channels)
        for each, channels in ((x, None), (np.moveaxis(x, -1, 1), "first"))
    )
    assert torch.equal(last["a"].train.x, first["a"].train.x)
    assert torch.equal(first.preparation.inputs(np.moveaxis(x, -1, 1)), last.preparation.inputs(x))
    with pytest.raises(
        DataError, match=r"silo 'a': found shape \(60, 12, 10, 3\), expected images N,C,H,W with 1 or 3"
    ):
        data.from_arrays({"a": (x, y)}, channels="first")
    with pytest.raises(DataError, match=r"looks like channels first, .* pass channels='first' to from_arrays"):
        data.from_arrays({"a": (np.moveaxis(x, -1, 1), y)})
