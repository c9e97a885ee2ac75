"""What is known about each silo of a run: its test metrics beside training alone and the most frequent class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from markupsafe import Markup

from ...core.text import joined, signed
from ...files import RunFolder, natural
from ...files.schema import SiloRecord
from ...uncertainty.statistical_tests import score_interval, wilson
from ..diagrams import Dot
from .alarms import ALARM_MARKS
from .classification import ALONE, Judged, gap_to, judged, judged_together, majority, one_class, too_few


@dataclass(frozen=True)
class SiloRow:
    """What the table says about one silo."""

    silo: SiloRecord
    of: Judged
    alone: Dot | None
    """The difference in accuracy to training alone, with its 95 % interval."""

    @property
    def interval(self) -> tuple[float, float] | None:
        return wilson_of(self.silo)

    @property
    def confidence(self) -> float | None:
        bins = self.silo.reliability
        return sum(bins.confidence) / sum(bins.count) if bins and sum(bins.count) else None

    @property
    def gain(self) -> float | None:
        """The difference in accuracy to always predicting the most frequent class."""
        most = self.of.majority
        return None if most is None else (most.gained - most.lost) / most.inputs

    @property
    def abstains(self) -> float | None:
        answered = self.silo.test.answered
        return None if answered is None else 1 - answered

    @property
    def rank(self) -> tuple[float, float, object]:
        """Low is bad: the upper end of the interval, so that a silo is not one of the worst only because it has few
        inputs."""
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


def differences_to_alone(run: RunFolder, level: float = 0.05) -> dict[str, Dot]:
    """Return by silo the difference in accuracy to training alone, if that is known, with an interval of 1 - `level`.

    Intervals combine the two Wilson intervals (Newcombe, 1998, method 10). They ignore that the inputs are the same,
    which makes them wider if the two methods err on the same inputs.
    """
    other, found, z = run.comparable.get(ALONE), dict[str, Dot](), NormalDist().inv_cdf(1 - level / 2)
    alone = {silo.name: silo for silo in other.silos} if other else {}
    for silo in run.silos:
        theirs = alone[silo.name].test.accuracy if silo.name in alone else None
        if theirs is None or silo.test.accuracy is None or not silo.n_test:
            continue
        mine, n = silo.test.accuracy, silo.n_test
        (l1, u1), (l2, u2) = (score_interval(round(share * n) / n, n, z) for share in (mine, theirs))
        gap = mine - theirs
        low, high = gap - math.hypot(mine - l1, u2 - theirs), gap + math.hypot(u1 - mine, theirs - l2)
        note = f"{points(gap)} points ({points(low)} to {points(high)})"
        found[silo.name] = Dot(gap, low, high, f"{silo.name}: {note}")
    return found


def worse_alone(run: RunFolder) -> list[str]:
    """Return the silos at which training alone is right more often than the run, by intervals corrected for the number
    of silos, and than the majority-class baseline, the clearest first; none if single silos cannot be judged."""
    found = {} if too_few(run) else differences_to_alone(run, 0.05 / max(1, len(run.silos)))
    known = [(dot.high, name) for name, dot in found.items() if dot.high is not None and dot.high < 0]
    useless = useless_alone(run) if known else set()
    return [name for _, name in sorted(known) if name not in useless]


def behind_alone(run: RunFolder) -> bool:
    """Return whether training alone has the higher mean accuracy, beyond chance over silos, and has learned."""
    other = run.comparable.get(ALONE)
    gap = gap_to(run, other) if other else None
    return gap is not None and gap.high is not None and gap.high < 0 and not (other and no_use(other))


def no_use(run: RunFolder) -> bool:
    """Return whether a run predicts one class, or is not better than the majority-class baseline beyond chance."""
    most = judged_together(run).majority
    return one_class(run) is not None or (most is not None and not most.beaten)


def useless_alone(run: RunFolder) -> set[str]:
    """Return the silos at which training alone predicts one class or is no better than the majority-class baseline."""
    other, names, found = run.comparable.get(ALONE), (run.summary.classes if run.summary else None) or [], set[str]()
    for silo in other.silos if other else ():
        most, confusion = majority(silo, names), (silo.classification.confusion if silo.classification else None) or []
        if (most and not most.beaten) or (confusion and sum(map(any, zip(*confusion, strict=True))) == 1):
            found.add(silo.name)
    return found


MOST_NAMED = 4


def alone_at(run: RunFolder, where: Sequence[str]) -> Markup:
    """Return what to use at silos where training alone is better."""
    right, told = differences_to_alone(run), []
    for silo, of in zip(run.silos, judged(run), strict=True):
        if silo.name in where[:MOST_NAMED]:
            n, own = silo.n_test or 0, silo.test.accuracy or 0.0
            most = f", always predicting the most frequent class {of.majority.right:,}" if of.majority else ""
            alone = round((own - right[silo.name].value) * n)
            told.append(f"{silo.name} ({alone:,} of {n:,} right, this run {round(own * n):,}{most})")
    more = f" and {len(where) - len(told):,} more" * (len(where) > len(told))
    return Markup("Use training alone (method <code>{}</code>) instead at {}{}.").format(ALONE, joined(told), more)


_FEW_MISSED = 0.05
"""Share of missed inputs of the positive class up to which predictions need no special care."""


def missed_at(run: RunFolder, where: Sequence[str]) -> str:
    """Return how many inputs of the positive class some silos miss, and how many inputs raise an alarm there if these
    are fewer than the missed ones; empty for a run without a positive class, or if silos miss few."""
    names, found = (run.summary.classes, run.summary.classification) if run.summary else (None, None)
    if found is None or not names or len(names) != 2 or found.positive not in names:
        return ""
    k, counts, alarms = names.index(found.positive), dict[str, tuple[int, int]](), list[tuple[int, int]]()
    for silo in (silo for silo in run.silos if silo.name in where):
        confusion = (silo.classification.confusion if silo.classification else None) or [[0, 0], [0, 0]]
        missed = confusion[k][1 - k]
        counts[silo.name] = missed, sum(confusion[k])
        if silo.test.alarms is not None and silo.n_test:
            alarms.append((round(silo.test.alarms * silo.n_test), silo.n_test))
    missed, of = (sum(each) for each in zip(*counts.values(), strict=True))
    if missed <= _FEW_MISSED * of:
        return ""
    alone = len(counts) == 1 or len(counts) > MOST_NAMED
    told = joined([f"{n:,} of {total:,}" for n, total in ([(missed, of)] if alone else counts.values())])
    raised, inputs = (sum(each) for each in zip((0, 0), *alarms, strict=True))
    few = len(alarms) == len(counts) and raised < missed
    least = f"; of all {inputs:,} test inputs there, {raised:,} raise {ALARM_MARKS}" if few else ""
    by = "by the most probable class, " * (found.operating is not None)  # sensitivity is at thresholds
    return f"{by}it misses {told} inputs of class {found.positive!r}{least}"


def points(share: float) -> str:
    """Return a difference of shares in points, with its sign."""
    return signed(f"{100 * share:.1f}")
