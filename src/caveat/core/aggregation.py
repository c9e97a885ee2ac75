"""Groups of named tensors, the updates that silos send, and their means."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import DataError

Tensors = dict[str, Tensor]
GIVEN = "given_tensors"
"""The attribute of a part of a module with copies of its own tensors, where they are not drawn at random: what they
begin with anew."""


Payload = dict[str, Tensors]
"""Groups of named tensors, e.g. ``{"model": {...}, "control": {...}}``: what is sent."""


SiloId = str
LONGEST_NAME = 200
"""Bytes of a silo's name."""


def check_silo_name(name: SiloId, where: str = "") -> None:
    """Raises DataError, beginning with `where`, for a name that cannot be a folder's or would not be shown as it is."""
    # What begins with a dot is hidden, and may look like what a killed process has left behind.
    bad = not name.strip() or name.startswith(".") or "/" in name or not name.isprintable()
    if bad or len(name.encode()) > LONGEST_NAME:
        shown = repr(name) if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]!r}..."
        raise DataError(
            f"{where}silo name {shown}: expected a name that can be a folder's: of printable characters, without '/', "
            f"not beginning with a dot, of {LONGEST_NAME} bytes at most"
        )


@dataclass(frozen=True)
class Update:
    """All that leaves one silo in one round."""

    payload: Payload
    examples: int
    """n_k, the number of examples that the update speaks for."""

    def form(self) -> Update:
        """The update without its numbers: tensors on torch's device "meta", which have a shape and a type."""
        return Update(
            {group: {name: t.to("meta") for name, t in tensors.items()} for group, tensors in self.payload.items()},
            self.examples,
        )


State = Payload
"""Groups of named tensors that a server or a silo keeps from one round to the next."""


def size(payload: Payload) -> int:
    """Bytes of a payload's tensors."""
    return sum(tensor.nbytes for named in payload.values() for tensor in named.values())


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


class Replies:
    """One round's updates, in the order of the silos' names whoever answered first.

    Where `means` are given, the updates have been added up already: they hold shapes and types, but no numbers.
    """

    def __init__(
        self,
        updates: Mapping[SiloId, Update],
        population: int,
        left_out: Mapping[SiloId, str] | None = None,
        means: Payload | None = None,
    ) -> None:
        self.updates = dict(sorted(updates.items()))
        self.population = population
        """Every silo of the federation, in the cohort or not."""
        self.left_out = dict(left_out or {})
        """Silos that were asked and are not counted, and why."""
        self.means = means

    def __len__(self) -> int:
        return len(self.updates)

    def mean(self, group: str, weights: Sequence[float] | None = None) -> Tensors:
        """The mean of a group over the cohort, summed in float64; weighted by n_k unless weights are given.

        Integer tensors (counters of BatchNorm, for instance) have no mean: the first silo's is copied. Raises
        LookupError for other weights where the updates were added up already, see `Round.linear`.
        """
        if self.means is not None:
            if weights is not None:
                raise LookupError(f"{group!r}: {ADDED_UP}")
            return dict(self.means[group])
        weights = weights or [update.examples for update in self.updates.values()]
        groups = [update.payload[group] for update in self.updates.values()]
        shares = [weight / sum(weights) for weight in weights]
        return {
            name: weighted_sum([tensors[name] for tensors in groups], shares) if t.is_floating_point() else t.clone()
            for name, t in groups[0].items()
        }

    def stack(self, group: str, name: str) -> Tensor:
        """One tensor of every update, along a new first axis. Raises LookupError where they were added up already."""
        if self.means is not None:
            raise LookupError(f"{group}/{name}: {ADDED_UP}")
        return torch.stack([update.payload[group][name] for update in self.updates.values()])


ADDED_UP = "the updates of a linear round were added up as they came, and only their n_k-weighted means are left"


class RunningSums:
    """Updates added up, each times its share and in float64, in the order in which they are given: none has to be kept.

    After all of them the sums are the means of `Replies.mean`, to the bit.
    """

    def __init__(self, examples: int) -> None:
        """`examples` is the sum of what all updates count as."""
        self.examples = examples
        self.totals: Payload = {}
        """Flat sums in float64; an integer tensor, which has no mean, is that of the first update."""
        self.form: Payload | None = None

    def add(self, updates: Sequence[Update]) -> None:
        """Add updates to the sums. Raises KeyError for one that lacks a tensor of the first update."""
        shares = [update.examples / self.examples for update in updates]
        if self.form is None:
            self.form = updates[0].form().payload
            self.totals = {
                group: {
                    name: t.new_zeros(t.numel(), dtype=torch.float64) if t.is_floating_point() else t.clone()
                    for name, t in tensors.items()
                }
                for group, tensors in updates[0].payload.items()
            }
        for group, tensors in self.form.items():
            for name, tensor in tensors.items():
                if tensor.is_floating_point():
                    add_weighted(self.totals[group][name], [u.payload[group][name] for u in updates], shares)

    def means(self) -> Payload:
        """The means of all updates, in their shapes and types. Raises LookupError if no update was added."""
        if self.form is None:
            raise LookupError("there are no means of no updates")
        return {
            group: {name: self.totals[group][name].to(t.dtype).view(t.shape) for name, t in tensors.items()}
            for group, tensors in self.form.items()
        }
