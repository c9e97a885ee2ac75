"""The ledger of the messages that left silos: name, shape, type and bytes of the tensors of every message.

The ledger is the file `ledger.jsonl`. It has a line per message, with "split" for evaluations, and a line per form
(names, shapes and types of a set of tensors) before the first message of that form. `read_sent` aggregates the messages
while it reads them, because there may be many messages.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

from ..core import DataError, Payload, RunError, SiloId, Update
from .append_log import AppendLog
from .reading import check_version, checked, lines_of
from .schema import FileSum, Form, Message, Record, TensorForm, as_json

Tensors = dict[str, TensorForm]
"""The forms of tensors by "group/name"."""


class About(TypedDict, total=False):
    """The round and the phase of a line, and the split of an evaluation."""

    round: int
    phase: str
    split: str


class AboutMessage(About, total=False):
    """All keys of a message that are passed to `Ledger.add`."""

    t: int
    task: str


def tensors_of(payload: Payload, summed: bool = False) -> Tensors:
    """Return the forms of a payload's tensors. If the server saw only their sum over silos (`summed`), they have eight
    bytes per number."""
    return {
        f"{group}/{name}": TensorForm(
            shape=list(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            bytes=8 * tensor.numel() if summed else tensor.nbytes,
        )
        for group, tensors in sorted(payload.items())
        for name, tensor in sorted(tensors.items())
    }


class Ledger:
    """A ledger's file, open for appending."""

    def __init__(self, path: Path) -> None:
        self.log = AppendLog(path)
        self.forms: set[str] = set()

    def rewind(self, known: FileSum | None) -> None:
        """Truncate the ledger to its known part. Raise RunError if this part is missing or has changed."""
        self.log.rewind(known)
        self.forms = set(read_ledger(self.log.path).forms)

    def recover(self, known: FileSum | None) -> None:
        """Truncate the ledger as `rewind` does, but keep the lines of a killed process, because their messages may have
        been sent."""
        self.log.recover(known)
        self.forms = set(read_ledger(self.log.path).forms)

    def add(self, updates: Mapping[SiloId, Update], summed: bool = False, **about: Unpack[AboutMessage]) -> None:
        """Append a line per update, and a line per new form. `summed` is whether the server saw only the sum of the
        updates."""
        lines = list[Record]()
        for silo, update in updates.items():
            tensors = tensors_of(update.payload, summed)
            text = json.dumps({name: as_json(tensor) for name, tensor in tensors.items()}) + " summed" * summed
            form = Form(form=hashlib.sha256(text.encode()).hexdigest()[:12], tensors=tensors, summed=summed)
            if form.form not in self.forms:
                lines.append(form)
                self.forms.add(form.form)
            lines.append(Message(**about, silo=silo, form=form.form, bytes=form.bytes, examples=update.examples))
        self.log.add(lines)


@dataclass(frozen=True)
class Entries:
    """The content of a ledger."""

    forms: dict[str, Tensors] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    @property
    def counted(self) -> dict[SiloId, int]:
        """The last round in which each silo sent an update, without evaluations, as a position in the schedule."""
        updates = [message for message in self.messages if message.split is None]
        return {message.silo: message.t for message in updates if message.t is not None}


def read_ledger(path: Path) -> Entries:
    """Read the complete lines of a ledger. The result is empty if there is no file. Raises RunError, naming file and
    line, for invalid lines, DataError for files of another version of caveat."""
    found, where = Entries(), str(path)
    try:
        text = path.read_text() if path.exists() else ""
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            if not line.endswith("\n") and "\0" not in line:
                break  # the last line, of a killed process
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
    """Totals over messages. Bytes are those of the tensors in messages."""

    messages: int = 0
    training: int = 0
    """Bytes of the method's rounds, including scoring and calibration."""
    measuring: int = 0
    """Bytes of evaluations."""
    rounds: set[int] = field(default_factory=set)
    """The rounds with updates; empty for a silo's own ledger, which does not number rounds."""

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
    """Totals of a ledger."""

    forms: dict[str, Form] = field(default_factory=dict)
    uses: dict[tuple[str, str], Total] = field(default_factory=dict)
    """Totals by form and purpose, in the order of their first messages."""
    silos: dict[str, Total] = field(default_factory=dict)
    total: Total = field(default_factory=Total)

    def add(self, message: Message) -> None:
        for total in (
            self.total,
            self.silos.setdefault(message.silo, Total()),
            self.uses.setdefault((message.form, message.purpose), Total()),
        ):
            total.add(message)


def read_sent(path: Path) -> Sent | None:
    """Return the totals of a ledger's file; None if there are no messages. Raise DataError if the file is damaged."""
    sent = Sent()
    for value, where in lines_of(path):
        if isinstance(value, dict) and "tensors" in value:
            form = checked(value, Form, where)
            sent.forms[form.form] = form
            continue
        message = checked(value, Message, where)
        if message.form not in sent.forms:
            raise DataError(f"{where}: no earlier line describes the form {message.form[:40]!r}")
        sent.add(message)
    return sent if sent.total.messages else None
