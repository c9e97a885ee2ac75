"""Predictions in parts of one size, so that an answer does not depend on the other inputs of a batch.

Libraries choose the kernel of a matrix product by its number of rows, and kernels round differently. So every part has
the same number of rows: the last one is filled up with copies of its last input. Parts are copied, because rounding
also depends on where in memory a row begins. With these sizes, the position of a row in a part does not matter, in
Intel's matrix products for AVX-512 and for AVX2; with 8 or 32 rows it does. On some AMD processors, it matters for
products with at most 10 outputs whose number of inputs is no multiple of 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core import Answers, Prediction, Tensors

ROWS = 64
"""Inputs of a part, if an input is a row of numbers."""
FEW = 16
"""Inputs of a part, if a single input costs more: images and sequences."""

Predicted = TypeVar("Predicted", Prediction, Answers, Tensors)


def size_of(x: Tensor) -> int:
    """Return the number of inputs of a part, for inputs (N, ...)."""
    return ROWS if x.ndim == 2 else FEW


def filled(x: Tensor, size: int) -> Tensor:
    """Return a copy of at least one input (N, ...), with copies of the last one up to `size`."""
    return torch.cat([x, x[-1:].expand(size - len(x), *x.shape[1:])])


def in_parts(
    ask: Callable[[Tensor, Tensor | None], Predicted], x: Tensor, subgroup: Tensor | None = None, size: int = 0
) -> Predicted:
    """Return the result of `ask` for inputs (N, ...) and their subgroups (N,), computed in parts of `size` inputs
    (0: `size_of(x)`)."""
    size = size or size_of(x)
    if not len(x):
        return ask(x[:0], subgroup)
    found = [
        ask(filled(x[i : i + size], size), None if subgroup is None else filled(subgroup[i : i + size], size))
        for i in range(0, len(x), size)
    ]
    joined: Predicted = _joined(found, len(x))
    return joined


def _joined(parts: Sequence[Any], count: int) -> Any:
    """Return the first `count` rows of the results for all parts."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))[:count]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts], count) for name in first}
    if isinstance(first, Prediction):
        if any(part.limited is not None for part in parts):  # some parts have inputs for which a policy abstained
            parts = [part.abstaining(torch.zeros_like(part.decision, dtype=torch.bool)) for part in parts]
        names = [each.name for each in fields(first)]
        return replace(first, **{name: _joined([getattr(part, name) for part in parts], count) for name in names})
    return first
