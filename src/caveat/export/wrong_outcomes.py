"""Guarantees about outcomes: which outcomes are right for an answer, and the maximum rate of wrong answers.

With a guarantee (policy `guaranteed`), an answer is wrong if its label is wrong, or if the median of a quantity is off
by more than the tolerance. Otherwise, a quantity or a time has intervals, and an outcome is wrong if it is outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Decision
from ..core.quantity import Quantity
from ..files.reading import LARGEST_FLOAT
from ..files.schema import SiloRecord, Summary

Array = NDArray[Any]


@dataclass(frozen=True)
class Promised:
    """The largest promised probability of a wrong outcome."""

    risk: float
    tolerance: float | None = None
    """For a quantity: the largest error with which a prediction still counts as correct."""
    ranked_among: int | None = None
    """Of intervals: the number of the silo's calibration inputs, over which their coverage is an average."""

    @classmethod
    def of(cls, summary: Summary, record: SiloRecord | None) -> Promised | None:
        """Return what a run promises for a silo's outcomes: the guarantee of errors, or else the coverage of intervals,
        if their quantile is from the silo's own inputs; None without a promise."""
        promise = (record.promise if record is not None else None) or summary.guarantee
        if promise is not None and promise.guaranteed:
            return cls(promise.risk, promise.tolerance)
        intervals, n = summary.intervals, 0 if record is None else record.n_calibration or 0
        if intervals is None or intervals.subgroups or n < intervals.least:
            return None
        return cls(1 - intervals.coverage, ranked_among=n)

    def right(self, found: Mapping[str, Array]) -> Array:
        """Return (N, 2) float64, the lowest and the highest outcome that is not wrong, NaN for inputs that are not
        answered and whose outcome does not count. A class is its number."""
        if self.ranked_among is not None:
            low = found["low"]
            ends: Array = np.stack([low, found.get("high", np.full_like(low, math.inf))], 1)
            return np.asarray(
                np.nan_to_num(ends, posinf=LARGEST_FLOAT, neginf=-LARGEST_FLOAT)
            )  # files have no infinity
        middle, room = (found["label"], 0.0) if self.tolerance is None else (found["value"], self.tolerance)
        right = np.stack([middle - room, middle + room], 1)
        return np.where((found["decision"] == Decision.ABSTAIN)[:, None], math.nan, right)

    def wrong(self, found: Mapping[str, Array], outcomes: Array) -> list[bool | None]:
        """Return whether outcomes (N,) are wrong, None if they do not count."""
        ends = self.right(found).tolist()
        pairs = zip(ends, outcomes.tolist(), strict=True)
        return [None if math.isnan(low) else not low <= outcome <= high for (low, high), outcome in pairs]


def outcome_of(text: str, classes: Sequence[str], target: Quantity | None) -> float:
    """Return an outcome as a number; a class becomes its position. Raises ValueError with what is expected."""
    if target is None:
        if text not in classes:
            raise ValueError("expected a class of the model")
        return classes.index(text)
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or (target.predicts == "time" and found < 0):
        raise ValueError(f"expected a finite number{', at least 0' * (target.predicts == 'time')}")
    return found
