"""Simulate error rates of contrasts and pairs: how often a table has any wrong verdict if methods are equally good.

    python benchmarks/contrast_null.py [--draws 2000] [--pairs]

There are three contrasts of four methods on S seeds, which share their N test inputs (or draw them from a pool of three
times as many) in nine silos. Whether a method classifies an input correctly depends on the input, the method and input,
the method and seed, and chance. Inputs and seeds are drawn again for every draw, so equally good methods differ on the
inputs of a draw. "any better" is the fraction of draws in which any contrast is called better or worse although all
methods are equally good. "any equal" is the fraction in which any is called equal although all differ by exactly the
margin. "seeds alone" is a paired t-test over seeds with Holm's correction, which treats test inputs as fixed.

With --pairs: all pairs of five methods, tested as in `caveat compare`, on four silos whose inputs all seeds share. The
log-odds of two classes are a sum of terms for the input, the method and input, the seed, and chance. "any pair" is the
fraction of draws in which any simultaneous interval of a metric excludes 0.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from scipy import special, stats

from caveat import metrics
from caveat.analysis.statistics import LEVEL, SeedDifferences, estimate, simultaneous, verdicts
from caveat.core import Prediction
from caveat.uncertainty.statistical_tests import holm

SILOS = 9
CONTRASTS = 3


def drawn(random: np.random.Generator, seeds: int, inputs: int, own: float, shared: bool, ahead: float):
    """Per contrast the differences of every seed: the first method is `ahead` on average."""
    pool = inputs if shared else 3 * inputs
    hard = random.normal(1.5, 2.0, pool)
    liking = random.normal(0.0, own, (CONTRASTS + 1, pool))  # of methods for inputs, whichever the seed
    found: list[list[SeedDifferences]] = [[] for _ in range(CONTRASTS)]
    for _ in range(seeds):
        chosen = np.sort(random.permutation(pool)[:inputs])
        silos = random.integers(0, SILOS, inputs)
        trained = random.normal(0.0, 0.15, (CONTRASTS + 1, 1))  # how well training went
        chances = special.expit(hard[chosen] + liking[:, chosen] + trained)
        right = (random.random(chances.shape) < chances).astype(float)
        lead = (random.random(inputs) < abs(ahead)) * np.sign(ahead)
        for i in range(CONTRASTS):
            found[i].append(SeedDifferences(chosen, silos, right[i + 1] - right[0] + lead, steps=1.0))
    return found


def over_seeds(table: list[list[SeedDifferences]]) -> bool:
    """Whether tests over seeds alone find any difference."""
    means = [[seed.mean for seed in contrast] for contrast in table]
    return min(holm([float(stats.ttest_1samp(each, 0.0).pvalue) for each in means])) < LEVEL


FIGURES = ("accuracy", "nll", "ece", "auroc_error", "augrc")


def contributed(logits: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """What the inputs (N,) of a silo contribute to each metric, for the log-odds of the second of two classes."""
    probs = torch.from_numpy(special.expit(np.stack([-logits, logits], 1)))
    found = metrics.contributions(Prediction.from_samples(probs[None]), torch.from_numpy(y))
    return {figure: found[figure].numpy() for figure in FIGURES}


def compared(random: np.random.Generator, seeds: int, inputs: int, own: float) -> Iterator[list[list[SeedDifferences]]]:
    """Per figure, the differences of all pairs of five methods by seed."""
    methods, silos = 5, np.repeat(np.arange(4), inputs)
    y = random.integers(0, 2, len(silos))
    hard = (2 * y - 1) * random.normal(1.0, 2.0, len(silos))
    hard = hard + random.normal(0.0, own, (methods, 1, len(silos)))
    trained = random.normal(0.0, 0.15, (methods, seeds, 1)) * (2 * y - 1)
    logits = hard + trained + random.normal(0.0, 0.5, (methods, seeds, len(silos)))
    parts = [[[contributed(seed[silos == k], y[silos == k]) for k in range(4)] for seed in each] for each in logits]
    for figure in FIGURES:
        values = [[np.concatenate([part[figure] for part in seed]) for seed in each] for each in parts]
        yield [
            [SeedDifferences(np.arange(len(silos)), silos, a - b, steps=float(figure == "accuracy"))
             for a, b in zip(one, other, strict=True)]
            for one, other in itertools.combinations(values, 2)
        ]  # fmt: skip


def pairs(draws: int) -> None:
    print("| seeds | inputs per silo | input effect | metric | any pair | seeds alone |")
    print("| ---: | ---: | ---: | --- | ---: | ---: |")
    for seeds, inputs, own in [(3, 50, 1.0), (5, 50, 1.0), (10, 50, 1.0), (10, 50, 0.0)]:
        random, wrong = np.random.default_rng([seeds, inputs, int(10 * own)]), np.zeros((len(FIGURES), 2))
        for _ in range(draws):
            for i, table in enumerate(compared(random, seeds, inputs, own)):
                found = min(p for *_, p in simultaneous([estimate(each) for each in table]))
                wrong[i] += found < LEVEL, over_seeds(table)
        for figure, (any_pair, alone) in zip(FIGURES, wrong / draws, strict=True):
            print(f"| {seeds} | {inputs} | {own} | {figure} | {any_pair:.3f} | {alone:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--pairs", action="store_true", help="all pairs of five methods, in several metrics")
    given = parser.parse_args()
    draws, margin = given.draws, 0.01
    if given.pairs:
        pairs(draws)
        return
    print("| seeds | inputs | input effect | test inputs | any better | any equal at the margin | seeds alone |")
    print("| ---: | ---: | ---: | --- | ---: | ---: | ---: |")
    for seeds, inputs, own, shared in [
        (10, 500, 0.0, True), (10, 500, 1.0, True), (10, 2000, 1.0, True), (10, 500, 1.0, False),
        (10, 2000, 0.3, True), (10, 20_000, 0.1, True), (5, 500, 1.0, True), (3, 500, 1.0, True),
    ]:  # fmt: skip
        random, wrong = np.random.default_rng([seeds, inputs, int(10 * own), shared]), np.zeros(3)
        for _ in range(draws):
            alike = drawn(random, seeds, inputs, own, shared, 0.0)
            said = verdicts([estimate(each) for each in alike], [margin] * CONTRASTS)
            apart = drawn(random, seeds, inputs, own, shared, margin)
            equal = verdicts([estimate(each) for each in apart], [margin] * CONTRASTS)
            wrong += [
                any(verdict in ("better", "worse") for *_, verdict in said),
                any(verdict == "equal" for *_, verdict in equal),
                over_seeds(alike),
            ]
        rates = " | ".join(f"{rate:.3f}" for rate in wrong / draws)
        print(f"| {seeds} | {inputs} | {own} | {'shared' if shared else 'drawn anew'} | {rates} |", flush=True)


if __name__ == "__main__":
    main()
