"""Differences between methods by domain, which a mean over domains can hide."""

import math
from collections import Counter
from itertools import combinations
from statistics import fmean, stdev

from ...core.text import MINUS, equation
from ...files.schema import Comparison, Setting
from ...uncertainty.statistical_tests import student_tail
from .wording import LEVEL, signed


def by_domain(record: Comparison, setting: Setting) -> str:
    """Return the difference in the first metric that varies most over domains, if it has both signs, and whether it
    varies beyond chance over seeds, as a sentence; "" otherwise. The test is of the two domains farthest apart,
    corrected for all pairs of domains and of methods."""
    measure, gaps = record.measures[0], _gaps(record, setting)
    best, unit = (0.0, ""), " points" * measure.percent
    domains = Counter((a, b) for a, b, _ in gaps)
    tests = sum(math.comb(count, 2) for count in domains.values())
    for a, b in domains:
        of = sorted((fmean(each.values()), name) for (*pair, name), each in gaps.items() if pair == [a, b])
        (low, first), (high, last) = of[0], of[-1]
        p = min(1.0, tests * _p(gaps[a, b, first], gaps[a, b, last]))
        ends = (f"{signed(measure, gap)}{unit} at {at}" for gap, at in ((low, first), (high, last)))
        how = ", which differ beyond chance" if p < LEVEL else "; whether it depends on the domain is not decided"
        told = f" By domain, {a} {MINUS} {b} ranges from {' to '.join(ends)}{how} ({equation(p)}, corrected)."
        best = max(best, (min(-low, high), told)) if low < 0 < high else best
    return best[1]


def _gaps(record: Comparison, setting: Setting) -> dict[tuple[str, str, str], dict[int, float]]:
    """Return the differences of each pair of methods in each domain, by common seed, if there are two."""
    found, name = dict[tuple[str, str], dict[int, float]](), record.measures[0].name
    for run in record.runs(setting=setting, status="done"):
        values = dict[str, list[float]]()
        for silo in run.silos:
            if (value := silo.figures.get(name)) is not None:
                values.setdefault(silo.domain, []).append(value)
        for domain, each in values.items():
            found.setdefault((run.row, domain), {})[run.seed] = fmean(each)
    gaps = {}
    for (a, domain), (b, other) in combinations(found, 2):
        common = found[a, domain].keys() & found[b, other].keys()
        if a != b and domain == other and len(common) > 1:
            gaps[a, b, domain] = {seed: found[a, domain][seed] - found[b, domain][seed] for seed in sorted(common)}
    return gaps


def _p(first: dict[int, float], last: dict[int, float]) -> float:
    """Return the p-value of no difference between two domains, by a paired t-test over seeds."""
    gaps = [last[seed] - first[seed] for seed in first.keys() & last.keys()]
    if len(gaps) < 2:
        return 1.0
    spread = stdev(gaps) / math.sqrt(len(gaps))
    return 2 * student_tail(abs(fmean(gaps)) / spread, len(gaps) - 1) if spread else 1.0
