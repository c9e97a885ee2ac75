"""The privacy ledger: what left which silo, when, with name, shape, type and bytes of every tensor.

`ledger.jsonl` has a line per message, with "split" where it was a measurement on one; and a line per form, that is
per set of tensors, before the first message that has it. `read_sent` adds lines up as it reads them, since there may be
very many.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

from ..core import DataError, Payload, RunError, SiloId, Update
from ..core.aggregation import size
from .reading import check_version, checked, lines_of
from .schema import FileSum, Form, Message, TensorForm
from .schema.record import Record, as_json
from .writing import AppendLog

Tensors = dict[str, TensorForm]
"""By "group/name"."""


class About(TypedDict, total=False):
    """What a line of a file is about: its round, its phase, and the split where it is a measurement."""

    round: int
    phase: str
    split: str


class AboutMessage(About, total=False):
    """What a ledger says of a message beside, in the order in which the keys are given."""

    t: int
    task: str


def tensors_of(payload: Payload) -> Tensors:
    return {
        f"{group}/{name}": TensorForm(
            shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."), bytes=tensor.nbytes
        )
        for group, tensors in sorted(payload.items())
        for name, tensor in sorted(tensors.items())
    }


class Ledger:
    """Appends to a ledger's file."""

    def __init__(self, path: Path) -> None:
        self.log = AppendLog(path)
        self.forms: set[str] = set()

    def rewind(self, known: FileSum | None) -> None:
        """Drop what was written after what is known. Raises RunError where that is not there, or was changed."""
        self.log.rewind(known)
        self.forms = set(read_ledger(self.log.path).forms)

    def recover(self, known: FileSum | None) -> None:
        """As `rewind`, but lines stay that a process wrote before it was killed: what they tell may have been sent."""
        self.log.recover(known)
        self.forms = set(read_ledger(self.log.path).forms)

    def add(self, updates: Mapping[SiloId, Update], **about: Unpack[AboutMessage]) -> None:
        """Append a line per update, and its form if it is new."""
        lines = list[Record]()
        for silo, update in updates.items():
            form = _form(update.payload)
            if form.form not in self.forms:
                lines.append(form)
                self.forms.add(form.form)
            lines.append(
                Message(**about, silo=silo, form=form.form, bytes=size(update.payload), examples=update.examples)
            )
        self.log.add(lines)


def _form(payload: Payload) -> Form:
    """The payload's tensors, named by a hash of what is written of them."""
    tensors = tensors_of(payload)
    text = json.dumps({name: as_json(tensor) for name, tensor in tensors.items()})
    return Form(form=hashlib.sha256(text.encode()).hexdigest()[:12], tensors=tensors)


@dataclass(frozen=True)
class Entries:
    """What a ledger holds."""

    forms: dict[str, Tensors] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    @property
    def counted(self) -> dict[SiloId, int]:
        """The last round of which each silo's update was counted, measurements apart."""
        updates = [message for message in self.messages if message.split is None]
        return {message.silo: message.t for message in updates if message.t is not None}


def read_ledger(path: Path) -> Entries:
    """A ledger's whole lines; empty where there is no such file.

    Raises RunError, naming file and line, for another kind of file, DataError for what another version of caveat wrote.
    """
    found, where = Entries(), str(path)
    try:
        text = path.read_text() if path.exists() else ""
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            if not line.endswith("\n") and "\0" not in line:
                break  # the last one, of a process that was killed
            where = f"{path}, line {number}"
            entry = json.loads(line)
            check_version(entry, where)
            if "tensors" in entry:
                form = Form.model_validate(entry)
                found.forms[form.form] = form.tensors
            else:
                found.messages.append(Message.model_validate(entry))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RunError(f"cannot read {where}: {str(error).partition(chr(10))[0]}") from error
    return found


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
