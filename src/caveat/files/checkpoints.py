"""Checkpoints and private state on disk: safetensors and JSON, replaced atomically, and known by their hashes.

A silo's state is one immutable file per round in which it changed, of which those stay that a run may still continue
from: after its newest checkpoint, after the last one that is certain to be there when the power was cut, and after the
last rounds of training, to which a command may go back.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..core import CaveatError, DataError, RunError, SiloId, State
from .reading import GROWING, check_file, checked, lines_of, record_of, sum_of_bytes
from .schema import Checkpoint, KeptState, RunState, Sums
from .schema.record import SCHEMA
from .tensors import payload_of, read_payload, to_bytes
from .writing import refuse_link, sync, write_bytes, write_record

NEWEST, DURABLE = "checkpoint.json", "checkpoint-durable.json"
"""The last checkpoint, and the last one that was waited for until it was on the disk."""
KEPT = "checkpoint-[0-9]*.json"
"""The checkpoints after the last rounds of training, as `kept_place` calls them."""


class StateLost(RunError):
    """A silo's private state is not there, or not the one that it kept: names the silo, the round and the file."""


class SiloStore:
    """The private states of silos, each in a folder of its own under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, kept: KeptState) -> State:
        """The state that a silo kept. Raises StateLost if it is not there, or is another."""
        path = self._file(kept.silo, kept.t)
        if path.exists() and not path.is_file():
            raise StateLost(f"{_whose(kept)}, {path}, is no file", kept.silo)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StateLost(f"{_whose(kept)}, {path}, cannot be read: {error.strerror}", kept.silo) from None
        if sum_of_bytes(data).sha256 != kept.sha256:
            told = f"{_whose(kept)}, {path}, is not the one that was kept: the file is damaged or another's"
            raise StateLost(told, kept.silo)
        return payload_of(data, path)

    def save(self, silo: SiloId, t: int, state: State, needed: Collection[int] = ()) -> KeptState:
        """Keep the state after round t and the one before it, and those that belong to the rounds that are `needed`."""
        folder, data = self._folder(silo), to_bytes(state)
        refuse_link(folder)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None
        write_bytes(self._file(silo, t), data)
        older = [version for version in self.versions(silo) if version < t]
        stay = {max((version for version in older if version <= each), default=None) for each in needed}
        for version in older[:-1]:
            if version not in stay:
                self._file(silo, version).unlink()
        return KeptState(silo=silo, t=t, sha256=sum_of_bytes(data).sha256)

    def begin(self) -> None:
        """Make the folder of all states; until then none can be saved."""
        refuse_link(self.root)
        self.root.mkdir(parents=True, exist_ok=True)

    def forget(self, silo: SiloId, after: int) -> None:
        """Drop the states of rounds that were never counted."""
        refuse_link(self._folder(silo))
        for version in self.versions(silo):
            if version > after:
                self._file(silo, version).unlink()

    def forget_all(self, after: int) -> None:
        """Drop the states of rounds that were never counted, of every silo that has any."""
        for silo in self.silos():
            self.forget(silo, after)

    def silos(self) -> list[SiloId]:
        """All that have a folder."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            return [entry.name for entry in entries]

    def versions(self, silo: SiloId) -> list[int]:
        """The rounds of which there are states of a silo, oldest first."""
        return sorted(int(path.stem) for path in self._folder(silo).glob("[0-9]*.safetensors"))

    def sync(self, kept: KeptState) -> None:
        """Wait until a state is on the disk."""
        path = self._file(kept.silo, kept.t)
        if path.exists():  # a later one may have taken its place
            sync(path)
            sync(path.parent)

    def _folder(self, silo: SiloId) -> Path:
        return self.root / silo

    def _file(self, silo: SiloId, t: int) -> Path:
        return self._folder(silo) / f"{t:06d}.safetensors"


def _whose(kept: KeptState) -> str:
    return f"silo {kept.silo!r}: its state of round {kept.t} of the schedule"


@dataclass(frozen=True)
class Saved:
    """What a run continues from."""

    server: State
    checkpoint: Checkpoint
    damage: str = ""
    """What is damaged, where it is not the newest checkpoint."""


