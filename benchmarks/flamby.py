"""Reproduce FLamby's Fed-Heart-Disease with its protocol; compare with the published values and the majority class.

    CAVEAT_DATA=DIR python benchmarks/flamby.py --out FILE.jsonl            # 51 splits, about ten minutes on one core
    CAVEAT_DATA=DIR python benchmarks/flamby.py --out FILE.jsonl --table    # the tables from the results so far

The protocol is that of github.com/owkin/FLamby at edacf54 (du Terrail et al., NeurIPS 2022, Datasets and Benchmarks):
`fed_heart_disease/dataset.py` and `common.py`, `config_heart_disease.json` and `fed_benchmark.py`. Split 43 is FLamby's
and has its five initial weights, torch's with the seeds 42 to 46; each other split has one, with its own number as the
seed. No setting was chosen here. The file stores results, and repeating the command adds the missing ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import caveat
from caveat.core import Data, Silo

CENTERS = ("cleveland", "hungarian", "switzerland", "va")
KEPT = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
"""FLamby drops slope, ca and thal, and then whoever lacks any of these."""
CODED, TARGET = ("cp", "restecg"), "disease"
TRAINED = 0.66
SPLIT, INITIAL = 43, (42, 43, 44, 45, 46)
"""FLamby's split, and the seeds of its initial weights."""
COMMON: dict[str, Any] = {
    "rounds": 15, "training": caveat.Training(local_steps=100, batch_size=4, optimizer="sgd", lr=0.001),
}  # fmt: skip
MAJORITY, LOCAL, POOLED, ALIKE = "majority", "local", "pooled", "pooled, tested as trained"
PUBLISHED = {
    LOCAL: (0.7629, 0.7482, 0.6938, 0.7371, 0.7072), POOLED: (0.7391, 0.7343, 0.7367, 0.7343, 0.7319),
    "fedavg": (0.6915, 0.7198, 0.6427, 0.6943, 0.6765), "fedprox": (0.6915, 0.7198, 0.6427, 0.6943, 0.6765),
    "scaffold": (0.6891, 0.7198, 0.6427, 0.6919, 0.6765), "fedadam": (0.7212, 0.7115, 0.7461, 0.7322, 0.7167),
}  # fmt: skip
"""By seed of the initial weights, from `flamby/results/results_benchmark_fed_heart_disease`: means over the centres
(of `local`, over each centre's own model)."""
RANKED = (POOLED, "fedavg", "fedprox", "scaffold", "fedadam")
PAIRS = (
    ("fedprox", "fedavg"), ("scaffold", "fedavg"), ("fedadam", "fedavg"), (POOLED, "fedavg"), (POOLED, "fedadam"),
    (LOCAL, "fedadam"), (ALIKE, POOLED), (ALIKE, LOCAL),
)  # fmt: skip
Sizes = Mapping[str, tuple[int, ...]]
"""By centre, how many patients are to train and to test on."""
Patients = Mapping[str, Data]
"""By centre, features (N, 13) that are not normalised yet, and whether a patient is ill."""


class LogisticRegression(nn.Module):
    """FLamby's model, with a second logit of 0: the cross-entropy of both is its binary one, rates and all."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(13, 1)

    def forward(self, x: Tensor) -> Tensor:
        logit = self.linear(x)
        return torch.cat([torch.zeros_like(logit), logit], 1)


class Centers(caveat.data.Silos):
    """Silos of which one may have a single class to train on, which caveat refuses otherwise.

    Of Switzerland's 46 patients one is healthy, and at FLamby's split that is one to test on.
    """

    def check(self, batch_size: int, one_class: bool = False) -> None:
        pass


def federated() -> dict[str, tuple[caveat.Method, caveat.ServerOptimizer | None]]:
    """The rows with a server, and what it does, as `config_heart_disease.json` has them."""
    adam = caveat.ServerOptimizer(optimizer="adam", lr=0.01, beta1=0.9, beta2=0.999, tau=1e-8)
    return {
        "fedavg": (caveat.FedAvg(**COMMON), None),
        "fedprox": (caveat.FedProx(**COMMON, mu=0.01), None),
        "scaffold": (caveat.SCAFFOLD(**COMMON), None),
        "fedadam": (caveat.FedAvg(rounds=15, training=replace(COMMON["training"], lr=0.01)), adam),
    }


def alone() -> caveat.Method:
    """What FLamby's baselines without a federation do, pooled or local: Adam, 50 epochs."""
    return caveat.Local(rounds=1, training=caveat.Training(local_epochs=50, batch_size=4, optimizer="adam", lr=0.001))


