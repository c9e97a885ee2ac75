"""The silos of a run that predicts a quantity or a time: a verdict on each, and a table of all metrics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import stdev

import numpy as np

from ...core.text import count, equation, percent, signed, significant
from ...files import RunFolder
from ...files.schema import Metrics, SiloRecord
from ...uncertainty.statistical_tests import (
    beta_binomial_tail,
    chi_squared_tail,
    normal_tail,
    ranks,
    student_quantile,
    wilson,
)
from ..diagrams import Dot, interval_cell
from ..templates import Cell, Statement, Table, column, table, words, worst_first
from .classification import ALONE, called
from .subgroups import QUANTITY, TIME

BRIEF = ("crps", "c_index", "integrated_brier")
"""The metrics of other methods in the terminal, whose lines are short."""


def quantity_table(run: RunFolder, brief: bool = False) -> Table | None:
    """Return a table of the errors and intervals of each silo, beside those without inputs and those of other
    methods; None without metrics. A `brief` table has fewer columns of other methods."""
    silos = run.silos
    if not silos:
        return None
    tests, mean, times = [silo.test for silo in silos], run.mean, is_time(run)
    figures = [each for each in (TIME if times else QUANTITY) if not brief or each[1] != "c_index_uno"]
    between = "\n" if brief else " "
    others = [each for each in figures if each[1] in BRIEF or not brief]

    def numbers(name: str, of: Sequence[Metrics], last: Metrics) -> list[str]:
        return [significant(getattr(each, name)) for each in (*of, last)]

    columns = [words("silo", [*(silo.name for silo in silos), "mean"])]
    if times:
        columns.append(column("events", numbers("events", tests, Metrics()), "inputs whose event was observed"))
    own = f"{run.title} " * bool(run.comparable and not brief)
    columns += [column(f"{own}{head}", numbers(name, tests, mean), help) for head, name, help in figures]
    for title, other in run.comparable.items():
        theirs = {silo.name: silo.test for silo in other.silos}
        found = [theirs.get(silo.name, Metrics()) for silo in silos]
        columns += [
            column(f"{title if brief else called(title)}{between}{head}", numbers(name, found, other.mean), help)
            for head, name, help in others
        ]
    target = run.summary.target if run.summary else None
    declared, standardized = bool(target and target.declared), bool(target and target.standardized)
    without = "uniform" if declared else "Kaplan-Meier" if times else "no inputs"
    columns += [
        column(f"{without}{between}{head}", numbers(f"reference_{name}", tests, mean))
        for head, name, _ in others
        if hasattr(mean, f"reference_{name}")
    ]
    if times and not brief:
        values = [significant(test.d_calibration) for test in (*tests, run.summary.pooled if run.summary else mean)]
        columns.append(column("D-calibration p", values, "test that probabilities are uniform; last: pooled"))
    wanted = run.summary.intervals.coverage if run.summary and run.summary.intervals else None
    covered = [_covered(silo, wanted, len(silos)) for silo in silos]
    columns.append(column("coverage", [*covered, percent(mean.interval_coverage)], "inputs within their interval"))
    columns.append(
        column(
            "width",
            [""] * (len(silos) + 1) if times else widths((*tests, mean)),
            "mean width of intervals; infinite if an interval is",
        )
    )
    columns.append(column(f"lower{between}bound", numbers("interval_low", tests, mean), "mean lower bound of times"))
    if any((silo.decisions or {}).get("abstain") for silo in silos):
        shares = [percent(1 - (silo.decisions or {}).get("abstain", 0.0)) for silo in silos]
        columns.append(column("answered", [*shares, percent(mean.coverage)]))
    known = "Kaplan-Meier: the survival curve" if times else "No inputs: the distribution"
    known = (
        "Uniform: every value of the declared data.range has the same probability."
        if declared
        else f"{known} of all training targets{', standardized at each silo' * standardized}."
    )
    split = f"Metrics on {run.split} inputs, in the unit of the target. {known}"
    promise = f" Intervals contain {percent(wanted)} or more, on average over calibration samples."
    promise = promise if wanted and not times else ""
    return table(columns, split + promise, [silo.name for silo in silos], footer=1)


def is_time(run: RunFolder) -> bool:
    """Return whether the run predicts a time to an event."""
    return bool(run.summary and run.summary.target and run.summary.target.event)


@dataclass(frozen=True)
class JudgedValues:
    """A silo, with what its test inputs show."""

    silo: SiloRecord
    gain: Dot | None
    """Mean absolute error less the error without inputs, with its 95 % interval over test inputs if this is known."""
    to_alone: Dot | None
    """Mean absolute error less that of training alone, likewise."""
    wanted: float | None
    """The guaranteed coverage of intervals."""
    missed: bool
    """Whether the coverage is too low, beyond chance over all silos."""
    skew: str
    """The direction in which predictions are off, beyond chance; empty if they are not."""
    skew_p: float
    """The p-value of `skew`, corrected for the number of silos."""

    @property
    def short(self) -> float:
        """Points by which the coverage is below the guarantee; at most 0 if it is not."""
        found = self.silo.test.interval_coverage
        return 0.0 if found is None or self.wanted is None else 100 * (self.wanted - found)

    @property
    def covered(self) -> str:
        """The number of test inputs in their intervals."""
        found, n = self.silo.test.interval_coverage, self.silo.n_test
        return percent(found) if found is None or not n else f"{round(found * n):,} of {n:,}"

    @property
    def beyond(self) -> str:
        """The mean quantile of observed values in their predicted distributions, and its p-value."""
        text = (
            f"on average, its {sum(self.silo.pit):.4g} observed values are at the {percent(_mean_pit(self.silo), 0)} "
        )
        return f"{text}quantile of their predicted distributions instead of 50 %, {equation(self.skew_p)}"

    @property
    def verdict(self) -> Statement:
        """The kind of the worst finding, and all findings in a few words."""
        found = [self._of_error(), *([self._of_intervals()] if self.silo.test.interval_coverage is not None else [])]
        found += [Statement("open", f"predictions are too {self.skew}")] if self.skew else []
        known = worst_first(each for each in found if each)
        return (
            Statement(known[0].kind, "; ".join(str(each.text) for each in known)) if known else Statement("unknown", "")
        )

    def _of_error(self) -> Statement | None:
        if self.gain is None:
            return None
        if self.gain.clear:
            better = self.gain.value < 0
            return Statement("good" if better else "bad", f"{'better' if better else 'worse'} than without inputs")
        return Statement("unknown", "not shown to be better than without inputs")

    def _of_intervals(self) -> Statement | None:
        if self.wanted is None:
            return None
        if self.missed:
            return Statement("bad", f"intervals are {self.short:.1f} points short, beyond chance")
        if self.short > 0:
            return Statement("unknown", f"intervals are {self.short:.1f} points short, by no more than chance explains")
        return Statement("good", "intervals hold")


@lru_cache(1)
def judged(run: RunFolder) -> list[JudgedValues]:
    """Return the silos with what their test inputs show."""
    wanted = run.summary.intervals.coverage if run.summary and run.summary.intervals and not is_time(run) else None
    silos = len(run.silos)
    return [
        JudgedValues(
            each, _gain(run, each), _to_alone(run, each), wanted, _missed(each, wanted, silos), *_skew(each, silos)
        )
        for each in run.silos
    ]


def _gain(run: RunFolder, silo: SiloRecord) -> Dot | None:
    """Return the difference in error to predictions without inputs. Its standard deviation is from the inputs in the
    gallery with an observed value, which are spread evenly over all test inputs."""
    own, known, target = silo.test.mae, silo.test.reference_mae, run.summary.target if run.summary else None
    if own is None or known is None:
        return None
    errors = _errors(run, silo.name)
    if target is None or target.standardized:
        return Dot(own - known)
    guess = reached(target.edges, target.shares, 0.5)
    return _paired(own - known, [error - abs(y - guess) for y, error in errors], silo.n_test)


def _to_alone(run: RunFolder, silo: SiloRecord) -> Dot | None:
    """Return the difference in error to training alone, with its standard deviation from the same inputs."""
    other = run.comparable.get(ALONE)
    theirs = next((each.test.mae for each in other.silos if each.name == silo.name), None) if other else None
    if other is None or theirs is None or silo.test.mae is None:
        return None
    mine, known = _errors(run, silo.name), _errors(other, silo.name)
    same = [y for y, _ in mine] == [y for y, _ in known]
    gaps = [a - b for (_, a), (_, b) in zip(mine, known, strict=True)] if same else []
    return _paired(silo.test.mae - theirs, gaps, silo.n_test)


def _errors(run: RunFolder, name: str) -> list[tuple[float, float]]:
    """Return the observed values of the inputs of a silo in the gallery, with the errors of their predictions."""
    shown = next((each for each in (run.gallery.observed if run.gallery else ()) if each.silo == name), None)
    return [(y, abs(y - value)) for y, value in zip(shown.observed, shown.value, strict=True)] if shown else []


def mean_error(run: RunFolder) -> tuple[float, float] | None:
    """Return the 95 % interval, over test inputs, of the mean absolute error over silos; None if it is unknown."""
    found = [([error for _, error in _errors(run, silo.name)], silo.n_test or 0) for silo in run.silos]
    if run.mean.mae is None or any(len(errors) < 3 or not n for errors, n in found):
        return None
    half = 1.96 * math.sqrt(sum(stdev(errors) ** 2 / n for errors, n in found)) / len(found)
    return run.mean.mae - half, run.mean.mae + half


def _paired(gap: float, gaps: Sequence[float], inputs: int | None) -> Dot:
    """Return a mean difference over all inputs, with its 95 % interval from the differences of some inputs."""
    if len(gaps) < 3 or not inputs:
        return Dot(gap)
    half = student_quantile(0.975, len(gaps) - 1) * stdev(gaps) / math.sqrt(inputs)
    return Dot(gap, gap - half, gap + half)


def reached(edges: Sequence[float], shares: Sequence[float], level: float) -> float:
    """Return the quantile of a distribution over bars."""
    below = 0.0
    for left, right, share in zip(edges, edges[1:], shares, strict=False):
        if below + share >= level:
            return left + (right - left) * (level - below) / share
        below += share
    return edges[-1]


def _missed(silo: SiloRecord, wanted: float | None, silos: int) -> bool:
    """Return whether the coverage is too low beyond chance at 5 % over all silos. Chance includes the
    choice of calibration inputs, as for false alarms."""
    found, inputs, n = silo.test.interval_coverage, silo.n_test or 0, silo.n_calibration or 0
    if found is None or wanted is None or not inputs:
        return False
    outside = math.floor((1 - wanted) * (n + 1) + 1e-9)
    missed = round((1 - found) * inputs)
    return outside > 0 and beta_binomial_tail(missed, inputs, outside, n + 1 - outside) < 0.05 / silos


def too_wide(silos: Sequence[JudgedValues]) -> tuple[int, int, str] | None:
    """Return the number of test inputs in their intervals, the number of all test inputs, and the p-value, if too many
    are in their intervals, beyond chance at 5 %; otherwise None. The number of others is a sum of beta-binomial
    counts of silos."""
    chances, missed, inputs = [1.0], 0, 0
    for each in silos:
        silo, n = each.silo, each.silo.n_calibration or 0
        outside = math.floor((1 - (each.wanted or 1.0)) * (n + 1) + 1e-9)
        if silo.test.interval_coverage is None or not silo.n_test or not outside:
            return None
        tails = [beta_binomial_tail(k, silo.n_test, outside, n + 1 - outside) for k in range(silo.n_test + 2)]
        chances = np.convolve(chances, -np.diff(tails)).tolist()
        missed, inputs = missed + round((1 - silo.test.interval_coverage) * silo.n_test), inputs + silo.n_test
    p = sum(chances[: missed + 1])
    return (inputs - missed, inputs, equation(p)) if silos and p < 0.05 else None


def uneven(silos: Sequence[SiloRecord]) -> tuple[float, str, float, int] | None:
    """Return the p-value of a chi-squared test that observed values are uniform in their predicted distributions (PIT),
    over all silos with enough test inputs, the silo with the smallest p-value of its own, the number of inputs and the
    degrees of freedom; None without such a silo."""
    found, freedom, tested = list[tuple[float, float, str]](), 0, 0.0
    for silo in silos:
        inputs, bars = sum(silo.pit), len(silo.pit)
        if bars > 1 and inputs >= _FEWEST_IN_BAR * bars:
            statistic = sum((count - inputs / bars) ** 2 for count in silo.pit) / (inputs / bars)
            found.append((chi_squared_tail(statistic, bars - 1), statistic, silo.name))
            freedom, tested = freedom + bars - 1, tested + inputs
    p = chi_squared_tail(sum(each for _, each, _ in found), freedom)
    return (p, min(found)[2], tested, freedom) if found else None


_FEWEST_IN_BAR = 2
"""Minimum expected number of inputs in a bar of calibration for a chi-squared test of a silo's bars."""


