"""Which states the silos of a run have kept: a line per silo and round, since checkpoints name only their hash."""

from __future__ import annotations

from pathlib import Path

from ..core import SiloId
from .checkpoints import SiloStore
from .reading import checked, lines_of
from .schema.small_files import KeptState


def read_kept(path: Path) -> dict[SiloId, KeptState]:
    """The last state of each silo that has kept one; empty where there is no such file.

    Raises DataError if it is damaged.
    """
    found: dict[SiloId, KeptState] = {}
    for value, where in lines_of(path):
        kept = checked(value, KeptState, where)
        found[kept.silo] = kept
    return found


def adopted(store: SiloStore, until: int) -> dict[SiloId, KeptState]:
    """The states until a round that are there, of a run of version 0.1, which kept no books of them."""
    found = ((silo, store.adopt(silo, until)) for silo in sorted(store.silos()))
    return {silo: kept for silo, kept in found if kept is not None}
