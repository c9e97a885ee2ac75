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
"""Name of the attribute of a module with copies of its tensors that are not drawn at random, which resets restore."""
Payload = dict[str, Tensors]
"""Groups of named tensors that are sent in one message, e.g. ``{"model": {...}, "control": {...}}``."""
SiloId = str
LONGEST_NAME = 200
"""Maximum length of a silo's name in bytes."""


def check_silo_name(name: SiloId, where: str = "") -> None:
    """Raise DataError, prefixed with `where`, for a name that cannot be printed or cannot be the name of a folder."""
    # A file whose name begins with a dot is hidden, and may look like a temporary file of a killed process.
    bad = not name.strip() or name.startswith(".") or "/" in name or not name.isprintable()
    if bad or len(name.encode()) > LONGEST_NAME:
        shown = repr(name) if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]!r}..."
        raise DataError(
            f"{where}silo name {shown}: expected at most {LONGEST_NAME} bytes of printable characters that contain no "
            "'/', are not only spaces, and do not begin with a dot"
        )


@dataclass(frozen=True)
class Update:
    """Everything that leaves one silo in one round."""

    payload: Payload
    examples: int
    """n_k, the number of examples that weight the update."""

    def form(self) -> Update:
        """Return the update without its values. The tensors are on torch's device "meta", and have only a shape and a
        type."""
        return Update(
            {group: {name: t.to("meta") for name, t in tensors.items()} for group, tensors in self.payload.items()},
            self.examples,
        )


State = Payload
"""Groups of named tensors that a server or a silo keeps from one round to the next."""


def size(payload: Payload) -> int:
    """Return the number of bytes of a payload's tensors."""
    return sum(tensor.nbytes for named in payload.values() for tensor in named.values())


BLOCK = 1 << 18
"""Block size of sums, chosen so that the sum stays in the processor's cache and tensors are read in long runs."""
LARGE = 1 << 22
"""Minimum size of a tensor for which sums in several threads are faster."""


def add_weighted(total: Tensor, tensors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Add tensors of one shape and type, each times its share, to a flat float64 sum, in the given order."""
    term = torch.empty(min(BLOCK, len(total)), dtype=torch.float64)
    parts = (torch.split(tensor.reshape(-1), BLOCK) for tensor in tensors)
    for here, *terms in zip(torch.split(total, BLOCK), *parts, strict=True):
        next_term = term[: len(here)]
        for each, share in zip(terms, shares, strict=True):
            here.add_(next_term.copy_(each), alpha=share)


def weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """Return the sum of tensors of one shape and type, each times its share, added in the given order in float64.

    The result has the type of the tensors. Large tensors are summed block by block in threads, with bit-identical
    results.
    """
    mean = torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
    flats = [mean.view(-1), *(tensor.reshape(-1) for tensor in tensors)]
    if mean.numel() < LARGE:
        _fill(shares, *flats)
        return mean
    threads = _processors()
    run = BLOCK * math.ceil(mean.numel() / (BLOCK * threads))
    # Python threads with one torch thread each wait without spinning while other processes run.
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
    """Return whether all entries are finite. The sum is tested first, because this is much faster than a test of each
    entry."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


class Replies:
    """Updates of one round, sorted by the names of the silos.

    If `means` is given, the updates were summed on arrival and have only shapes and types, but no values. With secure
    aggregation, `totals` are the weighted sums of the updates.
    """

    def __init__(
        self,
        updates: Mapping[SiloId, Update],
        population: int,
        left_out: Mapping[SiloId, str] | None = None,
        means: Payload | None = None,
        totals: Payload | None = None,
    ) -> None:
        self.updates = dict(sorted(updates.items()))
        self.population = population
        """Number of silos in the federation, whether or not they are in the cohort."""
        self.left_out = dict(left_out or {})
        """Silos whose updates were requested but are not aggregated, with the reasons."""
        self.means, self.totals = means, totals

    def __len__(self) -> int:
        return len(self.updates)

    @property
    def sent(self) -> int:
        """Number of bytes that all silos sent. With secure aggregation, these are eight bytes per number, without keys
        and shares."""
        if self.totals is not None:
            numbers = (t.numel() for u in self.updates.values() for named in u.payload.values() for t in named.values())
            return 8 * sum(numbers)
        return sum(size(update.payload) for update in self.updates.values())

    def mean(self, group: str, weights: Sequence[float] | None = None) -> Tensors:
        """Return the mean of a group over the cohort, summed in float64, with weights n_k unless weights are given.

        Integer tensors (such as counters of BatchNorm) are not averaged: the first silo's tensor is copied. Raises
        LookupError if weights are given but the updates were summed on arrival, see `Round.linear`.
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

    def total(self, group: str, name: str) -> Tensor:
        """Return the unweighted sum of one tensor over all updates, see `Round.totals`."""
        if self.totals is not None:
            return self.totals[group][name]
        return self.stack(group, name).sum(0)

    def stack(self, group: str, name: str) -> Tensor:
        """Return one tensor of every update, stacked along a new first axis. Raises LookupError if the updates were
        summed on arrival."""
        if self.means is not None:
            raise LookupError(f"{group}/{name}: {ADDED_UP}")
        return torch.stack([update.payload[group][name] for update in self.updates.values()])


ADDED_UP = "the updates of a linear round were summed on arrival; only their n_k-weighted means are available"


class RunningSums:
    """Running float64 sums of updates, each times its share, which make it unnecessary to store the updates. The final
    means are bit-identical to those of `Replies.mean` for the same order of updates."""

    def __init__(self, examples: int) -> None:
        """`examples` is the sum of the weights of all updates."""
        self.examples = examples
        self.totals: Payload = {}
        """Flat sums in float64, and copies of the integer tensors of the first update."""
        self.form: Payload | None = None
        """Shapes and types of the tensors of an update; None before the first update."""

    def add(self, updates: Sequence[Update]) -> None:
        """Add updates to the sums. Raises KeyError for an update that lacks a tensor of the first one."""
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
        """Return the means of all updates, with the shapes and types of the updates. Raises LookupError if no update
        was added."""
        if self.form is None:
            raise LookupError("no updates to average")
        return {
            group: {name: self.totals[group][name].to(t.dtype).view(t.shape) for name, t in tensors.items()}
            for group, tensors in self.form.items()
        }
