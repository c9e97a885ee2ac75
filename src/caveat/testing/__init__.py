"""Tests for methods of one's own: the contract that every method of caveat's is held to, on small synthetic silos.

    from caveat.testing import check_method
    check_method(Ditto(rounds=4), "ditto.toml")

needs no pytest; within one, a violation is a failed test. `SmallFederation` runs a method on the same silos, for tests
of what it computes.
"""

from .contract import CHECKS, check_method
from .federation import (
    CheckedMethod,
    SmallFederation,
    Violation,
    assert_same,
    assert_same_states,
    flat,
    small_model,
    small_silos,
)

__all__ = [
    "CHECKS",
    "CheckedMethod",
    "SmallFederation",
    "Violation",
    "assert_same",
    "assert_same_states",
    "check_method",
    "flat",
    "small_model",
    "small_silos",
]
