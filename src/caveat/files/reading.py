"""Files of a run's folder, read and checked; what is not as caveat writes it is named with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ..core import DataError
from .schema.run import Record

RecordType = TypeVar("RecordType", bound=Record)


def text_of(path: Path) -> str | None:
    """None where there is no such file. Raises DataError if it is no UTF-8 text."""
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error


def record_of(path: Path, kind: type[RecordType]) -> RecordType | None:
    """The one value of a JSON file; None where there is no such file."""
    text = text_of(path)
    return None if text is None else checked(decoded(text, str(path)), kind, str(path))


def lines_of(path: Path) -> Iterator[tuple[Any, str]]:
    """The values of a file with one per line, each with its place, one at a time; none where there is no such file.

    A process that was killed while it appended leaves half a line behind, the only one without a newline.
    """
    if not path.is_file():
        return
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for i, line in enumerate(file, 1):
                where = f"{path}, line {i}"
                if line.endswith("\n"):
                    if line.strip():
                        yield decoded(line, where), where
                elif _is_json(line):
                    yield json.loads(line), where
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error


def decoded(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON: {error}") from error


def checked(value: Any, kind: type[RecordType], where: str) -> RecordType:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{where}: {place + ': ' if place else ''}{first['msg']}") from error


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True
