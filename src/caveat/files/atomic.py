"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import RunError
from .schema.record import Record, as_json


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}; what was saved before is kept") from error


def append(path: Path, text: str) -> None:
    """Add to a file; what a failure leaves of `text` is for the caller to cut off again."""
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; what was saved before is kept") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all, with all digits of floats; NaN and infinity are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_record(path: Path, record: Record) -> None:
    """What a file holds of a record, as `write_json` writes it."""
    write_json(path, as_json(record))


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Add a line of JSON per record, as `append` does."""
    append(path, "".join(json.dumps(as_json(record)) + "\n" for record in records))
