"""Compare Laplace's posterior of the last layer with a single pass, also for silos' own heads.

There are four small federations: heart (three hospitals), digits (six silos at three angles), skewed (MNIST, six silos,
classes from a Dirichlet distribution with alpha .3) and four (MNIST, USPS, MNIST-M and SVHN, one per silo). Prints per
federation, method and seed the mean over silos of the negative log-likelihood of test labels in nats after temperature
scaling, and the accuracy.

CAVEAT_DATA=DIR python benchmarks/laplace.py [FEDERATION...] [--seeds 0,1,2] [--methods fedavg,local]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import caveat
from caveat.data import Normalize, Split

Arrays = tuple[Any, Any]
METHODS = ("fedavg", "local", "apfl", "ditto", "fedrod")
SPLIT = Split(train=0.6, validation=0.15, calibration=0.25)
NORMALIZE = Normalize(mean=(0.5,), std=(0.5,))
LEFT_OUT = (3, 9)
"""Classes of digits that are not used: the federations are those of benchmarks of new classes."""


def read(name: str) -> dict[str, Any]:
    return dict(np.load(Path(os.environ["CAVEAT_DATA"]) / f"{name}.npz"))


def known(y: Any) -> Any:
    """Return labels from 0 without the classes that are left out, which are -1."""
    left = [c for c in np.unique(y) if c not in LEFT_OUT]
    return np.array([left.index(c) if c in left else -1 for c in y])


def resized(images: Any, side: int) -> Any:
    return np.stack(
        [
            np.asarray(Image.fromarray(each).convert("L").resize((side, side), Image.Resampling.BILINEAR))
            for each in images
        ]
    )


def parts(silos: dict[str, Arrays], rng: np.random.Generator, train: int, test: int) -> dict[str, Any]:
    found = {}
    for name, (x, y) in silos.items():
        order = rng.permutation(len(y))
        a, b = order[:train], order[train : train + test]
        found[name] = (x[a], y[a], x[b], y[b])
    return found


def heart(seed: int) -> Any:
    rng, silos = np.random.default_rng(seed), {}
    for name in ("cleveland", "hungarian", "va"):
        of = read(f"uci_heart_{name}")
        x = of["x"].astype(float)
        silos[name] = np.nan_to_num(np.where(np.isnan(x), np.nanmedian(x, 0), x)), (of["y"] > 0).astype(int)
    every = np.concatenate([x for x, _ in silos.values()])
    found = {}
    for name, (x, y) in silos.items():
        order, cut = rng.permutation(len(y)), int(0.65 * len(y))
        x = (x - every.mean(0)) / (every.std(0) + 1e-9)
        found[name] = (x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]])
    return caveat.data.from_arrays(found, split=SPLIT)


def digits(seed: int) -> Any:
    rng, source, silos = np.random.default_rng(seed), load_digits(), {}
    x, y = (source.images * 255 / 16).astype(np.uint8), known(source.target)
    order = rng.permutation(np.flatnonzero(y >= 0))
    rng.permutation(np.flatnonzero(y < 0))
    for k, angle in enumerate((0, 0, -50, -50, 120, 120)):
        mine = order[k::6]
        turned = [np.asarray(Image.fromarray(each).rotate(angle, Image.Resampling.BILINEAR)) for each in x[mine]]
        silos[f"s{k}"] = np.stack(turned), y[mine]
    return caveat.data.from_arrays(parts(silos, rng, 170, 60), split=SPLIT, normalize=NORMALIZE)


def skewed(seed: int) -> Any:
    rng, source, silos = np.random.default_rng(seed), read("mnist"), {}
    x, y = source["x_train"][:20000], known(source["y_train"][:20000])
    x, y = x[y >= 0], y[y >= 0]
    pools = [list(rng.permutation(np.flatnonzero(y == c))) for c in range(8)]
    for k in range(6):
        wanted = np.round(rng.dirichlet([0.3] * 8) * 420).astype(int)
        mine = [[pools[c].pop() for _ in range(min(wanted[c], len(pools[c])))] for c in range(8)]
        rows = np.concatenate(mine).astype(int)
        silos[f"s{k}"] = x[rows], y[rows]
    rng.permutation(np.flatnonzero(known(source["y_train"][:20000]) < 0))
    classes = [str(c) for c in range(8)]
    return caveat.data.from_arrays(parts(silos, rng, 300, 120), split=SPLIT, normalize=NORMALIZE, classes=classes)


def four(seed: int) -> Any:
    rng, silos = np.random.default_rng(seed), {}
    for name in ("mnist", "usps", "mnist_m", "svhn_gray_derived"):
        of = read(name)
        x, y = (np.concatenate([of[f"{k}_train"], of[f"{k}_test"]]) for k in "xy")
        chosen = rng.permutation(len(y))[:1200]
        x, y = resized(x[chosen], 28), known(y[chosen].astype(int))
        silos[name.split("_g")[0]] = x[y >= 0][:420], y[y >= 0][:420]
    return caveat.data.from_arrays(parts(silos, rng, 300, 120), split=SPLIT, normalize=NORMALIZE)


IMAGES = caveat.Training(local_epochs=3, batch_size=32, lr=0.003)
FEDERATIONS: dict[str, tuple[Any, caveat.ModelSettings, caveat.Training, int]] = {
    "heart": (
        heart, caveat.ModelSettings(name="mlp"), caveat.Training(local_epochs=2, batch_size=16, lr=0.001), 15
    ),
    "digits": (
        digits, caveat.ModelSettings(width=8), caveat.Training(local_epochs=3, batch_size=16, lr=0.003), 12
    ),
    "skewed": (skewed, caveat.ModelSettings(name="lenet5"), IMAGES, 15),
    "four": (four, caveat.ModelSettings(name="lenet5"), IMAGES, 15),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("federations", nargs="*", default=list(FEDERATIONS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", default=",".join(METHODS))
    asked = parser.parse_args()
    for name in asked.federations:
        make, model, training, rounds = FEDERATIONS[name]
        for seed in map(int, asked.seeds.split(",")):
            silos = make(seed)
            for method in asked.methods.split(","):
                told = []
                for way in ({"mc_samples": 1}, {"source": "laplace"}):
                    uncertainty = caveat.Uncertainty(policy="always", **way)
                    built = caveat.METHODS[method](training=training, rounds=rounds)
                    run = caveat.run(silos, built, model=model, seed=seed, every=10**6, uncertainty=uncertainty)
                    told.append("nll {nll:.3f} accuracy {accuracy:.3f}".format(**run.summary["mean"]))
                print(f"{name}, {method}, seed {seed}: single pass {told[0]}; laplace {told[1]}", flush=True)


if __name__ == "__main__":
    main()
