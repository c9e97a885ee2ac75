"""Simulate the coverage of prediction sets at a silo with other class frequencies, with and without `label_shift`.

The model is good at the first of three classes and bad at the last. 15 silos have 8 calibration inputs each, 85 % of
them of the first class; one silo has 150, of all classes. The silo in question has 8, 85 % of them of the last class,
or frequencies like the 15. It has N training labels. Prints for each N its coverage with sets of 90 %, as a mean over
draws of all calibration inputs and training labels with its standard error, and the mean number of classes in a set.

python benchmarks/label_shift.py [DRAWS]        20 seconds for 1000
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from statistics import mean, stdev

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from caveat.uncertainty import sets

COVERAGE = 0.9
EASY, MIXED, HARD = (0.85, 0.1, 0.05), (0.3, 0.3, 0.4), (0.05, 0.1, 0.85)
SIGNAL = (4.0, 2.0, 0.5)
"""How much larger the logit of the label is than others are, by class."""
TRAINING = (20, 60, 200, 2000)


def labels(n: int, shares: Iterable[float], generator: torch.Generator) -> Tensor:
    return torch.multinomial(torch.tensor(tuple(shares)), n, replacement=True, generator=generator)


def probabilities(y: Tensor, generator: torch.Generator) -> Tensor:
    """What the model says of inputs, which depend on nothing but their label."""
    logits = torch.tensor(SIGNAL)[y, None] * one_hot(y, 3) + torch.randn(len(y), 3, generator=generator)
    return logits.double().softmax(-1)


def drawn(here: tuple[float, ...], training: int, seed: int) -> list[tuple[float, float]]:
    """Coverage and size of sets at the silo, without weights and with them."""
    generator = torch.Generator().manual_seed(seed)
    few = torch.cat([labels(120, EASY, generator), labels(8, here, generator)])
    many, fresh = labels(150, MIXED, generator), labels(2000, here, generator)
    of_few, of_many, new = (probabilities(y, generator) for y in (few, many, fresh))
    plain = sets.merged_threshold(sets.surprise_histogram(of_few, few), COVERAGE)
    counts = sets.surprise_by_class(torch.cat([of_few, of_many]), torch.cat([few, many]))
    seen = torch.bincount(labels(training, here, generator), minlength=3) / training
    limits = plain, sets.shifted_threshold(counts, seen, COVERAGE)
    found = [sets.prediction_sets(new, new.argmax(1), limit) for limit in limits]
    held = [each.gather(1, fresh[:, None]).double().mean() for each in found]
    return [(float(h), float(each.sum(1).double().mean())) for h, each in zip(held, found, strict=True)]


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for name, here in (("other classes", HARD), ("the same classes", EASY)):
        for training in TRAINING:
            every = [drawn(here, training, seed) for seed in range(draws)]
            for kind, rows in zip(("plain", "label_shift"), zip(*every, strict=True), strict=True):
                coverage, size = zip(*rows, strict=True)
                error = stdev(coverage) / draws**0.5
                print(f"{name}, N = {training}, {kind}: {mean(coverage):.3f} +- {error:.3f}, {mean(size):.2f} classes")


if __name__ == "__main__":
    main()
