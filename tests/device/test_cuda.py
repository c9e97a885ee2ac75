"""Every method, and all that is put around methods, on a CUDA GPU; skipped where torch finds none."""

from __future__ import annotations

import json
import os
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
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TWO = dict(list(small_silos().items())[:2])
CLOSE = 1e-3
"""Tolerance of a tensor after two rounds, relative to its largest value."""


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


def distance(a: Payload, b: Payload) -> tuple[float, str]:
    """Return the largest difference of a tensor, relative to its largest value, and its name."""
    one, other = flat(a), flat(b)
    assert one.keys() == other.keys()
    far = [(0.0, "")]
    for name, x in one.items():
        x, y = x.double(), other[name].double()
        assert x.shape == y.shape
        assert bool((x.isfinite() == y.isfinite()).all()), name
        if x.numel():
            scale = max(float(x.nan_to_num(0, 0, 0).abs().max()), 1e-6)
            far.append((float((x - y).nan_to_num(0, 0, 0).abs().max()) / scale, name))
    return max(far)


@each
def test_a_method_has_the_same_bits_twice_and_numbers_close_to_those_of_the_cpu(method: Method, tmp_path: Path) -> None:
    runs = [Federation(method, tmp_path / name, data=TWO, device=d) for name, d in
            (("cpu", CPU), ("one", CUDA), ("two", CUDA))]  # fmt: skip
    server, one, two = (each.run() for each in runs)
    assert_same(one, two)
    assert_same_states(runs[1].states(), runs[2].states())
    assert_same_states(measured(runs[1]), measured(runs[2]))
    far = distance(server, one)
    if report := os.environ.get("CAVEAT_DISTANCES"):
        with Path(report).open("a") as file:
            file.write(json.dumps([type(method).__name__, *far]) + "\n")
    assert far[0] < CLOSE, far[1]


@each
def test_stacked_silos_are_close_to_single_ones(method: Method, tmp_path: Path) -> None:
    apart, together = (Federation(method, tmp_path / name, device=CUDA) for name in ("apart", "together"))
    server = apart.run()
    found = together.run(engine=SingleMachineEngine(together.place, 1, vectorization=Vectorization("on")))
    far = distance(server, found)
    if report := os.environ.get("CAVEAT_DISTANCES"):
        with Path(report).open("a") as file:
            file.write(json.dumps(["stacked", type(method).__name__, *far]) + "\n")