def _skew(silo: SiloRecord, silos: int) -> tuple[str, float]:
    """Return whether a silo's predictions are too low or too high, beyond chance at 5 % over all silos, and the p-value
    corrected for their number, by the mean quantile of observed values, which is about normal around 1/2."""
    bars, inputs = len(silo.pit), sum(silo.pit)
    if bars < 2 or not inputs:
        return "", 1.0
    mean, deviation = _mean_pit(silo), math.sqrt((bars**2 - 1) / (12 * bars**2 * inputs))
    p = min(1.0, 2 * silos * normal_tail(abs(mean - 0.5) / deviation))
    return "" if p >= 0.05 else "low" if mean > 0.5 else "high", p


def _mean_pit(silo: SiloRecord) -> float:
    """Return the mean quantile of observed values in their predicted distributions, from the middles of bars."""
    return sum((i + 0.5) * count for i, count in enumerate(silo.pit)) / (len(silo.pit) * sum(silo.pit))


def ranked(run: RunFolder) -> dict[str, float]:
    """Return the rank correlation of predicted and observed values by silo, where it is above 0 beyond chance at 5 %
    over all silos (Fisher's transform, variance of Fieller et al., 1957)."""
    found = dict[str, float]()
    for each in run.gallery.observed if run.gallery else ():
        n, pair = len(each.observed), (np.array(each.observed), np.array(each.value))
        if n < _FEWEST_RANKED or min(np.ptp(values) for values in pair) == 0:
            continue
        rho = float(np.corrcoef(ranks(pair[0]), ranks(pair[1]))[0, 1])
        if len(run.silos) * normal_tail(math.atanh(min(rho, 1 - 1e-9)) * math.sqrt((n - 3) / 1.06)) < 0.05:
            found[each.silo] = rho
    return found


