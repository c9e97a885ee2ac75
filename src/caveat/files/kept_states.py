"""Which states the silos of a run have kept: a line per silo and round, since checkpoints name only their hash."""

from __future__ import annotations

from pathlib import Path

from ..core import SiloId
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
