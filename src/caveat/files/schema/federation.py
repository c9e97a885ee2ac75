"""What `federation.json` holds: who is a member, and what silos told before the first round."""

from __future__ import annotations

from typing import Any, ClassVar

from .record import File, Record


class ColumnRecord(Record):
    """A column of a silo's table."""

    name: str
    holds: str = ""
    categories: tuple[str, ...] = ()
    missing: bool = False


class DataSchemaRecord(Record):
    """The schema of one silo's data."""

    labels: tuple[str, ...]
    shape: tuple[int, ...] = ()
    columns: tuple[ColumnRecord, ...] = ()


class Member(Record):
    """What a silo said when it joined: its sizes, and the record of its splits."""

    card: dict[str, Any]
    record: dict[str, Any]


class FederationFile(File):
    """`federation.json`. Cards, agreement and schemas are checked where they are used: silos wrote them."""

    SEALED: ClassVar = True

    federation: str = ""
    agreement: dict[str, Any] | None = None
    silos: dict[str, Member] = {}
    sketches: dict[str, DataSchemaRecord] = {}
    keys: dict[str, str] = {}  # by name the fingerprint of the key that it is bound to
