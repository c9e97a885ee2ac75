"""How finely figures are known: in what steps they come, what they can be at most, and how few inputs they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ...files.schema.comparison import IntervalRecord, Measure
from ...metrics import HIGHER_IS_BETTER, LOWER_IS_BETTER
from ..statistics import Interval, Steps
from .finished import FinishedRun
from .grid import OWN

TELLING = frozenset({"auroc_error", "fpr95_error"})
"""Figures of how well errors are told from right answers, which few errors decide."""
COUNTED = TELLING | {"accuracy", "coverage", "answered_accuracy", "coverage_at_1", "coverage_at_5", "risk_at_80"}
"""Figures that count test inputs."""


def steps_of(finished: Mapping[int, FinishedRun], measure: Measure) -> Steps:
    """1/n where a silo's figure counts its n test inputs, 0 otherwise."""
    counts = measure.figure.rpartition("/")[2] in COUNTED
    return {
        seed: {silo.name: 1 / silo.n_test if counts and silo.n_test else 0.0 for silo in found.silos}
        for seed, found in finished.items()
    }


def ends_of(found: Interval, measure: Measure) -> IntervalRecord:
    """An interval cut to what the measure can be, which no true mean is beyond: it covers that as often as before.

    One that reaches from end to end says nothing, and is left out.
    """
    if measure.figure.startswith(f"{OWN}/"):  # of which nothing is known
        return IntervalRecord(mean=found.mean, low=found.low, high=found.high)
    most = _largest(measure)
    low, high = max(found.low, 0.0), min(found.high, most)
    if low == 0.0 and high == most < math.inf and found.low < found.high:
        low, high = math.nan, math.nan
    return IntervalRecord(mean=found.mean, low=low, high=high)


def _largest(measure: Measure) -> float:
    """What the measure is at most; infinite for what has no end."""
    name = (measure.figure or measure.path).rpartition("/")[2]
    if name == "brier":
        return 2.0
    bounded = measure.percent or name in (HIGHER_IS_BETTER | LOWER_IS_BETTER) - {"nll"}
    return 1.0 if bounded else math.inf


def rests_on(name: str, measure: Measure, finished: Iterable[FinishedRun]) -> int | None:
    """The wrong answers, or the right ones where they are fewer, of all seeds, that such a figure of a silo tells from
    the others; None for figures of all inputs, and where it is not known."""
    if measure.figure.rpartition("/")[2] not in TELLING or "/" in measure.figure:
        return None
    known = [
        (silo.n_test, silo.test.accuracy)
        for found in finished
        for silo in found.silos
        if silo.name == name and silo.n_test and silo.test.accuracy is not None
    ]
    wrong = sum(round(n * (1 - accuracy)) for n, accuracy in known)
    return min(wrong, sum(n for n, _ in known) - wrong) if known else None
