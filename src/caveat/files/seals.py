"""A JSON file that says what its own content hashes to, so that no change of it goes unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..core import DataError

SEAL = "sha256"
"""The key of the hash, which is over all other keys."""


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object, as JSON has it, with the SHA-256 of its content beside it."""
    content = json.loads(json.dumps({key: each for key, each in value.items() if key != SEAL}, allow_nan=False))
    return {**content, SEAL: _digest(content)}


def check_seal(value: Any, where: str) -> None:
    """Raises DataError, naming the place, for what is no object, or is not as it was sealed."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object")
    if SEAL not in value:
        raise DataError(f"{where}: its checksum {SEAL!r} is missing: the file is damaged or was edited")
    if value[SEAL] != _digest({key: each for key, each in value.items() if key != SEAL}):
        raise DataError(f"{where}: its content is not what its checksum is of: the file is damaged or was edited")


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