def patients(folder: Path) -> Patients:
    """The patients whom FLamby keeps, in the order of the files; codes but the first become columns at the end."""
    rows = {}
    for center in CENTERS:
        with (folder / f"uci_heart_{center}.csv").open(newline="") as file:
            rows[center] = [row for row in csv.DictReader(file) if all(row[name] for name in (*KEPT, TARGET))]
    codes = {name: sorted({float(row[name]) for each in rows.values() for row in each})[1:] for name in CODED}

    def features(row: Mapping[str, str]) -> list[float]:
        plain = [float(row[name]) for name in KEPT if name not in CODED]
        return plain + [float(float(row[name]) == code) for name in CODED for code in codes[name]]

    return {
        center: Data(torch.tensor([features(row) for row in each]), torch.tensor([int(r[TARGET]) for r in each]))
        for center, each in rows.items()
    }


def divided(data: Data, seed: int) -> tuple[Data, Data]:
    """A centre's patients to train and to test on: 66 and 34 %, by class where both have three patients or more."""
    counts = data.y.bincount(minlength=2)
    by_class = data.y.numpy() if int(counts.min()) > 2 else None
    train, test = train_test_split(
        np.arange(len(data)), train_size=TRAINED, test_size=1 - TRAINED, random_state=seed, stratify=by_class
    )
    return data.part(torch.from_numpy(np.sort(train))), data.part(torch.from_numpy(np.sort(test)))


def normalized(data: Data, by: Data) -> Data:
    """By means and standard deviations of training data."""
    return Data((data.x - by.x.mean(0)) / (by.x.std(0) + 1e-9), data.y)


def silo(name: str, train: Data, test: Data) -> Silo:
    """Validation and calibration are the training data again: FLamby has no such splits, and nothing here is decided
    by them."""
    return Silo(name, name, train, train, train, test)


def measured(found: Patients, seed: int, initial: int, row: str, small: bool = False) -> dict[str, dict[str, float]]:
    """Accuracies by row and centre; `pooled` gives two rows."""
    parts = {center: divided(data, seed) for center, data in found.items()}
    tests = {center: normalized(test, train) for center, (train, test) in parts.items()}
    if row == MAJORITY:
        most = {center: int(train.y.bincount().argmax()) for center, (train, _) in parts.items()}
        return {row: {center: float((test.y == most[center]).double().mean()) for center, test in tests.items()}}
    if row == POOLED:
        whole = Data(*(torch.cat(each) for each in zip(*(train for train, _ in parts.values()), strict=True)))
        test = Data(*(torch.cat(each) for each in zip(*(test for _, test in parts.values()), strict=True)))
        run = trained(
            [silo("pooled", normalized(whole, whole), normalized(test, whole))], alone(), None, initial, small
        )
        alike = {center: normalized(test, whole) for center, (_, test) in parts.items()}
        of = {
            name: {c: ("pooled", each) for c, each in given.items()} for name, given in ((row, tests), (ALIKE, alike))
        }
    else:
        method, server = (alone(), None) if row == LOCAL else federated()[row]
        silos = [silo(center, normalized(train, train), tests[center]) for center, (train, _) in parts.items()]
        run = trained(silos, method, server, initial, small)
        of = {row: {center: (center, each) for center, each in tests.items()}}
    return {
        name: {
            center: float((run.predictor(whose)(test.x).label == test.y).double().mean())
            for center, (whose, test) in given.items()
        }
        for name, given in of.items()
    }


