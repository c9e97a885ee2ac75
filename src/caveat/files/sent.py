"""What left the silos: the lines of a ledger, added up as they are read, since there may be very many."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from .reading import checked, lines_of
from .schema.run import Record

_MEASURING = ("validation", "test")
"""The works that measure, of which a silo's own ledger does not say that they are on a split."""
Count = Annotated[int, Field(ge=0)]


class TensorForm(Record):
    shape: list[int]
    dtype: str
    bytes: Count


class Form(Record):
    """The tensors that many messages have in common, by "group/name"."""

    form: str
    tensors: dict[str, TensorForm]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())

    @property
    def groups(self) -> dict[str, int]:
        """The number of tensors in each group."""
        found: dict[str, int] = {}
        for name in self.tensors:
            group = name.partition("/")[0]
            found[group] = found.get(group, 0) + 1
        return found


class Message(Record):
    """One that a silo sent: in the ledger of a run with a round and a phase, in the silo's own with a work.

    A work is a path through what wraps the method: base.train is the train of the phases of a run's ledger.
    """

    silo: str
    form: str
    bytes: Count
    round: int | None = None
    phase: str = ""
    work: str = ""
    split: str | None = None

    @property
    def measured(self) -> str:
        """The split that it is a measurement on; empty for an update of the model."""
        return self.split or (self.work if self.work in _MEASURING else "")

    @property
    def purpose(self) -> str:
        return purpose(self.phase or self.work.rpartition(".")[2], self.measured)


def purpose(phase: str, split: str | None) -> str:
    """What a silo was asked for, in words."""
    return f"measure {split}" if split else phase


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
        else:
            sent.add(checked(value, Message, where))
    return sent if sent.total.messages else None
