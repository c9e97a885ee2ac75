"""What silos send in a round, and what it adds up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .aggregation import add_weighted, weighted_sum
from .tensors import Payload, SiloId, Tensors, Update


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
