"""A test of whether the confidence of models is calibrated."""

import math
from collections.abc import Sequence

import numpy as np

from ...core.text import equation, plural
from ...files.schema import Finding, Summary, Verdict
from ...metrics import EceTest, ece_test
from ...uncertainty.statistical_tests import chi_squared_tail
from .claim_tests import CONFIDENCE, open_because
from .correction import LEVEL, Uncorrected
from .seed_statistics import Spread

TOLERATED = 0.05
"""Tolerated error of confidences, and tolerated excess of calibration errors over a calibrated model's."""
REDRAWN = 1000
"""Number of times that labels are resampled."""


def calibration(summaries: Sequence[Summary]) -> Finding:
    """Test whether chance explains the silos' calibration errors, from `summary.json` of one run per seed.

    Seeds share test inputs, so their p-values are dependent. They are combined by Rueger's method (1978): the smallest
    number that more than half of them do not exceed, times the number of seeds divided by that half. It is valid under
    any dependence and does not grow with the number of seeds.
    """
    title, claim = CONFIDENCE, "of inputs predicted with probability p, a fraction p is right"
    tested = [_tests(summary) for summary in summaries]
    if not all(tested):
        return Finding(title, claim, "cannot say", "A calibration error needs test labels that are classes.", {})
    by_seed = [among_silos([test.p for test in silos.values()]) for silos in tested]
    above = [sum(1 for test in silos.values() if test.p < LEVEL) for silos in tested]
    excess = Spread(tuple(float(np.mean([test.excess for test in silos.values()])) for silos in tested))
    most, p = _upper(excess, tested), among_seeds(by_seed)
    verdict: Verdict = "cannot say"
    ruled_out = most < TOLERATED and all(map(_rules_out, summaries))
    if len(tested) > 1 and (p < LEVEL or ruled_out):
        verdict = "does not hold" if p < LEVEL else "holds"
    count = len(tested[0])
    more = (
        f"{abs(excess.mean):.3f} {'above' if excess.mean > 0 else 'below'}"
        if abs(excess.mean) >= 0.0005
        else "equal to"
    )
    worse = f"Its mean is {more} that of such a model"
    facts = (
        f"Expected calibration error is above what chance explains in {sum(above)} of {count * len(tested)} tests "
        f"({plural(count, 'silo')} with {plural(len(tested), 'seed')}), where {LEVEL * count * len(tested):.2g} are "
        f"expected for a calibrated model. {worse}. For all silos together {equation(p)}."
    )
    why = open_because(verdict, len(tested)) if len(tested) < 2 else ""
    if verdict == "does not hold":
        why = f" This test decides, not the mean: one silo suffices. It is worst in {_worst(tested)}."
    elif verdict == "holds":
        why = f" Confidences that are off by {TOLERATED} at all silos would have been detected; at one silo, maybe not."
    elif len(tested) > 1:
        why = f" With this few test inputs, confidences may be off by {TOLERATED}."
    measured = {
        "silos": count, "above_chance": above, "probability_by_chance": by_seed, "p": p, "excess": excess.record,
        "excess_at_most": most if math.isfinite(most) else None, "limit": TOLERATED,
    }  # fmt: skip
    if verdict == "cannot say" and len(tested) > 1:
        inputs = round(sum(sum(silo.reliability.count) for silo in summaries[0].silos if silo.reliability))
        measured |= {"inputs": inputs, "inputs_needed": _inputs_needed(summaries[0], excess, tested, inputs)}
    return Uncorrected(title, claim, verdict, facts + why, measured, facts)


def among_silos(ps: Sequence[float]) -> float:
    """Combine the independent p-values of a run's silos into one p-value of all silos being calibrated.

    It is twice the smaller of Fisher's (sensitive to small deviations at many silos) and Bonferroni's (sensitive to a
    large deviation at one silo). A single silo's p-value is returned unchanged.
    """
    if len(ps) == 1:
        return ps[0]
    fisher = chi_squared_tail(-2 * sum(map(math.log, ps)), 2 * len(ps))
    return min(1.0, 2 * fisher, 2 * len(ps) * min(ps))


def among_seeds(ps: Sequence[float]) -> float:
    """Combine p-values of the same claim under any dependence; see `calibration`."""
    half = len(ps) // 2 + 1
    return min(1.0, len(ps) / half * sorted(ps)[half - 1])


def _tests(summary: Summary) -> dict[str, EceTest]:
    return {
        silo.name: ece_test(silo.reliability.count, silo.reliability.confidence, silo.reliability.correct)
        for silo in summary.silos
        if silo.reliability is not None and any(silo.reliability.count)
    }


def _upper(excess: Spread, tested: Sequence[dict[str, EceTest]], times: int = 1) -> float:
    """Return an upper bound of the excess over other seeds and test inputs, one-sided 95 %; infinite with one seed.

    The spread over seeds does not include the randomness of test inputs, which seeds share; the spread of a calibrated
    model's error by chance is added.
    """
    inputs = np.mean([math.sqrt(sum(test.deviation**2 for test in silos.values())) / len(silos) for silos in tested])
    return excess.mean + math.hypot(excess.half, 1.645 * float(inputs) / math.sqrt(times))


def _rules_out(summary: Summary, times: int = 1) -> bool:
    """Return whether the mean calibration error over silos is below 95 % of the errors of a model like this one whose
    confidences are `TOLERATED` too high, which are simulated by resampling labels. With `times` as many test inputs,
    return whether half of the simulated errors of a calibrated model are that low."""
    generator = np.random.default_rng(0)
    observed, drawn = [], []
    for silo in summary.silos:
        if silo.reliability is None or not any(silo.reliability.count):
            continue
        count, confidence = times * np.array(silo.reliability.count), times * np.array(silo.reliability.confidence)
        share, shape = confidence / np.maximum(count, 1), (REDRAWN, len(count))
        redrawn = generator.binomial(count.astype(int), np.clip(share - TOLERATED, 0, 1), shape)
        correct = np.array(silo.reliability.correct)
        if times > 1:
            correct = generator.binomial(count.astype(int), np.clip(share, 0, 1), shape)
        observed.append(np.abs(correct - confidence).sum(-1) / count.sum())
        drawn.append(np.abs(redrawn - confidence).sum(1) / count.sum())
    return bool(np.median(np.mean(observed, axis=0)) < np.quantile(np.mean(drawn, axis=0), 0.05))


def _inputs_needed(summary: Summary, excess: Spread, tested: Sequence[dict[str, EceTest]], inputs: int) -> int | None:
    """Return a number of test inputs that would probably show that such confidences are calibrated, from one seed's
    summary; None if even 32 times as many would not."""
    more = (2**i for i in range(1, 6))
    enough = (n for n in more if _upper(excess, tested, n) < TOLERATED and _rules_out(summary, n))
    return next((n * inputs for n in enough), None)


def _worst(tested: Sequence[dict[str, EceTest]]) -> str:
    names = sorted(set(tested[0]).intersection(*tested[1:]))
    means = {name: float(np.mean([silos[name].excess for silos in tested])) for name in names}
    name = max(means, key=lambda name: means[name])
    return f"{name} (by {means[name]:.2f})"
