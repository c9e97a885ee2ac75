"""What `federation.json` holds of what silos told before the first round, as far as pages show it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from .run import Record


class SchemaColumn(Record):
    name: str
    categories: tuple[str, ...] = ()


class SilosSchema(Record):
    labels: tuple[str, ...]
    columns: tuple[SchemaColumn, ...] = ()


class Greeting(Record):
    """The schema of each silo's data, and what is known of each silo."""

    sketches: Mapping[str, SilosSchema] = Field(default_factory=dict)
    silos: Mapping[str, object] = Field(default_factory=dict)
