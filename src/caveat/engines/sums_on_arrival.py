"""Replies of a round as they arrive: stored, or summed in a fixed order and released."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from ..core import Payload, Replies, RunError, SiloId, Update, Weights
from ..core.aggregation import RunningSums
from .batched_executor import ChunkPart, one_of, stack
from .norm_bounding import BUFFERED, Admission

TOGETHER = 1 << 27
"""Bytes of replies that are summed at once: enough to contain silos of all sizes, so the largest can start first.
"""
FEWEST = 8
"""Minimum number of replies that are summed at once, in one pass through memory."""
BUFFERS = 2
"""Maximum number of groups of silos that are running or waiting to be summed."""


class ReplyCollector(Protocol):
    """Collects the replies of a round as they arrive. Silos are asked group by group."""

    @property
    def groups(self) -> Sequence[Sequence[SiloId]]:
        """The cohort in groups, in the order in which they are asked."""

    def ready(self, group: int) -> bool:
        """Return whether silos of a group may be asked, which requires the replies of an earlier group. Waits until
        those are summed and raises errors of the sums, but does not wait for replies."""

    def take(self, silo: SiloId, update: Update) -> None:
        """Take the reply of a silo."""

    def replies(self, population: int) -> Replies:
        """Return the replies of a federation with `population` silos, after the last one has arrived."""


class BufferedReplies:
    """All replies of a round whose aggregation needs each of them."""

    def __init__(self, cohort: Sequence[SiloId], admission: Admission | None = None) -> None:
        self.groups, self.admission = [sorted(cohort)], admission
        self.updates: dict[SiloId, Update] = {}

    def ready(self, group: int) -> bool:
        return True

    def take(self, silo: SiloId, update: Update) -> None:
        self.updates[silo] = update

    def replies(self, population: int) -> Replies:
        return Replies(self.updates if self.admission is None else self.admission.admit(self.updates), population)


class StreamingMean:
    """Replies of a linear round. Needs memory for a few replies and one sum, for any size of the cohort. The sum is in
    the order of names, so it is bit-identical for any order of arrival."""

    def __init__(
        self,
        examples: Mapping[SiloId, int],
        size: int,
        workers: int,
        aside: Executor | None,
        admission: Admission | None = None,
    ) -> None:
        """`examples` are the weights of the cohort. `size` is the size in bytes of what was sent; replies are assumed
        to have the same size. `aside` computes the sums one after the other; if None, the caller does. Updates are
        admitted in the order of groups, before they are summed.
        """
        self.examples, self.aside, self.admission = examples, aside, admission
        names, count = sorted(examples), max(FEWEST, 2 * workers, TOGETHER // max(size, 1))
        first = max(count, BUFFERED) if admission is not None and admission.waits else count
        ends = [0, *range(first, len(names), count), len(names)]
        self.groups = [names[begin:end] for begin, end in pairwise(ends) if begin < end]
        self.group = {name: number for number, names in enumerate(self.groups) for name in names}
        self.missing = [len(names) for names in self.groups]
        self.waiting: dict[SiloId, Update] = {}
        self.forms: dict[SiloId, Update] = {}
        self.layout: list[tuple[str, str, torch.Size, torch.dtype]] | None = None
        self.form: Payload = {}
        self.sums = RunningSums(sum(examples.values()))
        self.submitted: list[Future[None]] = []

    def ready(self, group: int) -> bool:
        before = group - BUFFERS
        if before >= len(self.submitted):
            return False
        if before >= 0:
            self.submitted[before].result()
        return True

    def take(self, silo: SiloId, update: Update) -> None:
        check_weight(silo, update.examples, self.examples[silo])
        self.waiting[silo], self.forms[silo] = update, self._form(update)
        self.missing[self.group[silo]] -= 1
        while len(self.submitted) < len(self.groups) and not self.missing[len(self.submitted)]:
            self._add({name: self.waiting.pop(name) for name in self.groups[len(self.submitted)]})

    def _form(self, update: Update) -> Update:
        """Return the form of an update, shared by updates of equal layout, because meta tensors need memory, too."""
        layout = [(group, n, t.shape, t.dtype) for group, named in update.payload.items() for n, t in named.items()]
        if layout != self.layout:
            self.layout, self.form = layout, update.form().payload
        return Update(self.form, update.examples)

    def _add(self, updates: dict[SiloId, Update]) -> None:
        if self.aside is None:
            _add(self.sums, updates, self.admission)
            self.submitted.append(Future())
            self.submitted[-1].set_result(None)
        else:
            self.submitted.append(self.aside.submit(_add, self.sums, updates, self.admission))

    def replies(self, population: int) -> Replies:
        for each in self.submitted:
            each.result()
        return Replies(self.forms, population, means=self.sums.means())


def _add(sums: RunningSums, updates: dict[SiloId, Update], admission: Admission | None) -> None:
    sums.add(list((updates if admission is None else admission.admit(updates)).values()))
    updates.clear()  # cleared before the caller checks whether their memory can be reused


def check_weight(silo: SiloId, examples: int, expected: int) -> None:
    """Raise RunError for an update of a linear round with an unexpected weight."""
    if examples != expected:
        raise RunError(
            f"silo {silo!r} sent an update of weight {examples}, expected {expected}: in a linear round, silos are "
            "weighted by their training examples, or equally"
        )


@dataclass
class SummedPart:
    """A part of a chunk in a linear round: sums over its silos, and one silo's tensors for their types."""

    silos: list[SiloId]
    examples: list[int]
    sums: Payload
    first: Payload


