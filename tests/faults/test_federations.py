"""Crashes of federations, and damage to what server and silos keep: `helpers/faults/federation.py`."""

from __future__ import annotations

import pytest
from faults.federation import PREFIX
from faults.selection import SHORT, failures

pytestmark = pytest.mark.long


def test_a_fault_in_a_federation_ends_in_the_same_bits_or_is_told() -> None:
    told = [f"{name}: {found.kind}: {found.told}" for name, found in failures(f"{PREFIX}scaffold", SHORT).items()]
    assert not told, "\n".join(told)