def trained(
    silos: list[Silo], method: caveat.Method, server: caveat.ServerOptimizer | None, initial: int, small: bool
) -> caveat.Run:
    plain = caveat.Uncertainty(mc_samples=1, temperature_scaling=False, familiarity=False)
    short = caveat.Training(local_steps=2, batch_size=4, optimizer="sgd")
    given: dict[str, Any] = {"rounds": 1, "training": short} if small else {}
    federation = Centers(tuple(silos), ("healthy", "ill"))
    return caveat.run(
        federation, method, model=LogisticRegression(initial), server=server, seed=initial, every=1000,
        uncertainty=plain, **given,
    )  # fmt: skip


def unlike(found: Patients, seed: int) -> int:
    """How many test patients have a feature that is constant in their centre's training data, and other there: its
    standard deviation is 0, so that it comes to 1e9 in size."""
    parts = [divided(data, seed) for data in found.values()]
    return sum(int((normalized(test, train).x.abs() > 1e6).any(1).sum()) for train, test in parts)


def table(rows: list[dict[str, Any]], found: Patients) -> Iterator[str]:
    sizes = {center: tuple(map(len, divided(data, SPLIT))) for center, data in found.items()}
    at_home, others = ([e for e in rows if (e["split"] == SPLIT) is home] for home in (True, False))
    yield from as_published(at_home, sizes)
    whole = len(names(rows))
    of_splits = {seed: [each for each in others if each["split"] == seed] for seed in {e["split"] for e in others}}
    splits = sorted(seed for seed, each in of_splits.items() if len(each) == whole)
    if len(splits) < 2:
        return
    constant = sum(unlike(found, seed) > 0 for seed in splits)
    single = sum(bool(divided(found["switzerland"], seed)[0].y.bool().all()) for seed in splits)
    yield ""
    yield f"{len(splits)} other splits. At {constant} a feature is constant in a centre's training data and not in its"
    yield f"test data, at {single} Switzerland has one class to train on. `first` shares ties, `alone` counts none."
    ratio = sum(test for _, test in sizes.values()) / sum(train for train, _ in sizes.values())
    figures: dict[str, Callable[[Mapping[str, float]], float]] = {
        "mean over centers": lambda own: fmean(own.values()),
        "all patients": lambda own: over_patients(own, sizes),
    }
    for what, figure in figures.items():
        yield ""
        of_rows = {
            row: {e["split"]: figure(e["figures"]) for e in others if e["row"] == row and e["split"] in splits}
            for row in names(others)
        }
        yield from over_splits(what, of_rows, ratio)


def as_published(rows: list[dict[str, Any]], sizes: Sizes) -> Iterator[str]:
    """FLamby's split, by its five initial weights."""
    yield from head([f"split {SPLIT}", "published", "here", "most apart", *CENTERS, "all patients"])
    for row in names(rows):
        of = {each["initial"]: each["figures"] for each in rows if each["row"] == row}
        means = {initial: fmean(own.values()) for initial, own in of.items()}
        published = {i: v for i, v in zip(INITIAL, PUBLISHED.get(row, ()), strict=False) if i in means}
        apart = f"{max(abs(means[i] - value) for i, value in published.items()):.3f}" if published else ""
        said = f"{fmean(published.values()):.3f}" if published else ""
        centers = [f"{fmean(own[center] for own in of.values()):.3f}" for center in CENTERS]
        everyone = f"{fmean(over_patients(own, sizes) for own in of.values()):.3f}"
        yield line([row, said, f"{fmean(means.values()):.3f}", apart, *centers, everyone])


