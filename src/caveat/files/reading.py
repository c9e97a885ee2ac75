"""Read the files of runs: validated records from JSON and JSON lines, and the hashes of a folder's files."""

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
from .schema import FROM_FILE, SCHEMA, Checkpoint, Comparison, FileSum, Record, Summary, check_seal

RecordType = TypeVar("RecordType", bound=Record)
LARGEST_INT, LARGEST_FLOAT = 1 << 64, 1e150
"""Bounds of numbers in files, so that whole numbers fit into 64 bits, and other numbers can be squared and summed."""


def text_of(path: Path) -> str | None:
    """Return the UTF-8 text in a file; None if there is no file. Raise DataError for other text, a folder or a pipe."""
    if not _is_there(path):
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _is_there(path: Path) -> bool:
    """Return whether a file exists. Raise DataError for a folder, a pipe (which could block reading) or a device."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a folder, a pipe or a device; restore the file from a copy")
    return path.exists()


def record_of(path: Path, kind: type[RecordType]) -> RecordType | None:
    """Read a JSON file as a record. Return None if there is no file. Raise DataError for other content."""
    text = text_of(path)
    return None if text is None else checked(decoded(text, str(path)), kind, str(path))


def read(path: Path, kind: type[RecordType]) -> RecordType:
    """Read a JSON file as a record. Raise DataError if it is missing or has other content."""
    record = record_of(path, kind)
    if record is None:
        raise DataError(f"{path} does not exist")
    return record


def read_plain(path: Path) -> Any:
    """Read the value of a JSON file without validation. Raise DataError if it is missing."""
    value = decoded(text_of(path) or "", str(path))
    check_version(value, str(path))
    return value


def lines_of(path: Path) -> Iterator[tuple[Any, str]]:
    """Yield the values in a file of JSON lines, each with its place. If there is no file, yield nothing. A partial last
    line without a newline, from a killed process, is skipped. Raises DataError, naming file and line, for other invalid
    JSON."""
    if not _is_there(path):
        return
    try:
        with path.open("rb") as file:
            for i, line in enumerate(file, 1):
                where = f"{path}, line {i}"
                if b"\0" in line:
                    raise DataError(f"{where}: zero bytes, as after a power loss; expected JSON")
                if (line.strip() and line.endswith(b"\n")) or _is_json(line):
                    yield decoded(line, where), where
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def decoded(text: str | bytes, where: str) -> Any:
    """Parse a JSON text in UTF-8. Raise DataError, naming its place, for other text."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{where} cannot be read as UTF-8 text: {error}") from error
    except (ValueError, RecursionError) as error:  # also raised for too many digits and too deep nesting
        raise DataError(f"{where}: not valid JSON, so the file is damaged or was edited: {error}") from error


def checked(value: Any, kind: type[RecordType], where: str) -> RecordType:
    """Validate a value of a file as a record. Raises DataError, naming its place, for another version, an invalid value
    or a wrong checksum."""
    check_version(value, where)
    if kind.SEALED:
        check_seal(value, where)
    if (place := _beyond(value)) is not None:
        raise DataError(f"{where}: {place}: the number is larger than any number that a run can write")
    try:
        return kind.model_validate(value, context=FROM_FILE)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{where}: {place + ': ' if place else ''}{first['msg']}") from error


def _beyond(value: Any) -> str | None:
    """Return the place of a finite number that is too large for computations; None if there is no such number."""
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
    """Raise DataError for the schema of another version of caveat."""
    version = value.get("schema") if isinstance(value, dict) else None
    if isinstance(version, int) and version != SCHEMA:
        raise DataError(
            f"{where}: schema {version} was written by another version of caveat; this version reads schema {SCHEMA}"
        )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


BLOCK = 1 << 20
"""Number of bytes that are read at once."""
GROWING = ".jsonl"
"""The suffix of append-only files. In an unfinished run, they may have more lines than the checkpoint records."""
APART = frozenset({"state", "baselines"})
"""Folders whose files have hashes elsewhere."""
FREE = frozenset({"summary.json", "config.toml", "given.toml", "report.html", "started.json", "failure.json"})
"""Files without a hash, because they contain a checksum, are compared as settings, or are derived from other files."""


def sum_of_bytes(data: bytes) -> FileSum:
    return FileSum(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def sum_of(path: Path, first: int | None = None) -> FileSum:
    """Return the size and hash of a file, or of its `first` bytes. Raise DataError if it cannot be read."""
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
    """Raise DataError, naming the file, unless it has the known content. A `growing` file may have more content after
    it."""
    if not path.is_file():
        raise DataError(f"{path} is missing or not a file: restore it from a copy")
    found = sum_of(path, known.bytes if growing else None)
    if (found.bytes, found.sha256) != (known.bytes, known.sha256):
        raise DataError(
            f"{path} differs from what was written: it is damaged, was edited, or is from another time or run"
        )


@dataclass(frozen=True)
class Manifest:
    """The hashes of the files in a run's folder."""

    folder: Path
    sums: Mapping[str, FileSum]
    """The hashes by path in the folder."""
    finished: bool = True
    """Whether the run is finished."""

    def check(self, *places: str) -> None:
        """Raise DataError if one of these files was changed, or was added after the run had finished."""
        for place in places:
            known = self.sums.get(place)
            if known is not None:
                check_file(self.folder / place, known, not self.finished and place.endswith(GROWING))
            elif self.finished and (self.folder / place).exists():
                raise DataError(f"{self.folder / place} is not part of the run: it was added later")


def manifest_of(folder: Path) -> Manifest:
    """Return the file hashes in a finished run's summary, or in an interrupted run's newest checkpoint. The manifest is
    empty if the run has neither of these. Raises DataError if the summary or the checkpoint is damaged."""
    if (summary := record_of(folder / "summary.json", Summary)) is not None:
        return Manifest(folder, summary.files)
    checkpoint = record_of(folder / "state" / "checkpoint.json", Checkpoint)
    return Manifest(folder, {} if checkpoint is None else checkpoint.files, finished=False)


def sums_of_folder(folder: Path) -> dict[str, FileSum]:
    """Return the hashes of a finished run's files by path, except for files in `FREE` and in folders in `APART`."""
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
"""The file that describes a run."""
STATES = "state/states.jsonl"
"""The file that lists the stored states of silos with their rounds and hashes."""


def read_comparison(path: Path) -> Comparison:
    """Read a comparison from a file, or from comparison.json in a folder. Raises DataError if the file is missing or
    invalid."""
    file = path / "comparison.json" if path.is_dir() else path
    record = record_of(file, Comparison)
    if record is None:
        raise DataError(f"{file} does not exist; expected the file of a comparison, written by `caveat compare --out`")
    return record
