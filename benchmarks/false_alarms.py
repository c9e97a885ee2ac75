"""Measure how often runs call inputs of their own silos unfamiliar, over redraws of calibration and test splits.

Calibration and test inputs of a silo, which are not used in training, are pooled and divided again 20 times into splits
of the original sizes. Prints per run the fraction of test inputs with a familiarity of at most 5 %, as a mean over
silos and redraws, and the worst silo's mean over redraws. Each has a one-sided p-value of the guarantee (t-test over
redraws), corrected by Holm over runs, and over the silos of a run.

CAVEAT_DATA=DIR python benchmarks/false_alarms.py RUN...
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.stats import ttest_1samp
from torch import Tensor

import caveat
from caveat.core import Payload, SiloContext, State
from caveat.uncertainty.statistical_tests import holm
from caveat.uncertainty.typicality import conformal
from caveat.wrappers.alarms import GROUP, INPUT, Familiar, distances, whose_stage
from caveat.wrappers.base import find

REDRAWS, ALARM, MOST = 20, 0.05, 600


def pooled(run: caveat.Run, name: str) -> tuple[Tensor, int]:
    """(n, S) log-distances of a silo's calibration and test inputs under the model that it predicts with, and how many
    are of the calibration split.
    """
    familiar = find(run.experiment.complete_method, Familiar)
    assert familiar is not None
    silo = run.silos.named(name)
    x = torch.cat([silo.calibration.x, silo.test.x[:MOST]])

    def ask(down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensor:
        known = down[GROUP] | state[GROUP]
        answers, numbers, _ = familiar.observed(down, state, context, x)
        whose = list(answers)[-1].name.lower()
        stages = [s for s in numbers if whose_stage(s) in (INPUT, whose) and f"{s}.whiten" in known]
        return torch.stack([distances(known, stage, numbers[stage]) for stage in stages], 1)

    return ask(*run.experiment.at(name), x), len(silo.calibration)


def rates(run: caveat.Run) -> np.ndarray:
    """(redraws, silos) shares of test inputs that are called unfamiliar."""
    found = []
    for k, silo in enumerate(run.silos):
        far, n = pooled(run, silo.name)
        generator = torch.Generator().manual_seed(k)
        orders = [torch.randperm(len(far), generator=generator) for _ in range(REDRAWS)]
        alarms = [conformal(far[order[:n]], far[order[n:]]) <= ALARM for order in orders]
        found.append([float(each.double().mean()) for each in alarms])
    return np.array(found).T


def above(values: np.ndarray) -> float:
    """The p-value of a mean at most `ALARM`."""
    if values.std() == 0:
        return float(values.mean() <= ALARM)
    return float(ttest_1samp(values, ALARM, alternative="greater").pvalue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    rows = []
    for folder in parser.parse_args().runs:
        found = rates(caveat.load(folder))
        by_redraw, by_silo = found.mean(1), found.mean(0)
        error = by_redraw.std(ddof=1) / REDRAWS**0.5
        silos = min(holm([above(each) for each in found.T]))
        rows.append((folder, by_redraw.mean(), error, above(by_redraw), by_silo.max(), silos))
    print("| run | false alarms | p | worst silo | p, Holm over silos |\n|---|---:|---:|---:|---:|")
    for folder, mean, error, p, worst, silos in rows:
        print(f"| {folder} | {mean:.3f} ± {error:.3f} | {p:.2f} | {worst:.3f} | {silos:.2f} |")
    print(f"\nleast p, Holm over runs: {min(holm([row[3] for row in rows])):.2f}")


if __name__ == "__main__":
    main()
