"""Metrics of predictions from sums that can be merged; a mean is taken once, at the end.

A silo sends sums, so metrics over several silos are exact. Sums over few inputs reveal much about each of them, and
nothing here is differentially private.
"""

from .calibration import BINS, EceTest, ece, ece_classwise, ece_null, ece_test, reliability
from .classification import ENOUGH, OperatingPoint, by_class, called, classification, operating_point
from .ranking import errors, ood_detection, risk_coverage
from .skill import skill
from .sums import (
    HIGHER_IS_BETTER,
    LOWER_IS_BETTER,
    MOST_CLASSES,
    UNBOUNDED,
    across,
    bins_of,
    class_sums,
    contributions,
    decisions,
    figures,
    measure,
    merge,
    subgroup_figures,
    subgroup_sums,
)

__all__ = [
    "BINS", "ENOUGH", "HIGHER_IS_BETTER", "LOWER_IS_BETTER", "MOST_CLASSES", "UNBOUNDED", "EceTest", "OperatingPoint",
    "across", "bins_of", "by_class", "called", "class_sums", "classification", "contributions", "decisions", "ece",
    "ece_classwise", "ece_null", "ece_test", "errors", "figures", "measure", "merge", "ood_detection",
    "operating_point", "reliability", "risk_coverage", "skill", "subgroup_figures", "subgroup_sums",
]  # fmt: skip
