"""What tests on a device share: every method and wrapper with two rounds of training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from federations import METHODS, WRAPPED, Federation

from caveat.core import Method, Payload
from caveat.testing.federation import newest_state, small_silos
from caveat.wrappers.base import Wrapper
from caveat.wrappers.evaluation import TEST

TWO = dict(list(small_silos().items())[:2])


def short(method: Method) -> Method:
    """With two rounds of training."""
    changes: dict[str, Any] = {"rounds": 2} | ({"iterations": 2} if hasattr(method, "iterations") else {})
    return method if isinstance(method, Wrapper) else replace(method, **changes)  # type: ignore[type-var]


EVERY = [short(method) for method in METHODS + WRAPPED]
every_method = pytest.mark.parametrize("method", EVERY, ids=[f"{type(m).__name__}-{i}" for i, m in enumerate(EVERY)])


def measured(federation: Federation) -> dict[str, Payload]:
    """What silos measure in the end."""
    place, t = federation.place, len(federation.place.schedule)
    down = federation.method.broadcast(federation.server)
    kept = {silo: newest_state(place.states, silo) for silo in place.silos}
    return {silo: place.perform(t, TEST, down, silo, kept[silo]).update.payload for silo in place.silos}
