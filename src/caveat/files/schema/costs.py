"""What a summary says of what a run took from its silos: traffic, and privacy."""

from __future__ import annotations

from typing import ClassVar

from .record import Record


class RowEpsilons(Record):
    """Epsilons of one row of a silo having been another, which may turn a clipped update round. None is infinite."""

    epsilon: float | None
    epsilon_server: float | None


class PrivacyRecord(Record):
    """What clipping and noise come to, for a silo that took part or sent nothing. An epsilon of None is infinite."""

    OMITTED: ClassVar = frozenset({"row"})

    clip: float | None
    noise: float
    delta: float
    epsilon: float | None
    epsilon_server: float | None
    covers: list[str]
    not_covered: list[str]
    row: RowEpsilons | None = None
    """For a row of a silo that took part."""


class RoundTraffic(Record):
    """Bytes of one round, from and to its silos."""

    round: int
    phase: str
    silos: int
    up: int
    down: int


class Traffic(Record):
    bytes_up: int | None = None
    bytes_down: int | None = None
    per_round: list[RoundTraffic] = []
