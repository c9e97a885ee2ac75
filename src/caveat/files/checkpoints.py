"""Checkpoints and private state on disk: safetensors and JSON, replaced atomically.

A silo's state is one immutable file per round in which it changed, of which the two newest stay: when a run
is killed, the newest that the server's checkpoint counts is the silo's state, and a newer one is forgotten.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

from ..core import RunError, SiloId, State
from .atomic import write_bytes, write_record
from .payloads import read_payload, to_bytes
from .reading import checked
from .schema.small_files import Checkpoint, RunState


class SiloStore:
    """The private states of silos, each in a folder of its own under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, silo: SiloId, until: int) -> State | None:
        """The silo's state after the last of rounds 0 to `until` that changed it; None before the first."""
        versions = [t for t in self._versions(silo) if t <= until]
        return read_payload(self._file(silo, versions[-1])) if versions else None

    def save(self, silo: SiloId, t: int, state: State) -> None:
        """Keep the state after round t, and the one before it."""
        self._file(silo, t).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self._file(silo, t), to_bytes(state))
        for old in [version for version in self._versions(silo) if version < t][:-1]:
            self._file(silo, old).unlink()

    def forget(self, silo: SiloId, after: int) -> None:
        """Drop the states of rounds that were never counted."""
        for version in self._versions(silo):
            if version > after:
                self._file(silo, version).unlink()

    def forget_all(self, after: int) -> None:
        """Drop the states of rounds that were never counted, of every silo that has any."""
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
    """The server's newest complete checkpoint: its state and a run's records beside it, replaced together."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(self, t: int, server: State, run_state: RunState) -> None:
        """Make round t the one that a resumed run continues after."""
        name = f"server-{t:06d}.safetensors"
        self.root.mkdir(parents=True, exist_ok=True)
        write_bytes(self.root / name, to_bytes(server))
        counted = run_state.model_dump(include=set(RunState.model_fields))
        write_record(self.root / "checkpoint.json", Checkpoint.model_validate({"t": t, "server": name, **counted}))
        for old in self.root.glob("server-*.safetensors"):
            if old.name != name:
                old.unlink()

    def load(self) -> tuple[State, Checkpoint] | None:
        """The server's state and what was counted until then, or None before the first checkpoint."""
        path = self.root / "checkpoint.json"
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {path}: {error}") from error
        checkpoint = checked(found, Checkpoint, str(path))
        return read_payload(self.root / checkpoint.server), checkpoint
