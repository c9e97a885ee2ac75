"""Crashes of comparisons, audits and calls in Python, which are then started again: `helpers/faults/again.py`."""

from __future__ import annotations

import pytest
from faults.again import PREFIX
from faults.selection import SHORT, failures

pytestmark = pytest.mark.long


@pytest.mark.parametrize("start", ["compare", "audit", "call"])
def test_what_is_started_again_comes_to_the_same_bits(start: str) -> None:
    told = [f"{name}: {found.kind}: {found.told}" for name, found in failures(f"{PREFIX}{start}", SHORT).items()]
    assert not told, "\n".join(told)
