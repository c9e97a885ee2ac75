"""Ten federations of real data with inputs that silos should notice: new classes, near data and far data.

`FEDERATIONS[name](folder, seed)` deals the data of a folder anew for every seed. Two classes are held out of all silos
and are the inputs "new", as the silo would see them: rotated, of its own source, of its own domain; heart disease has
no third class. "near" inputs are of known classes under a shift; "far_noise" has strong noise, and "far_other" is of
another data set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import caveat
from caveat.data import Normalize, Split

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
SPLIT = Split(train=0.6, validation=0.15, calibration=0.25)
OTHERS = 60
"""Inputs of each kind per silo that no silo was trained on."""
NOISE = 76.0
"""Standard deviation of noise on pixels of 0 to 255."""


class Federation(NamedTuple):
    """Silos, what they should notice, and settings that train them."""

    silos: caveat.data.Silos
    others: Mapping[str, Mapping[str, Tensor]]
    """By silo and kind, prepared inputs that are not like the silo's own."""
    model: caveat.ModelSettings
    training: caveat.Training
    rounds: int


class Dealt(NamedTuple):
    """A silo's known inputs (training first, test last), and the others by kind."""

    x: NDArray[Any]
    y: Labels
    test: int
    others: dict[str, NDArray[Any]]


ENCODER = (
    caveat.ModelSettings(encoder="caveat.nn.efficientnet:lite0_128", frozen=True, hidden=128),
    caveat.Training(local_epochs=1, batch_size=16, lr=0.001),
    15,
)
LENET = caveat.ModelSettings(name="lenet5"), caveat.Training(local_epochs=2, batch_size=32, lr=0.003), 10


def read(folder: Path, name: str) -> tuple[Images, Labels]:
    """Return all images of a file, those for training first."""
    file = np.load(folder / f"{name}.npz")
    return np.concatenate([file["x_train"], file["x_test"]]), np.concatenate([file["y_train"], file["y_test"]]).astype(
        np.int64
    )


def resized(x: Images, size: int, mode: str = "L") -> Images:
    images = (Image.fromarray(each).convert(mode) for each in x)
    return np.stack([np.asarray(each.resize((size, size), Image.Resampling.BILINEAR)) for each in images])


def rotated(x: Images, angle: float) -> Images:
    return np.stack([np.asarray(Image.fromarray(each).rotate(angle, Image.Resampling.BILINEAR)) for each in x])


def noisy(x: Images) -> Images:
    noise = np.random.default_rng(0).normal(0, NOISE, x.shape)
    return np.clip(x + noise, 0, 255).astype(np.uint8)


def known(y: Labels, held_out: Sequence[int], used: Sequence[int] | None = None) -> Labels:
    """Return labels from 0 of the classes that silos know, -1 for held-out ones, and -2 for classes not used."""
    left = [c for c in (np.unique(y) if used is None else used) if c not in held_out]
    found = np.full(len(y), -2)
    found[np.isin(y, held_out)] = -1
    for label, c in enumerate(left):
        found[y == c] = label
    return found


