"""The domain with the lowest accuracy, for silos that are too small to be judged individually."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import NormalDist

from markupsafe import Markup

from ...core.text import percent
from ...files import RunFolder
from ...uncertainty.statistical_tests import score_interval, wilson
from ..templates import Statement
from .classification import ALONE, too_few


@dataclass(frozen=True)
class Counts:
    """Test inputs, how many are predicted correctly, and the sum of their confidences."""

    inputs: int
    right: int
    confidence: float
    """NaN if the confidences of some silo are unknown."""

    @property
    def told(self) -> str:
        sure = "" if isnan(self.confidence) else f" and {percent(self.confidence / self.inputs)} sure on average"
        return f"right for {percent(self.right / self.inputs)}{sure}"


@dataclass(frozen=True)
class Lowest:
    """The domain with the lowest accuracy."""

    name: str
    counts: Counts
    others: Counts
    alone: Counts | None
    """Training alone in this domain; None if it is unknown."""

    @property
    def exception(self) -> str:
        """A text if the run is not ahead of training alone in this domain; empty if it is, or if this is unknown."""
        behind = self.alone and self.counts.right / self.counts.inputs <= self.alone.right / self.alone.inputs
        return f". In domain {self.name}, it is not ahead" if behind else ""

    @property
    def errors(self) -> str:
        counts = self.counts
        wrong = counts.inputs - counts.right
        share = percent(wrong / counts.inputs)
        return f" At silos of domain {self.name}, {share} ({wrong:,} of {counts.inputs:,}) are wrong."


def lowest_domain(run: RunFolder) -> Lowest | None:
    """Return the domain with the lowest accuracy, if silos are small and it is shown to be below the accuracy in the
    others; None otherwise. The intervals of the two, corrected for the number of domains, do not overlap."""
    found = _by_domain(run) if too_few(run) else {}
    if len(found) < 2:
        return None
    name = min(found, key=lambda domain: found[domain].right / found[domain].inputs)
    lowest, others = found[name], _sum([each for domain, each in found.items() if domain != name])
    z = NormalDist().inv_cdf(1 - 0.025 / len(found))
    (_, end), (start, _) = (score_interval(each.right / each.inputs, each.inputs, z) for each in (lowest, others))
    alone = _by_domain(run.comparable[ALONE]).get(name) if ALONE in run.comparable else None
    return None if end >= start else Lowest(name, lowest, others, alone)


def in_lowest_domain(run: RunFolder) -> Statement | None:
    """Return the accuracy and the confidence in the domain with the lowest accuracy and elsewhere."""
    if (found := lowest_domain(run)) is None:
        return None
    lowest, alone = found.counts, found.alone
    beside = f"; training alone is right for {percent(alone.right / alone.inputs)} there" if alone else ""
    low, high = map(percent, wilson(lowest.right, lowest.inputs))
    text = Markup("<b>Lowest accuracy in domain {}</b>: {} ({} of {} right, 95 % interval {} to {}){}. Elsewhere, ")
    text += Markup("it is {}.")
    counts = (lowest.right, lowest.inputs)
    return Statement("open", text.format(found.name, lowest.told, *counts, low, high, beside, found.others.told))


def _by_domain(run: RunFolder) -> Mapping[str, Counts]:
    """Return the counts of each domain that has several silos."""
    found: dict[str, list[Counts]] = {}
    for silo in run.silos:
        if silo.domain and silo.n_test and silo.test.accuracy is not None:
            sure = sum(silo.reliability.confidence) if silo.reliability else nan
            right = round(silo.test.accuracy * silo.n_test)
            found.setdefault(silo.domain, []).append(Counts(silo.n_test, right, sure))
    return {domain: _sum(each) for domain, each in found.items() if len(each) > 1}


def _sum(counts: Sequence[Counts]) -> Counts:
    return Counts(*(sum(each) for each in zip(*((c.inputs, c.right, c.confidence) for c in counts), strict=True)))
