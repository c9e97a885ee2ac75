"""Files that are there whole or not at all, and that are never written through links."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import RunError
from .links import without_following
from .schema.record import Record, as_json, sealed

_PART = re.compile(r"\..+\.(\d+)\.part")
"""The names that files have while they are written."""


Opener = Callable[[str, int], int]
"""Opens a file to be written, and decides who may read it."""


def write_bytes(path: Path, data: bytes, lasting: bool = False, opener: Opener = without_following) -> None:
    """Write a file so that it is there whole or not at all, and if it is `lasting`, also after the power was cut."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _forget_parts_of(path)
        with open(part, "xb", opener=opener) as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
        if lasting:
            sync(path.parent)
    except OSError as error:
        _drop(part)
        raise RunError(f"cannot write {path}: {error.strerror}; what was saved before is kept") from error


def sync(path: Path) -> None:
    """Wait until a file, or which files a folder has, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, text: str) -> None:
    """Add to a file; what a failure leaves of `text` is for the caller to cut off again."""
    try:
        with open(path, "ab", opener=without_following) as file:
            file.write(text.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; what was saved before is kept") from error


def forget_parts(folder: Path) -> None:
    """Delete what processes that were killed have left of files in a folder, at any depth."""
    for place, _, names in os.walk(folder):
        for name in names:
            if _PART.fullmatch(name):
                Path(place, name).unlink(missing_ok=True)


def _forget_parts_of(path: Path) -> None:
    """Delete what this process, or one that is no more, has left of a file."""
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(f".{path.name}.")]
    for name in names:
        if (found := _PART.fullmatch(name)) and not _alive(int(found[1])):
            path.with_name(name).unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    """Whether there is another process of this number."""
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def write_json(path: Path, value: Mapping[str, Any], lasting: bool = False, opener: Opener = without_following) -> None:
    """Write JSON whole or not at all, with all digits of floats; NaN and infinity are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode(), lasting, opener)


def write_record(path: Path, record: Record, lasting: bool = False, opener: Opener = without_following) -> None:
    """What a file holds of a record, as `write_json` writes it, with a checksum where its kind has one."""
    value = as_json(record)
    write_json(path, sealed(value) if record.SEALED else value, lasting, opener)


def lines_of_records(records: Iterable[Record]) -> str:
    """A line of JSON per record."""
    return "".join(json.dumps(as_json(record)) + "\n" for record in records)


def _drop(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:  # as when the folder is not there any more: the first error is the one to tell
        return
