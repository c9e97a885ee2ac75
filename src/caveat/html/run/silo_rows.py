"""What is known about each silo of a run: its test metrics beside training alone and the most frequent class."""

import math
from dataclasses import dataclass

from ...core.text import signed
from ...files import RunFolder, natural
from ...files.schema import SiloRecord
from ...uncertainty.statistical_tests import binomial_tail, wilson
from ..diagrams import Dot
from .classification import ALONE, Judged, judged, too_few


@dataclass(frozen=True)
class SiloRow:
    """What the table says about one silo."""

    silo: SiloRecord
    of: Judged
    alone: Dot | None
    """The difference to training alone, with its 95 % interval."""

    @property
    def interval(self) -> tuple[float, float] | None:
        return wilson_of(self.silo)

    @property
    def confidence(self) -> float | None:
        bins = self.silo.reliability
        return sum(bins.confidence) / sum(bins.count) if bins and sum(bins.count) else None

    @property
    def gain(self) -> float | None:
        """The difference to the most frequent class."""
        most = self.of.majority
        return None if most is None else (most.gained - most.lost) / most.inputs

    @property
    def abstains(self) -> float | None:
        answered = self.silo.test.answered
        return None if answered is None else 1 - answered

    @property
    def rank(self) -> tuple[float, float, object]:
        """Low is bad: the upper end of the interval, so few inputs alone make no silo one of the worst."""
        accuracy = self.silo.test.accuracy or 0.0
        return (self.interval or (0.0, accuracy))[1], accuracy, natural(self.silo.name)


def rows_of(run: RunFolder) -> list[SiloRow]:
    """Return the silos, the worst first."""
    alone = differences_to_alone(run)
    rows = (SiloRow(silo, of, alone.get(silo.name)) for silo, of in zip(run.silos, judged(run), strict=True))
    return sorted(rows, key=lambda row: row.rank)


def wilson_of(silo: SiloRecord) -> tuple[float, float] | None:
    """Return the 95 % interval of a silo's accuracy over its test inputs."""
    if silo.test.accuracy is None or not silo.n_test:
        return None
    return wilson(round(silo.test.accuracy * silo.n_test), silo.n_test)


def differences_to_alone(run: RunFolder) -> dict[str, Dot]:
    """Return by silo the difference in accuracy to training alone, if that is known.

    Intervals combine both Wilson intervals (Newcombe, 1998, method 10). They ignore that both have the same inputs,
    which makes them wider if both err on the same inputs.
    """
    other, found = run.comparable.get(ALONE), dict[str, Dot]()
    alone = {silo.name: silo for silo in other.silos} if other else {}
    for silo in run.silos:
        theirs = alone[silo.name].test.accuracy if silo.name in alone else None
        if theirs is None or silo.test.accuracy is None or not silo.n_test:
            continue
        mine, n = silo.test.accuracy, silo.n_test
        (l1, u1), (l2, u2) = wilson(round(mine * n), n), wilson(round(theirs * n), n)
        gap = mine - theirs
        low, high = gap - math.hypot(mine - l1, u2 - theirs), gap + math.hypot(u1 - mine, theirs - l2)
        note = f"{points(gap)} points ({points(low)} to {points(high)})"
        found[silo.name] = Dot(gap, low, high, f"{silo.name}: {note}")
    return found


def worse_alone(run: RunFolder) -> list[str]:
    """Return the silos at which training alone is better, by the 95 % interval of each, the most clearly first; none
    if chance explains as many silos, or if single silos cannot be judged."""
    found = {} if too_few(run) else differences_to_alone(run)
    known = [(dot.high, name) for name, dot in found.items() if dot.high is not None and dot.high < 0]
    return [name for _, name in sorted(known)] if binomial_tail(len(known), len(found), 0.025) < _BY_CHANCE else []


_BY_CHANCE = 0.1
"""Probability of as many silos if training alone is nowhere better, from which none is named."""


def points(share: float) -> str:
    """Return a difference of shares in points, with its sign."""
    return signed(f"{100 * share:.1f}")
