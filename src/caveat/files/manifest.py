"""What the files of a run's folder have to hold, by the hashes in its newest checkpoint or in its summary."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core import DataError
from .reading import record_of
from .schema.small_files import Checkpoint, FileSum
from .schema.summary import Summary

BLOCK = 1 << 20
"""Bytes that are read at a time."""
GROWING = ".jsonl"
"""The suffix of files that only grow: until a run is finished they may hold more than its checkpoint knows of."""
APART = frozenset({"state", "beside"})
"""Folders that have their own books."""
FREE = frozenset({"summary.json", "config.toml", "report.html", "started.json", "failure.json", "extended.json"})
"""Files that say themselves what they are of, are compared as settings, or only show what others hold."""


def sum_of_bytes(data: bytes) -> FileSum:
    return FileSum(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def sum_of(path: Path, first: int | None = None) -> FileSum:
    """What a file holds, or its first bytes. Raises DataError if it cannot be read."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK if first is None else min(BLOCK, first - size)):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return FileSum(bytes=size, sha256=digest.hexdigest())


def check_file(path: Path, known: FileSum, growing: bool = False) -> None:
    """Raises DataError, naming the file, unless it holds what is known, and if it is not `growing` nothing more."""
    if not path.is_file():
        raise DataError(f"{path} is missing, or is no file: put it back from a copy")
    found = sum_of(path, known.bytes if growing else None)
    if (found.bytes, found.sha256) != (known.bytes, known.sha256):
        raise DataError(f"{path} is not what was written: it is damaged, was edited, or is of another time or run")


@dataclass(frozen=True)
class Manifest:
    """The hashes of a folder's files."""

    folder: Path
    sums: Mapping[str, FileSum]
    """By their place in the folder."""
    finished: bool = True

    def check(self, *places: str) -> None:
        """Raises DataError for the first of these files that is not what was written, or that should not be there.

        A file that is neither known nor there is none of a run's.
        """
        for place in places:
            known = self.sums.get(place)
            if known is not None:
                check_file(self.folder / place, known, not self.finished and place.endswith(GROWING))
            elif self.finished and (self.folder / place).exists():
                raise DataError(f"{self.folder / place} is no part of the run: it was put there after it had finished")


def manifest_of(folder: Path) -> Manifest:
    """What a finished run's summary, or an interrupted one's newest checkpoint, says of its files.

    Raises DataError where that is damaged. A run without either has nothing that can be compared.
    """
    if (summary := record_of(folder / "summary.json", Summary)) is not None:
        return Manifest(folder, summary.files)
    checkpoint = record_of(folder / "state" / "checkpoint.json", Checkpoint)
    return Manifest(folder, {} if checkpoint is None else checkpoint.files, finished=False)


def sums_of_folder(folder: Path) -> dict[str, FileSum]:
    """What all files of a finished run's folder hold, but for those that have their own books or none."""
    found: dict[str, FileSum] = {}
    for place, folders, names in os.walk(folder):
        here = Path(place)
        if here == folder:
            folders[:] = sorted(set(folders) - APART)
        for name in sorted(names):
            relative = (here / name).relative_to(folder).as_posix()
            if relative not in FREE and not name.startswith("."):
                found[relative] = sum_of(here / name)
    states = folder / STATES
    return found | ({STATES: sum_of(states)} if states.exists() else {})


STATES = "state/states.jsonl"
"""Which states silos have kept, by round and hash."""
