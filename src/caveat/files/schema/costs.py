"""What a summary says of what a run took from its silos: traffic, and privacy."""

from __future__ import annotations

from .record import Record


class PrivacyRecord(Record):
    """What clipping and noise come to. An epsilon of None is infinite."""

    clip: float | None
    noise: float
    delta: float
    epsilon: float | None
    epsilon_server: float | None
    covers: list[str]
    not_covered: list[str]


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
