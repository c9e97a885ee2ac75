"""Images of the leaderboard's federations: read, changed, relabeled and dealt to silos."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..core import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
OTHERS = 60
"""Number of inputs of each kind per silo, on which no silo was trained."""
NOISE = 76.0
"""Standard deviation of noise on pixels of 0 to 255."""


def read(folder: Path, name: str) -> tuple[Images, Labels]:
    """Return all images of a file, the training images first."""
    file = np.load(folder / f"{name}.npz")
    x, y = (np.concatenate([file[f"{part}_train"], file[f"{part}_test"]]) for part in "xy")
    return x, y.astype(np.int64)


def resized(x: Images, size: int, mode: str = "L") -> Images:
    images = (Image.fromarray(each).convert(mode) for each in x)
    return np.stack([np.asarray(each.resize((size, size), Image.Resampling.BILINEAR)) for each in images])


def rotated(x: Images, angle: float) -> Images:
    return np.stack([np.asarray(Image.fromarray(each).rotate(angle, Image.Resampling.BILINEAR)) for each in x])


def noisy(x: Images) -> Images:
    noise = np.random.default_rng(0).normal(0, NOISE, x.shape)
    return np.clip(x + noise, 0, 255).astype(np.uint8)


@cache
def photographs(size: int) -> Images:
    """Return grayscale crops of the two photographs of scikit-learn."""
    from sklearn.datasets import load_sample_images

    rng, crops, images = np.random.default_rng(0), [], load_sample_images().images
    for _ in range(OTHERS):
        whole = images[int(rng.integers(2))]
        top, left = (int(rng.integers(side - 128)) for side in whole.shape[:2])
        crops.append(whole[top : top + 128, left : left + 128])
    return resized(np.stack(crops), size)


def first_images(folder: Path, name: str = "fashion_mnist") -> Images:
    images: Images = np.load(folder / f"{name}.npz")["x_test"][:OTHERS]
    return images


def known(y: Labels, held_out: Sequence[int], used: Sequence[int] | None = None) -> Labels:
    """Return labels from 0 of the classes that silos know, -1 for held-out classes, and -2 for unused classes."""
    left = [c for c in (np.unique(y) if used is None else used) if c not in held_out]
    found = np.full(len(y), -2)
    found[np.isin(y, held_out)] = -1
    for label, c in enumerate(left):
        found[y == c] = label
    return found


def skewed(
    y: Labels, silos: int, size: int, rng: np.random.Generator, concentration: float = 0.3, fewest: int = 0
) -> list[Labels]:
    """Deal positions to silos of about `size` with class shares of a Dirichlet distribution, again if a silo has fewer
    than `fewest`. Raises DataError if a thousand partitions have such a silo."""
    classes = int(y.max()) + 1
    for _ in range(1000):
        pools = [list(rng.permutation(np.flatnonzero(y == c))) for c in range(classes)]
        dealt: list[Labels] = []
        for _ in range(silos):
            counts = np.round(rng.dirichlet([concentration] * classes) * size).astype(int)
            mine = [pool.pop() for pool, n in zip(pools, counts, strict=True) for _ in range(min(n, len(pool)))]
            dealt.append(rng.permutation(np.array(mine, dtype=np.int64)))
        if min(map(len, dealt)) >= fewest:
            return dealt
    raise DataError(f"{len(y)} samples are too few for {silos} silos with at least {fewest} samples each")
