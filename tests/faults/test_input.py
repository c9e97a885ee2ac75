"""Bad configurations, tables, arrays, images and inputs of predictions: `helpers/faults/fuzz*.py`."""

from __future__ import annotations

import pytest
from faults.selection import FAMILIES, SHORT, failures


@pytest.mark.parametrize("family", FAMILIES)
def test_bad_input_is_refused_or_taken_as_it_was_meant(family: str) -> None:
    told = [f"{name}: {found.kind}: {found.told}" for name, found in failures(f"fuzz:{family}", SHORT).items()]
    assert not told, "\n".join(told)
