"""What is done to every large tensor of a round: means, block by block, and a look whether all is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 18
"""Numbers that are summed at a time: the sum stays in a processor's cache, and the tensors are read in long runs."""


def add_weighted(total: Tensor, tensors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Add tensors of one shape and type times their shares, in this order, to their flat sum in float64."""
    term = torch.empty(min(BLOCK, len(total)), dtype=torch.float64)
    parts = (torch.split(tensor.reshape(-1), BLOCK) for tensor in tensors)
    for here, *terms in zip(torch.split(total, BLOCK), *parts, strict=True):
        next_term = term[: len(here)]
        for each, share in zip(terms, shares, strict=True):
            here.add_(next_term.copy_(each), alpha=share)


def weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The sum of tensors of one shape and type times their shares, in this order, in float64; of the tensors' type."""
    mean = torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
    flat = mean.view(-1)
    total = torch.empty(min(BLOCK, len(flat)), dtype=torch.float64)
    parts = (torch.split(tensor.reshape(-1), BLOCK) for tensor in tensors)
    for block, *terms in zip(torch.split(flat, BLOCK), *parts, strict=True):
        here = total[: len(block)].zero_()
        add_weighted(here, terms, shares)
        block.copy_(here)
    return mean


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is infinite or not a number: a finite sum says so many times faster than a look at each."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())
