"""Measure how much accuracy calibration rows cost small silos, by split fractions.

    CAVEAT_DATA=DIR python benchmarks/small_silos.py heart          # half an hour on one core
    CAVEAT_DATA=DIR python benchmarks/small_silos.py digits --seeds 4

Silos have 48 non-test rows, like silos with 60 rows in total, and are tested on 60 others: four hospitals (UCI heart
disease), or nine silos of digits with three rotations. Seeds begin at 200, which no table uses. Prints means over silos
and seeds, and differences from fractions of .8, .1 and .1 with their standard errors over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections import defaultdict
from statistics import fmean, stdev

import caveat
from caveat import data

SPLITS = {".8, .1, .1": (38, 5, 5), "16 for calibration": (27, 5, 16), "default": (23, 5, 20), "10 for validation": (
    19, 9, 20
)}  # fmt: skip
"""Numbers of rows for training, validation and calibration."""
CATEGORIES = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FIGURES = ("accuracy", "nll", "unfamiliar")


def silos(name: str, sizes: tuple[int, int, int], seed: int) -> data.Silos:
    shares = [size / sum(sizes) for size in sizes]
    split = data.Split(*shares, test=0.5)
    if name == "heart":
        folder = os.environ["CAVEAT_DATA"]
        source = "csv:" + ",".join(f"{folder}/uci_heart_{each}.csv" for each in HOSPITALS)
        keys = {"source": source, "target": "disease", "categorical": CATEGORIES, "duplicates": "drawn"}
    else:
        keys = {"source": "digits", "n_silos": 9, "shift": caveat.data.Shift(angles=(0, -50, 120))}
    settings = data.DataSettings(**keys, samples_per_silo=sum(sizes), test_per_silo=60, split=split)  # type: ignore[arg-type]
    return data.load(settings, seed)


def methods(name: str) -> dict[str, caveat.Method]:
    def training(lr: float) -> caveat.Training:
        return caveat.Training(local_epochs=2 if name == "heart" else 3, batch_size=8 if name == "heart" else 16, lr=lr)

    if name == "digits":
        kinds = (caveat.Local, caveat.FedAvg, caveat.FedPer)
        return {kind.__name__: kind(rounds=10, training=training(0.003)) for kind in kinds}
    return {
        "Local": caveat.Local(rounds=7, training=training(0.001)),
        "FedAvg": caveat.FedAvg(rounds=10, training=training(0.003)),
        "Ditto": caveat.Ditto(rounds=7, training=training(0.003)),
        "FedPN": caveat.FedPN(rounds=7, training=training(0.001)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("heart", "digits"))
    parser.add_argument("--seeds", type=int, default=6)
    given = parser.parse_args()
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for seed, (split, sizes) in itertools.product(range(200, 200 + given.seeds), SPLITS.items()):
        for name, method in methods(given.data).items():
            own = "always" if method.policy == "blend" else None  # its paper's prediction
            asked = caveat.Uncertainty(mc_samples=1, policy=own)
            run = caveat.run(silos(given.data, sizes, seed), method, seed=seed, every=1000, uncertainty=asked)
            found[name, split].append({figure: run.summary["mean"][figure] for figure in FIGURES})
    for (name, split), own in found.items():
        line = [f"{name}, {split}"]
        for figure in FIGURES:
            values = [each[figure] for each in own]
            less = [a - b[figure] for a, b in zip(values, found[name, ".8, .1, .1"], strict=True)]
            error = stdev(less) / len(less) ** 0.5 if len(less) > 1 else 0.0
            line.append(f"{figure} {fmean(values):.3f} ({fmean(less):+.3f} ± {error:.3f})")
        print("  ".join(line))


if __name__ == "__main__":
    main()