def summed(part: ChunkPart) -> SummedPart:
    """Return a part as n_k-weighted float64 sums of the silos' tensors, and the tensors of the first silo by name."""
    shares = torch.tensor(part.examples, dtype=torch.float64)
    sums: Payload = {}
    for group, tensors in part.payload.items():
        sums[group] = {name: _sum(tensor, shares) for name, tensor in tensors.items() if tensor.is_floating_point()}
    first = part.silos.index(min(part.silos))
    return SummedPart(part.silos, part.examples, sums, one_of(part.payload, first))


def _sum(tensor: Tensor, shares: Tensor) -> Tensor:
    # No matrix product, because its order of summation depends on the library.
    return (tensor.double() * shares.view(-1, *[1] * (tensor.ndim - 1))).sum(0)


class ChunkReplies:
    """Collects the results of chunks as they arrive."""

    def __init__(
        self,
        linear: Weights | None,
        examples: Mapping[SiloId, int] | None,
        count: int,
        admission: Admission | None = None,
    ) -> None:
        """`examples` are n_k, if known, and `count` is the number of chunks. With an `admission`, chunks arrive without
        sums. In a round in which it waits, all are stored."""
        self.linear, self.examples, self.admission = linear, examples, admission
        self.parts: list[Sequence[ChunkPart | SummedPart]] = [()] * count

    def take(self, chunk: int, parts: Sequence[ChunkPart | SummedPart]) -> None:
        """Take the parts of a chunk. Raises RunError for an update with an unexpected weight in a linear round."""
        for part in parts if self.linear is not None else ():
            self._check(part)
        if self.admission is not None and not self.admission.waits:
            parts = [self._admitted(part) for part in parts if isinstance(part, ChunkPart)]
        self.parts[chunk] = parts

    def _admitted(self, part: ChunkPart) -> ChunkPart | SummedPart:
        """Return an admitted part, summed in a linear round."""
        if self.admission is not None:
            updates = {s: Update(one_of(part.payload, k), part.examples[k]) for k, s in enumerate(part.silos)}
            found = self.admission.admit(updates)
            if any(found[silo] is not updates[silo] for silo in updates):
                payload = stack([found[silo].payload for silo in part.silos])
                part = ChunkPart(part.silos, payload, part.examples)
        return part if self.linear is None else summed(part)

    def _check(self, part: ChunkPart | SummedPart) -> None:
        for silo, examples in zip(part.silos, part.examples, strict=True):
            expected = 1 if self.linear == "silos" else (self.examples or {}).get(silo, examples)
            check_weight(silo, examples, expected)

    def replies(self, population: int) -> Replies:
        """Return the replies of a federation with `population` silos, after the last chunk has arrived."""
        if self.admission is not None and self.admission.waits:
            held = [part for parts in self.parts for part in parts if isinstance(part, ChunkPart)]
            for held_part in held:
                for k, silo in enumerate(held_part.silos):
                    self.admission.look(silo, one_of(held_part.payload, k))
            self.parts = [[self._admitted(each) for each in held]]
        updates: dict[SiloId, Update] = {}
        summed = list[SummedPart]()
        for part in (part for parts in self.parts for part in parts):
            if isinstance(part, SummedPart):
                summed.append(part)
                form = Update(part.first, 0).form().payload
                updates |= {silo: Update(form, n) for silo, n in zip(part.silos, part.examples, strict=True)}
            else:
                updates |= {
                    silo: Update(one_of(part.payload, k), part.examples[k]) for k, silo in enumerate(part.silos)
                }
        return Replies(updates, population, means=_means(summed) if summed else None)


def _means(parts: Sequence[SummedPart]) -> Payload:
    total = sum(sum(part.examples) for part in parts)
    # Integer tensors are not averaged: those of the first silo by name are used, as in `Replies.mean`.
    first = min(parts, key=lambda part: min(part.silos)).first
    means: Payload = {}
    for group, tensors in first.items():
        means[group] = {}
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                sums = torch.zeros(tensor.shape, dtype=torch.float64)
                for part in parts:
                    sums += part.sums[group][name]
                tensor = (sums / total).to(tensor.dtype)
            means[group][name] = tensor.clone()
    return means
