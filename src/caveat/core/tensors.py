"""The one kind of value that is sent or kept: groups of named tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Tensors = dict[str, Tensor]


Payload = dict[str, Tensors]
"""Groups of named tensors, e.g. ``{"model": {...}, "control": {...}}``: what is sent."""


SiloId = str


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
