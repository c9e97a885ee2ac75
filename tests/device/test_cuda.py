"""Every method, and all that is put around methods, on a CUDA GPU; skipped where torch finds none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import Federation, assert_same, assert_same_states, flat
from on_devices import TWO, every_method, measured

from caveat.core import Method, Payload
from caveat.engines.single_machine import SingleMachineEngine
from caveat.engines.vectorization import Vectorization

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
CUDA = torch.device("cuda")


def finite(payload: Payload) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in flat(payload).values() if tensor.is_floating_point())


@every_method
def test_a_method_has_the_same_bits_twice(method: Method, tmp_path: Path) -> None:
    """Bits differ from the CPU's: a device draws dropout masks from its own generator."""
    one, two = (Federation(method, tmp_path / name, data=TWO, device=CUDA) for name in ("one", "two"))
    assert_same(one.run(), two.run())
    assert_same_states(one.states(), two.states())
    assert_same_states(measured(one), measured(two))


@every_method
def test_stacked_silos_have_the_tensors_of_single_ones(method: Method, tmp_path: Path) -> None:
    apart, together = (Federation(method, tmp_path / name, device=CUDA) for name in ("apart", "together"))
    one = apart.run()
    other = together.run(engine=SingleMachineEngine(together.place, 1, vectorization=Vectorization("on")))
    assert {name: each.shape for name, each in flat(one).items()} == {n: e.shape for n, e in flat(other).items()}
    assert finite(one) == finite(other)
