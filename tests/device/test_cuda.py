"""Every method, and all that is put around methods, on a CUDA GPU; skipped where torch finds none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import METHODS, WRAPPED, Federation, assert_same, assert_same_states, flat

from caveat.core import Method, Payload
from caveat.engines.process_pool import SingleMachineEngine
from caveat.engines.vectorization import Vectorization
from caveat.testing.federation import newest_state, small_silos
from caveat.wrappers.base import Wrapper
from caveat.wrappers.evaluation import TEST

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
CUDA = torch.device("cuda")
TWO = dict(list(small_silos().items())[:2])


def short(method: Method) -> Method:
    """With two rounds of training."""
    changes: dict[str, Any] = {"rounds": 2} | ({"iterations": 2} if hasattr(method, "iterations") else {})
    return method if isinstance(method, Wrapper) else replace(method, **changes)  # type: ignore[type-var]


EVERY = [short(method) for method in METHODS + WRAPPED]
each = pytest.mark.parametrize("method", EVERY, ids=[f"{type(m).__name__}-{i}" for i, m in enumerate(EVERY)])


def measured(federation: Federation) -> dict[str, Payload]:
    """What silos measure in the end."""
    place, t = federation.place, len(federation.place.schedule)
    down = federation.method.broadcast(federation.server)
    kept = {silo: newest_state(place.states, silo) for silo in place.silos}
    return {silo: place.perform(t, TEST, down, silo, kept[silo]).update.payload for silo in place.silos}


def finite(payload: Payload) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in flat(payload).values() if tensor.is_floating_point())


@each
def test_a_method_has_the_same_bits_twice(method: Method, tmp_path: Path) -> None:
    """Bits differ from the CPU's: a device draws dropout masks from its own generator."""
    one, two = (Federation(method, tmp_path / name, data=TWO, device=CUDA) for name in ("one", "two"))
    assert_same(one.run(), two.run())
    assert_same_states(one.states(), two.states())
    assert_same_states(measured(one), measured(two))


@each
def test_stacked_silos_have_the_tensors_of_single_ones(method: Method, tmp_path: Path) -> None:
    apart, together = (Federation(method, tmp_path / name, device=CUDA) for name in ("apart", "together"))
    one = apart.run()
    other = together.run(engine=SingleMachineEngine(together.place, 1, vectorization=Vectorization("on")))
    assert {name: each.shape for name, each in flat(one).items()} == {n: e.shape for n, e in flat(other).items()}
    assert finite(one) == finite(other)
