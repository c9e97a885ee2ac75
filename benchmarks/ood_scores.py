"""Measure which scores of finished runs detect inputs with Gaussian noise, as in TrFedDis' Figure 3, and other data.

    CAVEAT_DATA=DIR python benchmarks/ood_scores.py RUN... [--std 1.5] [--most 2000]

The noise is added to normalized test inputs; other data are those of the stream ood_global, if a run has it. Prints per
run and model the exact AUROC of each score against clean test inputs in percent, as a mean over silos and for the worst
silo, and the accuracy on clean and noisy inputs. Seeds of the same cell are averaged: RUN is OUT/CELL/seed-N.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import caveat

Found = dict[tuple[str, str, str], list[float]]
"""By model, what is to be told from clean inputs, and score: a number per silo."""


def measure(folder: Path, std: float, most: int) -> Found:
    run = caveat.load(folder)
    found: Found = defaultdict(list)
    for silo in run.silos:
        x, y = silo.test.x[:most], silo.test.y[:most]
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        answers = run.answers(silo.name)
        asked = {"clean": answers(x), "noise": answers(x + std * noise)}
        asked |= {"foreign": answers(silo.streams["ood_global"].x)} if "ood_global" in silo.streams else {}
        for whose, clean in asked["clean"].items():
            model = whose.name.lower()
            for kind, told in asked.items():
                if kind != "foreign":
                    found[model, kind, "accuracy"].append(float((told[whose].label == y).double().mean()))
                if kind != "clean":
                    for score, known in clean.scores.items():
                        found[model, kind, score].append(auroc(known, told[whose].scores[score]))
    return found


def auroc(known: Tensor, unknown: Tensor) -> float:
    foreign = torch.cat([torch.zeros(len(known)), torch.ones(len(unknown))])
    return float(roc_auc_score(foreign, torch.cat([known, unknown])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--std", type=float, default=1.5, help="standard deviation of the noise [1.5]")
    parser.add_argument("--most", type=int, default=2000, help="test inputs per silo at most [2000]")
    given = parser.parse_args()
    cells: dict[Path, list[Found]] = defaultdict(list)
    for folder in given.runs:
        cells[folder.parent].append(measure(folder, given.std, given.most))
    for cell, seeds in cells.items():
        print(f"\n{cell}: {len(seeds)} seeds, noise of {given.std:g}\n")
        print("| model | inputs | score | mean | worst silo |\n|---|---|---|---:|---:|")
        for key in seeds[0]:
            means = [100 * fmean(found[key]) for found in seeds]
            worst = min(100 * min(found[key]) for found in seeds)
            spread = f" ({stdev(means):.1f})" if len(means) > 1 else ""
            print(f"| {' | '.join(key)} | {fmean(means):.1f}{spread} | {worst:.1f} |")


if __name__ == "__main__":
    main()
