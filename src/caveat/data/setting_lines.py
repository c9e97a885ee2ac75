"""Lines of TOML that set a key of `[data]`, which messages contain: functions to write and to find such lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")
ASSIGNED = re.compile(
    r"""data\.(?:[\w-]+|"[^"]*")(?:\.(?:[\w-]+|"[^"]*"))* = (?:\{.*?\}+(?: \})*|\[.*?\]|"(?:[^"\\]|\\.)*"|false|true)"""
)
"""Lines of `assignment` within a message."""


def assignment(key: str, value: Any) -> str:
    """Return a line of TOML that sets a key of `[data]`; parts of the key are separated by newlines."""
    parts = [part if BARE.fullmatch(part) else _text(part) for part in key.split("\n")]
    return f"data.{'.'.join(parts)} = {_toml(value)}"


def advised(text: str) -> list[str]:
    """Return the lines of TOML of the first remedy in a message; none if a value must be filled in."""
    found, end = list[str](), None
    for match in ASSIGNED.finditer(text):
        if end is not None and text[end : match.start()] != " and ":
            break
        found.append(match[0])
        end = match.end()
    return [] if any("MEANING" in each or "NUMBER" in each for each in found) else found


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        items = (f"{name if BARE.fullmatch(name) else _text(name)} = {_toml(each)}" for name, each in value.items())
        return f"{{ {', '.join(items)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else _text(value) if isinstance(value, str) else str(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
