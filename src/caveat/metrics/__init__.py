"""Metrics of predictions as sums that can be merged; a mean is taken once, at the end.

A silo sends sums, so that figures over several silos are exact. Sums over few inputs say much about each of them:
nothing here is differentially private.
"""

from .calibration import BINS, EceTest, ece, ece_classwise, ece_null, ece_test, reliability
from .figures import HIGHER_IS_BETTER, LOWER_IS_BETTER, across, decisions, figures
from .ranking import errors, ood_detection, risk_coverage
from .sums import measure, merge

__all__ = [
    "BINS",
    "HIGHER_IS_BETTER",
    "LOWER_IS_BETTER",
    "EceTest",
    "across",
    "decisions",
    "ece",
    "ece_classwise",
    "ece_null",
    "ece_test",
    "errors",
    "figures",
    "measure",
    "merge",
    "ood_detection",
    "reliability",
    "risk_coverage",
]