class ServerStore:
    """The server's newest checkpoint: its state and a run's records beside it, and the hashes of what belongs to it.

    `root` is the folder "state" of a run's folder. Of rounds of training the last `keep` checkpoints stay, if that is
    more than 1.
    """

    def __init__(self, root: Path, keep: int = 1) -> None:
        self.root, self.keep = root, keep
        self.durable: Checkpoint | None = None
        """The checkpoint that is certain to be on the disk."""

    @property
    def needed(self) -> list[int]:
        """The rounds after which the run may have to continue, beside the newest one."""
        durable = [] if self.durable is None else [self.durable.t]
        return sorted({*kept_positions(self.root), *durable})

    def save(
        self, t: int, server: State, run_state: RunState, files: Sums, durable: bool = False, trains: bool = False
    ) -> None:
        """Make round t the one that a resumed run continues after; if it is `durable`, wait until it is on the disk.

        `files` are the other files of the run's folder that belong to it; `trains` says whether the round is one of
        training.
        """
        name, data = server_place(t), to_bytes(server)
        self.root.mkdir(parents=True, exist_ok=True)
        write_bytes(self.root / name, data, durable)
        checkpoint = Checkpoint.model_validate({
            "schema": SCHEMA, "t": t, "server": name, **run_state.model_dump(include=COUNTED),
            "files": {**files, f"{self.root.name}/{name}": sum_of_bytes(data)},
        })  # fmt: skip
        if trains and self.keep > 1:  # before the newest one, so that none is lacking of the rounds before that
            write_record(self.root / kept_place(t), checkpoint, durable)
        write_record(self.root / NEWEST, checkpoint, durable)
        if durable:
            write_record(self.root / DURABLE, checkpoint, durable)
            self.durable = checkpoint
        self._forget_older(name)

    def tidy(self, saved: Saved) -> None:
        """What a process that was killed had no time for; what the run continues from becomes its newest checkpoint."""
        if saved.damage:
            write_record(self.root / NEWEST, saved.checkpoint, lasting=True)
        forget_kept(self.root, saved.checkpoint.t)
        self._forget_older(saved.checkpoint.server)

    def _forget_older(self, newest: str) -> None:
        """Delete the server states that no checkpoint needs any more; the newest one's is the file of that name."""
        kept = kept_positions(self.root)
        for t in kept[: -self.keep] if self.keep > 1 else kept:
            (self.root / kept_place(t)).unlink()
        durable = self.durable.server if self.durable else newest
        needed = {newest, durable, *map(server_place, kept_positions(self.root))}
        for old in self.root.glob("server-*.safetensors"):
            if old.name not in needed:
                old.unlink()

    def load(self) -> Saved | None:
        """What the run continues from, or None before the first checkpoint.

        That is the newest checkpoint, or where one of its files is damaged the last durable one. Raises RunError,
        which names the file, if neither is whole.
        """
        found: list[Saved] = []
        damage: list[CaveatError] = []
        for name in (NEWEST, DURABLE):
            try:
                if (checkpoint := record_of(self.root / name, Checkpoint)) is not None:
                    found.append(self._whole(checkpoint, str(damage[0]) if damage else ""))
                    self.durable = checkpoint if name == DURABLE else None
                elif name == NEWEST and (self.root / DURABLE).exists():
                    raise DataError(f"{self.root / name} is missing")
            except CaveatError as error:
                damage.append(error)
        if damage and not found:
            raise RunError(f"{damage[0]}; no other checkpoint is whole. Without {self.root} the run begins again")
        return found[0] if found else None

    def _whole(self, checkpoint: Checkpoint, damage: str) -> Saved:
        """A checkpoint with the server's state. Raises DataError or RunError if a file of it is damaged."""
        for place, known in checkpoint.files.items():
            check_file(self.root.parent / place, known, growing=place.endswith(GROWING))
        if Path(checkpoint.server).name != checkpoint.server:
            raise DataError(f"{self.root}: server = {checkpoint.server!r}, expected the name of a file beside it")
        return Saved(read_payload(self.root / checkpoint.server), checkpoint, damage)


def server_place(t: int) -> str:
    """The file of the server's state after round t."""
    return f"server-{t:06d}.safetensors"


def kept_place(t: int) -> str:
    """The file of the checkpoint after round t, of those after the last rounds of training."""
    return f"checkpoint-{t:06d}.json"


def kept_positions(root: Path) -> list[int]:
    """The positions in the schedule of the checkpoints that were kept, oldest first."""
    numbers = (path.stem.partition("-")[2] for path in root.glob(KEPT))
    return sorted(int(number) for number in numbers if number.isdecimal())


def forget_kept(root: Path, after: int) -> None:
    """Delete the checkpoints that were kept of rounds after that one, which never counted or count no more."""
    for t in kept_positions(root):
        if t > after:
            (root / kept_place(t)).unlink()


COUNTED = set(RunState.model_fields)


def read_kept(path: Path) -> dict[SiloId, KeptState]:
    """The last state of each silo that has kept one; empty where there is no such file.

    Raises DataError if it is damaged.
    """
    found: dict[SiloId, KeptState] = {}
    for value, where in lines_of(path):
        kept = checked(value, KeptState, where)
        found[kept.silo] = kept
    return found
