"""The federations of the leaderboard: real data with out-of-distribution inputs that silos should detect.

`FEDERATIONS[name].make(folder, seed, tests)` partitions the data again for every seed; the federations in `LITE` need
no files. Two classes are held out of all silos and are the inputs "new", with the silo's own rotation, source or
domain; tables have no third class. "near" inputs are of known classes under a shift; "far_noise" has strong noise, and
"far_other" is from another data set.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..core import DataWarning
from ..data import Normalize, Silos, Split, from_arrays
from ..nn.models import ModelSettings
from ..training.fit import Training

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Rng = np.random.Generator
SPLIT = Split(train=0.6, validation=0.15, calibration=0.25)
OTHERS = 60
"""Number of inputs of each kind per silo, on which no silo was trained."""
NOISE = 76.0
"""Standard deviation of noise on pixels of 0 to 255."""


class BoardTraining(NamedTuple):
    """Settings for training on a federation; the settings of a row override them."""

    model: ModelSettings
    training: Training
    rounds: int


class Dealt(NamedTuple):
    """A silo's known inputs (training first, test last), and its other inputs by kind."""

    x: NDArray[Any]
    y: Labels
    test: int
    others: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class BoardFederation:
    """Silos, the inputs that they should detect, and settings for training."""

    silos: Silos
    others: Mapping[str, Mapping[str, Tensor]]
    """By silo and kind, prepared inputs that are not like the silo's own."""
    settings: BoardTraining
    dealt: Mapping[str, Dealt]

    @property
    def ids(self) -> dict[str, Labels]:
        """Return (N,) numbers of each silo's test inputs; an input has the same number in all splits that have it."""
        return {name: np.array([_id(row) for row in d.x[-d.test :]]) for name, d in self.dealt.items()}

    def pooled(self) -> BoardFederation:
        """Return the same data at one silo, with the test inputs of all silos in order, and without other inputs."""
        parts = self.dealt.values()
        x = [d.x[: -d.test] for d in parts] + [d.x[-d.test :] for d in parts]
        y = [d.y[: -d.test] for d in parts] + [d.y[-d.test :] for d in parts]
        one = Dealt(np.concatenate(x), np.concatenate(y), sum(d.test for d in parts), {})
        return made({"all": one}, self.settings)


def _id(row: NDArray[Any]) -> int:
    return int.from_bytes(hashlib.sha256(row.tobytes()).digest()[:7])


ENCODER = BoardTraining(
    ModelSettings(encoder="caveat.nn.efficientnet:lite0_128", frozen=True, hidden=128),
    Training(local_epochs=1, batch_size=16, lr=0.001),
    15,
)
LENET = BoardTraining(ModelSettings(name="lenet5"), Training(local_epochs=2, batch_size=32, lr=0.003), 10)
SMALL = BoardTraining(ModelSettings(width=8), Training(local_epochs=2, batch_size=16, lr=0.003), 10)
ROWS = BoardTraining(ModelSettings(name="mlp"), Training(local_epochs=2, batch_size=16, lr=0.003), 10)
TABLE = BoardTraining(ModelSettings(name="mlp"), Training(local_epochs=2, batch_size=16, lr=0.001), 15)


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


def skewed(y: Labels, silos: int, size: int, rng: Rng) -> list[Labels]:
    """Deal positions to silos of about `size` with class shares of a Dirichlet distribution with concentration 0.3."""
    classes = int(y.max()) + 1
    pools = [list(rng.permutation(np.flatnonzero(y == c))) for c in range(classes)]
    dealt = []
    for _ in range(silos):
        counts = np.round(rng.dirichlet([0.3] * classes) * size).astype(int)
        mine = [pool.pop() for pool, n in zip(pools, counts, strict=True) for _ in range(min(n, len(pool)))]
        dealt.append(rng.permutation(np.array(mine, dtype=np.int64)))
    return dealt


