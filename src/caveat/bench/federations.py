"""The federations of the leaderboard: real data with out-of-distribution inputs that silos should detect.

`deal(name, folder, seed)` partitions the data again for every seed. The federations in `LITE` need no files, and those
in `FURTHER` confirm what a board with the others shows. Two classes are held out of all silos and are the inputs "new",
with the silo's own rotation, source or domain; data with two classes have no new class. "near" inputs are of known
classes under a shift; "far_noise" has strong noise, and "far_other" is from another data set.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core import DataWarning
from ..data import Normalize, Silos, Split, from_arrays
from ..nn.models import ModelSettings
from ..training.fit import Training
from .images import (
    OTHERS,
    Images,
    Labels,
    first_images,
    known,
    noisy,
    photographs,
    read,
    resized,
    rotated,
    skewed,
)

TRAIN = 0.6
SPLIT = Split(train=TRAIN, validation=0.15, calibration=0.25)


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


def made(dealt: Mapping[str, Dealt], settings: BoardTraining) -> BoardFederation:
    arrays = {name: (d.x[: -d.test], d.y[: -d.test], d.x[-d.test :], d.y[-d.test :]) for name, d in dealt.items()}
    classes = [str(c) for c in range(1 + max(int(d.y.max()) for d in dealt.values()))]
    normalize = None if settings.model.name == "mlp" else Normalize(mean=(0.5,), std=(0.5,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # pixels at the border of digits are always black
        silos = from_arrays(arrays, classes=classes, split=SPLIT, normalize=normalize)
    others = {name: {kind: silos.prepare(x, name) for kind, x in d.others.items()} for name, d in dealt.items()}
    return BoardFederation(silos, others, settings, dealt)


def fills_batch(settings: BoardTraining, size: int) -> int:
    """Return how many inputs a silo needs for a training batch; of `size` inputs, all but 300 are test inputs."""
    return math.ceil(settings.training.batch_size * size / 300 / TRAIN)


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
    name: str,
    held_out: Sequence[int],
    far: str,
    near: str | None,
    folder: Path,
    seed: int,
    tests: int,
    concentration: float = 0.3,
) -> BoardFederation:
    """Images of 28 x 28 pixels at six silos, each with at most a twelfth of them, with different class shares; near
    inputs are from another source of digits."""
    rng, (x, y) = np.random.default_rng(seed), read(folder, name)
    x, y = x[:20_000], known(y[:20_000], held_out)
    old, new, dealt, size = np.flatnonzero(y >= 0), rng.permutation(np.flatnonzero(y == -1)), {}, 300 + 120 * tests
    beside, labels = (x[:0], y[:0]) if near is None else read(folder, near)
    labels = known(labels, held_out) if near else labels
    fewest = fills_batch(LENET, size)
    for j, mine in enumerate(skewed(y[old], 6, min(size, len(old) // 12), rng, concentration, fewest)):
        mine = old[mine]
        others = {"far_noise": noisy(x[mine[-OTHERS:]]), "far_other": first_images(folder, far)}
        if held_out:
            others["new"] = x[new[j * OTHERS : (j + 1) * OTHERS]]
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
    foreign, settings = resized(first_images(folder, far), x.shape[1], "RGB"), LENET if name == "gtsrb" else ENCODER
    for j, mine in enumerate(skewed(y[old], 5, size, rng, fewest=fills_batch(settings, size))):
        mine = old[mine]
        others = {"new": x[rng.permutation(new)[:OTHERS]], "far_noise": noisy(fixed), "far_other": foreign}
        dealt[f"silo-{j}"] = Dealt(x[mine], y[mine], 100 * tests * len(mine) // size, others)
    return made(dealt, settings)


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


Difference = Literal["tables", "class shares", "domains"]
"""What differs between silos: for tables, hospitals or the size of tumors; for images, class shares or the domain."""


class FederationEntry(NamedTuple):
    """The function that makes a federation, what differs between its silos, and the files that it needs."""

    make: Callable[[Path, int, int], BoardFederation]
    difference: Difference
    files: tuple[str, ...] = ()


HOSPITALS = tuple(f"uci_heart_{name}" for name in ("cleveland", "hungarian", "va", "switzerland"))
OFFICE = tuple(f"office_caltech10_{name}" for name in ("amazon", "caltech10", "dslr", "webcam"))
PACS = tuple(f"pacs_{name}" for name in ("art_painting", "cartoon", "photo", "sketch"))
FEDERATIONS: Mapping[str, FederationEntry] = {
    "heart": FederationEntry(heart, "tables", HOSPITALS),
    "digits": FederationEntry(partial(digits, False), "domains", ("fashion_mnist",)),
    "mnist": FederationEntry(
        partial(one_source, "mnist", [3, 9], "fashion_mnist", "usps"),
        "class shares",
        ("mnist", "fashion_mnist", "usps"),
    ),
    "fashion": FederationEntry(
        partial(one_source, "fashion_mnist", [2, 8], "mnist", None), "class shares", ("fashion_mnist", "mnist")
    ),
    "sources": FederationEntry(sources, "domains", ("mnist", "usps", "mnist_m", "svhn_gray_derived", "fashion_mnist")),
    "gtsrb": FederationEntry(
        partial(coloured, "gtsrb", [4, 12], SIGNS, "cifar10"), "class shares", ("gtsrb", "cifar10")
    ),
    "office": FederationEntry(partial(domains, OFFICE, [3, 7]), "domains", (*OFFICE, "eurosat_rgb")),
    "pacs": FederationEntry(partial(domains, PACS, [2, 5]), "domains", (*PACS, "eurosat_rgb")),
    "eurosat": FederationEntry(
        partial(coloured, "eurosat_rgb", [0, 5], None, "pacs_cartoon"), "class shares", ("eurosat_rgb", "pacs_cartoon")
    ),
    "cifar": FederationEntry(partial(coloured, "cifar10", [3, 8], None, "mnist"), "class shares", ("cifar10", "mnist")),
}
LITE: Mapping[str, FederationEntry] = {
    "lite-rotated": FederationEntry(partial(digits, True), "domains"),
    "lite-skewed": FederationEntry(few_classes, "class shares"),
    "lite-cancer": FederationEntry(cancer, "tables"),
}
"""Federations of scikit-learn's data, which need no files."""
FURTHER: Mapping[str, FederationEntry] = {
    "pneumonia": FederationEntry(
        partial(one_source, "pneumoniamnist", [], "fashion_mnist", None, concentration=3.0),
        "class shares",
        ("pneumoniamnist", "fashion_mnist"),
    ),
    "cifar100": FederationEntry(
        partial(coloured, "cifar100", [35, 80], range(0, 100, 5), "mnist"), "class shares", ("cifar100", "mnist")
    ),
}
"""Federations that no board contains unless they are named: a chosen row is confirmed on them."""
KNOWN = {**LITE, **FEDERATIONS, **FURTHER}


def deal(name: str, folder: Path, seed: int, tests: int = 4) -> BoardFederation:
    """Return a federation with about `tests` times 100 test inputs per silo, if its data suffice."""
    return KNOWN[name].make(folder, seed, tests)
