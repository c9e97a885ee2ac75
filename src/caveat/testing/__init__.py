"""Tests for custom methods, which check the contract of all methods on small synthetic silos.

    from caveat.testing import check_method
    check_method(Ditto(rounds=4), "ditto.toml")

The check does not need pytest. In a pytest test, a violation is a failure. `SmallFederation` runs a method on the same
silos, for tests of the method's results.
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
