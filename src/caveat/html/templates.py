"""How templates of pages are read: alike for a run, an audit and a comparison."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..core.text import decimal, percent


def render(template: str, **parts: Any) -> str:
    """The page that a template, named by its path from this folder, makes of `parts`; `contents` are its sections."""
    return _environment().get_template(template).render(parts, contents=[])


@cache
def _environment() -> Environment:
    """Keeps compiled templates. A name that nobody gave a value is an error."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(percent=percent, decimal=decimal)
    return found
