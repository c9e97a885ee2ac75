"""The privacy ledger: what left which silo, when, with name, shape, type and bytes of every tensor.

`ledger.jsonl` has a line per message, `{"round", "t", "phase", "silo", "form", "bytes", "examples"}`, with "split"
where it was a measurement on one; and a line per form, `{"form", "tensors"}`, before the first message that has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core import Payload, RunError, SiloId, Update
from ..core.tensors import size
from .atomic import append

Tensors = dict[str, dict[str, Any]]
"""Shape, type and bytes by "group/name"."""


def tensors_of(payload: Payload) -> Tensors:
    return {
        f"{group}/{name}": {
            "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "bytes": tensor.nbytes,
        }
        for group, tensors in sorted(payload.items()) for name, tensor in sorted(tensors.items())
    }  # fmt: skip


class Ledger:
    """Appends to a ledger's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.forms: set[str] = set()

    @property
    def bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def rewind(self, size: int) -> None:
        """Drop what was written after the first `size` bytes, and half a line that a killed process left before it."""
        if self.bytes < size:
            raise RunError(f"{self.path}: {self.bytes} bytes, expected the {size} of completed rounds")
        with self.path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read(size).rfind(b"\n") + 1)
        self.forms = set(read_ledger(self.path).forms)

    def add(self, updates: Mapping[SiloId, Update], **about: Any) -> None:
        """A line per update; `about` says of which round, phase and split."""
        lines = []
        for silo, update in updates.items():
            tensors = tensors_of(update.payload)
            form = hashlib.sha256(json.dumps(tensors).encode()).hexdigest()[:12]
            if form not in self.forms:
                lines.append({"form": form, "tensors": tensors})
                self.forms.add(form)
            lines.append(
                about | {"silo": silo, "form": form, "bytes": size(update.payload), "examples": update.examples}
            )
        append(self.path, "".join(json.dumps(line) + "\n" for line in lines))


@dataclass(frozen=True)
class Entries:
    """What a ledger holds."""

    forms: dict[str, Tensors] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def counted(self) -> dict[SiloId, int]:
        """The last round of which each silo's update was counted, measurements apart."""
        return {message["silo"]: message["t"] for message in self.messages if "split" not in message}


def read_ledger(path: Path) -> Entries:
    """A ledger's whole lines; empty where there is no such file. Raises RunError for another kind of file."""
    forms, messages = dict[str, Tensors](), list[dict[str, Any]]()
    try:
        text = path.read_text() if path.exists() else ""
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # the last one, of a process that was killed
            entry = json.loads(line)
            if "tensors" in entry:
                forms[entry["form"]] = entry["tensors"]
            else:
                messages.append(entry)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    return Entries(forms, messages)
