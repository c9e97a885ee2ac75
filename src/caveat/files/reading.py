"""Reading what runs wrote: JSON and lines of JSON as checked records, and the hashes of a folder's files."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ..core import DataError
from .schema import Checkpoint, Comparison, FileSum
from .schema.record import FROM_FILE, SCHEMA, Record, check_seal
from .schema.summary import Summary

RecordType = TypeVar("RecordType", bound=Record)
LARGEST_INT, LARGEST_FLOAT = 1 << 64, 1e150
"""Numbers of files are smaller: whole ones fit 64 bits, and others can be squared and added up."""


def text_of(path: Path) -> str | None:
    """None where there is no such file. Raises DataError for a folder, a pipe, and what is no UTF-8 text."""
    if not _is_there(path):
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _is_there(path: Path) -> bool:
    """Whether there is a file. Raises DataError for a folder, a pipe or a device: nobody may ever write to a pipe."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no file: it is a folder, a pipe or a device; put the file back from a copy")
    return path.exists()


def record_of(path: Path, kind: type[RecordType]) -> RecordType | None:
    """The record that a JSON file is; None where there is no such file. Raises DataError for anything else."""
    text = text_of(path)
    return None if text is None else checked(decoded(text, str(path)), kind, str(path))


def read(path: Path, kind: type[RecordType]) -> RecordType:
    """The record that a JSON file is. Raises DataError if there is none."""
    record = record_of(path, kind)
    if record is None:
        raise DataError(f"{path} does not exist")
    return record


def read_plain(path: Path) -> Any:
    """The value of a JSON file that is compared as a whole. Raises DataError if there is none."""
    value = decoded(text_of(path) or "", str(path))
    check_version(value, str(path))
    return value


def lines_of(path: Path) -> Iterator[tuple[Any, str]]:
    """The values of a file with one per line, each with its place, one at a time; none where there is no such file.

    A process that was killed while it appended leaves half a line behind, the only one without a newline. Raises
    DataError, naming file and line, for anything else that is no JSON.
    """
    if not _is_there(path):
        return
    try:
        with path.open("rb") as file:
            for i, line in enumerate(file, 1):
                where = f"{path}, line {i}"
                if b"\0" in line:
                    raise DataError(f"{where}: bytes that are zero, as a loss of power leaves them; expected JSON")
                if (line.strip() and line.endswith(b"\n")) or _is_json(line):
                    yield decoded(line, where), where
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def decoded(text: str | bytes, where: str) -> Any:
    """The value of a JSON text in UTF-8. Raises DataError, naming its place, for anything else."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{where} cannot be read as UTF-8 text: {error}") from error
    except (ValueError, RecursionError) as error:  # also of numbers with too many digits, and of too many brackets
        raise DataError(f"{where}: not valid JSON: {error}") from error


def checked(value: Any, kind: type[RecordType], where: str) -> RecordType:
    """A value of a file as a record.

    Raises DataError, naming its place, for one of another version or form, or that is not as it was sealed.
    """
    check_version(value, where)
    if kind.SEALED:
        check_seal(value, where)
    if (place := _beyond(value)) is not None:
        raise DataError(f"{where}: {place}: a number beyond all that a run can come to")
    try:
        return kind.model_validate(value, context=FROM_FILE)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{where}: {place + ': ' if place else ''}{first['msg']}") from error


def _beyond(value: Any) -> str | None:
    """Where a value has a finite number that nothing can be computed with; None if it has none."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if (place := _beyond(each)) is not None:
                return f"{key}.{place}".rstrip(".")
        return None
    too_large = (isinstance(value, int) and abs(value) > LARGEST_INT) or (
        isinstance(value, float) and LARGEST_FLOAT < abs(value) < math.inf
    )
    return "" if too_large else None


def check_version(value: Any, where: str) -> None:
    """Raises DataError for what another version of caveat wrote, in a form of its own."""
    version = value.get("schema") if isinstance(value, dict) else None
    if isinstance(version, int) and version != SCHEMA:
        raise DataError(f"{where}: schema {version} was written by another version; this one reads schema {SCHEMA}")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


BLOCK = 1 << 20
"""Bytes that are read at a time."""
GROWING = ".jsonl"
"""The suffix of files that only grow: until a run is finished they may hold more than its checkpoint knows of."""
APART = frozenset({"state", "baselines"})
"""Folders that have their own books."""
FREE = frozenset({"summary.json", "config.toml", "report.html", "started.json", "failure.json"})
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


RUN = "run.json"
"""The description of the run."""
STATES = "state/states.jsonl"
"""Which states silos have kept, by round and hash."""


def read_comparison(path: Path) -> Comparison:
    """The comparison in the file `path`, or in that folder's comparison.json.

    Raises DataError if there is none, or if it is not what caveat writes.
    """
    file = path / "comparison.json" if path.is_dir() else path
    record = record_of(file, Comparison)
    if record is None:
        raise DataError(f"{file} does not exist; expected a comparison, as `caveat compare --out` writes it")
    return record
