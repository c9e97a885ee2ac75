"""Simulate why splits are not stratified by class: calibration rows must be drawn like new inputs.

    python benchmarks/stratified_splits.py            # two minutes on one core

Silos have rows of four classes with unequal frequencies, in six dimensions. Each trains its own model, a Gaussian per
class with the class frequencies of its training rows, on half of them; 40 % are for calibration. Prints errors at
calibration rows and at new inputs, with splits at random and with splits stratified by class, and how often a guarantee
over 100 silos together (at most 30 % errors among answered inputs, at 90 % confidence) is violated at new inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from caveat.data.splits import draw_parts
from caveat.uncertainty.selective_risk import fixed_sequence, policy_counts
from caveat.uncertainty.statistical_tests import wilson

FREQUENCIES = np.array([0.4, 0.3, 0.2, 0.1])
CLASSES, INPUTS, NEW = len(FREQUENCIES), 6, 30
SILOS, DRAWS = 100, 100
RISK, CONFIDENCE = 0.3, 0.9
Draw = Callable[[np.ndarray, tuple[int, int], np.random.Generator], list[np.ndarray]]


def stratified(y: np.ndarray, sizes: tuple[int, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Each part has every class by its share, as far as rows can be divided."""
    order, place = rng.permutation(len(y)), np.empty(len(y))
    for label in np.unique(y):
        members = order[y[order] == label]
        place[members] = (np.arange(len(members)) + rng.random()) / len(members)
    return np.split(np.argsort(place), np.cumsum(sizes))[:2]


def at_random(y: np.ndarray, sizes: tuple[int, int], rng: np.random.Generator) -> list[np.ndarray]:
    return draw_parts(len(y), sizes, rng)


def silo(rows: int, means: np.ndarray, draw: Draw, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return errors and uncertainties at calibration rows, and at new inputs."""
    y = rng.choice(CLASSES, rows + NEW, p=FREQUENCIES)
    x = means[y] + rng.normal(size=(rows + NEW, INPUTS))
    train, calibration = draw(y[:rows], (rows // 2, rows * 2 // 5), rng)
    counts = np.bincount(y[train], minlength=CLASSES)
    learned = np.stack([x[train][y[train] == label].sum(0) / (counts[label] + 1) for label in range(CLASSES)])
    found: list[np.ndarray] = []
    for at in (calibration, np.arange(rows, rows + NEW)):
        logits = np.log(counts + 0.3) - ((x[at, None] - learned) ** 2).sum(-1) / 2
        probs = torch.from_numpy(logits).softmax(-1).numpy()
        found += [probs.argmax(1) != y[at], 1 - probs.max(1)]
    return tuple(found)


def federation(rows: int, draw: Draw, rng: np.random.Generator) -> tuple[float, float, bool]:
    """Return the rates of errors at calibration rows and at new inputs, and whether the guarantee is violated."""
    means = 0.9 * rng.normal(size=(CLASSES, INPUTS))
    wrong, unsure, new_wrong, new_unsure = map(
        np.concatenate, zip(*(silo(rows, means, draw, rng) for _ in range(SILOS)), strict=True)
    )
    levels = np.quantile(unsure, np.arange(100) / 100)  # every silo is measured by the same thresholds
    ranks = (np.searchsorted(levels, each, side="right").clip(1) / 100 for each in (unsure, new_unsure))
    rank = [torch.from_numpy(each) for each in ranks]
    counts = policy_counts(None, rank[0], None, torch.from_numpy(wrong))
    limit = fixed_sequence(counts, RISK, CONFIDENCE, total=len(wrong)).limit or 0.0
    answered = (rank[1] <= limit).numpy()
    violated = bool(answered.any()) and new_wrong[answered].mean() > RISK
    return float(wrong.mean()), float(new_wrong.mean()), violated


def main() -> None:
    print("rows per silo, splits: errors at calibration rows, at new inputs; violated guarantees")
    for rows in (20, 40, 100, 400):
        for name, draw in (("stratified", stratified), ("at random", at_random)):
            rng = np.random.default_rng(rows)
            runs = [federation(rows, draw, rng) for _ in range(DRAWS)]
            calibration, new, violated = np.array(runs, float).mean(0)
            low, high = wilson(round(violated * DRAWS), DRAWS)
            print(f"{rows}, {name}: {calibration:.1%}, {new:.1%}; {violated:.0%} [{low:.0%}, {high:.0%}]")


if __name__ == "__main__":
    main()
