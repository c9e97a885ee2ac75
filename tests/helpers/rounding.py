"""Compare answers to the bit or, on processors that round a row by its position in a batch, up to rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def rounds_by_position() -> bool:
    """Whether this processor's product of 64 equal rows, with as few columns as in small models, has unequal rows."""
    found = torch.nn.functional.linear(torch.linspace(0.1, 0.7, 6).repeat(64, 1), torch.linspace(-1, 1, 48).view(8, 6))
    return not torch.equal(found, found[:1].expand_as(found))


DISTANCES = {"unfamiliar": 1e-3, "novel": 1e-3}
"""Tolerances of scores that are differences of large distances, which an ONNX file computes with 32 bits."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Arrays by name."""

    found: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arrays) or list(self.found) != list(other.found):
            return False
        if not rounds_by_position():
            return all(each.tobytes() == other.found[name].tobytes() for name, each in self.found.items())
        return all(
            np.allclose(each, other.found[name], rtol=1e-5, atol=DISTANCES.get(name, 1e-6), equal_nan=True)
            if each.dtype.kind == "f"
            else np.array_equal(each, other.found[name])
            for name, each in self.found.items()
        )

    __hash__ = None  # type: ignore[assignment]
