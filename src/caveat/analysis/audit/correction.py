"""Verdicts of all promises together: p-values against the limits, corrected for the number of promises."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.text import equation
from ...files.schema import Finding, Verdict
from ...uncertainty.statistical_tests import holm, student_quantile, student_tail
from .seed_statistics import Jackknifed, Spread

LEVEL = 0.05
"""The p-value, corrected for all promises, below which a promise holds or does not hold."""


@dataclass(frozen=True)
class Uncorrected(Finding):
    """A finding whose verdict is that of its test alone."""

    facts: str = ""
    """The sentence without its conclusion."""


def p_value(found: Spread | Jackknifed, limit: float) -> dict[str, float]:
    """Return Student's two-sided p-value of a mean over all possible seeds that is at the limit, as "p"; empty without
    a spread. It is below 0.05 if the 95 % interval does not contain the limit."""
    freedom = len(found.values if isinstance(found, Spread) else found.without) - 1
    if freedom < 1 or not math.isfinite(found.half):
        return {}
    gap, error = abs(found.mean - limit), found.half / student_quantile(0.975, freedom)
    return {"p": 2 * student_tail(gap / error, freedom) if error else float(gap == 0)}


def corrected(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with p-values corrected by Holm's method for all promises that have a p-value. Findings whose
    corrected p-value is not below `LEVEL` become undecided, except for a promise that holds because its test of
    equivalence shows it."""
    places = [i for i, each in enumerate(findings) if "p" in each.measured]
    ps = dict(zip(places, holm([findings[i].measured["p"] for i in places]), strict=True))
    return tuple(_with(each, ps[i], len(ps)) if i in ps else each for i, each in enumerate(findings))


def _with(finding: Finding, p: float, count: int) -> Finding:
    alone, verdict, sentence = finding.measured["p"], finding.verdict, finding.sentence
    if isinstance(finding, Uncorrected) and verdict in _DECIDED and alone < LEVEL <= p:
        verdict = "cannot say"
        sentence = f"{finding.facts} Alone, this test would decide ({equation(alone)}); corrected for {count} tests, "
        sentence += f"it does not ({equation(p)})."
    return Finding(finding.name, finding.claim, verdict, sentence, {**finding.measured, "p_corrected": p})


_DECIDED: tuple[Verdict, ...] = ("holds", "does not hold")
