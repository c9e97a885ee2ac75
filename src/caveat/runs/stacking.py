"""What a run keeps of stacked silos: whether they are asked for, and which works are carried out so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..core import ConfigurationError, Method
from ..engines.stacking.decisions import Mode
from ..files.reading import record_of
from ..files.schema.record import SCHEMA
from ..files.schema.small_files import StackedFile, StackedRecord
from ..files.writing import write_record
from .begun import check_files

STACKED = "stacked.json"


def keep_mode(folder: Path, mode: Mode) -> None:
    """Write down how the run that begins in a folder trains silos, if that is not done yet.

    Raises ConfigurationError if it began in another way, since numbers differ by rounding; DataError for a file that is
    damaged or gone.
    """
    check_files(folder, STACKED)
    known = record_of(folder / STACKED, StackedFile)
    was = "off" if known is None else known.mode
    if known is None and not (folder / "state" / "checkpoint.json").exists():
        was = mode
        if mode != "off":
            write_record(folder / STACKED, StackedFile(schema=SCHEMA, mode=mode), lasting=True)
    if was != mode:
        raise ConfigurationError(
            f"{folder}: engine.stacked = {mode!r}, but the run began with {was!r}; put it back, or begin another run",
            "engine.stacked",
        )


def training_works(decided: Mapping[str, StackedRecord], method: Method) -> dict[str, StackedRecord]:
    """Which works of a run were carried out stacked, and why others that train were not: by their name, with the groups
    that silos kept before.
    """
    training = {step.name for step in method.schedule() if step.trains}
    found = {}
    for address, record in decided.items():
        path, space, groups = address.partition(" ")
        name = path.rpartition(".")[2]
        if record.stacked or name in training:
            found[name + space + groups] = record
    return found


def not_stacked(works: Mapping[str, StackedRecord]) -> list[str]:
    """What there is to say of works that were to be stacked."""
    return [
        f"{name}: {'some ' if record.stacked else ''}silos were trained one after the other: {record.why}"
        for name, record in works.items()
        if record.why
    ]