_FEWEST_RANKED = 10
"""Minimum number of inputs for a rank correlation."""


def verdict_table(run: RunFolder) -> Table | None:
    """Return a row per silo of a run that predicts a quantity: its error, its intervals, and a verdict."""
    found = judged(run)
    if not found:
        return None
    tests, wanted, verdicts = [each.silo.test for each in found], found[0].wanted, [each.verdict for each in found]
    low = 0.1 * math.floor(10 * min((wilson_of(each)[0] for each in found if each.silo.n_test), default=0.0))
    columns = [
        words("silo", [each.silo.name for each in found]),
        words("verdict", [_marked(each) for each in verdicts]),
        column(f"{run.split} inputs", [count(each.silo.n_test) for each in found]),
        column("MAE", [significant(test.mae) for test in tests], "mean absolute error of medians"),
        column("MAE minus that without inputs", [_less(each.gain, each.silo.test.mae) for each in found]),
        column("MAE minus that of training alone", [_less(each.to_alone, each.silo.test.mae) for each in found]),
        column("in intervals", [each.covered for each in found], "test inputs within their interval"),
        words(f"share in intervals, {percent(low, 0)} to 100 %", [_bar(each, low) for each in found]),
        column("mean width", widths(tests), "of intervals; infinite if an interval is"),
    ]
    tick = f"; a tick marks the guaranteed {percent(wanted, 0)}" if wanted else ""
    caption = (
        f"Silos on their own {run.split} inputs, in the unit of the target; differences in mean absolute error (MAE) "
    )
    caption += f"below 0 are gains, with 95 % intervals of each silo{tick}."
    return table(columns, caption, [each.silo.name for each in found])


