"""What is done to every large tensor of a round: means, block by block, and a look whether all is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Numbers that are summed at a time: a sum that stays in a processor's cache is read and written once."""


def weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The sum of tensors of one shape and type times their shares, in this order, in float64; of the tensors' type."""
    mean = torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
    flat, parts = mean.view(-1), [tensor.reshape(-1) for tensor in tensors]
    total, term = torch.empty(2, min(BLOCK, len(flat)), dtype=torch.float64)
    for start in range(0, len(flat), BLOCK):
        block = slice(start, start + BLOCK)
        here, next_term = total[: len(flat[block])].zero_(), term[: len(flat[block])]
        for part, share in zip(parts, shares, strict=True):
            here.add_(next_term.copy_(part[block]), alpha=share)
        flat[block] = here
    return mean


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is infinite or not a number: a finite sum says so many times faster than a look at each."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())
