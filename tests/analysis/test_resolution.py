"""How finely a comparison's figures are known: their range, their steps, and the errors that they rest on."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from caveat.analysis.compare.build_record import ends_of, rests_on, steps_of
from caveat.analysis.statistics import Interval
from caveat.files.schema import MEASURES, Measure, SiloRecord

KNOWN = {measure.name: measure for measure in MEASURES["classes"]}


def finished(*silos: tuple[str, int, float]) -> Any:
    """A run of silos by name, test inputs and accuracy."""
    found = [SiloRecord.model_validate({"name": k, "n_test": n, "test": {"accuracy": a}}) for k, n, a in silos]
    return SimpleNamespace(silos=found)


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("auroc_error", (0.845, 0.016, 1.674), (0.016, 1.0)),
        ("ece", (0.02, -0.03, 0.07), (0.0, 0.07)),
        ("accuracy", (0.9, 0.75, 1.05), (0.75, 1.0)),
        ("brier", (0.3, -0.5, 2.5), (0.0, 2.0)),
        ("nll", (0.3, -0.5, 1.1), (0.0, 1.1)),
        ("entropy", (0.3, 0.2, 2.6), (0.2, 2.6)),
        ("accuracy", (0.5, -3.0, 4.0), (0.0, 1.0)),
        ("accuracy", (1.0, 1.0, 1.0), (1.0, 1.0)),
        ("accuracy", (0.5, math.nan, math.nan), None),
    ],
)
def test_no_interval_leaves_its_range_and_one_of_all_there_is_is_shown(
    name: str, given: tuple[float, float, float], shown: tuple[float, float] | None
) -> None:
    found = ends_of(Interval(*given), KNOWN[name])
    assert found.mean == given[0]
    assert (found.low, found.high) == (shown or (None, None))


def test_figures_that_count_inputs_come_in_steps_of_one_of_them() -> None:
    run = finished(("a", 40, 0.9), ("b", 31, 0.9))
    for name in ("accuracy", "auroc_error"):
        assert steps_of(run, KNOWN[name]) == {"a": 1 / 40, "b": 1 / 31}
    assert steps_of(run, Measure("own", "models/local/accuracy", percent=True)) == {"a": 1 / 40, "b": 1 / 31}
    for name in ("nll", "entropy"):
        assert steps_of(run, KNOWN[name]) == {"a": 0.0, "b": 0.0}


def test_a_figure_of_errors_says_how_many_there_are() -> None:
    runs = [finished(("a", 40, 0.95), ("b", 40, 0.1)), finished(("a", 40, 0.975), ("b", 40, 0.05))]
    assert rests_on("a", KNOWN["auroc_error"], runs) == 3
    assert rests_on("b", KNOWN["auroc_error"], runs) == 6  # right answers, which are rarer
    assert rests_on("a", KNOWN["accuracy"], runs) is None
    assert rests_on("c", KNOWN["auroc_error"], runs) is None
