"""Compare default temperatures: none, the federation's, or each silo's own with shrinkage.

Small federations like those of the recipes use seeds that no table uses. Temperatures are fitted on validation splits
and evaluated on test splits, with the model that a silo predicts with. Prints per federation and method, and for all
together, the mean over silos of the negative log-likelihood in nats, and the fraction of silos whose calibration error
is within its chance band. "silo" is the silo's own temperature, shrunk by the estimated spread between silos; "silo,
WIDTH" uses the given spread; "alone" uses only the silo's own validation split, as under `[privacy]`.

CAVEAT_DATA=DIR python benchmarks/temperature.py [SEED...]        about 3 minutes a seed
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor

import caveat
from caveat import Prediction, config, metrics
from caveat.core import Decision
from caveat.uncertainty import temperature

SEEDS = (100, 101, 102, 103)
HOSPITALS = "csv:uci_heart_cleveland.csv,uci_heart_hungarian.csv,uci_heart_va.csv"
FEDERATIONS = {
    "digits": ("digits", "uefl fedavg", ""),
    "rotated MNIST": (
        "uefl-mnist", "fedavg fedper",
        "rounds=8 data.samples_per_silo=400 data.test_per_silo=300 model.name=cnn training.local_epochs=2",
    ),
    "Office-Caltech10": ("trfeddis-office", "trfeddis fedbn", "rounds=20 data.size=32 data.ood.global_source=''"),
    "heart": (
        None, "fedavg fedper",
        f"rounds=15 data.source={HOSPITALS} data.target=disease data.split.calibration=0.1 "
        "model.name=mlp model.width=32 training.local_epochs=2 training.batch_size=16 training.lr=0.003",
    ),
    "EuroSAT": ("fmlu-eurosat", "fedavg fml", "rounds=8 data.n_silos=10 data.samples_per_silo=200"),
}  # fmt: skip
"""Recipe, methods, and what is set besides."""
WIDTHS = (0.1, 0.2, 0.4, 0.8)
"""Standard deviations of a silo's ln b around the federation's, in place of the estimated one."""
ALONE = (0.5, 1.0)
"""The same around the model as it is, for silos that send nothing."""


class Said(NamedTuple):
    """Of one silo: logarithms of probabilities (n, C) and labels (n,), of its validation and its test split."""

    fit: Tensor
    fit_y: Tensor
    test: Tensor
    test_y: Tensor


def trained(name: str, method: str, seed: int) -> list[Said]:
    recipe, _, sets = FEDERATIONS[name]
    asked = config.load(recipe, [*sets.split(), f"method.name={method}", f"seed={seed}", "baselines=[]"])
    silos = caveat.data.load(asked.data, seed)
    run = caveat.run(
        silos, asked.build_method(), model=asked.model, seed=seed, every=1000,
        uncertainty=caveat.Uncertainty(temperature_scaling=False, policy="always", mc_samples=10),
    )  # fmt: skip
    found = []
    for silo in silos:
        predict = run.predictor(silo.name)
        said = (predict(data.x).probs.log() for data in (silo.validation, silo.test))
        fit, test = said
        found.append(Said(fit, silo.validation.y, test, silo.test.y))
    return found


def fitted(silos: list[Said]) -> Iterator[tuple[str, list[float]]]:
    """Ways to choose, and the power b of every silo."""
    curves = [temperature.curve(silo.fit, silo.fit_y) for silo in silos]
    sums = torch.stack([temperature.message(each) for each in curves]).sum(0)
    common, spread = temperature.agreed(sums).tolist()
    yield "none", [1.0] * len(silos)
    yield "federation", [common] * len(silos)
    yield "silo", [temperature.near(each, common, spread) for each in curves]
    for width in WIDTHS:
        yield f"silo, {width}", [temperature.near(each, common, width) for each in curves]
    for width in ALONE:
        yield f"alone, {width}", [temperature.near(each, 1.0, width) for each in curves]


def judged(silos: list[Said], powers: list[float]) -> tuple[float, float]:
    """Mean over silos of the likelihood on test data, and the share that is inside its chance band."""
    nll, inside = [], []
    for silo, b in zip(silos, powers, strict=True):
        found = metrics.measure(Prediction.from_samples((b * silo.test).softmax(1)[None], Decision.GLOBAL), silo.test_y)
        figures = metrics.figures(found)
        nll.append(figures["nll"])
        inside.append(figures["ece"] <= metrics.ece_null(found)["upper"])
    return mean(nll), mean(inside)


def main() -> None:
    seeds = tuple(map(int, sys.argv[1:])) or SEEDS
    every: dict[str, list[tuple[float, float]]] = {}
    for name, (_, methods, _) in FEDERATIONS.items():
        for method in methods.split():
            rows: dict[str, list[tuple[float, float]]] = {}
            for seed in seeds:
                silos = trained(name, method, seed)
                for way, powers in fitted(silos):
                    rows.setdefault(way, []).append(judged(silos, powers))
            print(f"{name}, {method}: " + told(rows), flush=True)
            for way, found in rows.items():
                every.setdefault(way, []).extend(found)
    print("all: " + told(every))


def told(rows: dict[str, list[tuple[float, float]]]) -> str:
    parts = []
    for way, found in rows.items():
        nll, inside = (mean(column) for column in zip(*found, strict=True))
        parts.append(f"{way} {nll:.3f} {inside:.0%}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
