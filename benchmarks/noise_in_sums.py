"""Accuracy at the same epsilon against the server: noise in each update, or in the sum that secure aggregation opens.

    python benchmarks/noise_in_sums.py

FedAvg with a linear model on scikit-learn's digits at 100 silos with 17 or 18 images each, on one machine, for three
seeds. With noise in the sum, the 67 silos of the smallest sum have all of the noise that epsilon needs, even if one of
them gives its own noise away; otherwise each silo adds that much. Epsilon in the first column holds for every sum that
can be opened. The table has the accuracy on the silos' test inputs (mean of seeds, and the lowest and highest). Takes
ten minutes on one core.
"""

from __future__ import annotations

import math
from statistics import fmean

from scipy.optimize import brentq

import caveat
from caveat.config import load
from caveat.wrappers.privacy import composed

SILOS, ROUNDS, SEEDS, DELTA, CLIP = 100, 10, (0, 1, 2), 1e-5, 1.0
EPSILONS = (1.0, 2.0, 4.0, 8.0)


def multiplier(epsilon: float) -> float:
    """The noise multiplier of each round that comes to epsilon over all rounds."""
    return float(brentq(lambda noise: composed([noise] * ROUNDS, DELTA) - epsilon, 0.1, 1000))


def accuracy(seed: int, privacy: caveat.Privacy, secure: bool) -> tuple[float, float]:
    """Accuracy over all test inputs, and epsilon against the server."""
    settings = load(
        "digits",
        [f"data.n_silos={SILOS}", "data.shift.angles=[0]", "data.split.train=0.7", "data.split.validation=0.1"],
    ).data
    training = caveat.Training(local_epochs=3, batch_size=8, lr=0.01, optimizer="adam")
    run = caveat.run(
        caveat.data.load(settings, seed), caveat.FedAvg(rounds=ROUNDS, training=training),
        model=caveat.ModelSettings(name="linear", dropout=0.0), seed=seed, every=1000, privacy=privacy,
        secure=secure, robust="off", uncertainty=caveat.Uncertainty(policy="always"),
    )  # fmt: skip
    found = run.summary.get("privacy") or {"epsilon_server": math.inf}
    return run.summary["pooled"]["accuracy"], found["epsilon_server"]


def cell(privacy: caveat.Privacy, secure: bool) -> list[str]:
    found = [accuracy(seed, privacy, secure) for seed in SEEDS]
    values = [each for each, _ in found]
    return [f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})", f"{found[0][1]:.3g}"]


if __name__ == "__main__":
    head = ["epsilon", "noise in the sum", "epsilon_server", "noise in each update", "epsilon_server"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for epsilon in EPSILONS:
        noise = multiplier(epsilon)
        sums = cell(caveat.Privacy(clip_norm=CLIP, noise_multiplier=noise, where="sum"), True)
        # Of n silos, each adds 1 / sqrt(n) of this.
        each = cell(caveat.Privacy(clip_norm=CLIP, noise_multiplier=noise * math.sqrt(SILOS)), False)
        print(f"| {epsilon:g} | {' | '.join([*sums, *each])} |", flush=True)
    print(f"| none | {cell(caveat.Privacy(), True)[0]} | | {cell(caveat.Privacy(), False)[0]} | |")