def made(dealt: Mapping[str, Dealt], settings: BoardTraining) -> BoardFederation:
    arrays = {name: (d.x[: -d.test], d.y[: -d.test], d.x[-d.test :], d.y[-d.test :]) for name, d in dealt.items()}
    classes = [str(c) for c in range(1 + max(int(d.y.max()) for d in dealt.values()))]
    normalize = None if settings.model.name == "mlp" else Normalize(mean=(0.5,), std=(0.5,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # pixels at the border of digits are always black
        silos = from_arrays(arrays, classes=classes, split=SPLIT, normalize=normalize)
    others = {name: {kind: silos.prepare(x, name) for kind, x in d.others.items()} for name, d in dealt.items()}
    return BoardFederation(silos, others, settings, dealt)


def far_rows(x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return rows with all columns, or one, five deviations away."""
    column = x[-OTHERS:].copy()
    column[:, 0] += 5
    return {"far_noise": x[-OTHERS:] + 5, "far_other": column}


def heart(folder: Path, seed: int, tests: int) -> BoardFederation:
    """Heart disease at three hospitals; near inputs are from a fourth hospital."""
    rng, hospitals = np.random.default_rng(seed), ("cleveland", "hungarian", "va", "switzerland")
    files = {name: np.load(folder / f"uci_heart_{name}.npz") for name in hospitals}
    every = np.concatenate([files[name]["x"] for name in hospitals[:3]]).astype(float)
    mean, std = np.nanmean(every, 0), np.nanstd(every, 0) + 1e-9
    dealt = {}
    for name in hospitals[:3]:
        y = (files[name]["y"] > 0).astype(np.int64)
        order = rng.permutation(len(y))
        x, y = np.nan_to_num((files[name]["x"] - mean) / std)[order], y[order]
        near = np.nan_to_num((files["switzerland"]["x"] - mean) / std)
        others = {"near": near[rng.permutation(len(near))[:OTHERS]], **far_rows(x)}
        dealt[name] = Dealt(x, y, int(0.35 * len(y)), others)
    return made(dealt, TABLE)


def cancer(folder: Path, seed: int, tests: int) -> BoardFederation:
    """scikit-learn's breast cancer data at three silos with different tumor sizes; near inputs are rows of the next
    silo."""
    from sklearn.datasets import load_breast_cancer

    rng, (x, y) = np.random.default_rng(seed), load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    order = np.argsort(x[:, 0] + rng.normal(0, 2, len(x)))
    parts = [rng.permutation(part) for part in np.array_split(order, 3)]
    dealt = {}
    for j, mine in enumerate(parts):
        others = {"near": x[parts[(j + 1) % 3][:OTHERS]], **far_rows(x[mine])}
        dealt[f"silo-{j}"] = Dealt(x[mine], y[mine].astype(np.int64), int(0.35 * len(mine)), others)
    return made(dealt, TABLE)


def _digits() -> tuple[Images, Labels]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return (bunch.images * (255 / 16)).astype(np.uint8), known(bunch.target, [3, 9])


def as_rows(dealt: Dealt) -> Dealt:
    """Return images as rows of numbers from -1 to 1, for a perceptron."""
    x, *others = (each.reshape(len(each), -1) / 127.5 - 1 for each in (dealt.x, *dealt.others.values()))
    return dealt._replace(x=x, others=dict(zip(dealt.others, others, strict=True)))


def digits(lite: bool, folder: Path, seed: int, tests: int) -> BoardFederation:
    """Digits of 8 x 8 pixels at six silos with three angles. Near inputs are rotated by 35 degrees more; far inputs are
    clothes, or photographs as rows of numbers if `lite`."""
    rng, (x, y) = np.random.default_rng(seed), _digits()
    old, new, dealt = rng.permutation(np.flatnonzero(y >= 0)), rng.permutation(np.flatnonzero(y == -1)), {}
    for j, angle in enumerate((0, 0, -50, -50, 120, 120)):
        mine = old[j::6]
        others = {
            "new": rotated(x[new[j::6]][:OTHERS], angle),
            "near": rotated(x[mine][-OTHERS:], angle + 35),
            "far_noise": noisy(rotated(x[mine][-OTHERS:], angle)),
            "far_other": photographs(8) if lite else resized(first_images(folder), 8),
        }
        each = Dealt(rotated(x[mine], angle), y[mine], 60, others)
        dealt[f"silo-{j}"] = as_rows(each) if lite else each
    return made(dealt, ROWS if lite else SMALL)


def few_classes(folder: Path, seed: int, tests: int) -> BoardFederation:
    """Digits as rows at five silos with different class shares. Near inputs are rotated by 35 degrees; far inputs are
    photographs."""
    rng, (x, y) = np.random.default_rng(seed), _digits()
    old, new, dealt = np.flatnonzero(y >= 0), rng.permutation(np.flatnonzero(y == -1)), {}
    for j, mine in enumerate(skewed(y[old], 5, 260, rng)):
        mine = old[mine]
        others = {
            "new": x[new[j::5]][:OTHERS],
            "near": rotated(x[mine[-OTHERS:]], 35),
            "far_noise": noisy(x[mine[-OTHERS:]]),
            "far_other": photographs(8),
        }
        dealt[f"silo-{j}"] = as_rows(Dealt(x[mine], y[mine], len(mine) // 3, others))
    return made(dealt, ROWS)


def sources(folder: Path, seed: int, tests: int) -> BoardFederation:
    """Digits of four kinds, one per silo. Near inputs are of another silo's kind; far inputs are clothes."""
    rng, found = np.random.default_rng(seed), {}
    names = {"mnist": "mnist", "usps": "usps", "mnist_m": "mnist_m", "svhn": "svhn_gray_derived"}
    for silo, name in names.items():
        x, y = read(folder, name)
        some = rng.permutation(len(y))[:1200]
        found[silo] = resized(x[some], 28), known(y[some], [3, 9])
    dealt, order, size = {}, list(names), 300 + 120 * tests
    for j, silo in enumerate(order):
        x, y = found[silo]
        there, (near, labels) = np.flatnonzero(y >= 0)[:size], found[order[(j + 1) % 4]]
        others = {
            "new": x[y == -1][:OTHERS],
            "near": near[labels >= 0][-OTHERS:],
            "far_noise": noisy(x[there[-OTHERS:]]),
            "far_other": first_images(folder),
        }
        dealt[silo] = Dealt(x[there], y[there], 120 * tests, others)
    return made(dealt, LENET)


def one_source(
    name: str, held_out: Sequence[int], far: str, near: str | None, folder: Path, seed: int, tests: int
) -> BoardFederation:
    """Images of 28 x 28 pixels at six silos with different class shares; near inputs are from another source of
    digits."""
    rng, (x, y) = np.random.default_rng(seed), read(folder, name)
    x, y = x[:20_000], known(y[:20_000], held_out)
    old, new, dealt, size = np.flatnonzero(y >= 0), rng.permutation(np.flatnonzero(y == -1)), {}, 300 + 120 * tests
    beside, labels = (x[:0], y[:0]) if near is None else read(folder, near)
    labels = known(labels, held_out) if near else labels
    for j, mine in enumerate(skewed(y[old], 6, size, rng)):
        mine = old[mine]
        others = {
            "new": x[new[j * OTHERS : (j + 1) * OTHERS]],
            "far_noise": noisy(x[mine[-OTHERS:]]),
            "far_other": first_images(folder, far),
        }
        if near is not None:
            shared = np.flatnonzero(np.isin(labels, np.unique(y[mine])))
            others["near"] = resized(beside[rng.permutation(shared)[:OTHERS]], 28)
        dealt[f"silo-{j}"] = Dealt(x[mine], y[mine], 120 * tests * len(mine) // size, others)
    return made(dealt, LENET)


SIGNS = (1, 2, 4, 5, 7, 8, 10, 12, 13, 38)
"""The ten most frequent of GTSRB's classes."""


def coloured(
    name: str, held_out: Sequence[int], used: Sequence[int] | None, far: str, folder: Path, seed: int, tests: int
) -> BoardFederation:
    """Color images at five silos with different class shares, always from the same first images of the file."""
    rng, file = np.random.default_rng(seed), np.load(folder / f"{name}.npz")
    part = "test" if name == "gtsrb" else "train"  # GTSRB's training images show each sign thirty times
    x, y = file[f"x_{part}"], known(file[f"y_{part}"].astype(np.int64), held_out, used)
    most, size = 1500 * (1 + tests), 300 + 100 * tests
    x, y = x[y > -2][:most], y[y > -2][:most]
    fixed, old = x[y >= 0][:OTHERS], np.flatnonzero(y >= 0)[OTHERS:]
    new, dealt = np.flatnonzero(y == -1), {}
    foreign = resized(first_images(folder, far), x.shape[1], "RGB")
    for j, mine in enumerate(skewed(y[old], 5, size, rng)):
        mine = old[mine]
        others = {"new": x[rng.permutation(new)[:OTHERS]], "far_noise": noisy(fixed), "far_other": foreign}
        dealt[f"silo-{j}"] = Dealt(x[mine], y[mine], 100 * tests * len(mine) // size, others)
    return made(dealt, LENET if name == "gtsrb" else ENCODER)


def domains(names: Sequence[str], held_out: Sequence[int], folder: Path, seed: int, tests: int) -> BoardFederation:
    """Photographs and drawings, a silo per domain. Near inputs are of another silo's domain; far inputs are satellite
    images."""
    rng, found = np.random.default_rng(seed), {}
    for name in names:
        x, y = read(folder, name)
        x = x if x.ndim == 4 else np.repeat(x[..., None], 3, axis=-1)  # sketches may be stored in gray
        always = np.random.default_rng(0).permutation(len(y))
        y = known(y[always], held_out)
        old, new = np.flatnonzero(y >= 0)[: 300 + 100 * tests], np.flatnonzero(y == -1)[: 2 * OTHERS]
        found[name] = x[always], y, rng.permutation(old), rng.permutation(new)
    dealt = {}
    for j, name in enumerate(names):
        x, y, old, new = found[name]
        near, _, there, _ = found[names[(j + 1) % len(names)]]
        others = {
            "new": x[new[:OTHERS]],
            "near": near[there[-OTHERS:]],
            "far_noise": noisy(x[np.sort(old)[:OTHERS]]),
            "far_other": first_images(folder, "eurosat_rgb"),
        }
        dealt[name.rpartition("_")[2]] = Dealt(x[old], y[old], min(100 * tests, len(old) // 3), others)
    return made(dealt, ENCODER)


class FederationEntry(NamedTuple):
    """The function that makes a federation, and the files that it needs."""

    make: Callable[[Path, int, int], BoardFederation]
    files: tuple[str, ...] = ()


HOSPITALS = tuple(f"uci_heart_{name}" for name in ("cleveland", "hungarian", "va", "switzerland"))
OFFICE = tuple(f"office_caltech10_{name}" for name in ("amazon", "caltech10", "dslr", "webcam"))
PACS = tuple(f"pacs_{name}" for name in ("art_painting", "cartoon", "photo", "sketch"))
FEDERATIONS: Mapping[str, FederationEntry] = {
    "heart": FederationEntry(heart, HOSPITALS),
    "digits": FederationEntry(partial(digits, False), ("fashion_mnist",)),
    "mnist": FederationEntry(
        partial(one_source, "mnist", [3, 9], "fashion_mnist", "usps"), ("mnist", "fashion_mnist", "usps")
    ),
    "fashion": FederationEntry(partial(one_source, "fashion_mnist", [2, 8], "mnist", None), ("fashion_mnist", "mnist")),
    "sources": FederationEntry(sources, ("mnist", "usps", "mnist_m", "svhn_gray_derived", "fashion_mnist")),
    "gtsrb": FederationEntry(partial(coloured, "gtsrb", [4, 12], SIGNS, "cifar10"), ("gtsrb", "cifar10")),
    "office": FederationEntry(partial(domains, OFFICE, [3, 7]), (*OFFICE, "eurosat_rgb")),
    "pacs": FederationEntry(partial(domains, PACS, [2, 5]), (*PACS, "eurosat_rgb")),
    "eurosat": FederationEntry(
        partial(coloured, "eurosat_rgb", [0, 5], None, "pacs_cartoon"), ("eurosat_rgb", "pacs_cartoon")
    ),
    "cifar": FederationEntry(partial(coloured, "cifar10", [3, 8], None, "mnist"), ("cifar10", "mnist")),
}
LITE: Mapping[str, FederationEntry] = {
    "lite-rotated": FederationEntry(partial(digits, True)),
    "lite-skewed": FederationEntry(few_classes),
    "lite-cancer": FederationEntry(cancer),
}
"""Federations of scikit-learn's data, which need no files."""


def deal(name: str, folder: Path, seed: int, tests: int = 4) -> BoardFederation:
    """Return a federation with about `tests` times 100 test inputs per silo, if its data suffice."""
    return {**FEDERATIONS, **LITE}[name].make(folder, seed, tests)
