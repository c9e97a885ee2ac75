"""What is done to every large tensor of a round: means, block by block, and a look whether all is finite."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

BLOCK = 1 << 18
"""Numbers that are summed at a time: the sum stays in a processor's cache, and the tensors are read in long runs."""
LARGE = 1 << 22
"""Numbers of a tensor for which threads are worth while."""


def add_weighted(total: Tensor, tensors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Add tensors of one shape and type times their shares, in this order, to their flat sum in float64."""
    term = torch.empty(min(BLOCK, len(total)), dtype=torch.float64)
    parts = (torch.split(tensor.reshape(-1), BLOCK) for tensor in tensors)
    for here, *terms in zip(torch.split(total, BLOCK), *parts, strict=True):
        next_term = term[: len(here)]
        for each, share in zip(terms, shares, strict=True):
            here.add_(next_term.copy_(each), alpha=share)


def weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The sum of tensors of one shape and type times their shares, in this order, in float64; of the tensors' type.

    Large ones are summed by as many threads as the process has processors, a run of blocks each, to the same bits.
    """
    mean = torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
    flats = [mean.view(-1), *(tensor.reshape(-1) for tensor in tensors)]
    if mean.numel() < LARGE:
        _fill(shares, *flats)
        return mean
    threads = _processors()
    run = BLOCK * math.ceil(mean.numel() / (BLOCK * threads))
    # Python's threads, of one each of torch's: they wait without spinning where something else runs.
    with ThreadPoolExecutor(threads, "caveat-mean", torch.set_num_threads, (1,)) as pool:
        pieces = zip(*(torch.split(flat, run) for flat in flats), strict=True)
        list(pool.map(lambda piece: _fill(shares, *piece), pieces))
    return mean


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fill(shares: Sequence[float], mean: Tensor, *tensors: Tensor) -> None:
    total = torch.empty(min(BLOCK, len(mean)), dtype=torch.float64)
    parts = (torch.split(tensor, BLOCK) for tensor in tensors)
    for block, *terms in zip(torch.split(mean, BLOCK), *parts, strict=True):
        here = total[: len(block)].zero_()
        add_weighted(here, terms, shares)
        block.copy_(here)


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is infinite or not a number: a finite sum says so many times faster than a look at each."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())
