"""The one kind of value that is sent or kept: groups of named tensors."""

from __future__ import annotations

from dataclasses import dataclass

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
