"""Small sources of data, written to a folder, for the tests of caveat.data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from caveat.core import Silo
from caveat.data.settings import DataSettings
from caveat.data.splits import NAMES

SILOS = DataSettings(source="on_site")
"""Of a federation in which every silo reads its own data."""
TABLES = DataSettings(source="on_site", target="ill")
"""Of a federation in which every silo reads its own table, as `write_csv` makes it."""
SEED = 3


def labeled_images(count: int, classes: int = 3, size: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(N, size, size) uint8 of noise and labels of every class."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, size, size), dtype=np.uint8), rng.permutation(np.arange(count) % classes)


def write_npz(path: Path, train: int = 120, test: int = 40, classes: int = 3, **replaced: np.ndarray) -> Path:
    """An npz file of images; keyword arguments replace or add arrays."""
    x_train, y_train = labeled_images(train, classes)
    x_test, y_test = labeled_images(test, classes, seed=1)
    np.savez(path, **{"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test, **replaced})
    return path


def write_images(folder: Path, silos: dict[str, dict[str, int]], size: int = 6) -> Path:
    """Grey PNG files, as many per silo and class as said."""
    rng = np.random.default_rng(0)
    for silo, kinds in silos.items():
        for kind, count in kinds.items():
            (folder / silo / kind).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (size, size), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / silo / kind / f"{number:03d}.png")
    return folder


def write_csv(path: Path, rows: int = 60, seed: int = 0, towns: tuple[str, ...] = ("north", "south")) -> Path:
    """Columns age (with gaps), dose, town (text, with gaps), ward, and the target ill."""
    rng = np.random.default_rng(seed)
    lines = ["age,dose,town,ward,ill"]
    for row in range(rows):
        age = "" if row % 7 == 0 else f"{rng.normal(50, 10):.1f}"
        town = "?" if row % 11 == 0 else towns[row % len(towns)]
        lines.append(f"{age},{rng.normal():.3f},{town},ward-{row % 3},{'yes' if rng.random() < 0.5 else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def edit_csv(path: Path, row: int, column: int, value: str) -> None:
    """Replace one value; rows and columns count from 0, without the header."""
    lines = path.read_text().splitlines()
    values = lines[row + 1].split(",")
    values[column] = value
    lines[row + 1] = ",".join(values)
    path.write_text("\n".join(lines) + "\n")


def same(a: Silo, b: Silo, splits: tuple[str, ...] = NAMES) -> bool:
    """Whether two silos hold the same bits in these splits."""
    return all(torch.equal(p, q) for name in splits for p, q in zip(getattr(a, name), getattr(b, name), strict=True))
