"""Crashes of runs, and damage to their folders, a sample for every method: `helpers/faults` says what is tried."""

from __future__ import annotations

import pytest
from faults.selection import SHORT, failures
from faults.subjects import SUBJECTS

from caveat.methods import METHODS

USUAL = ("scaffold", "uefl", "fedavg-beside")
"""What `make test` tries: states of silos and the server, rounds that depend on replies, and two methods in a run."""


@pytest.mark.parametrize(
    "subject", [pytest.param(each, marks=() if each in USUAL else pytest.mark.long) for each in SUBJECTS]
)
def test_a_fault_ends_in_the_same_bits_or_in_a_refusal(subject: str) -> None:
    told = [f"{name}: {found.kind}: {found.told}" for name, found in failures(subject, SHORT).items()]
    assert not told, "\n".join(told)


def test_every_method_is_tried() -> None:
    assert set(METHODS) <= set(SUBJECTS)
