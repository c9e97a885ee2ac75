"""A round's replies by chunks: kept, or of a linear round added up in the order of the chunks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core import Payload, Replies, RunError, SiloId, Update, Weights
from ..checks.norms import Admission
from .batched_executor import ChunkPart, one_of, stack


@dataclass
class SummedPart:
    """A part of a chunk in a linear round: sums over its silos, and one silo's tensors for their types."""

    silos: list[SiloId]
    examples: list[int]
    sums: Payload
    first: Payload


def summed(part: ChunkPart) -> SummedPart:
    """A part as float64 sums over its silos of n_k times their tensors, and the tensors of the first silo by name."""
    shares = torch.tensor(part.examples, dtype=torch.float64)
    sums: Payload = {}
    for group, tensors in part.payload.items():
        sums[group] = {name: _sum(tensor, shares) for name, tensor in tensors.items() if tensor.is_floating_point()}
    first = part.silos.index(min(part.silos))
    return SummedPart(part.silos, part.examples, sums, one_of(part.payload, first))


def _sum(tensor: Tensor, shares: Tensor) -> Tensor:
    # Not a product of matrices, whose order of summation is its library's own.
    return (tensor.double() * shares.view(-1, *[1] * (tensor.ndim - 1))).sum(0)


class ChunkReplies:
    """Takes the parts of chunks as they come."""

    def __init__(
        self,
        linear: Weights | None,
        examples: Mapping[SiloId, int] | None,
        count: int,
        admission: Admission | None = None,
    ) -> None:
        """`examples` are n_k where they are known, and `count` is the number of chunks.

        With an `admission`, chunks come without having been added up. In a round in which it waits, all are kept.
        """
        self.linear, self.examples, self.admission = linear, examples, admission
        self.parts: list[Sequence[ChunkPart | SummedPart]] = [()] * count

    def take(self, chunk: int, parts: Sequence[ChunkPart | SummedPart]) -> None:
        """Raises RunError for an update that does not count as its linear round has it."""
        for part in parts if self.linear is not None else ():
            self._check(part)
        if self.admission is not None and not self.admission.waits:
            parts = [self._admitted(part) for part in parts if isinstance(part, ChunkPart)]
        self.parts[chunk] = parts

    def _admitted(self, part: ChunkPart) -> ChunkPart | SummedPart:
        """A part as it counts, of a linear round added up."""
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
            if examples != expected:
                raise RunError(
                    f"silo {silo!r} says that its update is of {examples} examples, expected {expected}, as all silos "
                    "of a round that is declared linear count by their training examples, or all by 1"
                )

    def replies(self, population: int) -> Replies:
        """The replies of a federation of so many silos, after the last chunk has come."""
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
                updates |= {
                    silo: Update(form, examples) for silo, examples in zip(part.silos, part.examples, strict=True)
                }
            else:
                updates |= {
                    silo: Update(one_of(part.payload, k), part.examples[k]) for k, silo in enumerate(part.silos)
                }
        return Replies(updates, population, means=_means(summed) if summed else None)


def _means(parts: Sequence[SummedPart]) -> Payload:
    total = sum(sum(part.examples) for part in parts)
    # An integer tensor has no mean: the silo's that is first by name stands for it, as in `Replies.mean`.
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
