"""Whether two values are the same to the bit, and what is said where they are not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core import Payload, SiloId, State


class Violation(AssertionError):
    """What a method does not keep of the contract, in one sentence."""


def check(condition: object, message: str) -> None:
    """Raises Violation unless the condition holds; `assert` would not under `python -O`."""
    if not condition:
        raise Violation(message)


def flat(payload: Payload) -> dict[str, Tensor]:
    """Tensors by "GROUP/NAME"."""
    return {f"{group}/{name}": tensor for group, named in payload.items() for name, tensor in named.items()}


def assert_same(a: Payload, b: Payload) -> None:
    """Raises Violation unless both have the same tensors, bit by bit."""
    one, other = flat(a), flat(b)
    check(one.keys() == other.keys(), f"other tensors: {sorted(one.keys() ^ other.keys())}")
    for name in one:
        check(torch.equal(one[name], other[name]), f"{name} is another")


def assert_same_states(a: Mapping[SiloId, State], b: Mapping[SiloId, State]) -> None:
    """Raises Violation unless both have the same silos with the same states, bit by bit."""
    check(a.keys() == b.keys(), f"other silos: {sorted(a.keys() ^ b.keys())}")
    for name in a:
        assert_same(a[name], b[name])