def _marked(found: Statement) -> Cell:
    shown = found.kind in ("bad", "open")
    return Cell(
        f"{'' if shown else f'{found.mark} '}{found.text}", "test inputs show this beyond chance" if shown else ""
    )


def wilson_of(found: JudgedValues) -> tuple[float, float]:
    """Return the 95 % interval of a silo's coverage."""
    n, share = found.silo.n_test or 0, found.silo.test.interval_coverage
    return wilson(round(share * n), n) if n and share is not None else (0.0, 1.0)


def _bar(found: JudgedValues, low: float) -> str:
    share, ends = found.silo.test.interval_coverage, wilson_of(found)
    if share is None or not found.silo.n_test:
        return ""
    label = f"{found.silo.name}: {percent(share)}, {percent(ends[0])} to {percent(ends[1])}"
    return interval_cell(Dot(share, *ends), (low, 1.0), found.wanted, label)


def _less(gain: Dot | None, error: float | None) -> str:
    if gain is None:
        return ""
    value, *ends = alike(gain.known, error)
    return value + (" ({} to {})".format(*ends) if ends else "")


def alike(values: Sequence[float], other: float | None) -> list[str]:
    """Return numbers with signs, and with as many decimals as another number has with three significant digits."""
    digits = max(0, 2 - math.floor(math.log10(abs(other)))) if other else 2
    return [signed(f"{value:.{digits}f}") for value in values]


def widths(tests: Sequence[Metrics]) -> list[str]:
    """Return the mean widths of intervals."""
    return ["infinite" if each.interval_coverage is not None and each.interval_width is None else
            significant(each.interval_width) for each in tests]  # fmt: skip


def _covered(silo: SiloRecord, wanted: float | None, silos: int) -> Cell:
    few = _missed(silo, wanted, silos)
    return Cell(percent(silo.test.interval_coverage), "fewer than the guarantee allows, beyond chance" if few else "")
