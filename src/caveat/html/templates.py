"""How templates of pages are read: alike for a run, an audit and a comparison."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .text import decimal, percent


def environment(*folders: Path) -> Environment:
    """Templates of these folders, then of this one. A name that nobody gave a value is an error."""
    found = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(percent=percent, decimal=decimal)
    return found
