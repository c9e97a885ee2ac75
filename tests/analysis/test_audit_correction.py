"""Promises are decided by p-values that are corrected for their number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from caveat.analysis.audit import claim_tests
from caveat.analysis.audit.correction import LEVEL, Uncorrected, corrected, p_value
from caveat.analysis.audit.seed_statistics import Jackknifed, Spread
from caveat.files.schema import Finding, Verdict


@pytest.mark.parametrize("limit", [-0.25, -0.4])
def test_the_p_value_is_that_of_a_t_test_against_the_limit(limit: float) -> None:
    values = (-0.64, -0.53, -0.44, -0.37)
    assert p_value(Spread(values), limit)["p"] == pytest.approx(stats.ttest_1samp(values, limit).pvalue)
    low, high = Spread(values).interval
    assert (p_value(Spread(values), limit)["p"] < LEVEL) == (not low <= limit <= high)
    without = tuple((sum(values) - each) / 3 for each in values)  # the jackknife of a mean is the mean's error
    assert p_value(Jackknifed(float(np.mean(values)), without), limit)["p"] == pytest.approx(
        p_value(Spread(values), limit)["p"]
    )


def test_without_a_spread_there_is_no_p_value() -> None:
    assert p_value(Spread((0.5,)), 0.2) == p_value(Jackknifed(0.5, ()), 0.2) == {}
    assert p_value(Jackknifed(0.5, (0.4, 0.6)), 0.2) == {}
    assert p_value(Spread((0.5, 0.5)), 0.2) == {"p": 0.0}
    assert p_value(Spread((0.5, 0.5)), 0.5) == {"p": 1.0}


def finding(name: str, verdict: Verdict, p: float) -> Uncorrected:
    return Uncorrected(name, "", verdict, "Facts. Conclusion.", {"p": p}, "Facts.")


def test_a_verdict_whose_corrected_p_value_is_not_small_is_undecided() -> None:
    unrelated = Finding("fusion", "", "does not apply", "None.", {})
    found = corrected([
        finding("a", "does not hold", 0.0073), finding("b", "holds", 0.0246), unrelated,
        finding("c", "does not hold", 0.0432), finding("d", "cannot say", 0.4), finding("e", "cannot say", 0.07),
    ])  # fmt: skip
    assert [each.verdict for each in found] == [
        "does not hold", "cannot say", "does not apply", "cannot say", "cannot say", "cannot say",
    ]  # fmt: skip
    assert [each.measured.get("p_corrected") for each in found] == pytest.approx(
        [5 * 0.0073, 4 * 0.0246, None, 3 * 0.0432, 0.4, 2 * 0.07]
    )
    assert found[2] == unrelated
    assert found[0].sentence == found[4].sentence == "Facts. Conclusion."
    assert found[3].sentence.replace("\N{NO-BREAK SPACE}", " ") == (
        "Facts. Alone, this test would decide (p = 0.043); corrected for 5 tests, it does not (p = 0.13)."
    )
    assert {type(each) for each in found} == {Finding}


def test_one_test_needs_no_correction_and_equivalence_does_not_depend_on_it() -> None:
    (alone,) = corrected([finding("c", "does not hold", 0.0432)])
    assert (alone.verdict, alone.measured["p_corrected"]) == ("does not hold", 0.0432)
    equal, _ = corrected([finding("confidence", "holds", 0.4), finding("d", "cannot say", 0.5)])
    assert equal.verdict == "holds"


def test_facts_of_a_promise_are_kept_without_its_conclusion() -> None:
    rows = [{"seed": seed, "n": n, "epistemic": n**power} for seed, power in ((0, -0.4), (1, -0.6), (2, -0.5))
            for n in (10.0, 40.0)]  # fmt: skip
    found = claim_tests.sample_size(rows, "epistemic")
    assert (found.verdict, found.measured["p"] < LEVEL) == ("holds", True)
    assert found.sentence.endswith("a standard deviation as 1/√n.")
    undecided, *_ = corrected([found, *(finding(str(i), "cannot say", 0.5) for i in range(20))])
    assert undecided.verdict == "cannot say"
    assert "standard deviation" not in undecided.sentence
    assert undecided.sentence.startswith(found.sentence.partition(" A variance")[0])
