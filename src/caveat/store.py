"""Checkpoints and private state on disk: safetensors and JSON, replaced atomically.

A silo's state is one immutable file per round in which it changed, of which the two newest stay: when a run
is killed, the newest that the server's checkpoint counts is the silo's state, and a newer one is forgotten.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from .core import Payload, RunError, SiloId, State


def to_bytes(payload: Payload) -> bytes:
    """A payload in the safetensors format, tensors named "group/name"."""
    flat = {
        f"{group}/{name}": tensor.contiguous() for group, named in payload.items() for name, tensor in named.items()
    }
    # A group may be empty, and must still be there when the payload is read.
    return save(flat, {"groups": json.dumps(list(payload))})


def from_bytes(data: bytes) -> Payload:
    """The inverse of `to_bytes`; raises SafetensorError or ValueError on anything else."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    payload: Payload = {group: {} for group in json.loads(header["__metadata__"]["groups"])}
    for path, tensor in load(data).items():
        group, name = path.split("/", 1)
        payload[group][name] = tensor
    return payload


def size(payload: Payload) -> int:
    """Bytes of a payload's tensors."""
    return sum(tensor.nbytes for named in payload.values() for tensor in named.values())


def replace(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}; what was saved before is kept") from error


def append(path: Path, text: str) -> None:
    """Add to a file; what a failure leaves of `text` is for the caller to cut off again."""
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; what was saved before is kept") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """JSON by `replace`, floats with all their digits, NaN and infinity refused."""
    replace(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read(path: Path) -> Payload:
    """A payload from a file; raises RunError naming a file that cannot be read."""
    try:
        return from_bytes(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone. Raises RunError if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            # A record lock: it is this process's alone, and workers that are about to end do not hold it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise RunError(f"{folder.parent} is being run by another process") from error
        yield


class SiloStore:
    """The private states of silos, each in a folder of its own under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, silo: SiloId, until: int) -> State | None:
        """The silo's state after the last of rounds 0 to `until` that changed it; None before the first."""
        versions = [t for t in self._versions(silo) if t <= until]
        return read(self._file(silo, versions[-1])) if versions else None

    def save(self, silo: SiloId, t: int, state: State) -> None:
        """Keep the state after round t, and the one before it."""
        self._file(silo, t).parent.mkdir(parents=True, exist_ok=True)
        replace(self._file(silo, t), to_bytes(state))
        for old in [version for version in self._versions(silo) if version < t][:-1]:
            self._file(silo, old).unlink()

    def forget(self, silo: SiloId, after: int) -> None:
        """Drop the states of rounds that were never counted."""
        for version in self._versions(silo):
            if version > after:
                self._file(silo, version).unlink()

    def forget_all(self, after: int) -> None:
        """The same for every silo that has a state."""
        with os.scandir(self.root) if self.root.is_dir() else nullcontext(()) as entries:
            for entry in entries:
                self.forget(entry.name, after)

    def newest(self, silo: SiloId) -> int:
        """The last round that changed the silo's state, counted or not; -1 before the first."""
        return max(self._versions(silo), default=-1)

    def _file(self, silo: SiloId, t: int) -> Path:
        return self.root / silo / f"{t:06d}.safetensors"

    def _versions(self, silo: SiloId) -> list[int]:
        return sorted(int(path.stem) for path in (self.root / silo).glob("[0-9]*.safetensors"))


class ServerStore:
    """The server's newest complete checkpoint: its state and a few books, replaced together."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(self, t: int, server: State, books: Mapping[str, Any]) -> None:
        """Make round t the one that a resumed run continues after."""
        name = f"server-{t:06d}.safetensors"
        self.root.mkdir(parents=True, exist_ok=True)
        replace(self.root / name, to_bytes(server))
        write_json(self.root / "checkpoint.json", {"t": t, "server": name, **books})
        for old in self.root.glob("server-*.safetensors"):
            if old.name != name:
                old.unlink()

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """The server's state and the books with "t", or None before the first checkpoint."""
        path = self.root / "checkpoint.json"
        if not path.exists():
            return None
        try:
            books: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {path}: {error}") from error
        return read(self.root / books["server"]), books