def skewed(y: Labels, silos: int, size: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Deal positions to silos of about `size` with class shares of a Dirichlet distribution with concentration 0.3."""
    classes = int(y.max()) + 1
    pools = [list(rng.permutation(np.flatnonzero(y == c))) for c in range(classes)]
    dealt = []
    for _ in range(silos):
        counts = np.round(rng.dirichlet([0.3] * classes) * size).astype(int)
        mine = [pool.pop() for pool, n in zip(pools, counts, strict=True) for _ in range(min(n, len(pool)))]
        dealt.append(rng.permutation(np.array(mine, dtype=np.int64)))
    return dealt


def made(dealt: Mapping[str, Dealt], settings: tuple[caveat.ModelSettings, caveat.Training, int]) -> Federation:
    arrays = {name: (d.x[: -d.test], d.y[: -d.test], d.x[-d.test :], d.y[-d.test :]) for name, d in dealt.items()}
    classes = [str(c) for c in range(1 + max(int(d.y.max()) for d in dealt.values()))]
    given = {"normalize": Normalize(mean=(0.5,), std=(0.5,))} if settings[0].name != "mlp" else {}
    silos = caveat.data.from_arrays(arrays, classes=classes, split=SPLIT, **given)  # type: ignore[arg-type]
    others = {name: {kind: silos.prepare(x, name) for kind, x in d.others.items()} for name, d in dealt.items()}
    return Federation(silos, others, *settings)


def heart(folder: Path, seed: int) -> Federation:
    """Heart disease at three hospitals; near: a fourth one; far: one column, or all, five deviations away."""
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
        column = x[-OTHERS:].copy()
        column[:, 0] += 5
        others = {"near": near[rng.permutation(len(near))[:OTHERS]], "far_noise": x[-OTHERS:] + 5, "far_other": column}
        dealt[name] = Dealt(x, y, int(0.35 * len(y)), others)
    return made(dealt, (caveat.ModelSettings(name="mlp"), caveat.Training(local_epochs=2, batch_size=16, lr=0.001), 15))


def digits(folder: Path, seed: int) -> Federation:
    """Digits of 8 x 8 pixels at six silos of three angles; near: 35 degrees more; far: clothes."""
    from sklearn.datasets import load_digits

    rng, bunch = np.random.default_rng(seed), load_digits()
    x, y = (bunch.images * (255 / 16)).astype(np.uint8), known(bunch.target, [3, 9])
    clothes = resized(np.load(folder / "fashion_mnist.npz")["x_test"][:OTHERS], 8)
    old, new, dealt = rng.permutation(np.flatnonzero(y >= 0)), rng.permutation(np.flatnonzero(y == -1)), {}
    for j, angle in enumerate((0, 0, -50, -50, 120, 120)):
        mine = old[j::6]
        images = x[mine]
        others = {
            "new": rotated(x[new[j::6]][:OTHERS], angle),
            "near": rotated(images[-OTHERS:], angle + 35),
            "far_noise": noisy(rotated(images[-OTHERS:], angle)),
            "far_other": clothes,
        }
        dealt[f"silo-{j}"] = Dealt(rotated(images, angle), y[mine], 60, others)
    small = caveat.Training(local_epochs=2, batch_size=16, lr=0.003)
    return made(dealt, (caveat.ModelSettings(width=8), small, 10))


def sources(folder: Path, seed: int) -> Federation:
    """Digits of four kinds, a silo each; near: another silo's kind; far: clothes."""
    rng = np.random.default_rng(seed)
    names = {"mnist": "mnist", "usps": "usps", "mnist_m": "mnist_m", "svhn": "svhn_gray_derived"}
    found = {}
    for silo, name in names.items():
        x, y = read(folder, name)
        order = rng.permutation(len(y))[:1200]
        found[silo] = resized(x[order], 28), known(y[order], [3, 9])
    clothes, dealt, order = np.load(folder / "fashion_mnist.npz")["x_test"][:OTHERS], {}, list(names)
    for j, silo in enumerate(order):
        x, y = found[silo]
        there, (near, labels) = np.flatnonzero(y >= 0)[:420], found[order[(j + 1) % 4]]
        others = {
            "new": x[y == -1][:OTHERS],
            "near": near[labels >= 0][-OTHERS:],
            "far_noise": noisy(x[there[-OTHERS:]]),
            "far_other": clothes,
        }
        dealt[silo] = Dealt(x[there], y[there], 120, others)
    return made(dealt, LENET)


def one_source(name: str, held_out: Sequence[int], far: str, near: str | None, folder: Path, seed: int) -> Federation:
    """Images of 28 x 28 pixels at six silos with class shares of their own; near: another source of digits."""
    rng, (x, y) = np.random.default_rng(seed), read(folder, name)
    x, y = x[:20_000], known(y[:20_000], held_out)
    old, new = np.flatnonzero(y >= 0), rng.permutation(np.flatnonzero(y == -1))
    clothes, dealt = np.load(folder / f"{far}.npz")["x_test"][:OTHERS], {}
    beside, labels = (x[:0], y[:0]) if near is None else read(folder, near)
    labels = known(labels, held_out) if near else labels
    for j, mine in enumerate(skewed(y[old], 6, 420, rng)):
        mine = old[mine]
        others = {
            "new": x[new[j * OTHERS : (j + 1) * OTHERS]],
            "far_noise": noisy(x[mine[-OTHERS:]]),
            "far_other": clothes,
        }
        if near is not None:
            shared = np.flatnonzero(np.isin(labels, np.unique(y[mine])))
            others["near"] = resized(beside[rng.permutation(shared)[:OTHERS]], 28)
        dealt[f"silo-{j}"] = Dealt(x[mine], y[mine], 2 * len(mine) // 7, others)
    return made(dealt, LENET)


SIGNS = (1, 2, 4, 5, 7, 8, 10, 12, 13, 38)
"""The ten most frequent of GTSRB's classes."""


def coloured(
    name: str, held_out: Sequence[int], used: Sequence[int] | None, far: str, folder: Path, seed: int
) -> Federation:
    """Colour images at five silos with class shares of their own, from 3,000 images at most, always the same."""
    rng, file = np.random.default_rng(seed), np.load(folder / f"{name}.npz")
    part = "test" if name == "gtsrb" else "train"  # GTSRB's training images show each sign thirty times
    x, y = file[f"x_{part}"], known(file[f"y_{part}"].astype(np.int64), held_out, used)
    x, y = x[y > -2][:3000], y[y > -2][:3000]
    fixed, old = x[y >= 0][:OTHERS], np.flatnonzero(y >= 0)[OTHERS:]
    new, dealt = np.flatnonzero(y == -1), {}
    foreign = resized(np.load(folder / f"{far}.npz")["x_test"][:OTHERS], x.shape[1], "RGB")
    for j, mine in enumerate(skewed(y[old], 5, 400, rng)):
        mine = old[mine]
        others = {"new": x[rng.permutation(new)[:OTHERS]], "far_noise": noisy(fixed), "far_other": foreign}
        dealt[f"silo-{j}"] = Dealt(x[mine], y[mine], len(mine) // 4, others)
    return made(dealt, LENET if name == "gtsrb" else ENCODER)


def domains(names: Sequence[str], held_out: Sequence[int], folder: Path, seed: int) -> Federation:
    """Photographs and drawings, a silo per domain; near: another silo's domain; far: satellite images."""
    rng, found = np.random.default_rng(seed), {}
    for name in names:
        x, y = read(folder, name)
        always = np.random.default_rng(0).permutation(len(y))
        y = known(y[always], held_out)
        old, new = np.flatnonzero(y >= 0)[:400], np.flatnonzero(y == -1)[: 2 * OTHERS]
        found[name] = x[always], y, rng.permutation(old), rng.permutation(new)
    satellite, dealt = np.load(folder / "eurosat_rgb.npz")["x_test"][:OTHERS], {}
    for j, name in enumerate(names):
        x, y, old, new = found[name]
        near, _, there, _ = found[names[(j + 1) % len(names)]]
        others = {
            "new": x[new[:OTHERS]],
            "near": near[there[-OTHERS:]],
            "far_noise": noisy(x[np.sort(old)[:OTHERS]]),
            "far_other": satellite,
        }
        dealt[name.rpartition("_")[2]] = Dealt(x[old], y[old], min(100, len(old) // 3), others)
    return made(dealt, ENCODER)


OFFICE = tuple(f"office_caltech10_{name}" for name in ("amazon", "caltech10", "dslr", "webcam"))
PACS = tuple(f"pacs_{name}" for name in ("art_painting", "cartoon", "photo", "sketch"))
FEDERATIONS: Mapping[str, Callable[[Path, int], Federation]] = {
    "heart": heart,
    "digits": digits,
    "mnist": partial(one_source, "mnist", [3, 9], "fashion_mnist", "usps"),
    "fashion": partial(one_source, "fashion_mnist", [2, 8], "mnist", None),
    "sources": sources,
    "gtsrb": partial(coloured, "gtsrb", [4, 12], SIGNS, "cifar10"),
    "office": partial(domains, OFFICE, [3, 7]),
    "pacs": partial(domains, PACS, [2, 5]),
    "eurosat": partial(coloured, "eurosat_rgb", [0, 5], None, "pacs_cartoon"),
    "cifar": partial(coloured, "cifar10", [3, 8], None, "mnist"),
}
