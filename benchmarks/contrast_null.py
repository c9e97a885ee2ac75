"""Do contrasts keep their promise? How often a table of contrasts has any wrong verdict where methods are alike.

    python benchmarks/contrast_null.py [--draws 2000]

Simulated: three contrasts of four methods on S seeds, which share their N test inputs (or draw them anew from a pool
of three times as many) in nine silos. Whether a method has an input right depends on the input, on method and input, on
method and seed, and on chance; inputs and seeds are drawn anew for every draw, so that methods that are alike differ on
the inputs of a draw. "any better" counts draws in which any contrast is called better or worse where all methods are
alike; "any equal" those in which any is called equal where all differ by exactly the margin; "seeds alone" is a paired
t test over seeds with Holm's correction, which takes test inputs for fixed.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import special, stats

from caveat.analysis.statistics import CONTRAST_LEVEL as LEVEL
from caveat.analysis.statistics import SeedDifferences, estimate, holm, verdicts

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
            found[i].append(SeedDifferences(chosen, silos, right[i + 1] - right[0] + lead))
    return found


def over_seeds(table: list[list[SeedDifferences]]) -> bool:
    """Whether tests over seeds alone find any difference."""
    means = [[float(seed.weights @ seed.values) for seed in contrast] for contrast in table]
    return min(holm([float(stats.ttest_1samp(each, 0.0).pvalue) for each in means])) < LEVEL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    draws, margin = parser.parse_args().draws, 0.01
    print("| seeds | inputs | methods like inputs | test inputs | any better | any equal at the margin | seeds alone |")
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