def over_splits(what: str, of_rows: Mapping[str, Mapping[int, float]], ratio: float) -> Iterator[str]:
    always = of_rows[MAJORITY]
    best = {seed: max(of_rows[row][seed] for row in RANKED) for seed in always}
    leads = {seed: [row for row in RANKED if of_rows[row][seed] > best[seed] - 1e-9] for seed in always}
    yield from head([what, "mean", "sd", *gaps(f"minus {MAJORITY}"), "ahead", "level", "first", "alone"])
    for row, own in of_rows.items():
        cells = [row, f"{fmean(own.values()):.3f}", f"{stdev(own.values()):.3f}"]
        if row != MAJORITY:
            apart = [own[seed] - always[seed] for seed in own]
            cells += [*gap(apart, ratio), str(sum(e > 1e-9 for e in apart)), str(sum(abs(e) < 1e-9 for e in apart))]
        if row in RANKED:
            shared = sum((row in each) / len(each) for each in leads.values())
            cells += [f"{shared:.1f}", str(sum(each == [row] for each in leads.values()))]
        yield line(cells + [""] * (10 - len(cells)))
    yield from ("", *head([what, *gaps("difference"), "ahead", "level"]))
    for a, b in PAIRS:
        apart = [of_rows[a][seed] - of_rows[b][seed] for seed in always]
        ahead, level = sum(e > 1e-9 for e in apart), sum(abs(e) < 1e-9 for e in apart)
        yield line([f"{a} minus {b}", *gap(apart, ratio), str(ahead), str(level)])


def names(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(each["row"] for each in rows))


def over_patients(own: Mapping[str, float], sizes: Sizes) -> float:
    """The accuracy over all test patients together."""
    return sum(own[center] * sizes[center][1] for center in own) / sum(test for _, test in sizes.values())


def gaps(what: str) -> list[str]:
    return [what, "over splits", "corrected"]


def gap(apart: Sequence[float], ratio: float) -> list[str]:
    """The mean of differences by split in points, with two 95 % intervals: Student's over splits, which holds for other
    splits of these patients, and that of Nadeau & Bengio (Inference for the Generalization Error, 2003): as splits
    share patients, the mean's variance is s^2 (1 / J + `ratio`), of test to training patients, for s^2 / J.
    """
    mean, count = fmean(apart), len(apart)
    t = float(stats.t.ppf(0.975, count - 1)) * stdev(apart)
    ends = [t * math.sqrt(1 / count), t * math.sqrt(1 / count + ratio)]
    return [f"{100 * mean:+.1f}", *(f"[{100 * (mean - e):+.1f}, {100 * (mean + e):+.1f}]" for e in ends)]


def head(columns: list[str]) -> Iterator[str]:
    yield line(columns)
    yield f"| --- |{' ---: |' * (len(columns) - 1)}"


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=50, help="splits besides FLamby's, from 100 on")
    parser.add_argument("--small", action="store_true", help="one round of two steps, to see that it runs")
    parser.add_argument("--table", action="store_true", help="train nothing")
    given = parser.parse_args()
    if "CAVEAT_DATA" not in os.environ:
        parser.error("CAVEAT_DATA names no folder; uci_heart_cleveland.csv and the three others are expected there")
    found = patients(Path(os.environ["CAVEAT_DATA"]))
    kept = [json.loads(each) for each in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {(each["split"], each["initial"], each["row"]) for each in kept}
    wanted = [(SPLIT, initial) for initial in INITIAL] + [(100 + i, 100 + i) for i in range(given.splits)]
    for seed, initial in [] if given.table else wanted:
        for row in (MAJORITY, LOCAL, POOLED, *federated()):
            if (seed, initial, row) in done:
                continue
            for name, own in measured(found, seed, initial, row, given.small).items():
                kept.append({"split": seed, "initial": initial, "row": name, "figures": own})
                with given.out.open("a") as file:
                    file.write(json.dumps(kept[-1]) + "\n")
    print("\n".join(table(kept, found)))


if __name__ == "__main__":
    main()
