"""What left the silos: the lines of a ledger, added up as they are read, since there may be very many."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..core import DataError
from .reading import checked, lines_of
from .schema.ledger import Form, Message


@dataclass
class Total:
    """What messages come to. Bytes are those of their tensors."""

    messages: int = 0
    training: int = 0
    """Bytes of the method's rounds, of those also that score or calibrate."""
    measuring: int = 0
    """Bytes of figures on a split."""
    rounds: set[int] = field(default_factory=set)
    """In which there was an update; empty in a silo's own ledger, which does not number them."""

    @property
    def bytes(self) -> int:
        return self.training + self.measuring

    def add(self, message: Message) -> None:
        self.messages += 1
        if message.measured:
            self.measuring += message.bytes
            return
        self.training += message.bytes
        if message.round is not None:
            self.rounds.add(message.round)


@dataclass(frozen=True)
class Sent:
    """A ledger, added up."""

    forms: dict[str, Form] = field(default_factory=dict)
    uses: dict[tuple[str, str], Total] = field(default_factory=dict)
    """By form and purpose, in the order in which they first occur."""
    silos: dict[str, Total] = field(default_factory=dict)
    rounds: dict[int, dict[str, int]] = field(default_factory=dict)
    """Bytes by round and silo, measurements included."""
    total: Total = field(default_factory=Total)

    def add(self, message: Message) -> None:
        for total in (
            self.total,
            self.silos.setdefault(message.silo, Total()),
            self.uses.setdefault((message.form, message.purpose), Total()),
        ):
            total.add(message)
        if message.round is not None:
            bytes_of = self.rounds.setdefault(message.round, {})
            bytes_of[message.silo] = bytes_of.get(message.silo, 0) + message.bytes


def read_sent(path: Path) -> Sent | None:
    """A ledger's file, added up; None where there is none, or no message in it. Raises DataError if it is damaged."""
    sent = Sent()
    for value, where in lines_of(path):
        if isinstance(value, dict) and "tensors" in value:
            form = checked(value, Form, where)
            sent.forms[form.form] = form
            continue
        message = checked(value, Message, where)
        if message.form not in sent.forms:
            raise DataError(f"{where}: no line before it has the tensors of form {message.form[:40]!r}")
        sent.add(message)
    return sent if sent.total.messages else None
