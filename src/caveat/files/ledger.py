"""The privacy ledger: what left which silo, when, with name, shape, type and bytes of every tensor.

`ledger.jsonl` has a line per message, with "split" where it was a measurement on one; and a line per form, that is
per set of tensors, before the first message that has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

from ..core import Payload, RunError, SiloId, Update
from ..core.tensors import size
from .reading import check_version
from .schema.ledger import Form, Message, TensorForm
from .schema.record import Record, as_json
from .schema.small_files import FileSum
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
    work: str


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
