"""Checkpoints and private states on disk: files in safetensors and JSON, replaced atomically and identified by hashes.

A silo's state is stored in an immutable file per round in which the state changed. The files from which a run may
continue are kept: those of its newest checkpoint, of the last checkpoint that was synced to disk, and of the training
rounds to which the run can be rolled back. This module also has the cache of the features of a frozen encoder. Files
are read without unpickling.
"""

import hashlib
import io
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.torch import load, save

from ..core import CaveatError, DataError, Payload, RunError, SiloId, State
from .reading import GROWING, check_file, checked, lines_of, record_of, sum_of_bytes
from .schema import SCHEMA, Checkpoint, KeptState, RunState, Sums
from .writing import refuse_link, sync, write_bytes, write_record


def to_bytes(payload: Payload) -> bytes:
    """Return a payload in the safetensors format, with tensors named "group/name"."""
    flat = {f"{group}/{name}": t.contiguous() for group, named in payload.items() for name, t in named.items()}
    # The names of groups are stored separately because a group may be empty.
    return save(flat, {"groups": json.dumps(list(payload))})


def from_bytes(data: bytes) -> Payload:
    """Return the payload in bytes from `to_bytes`. Raise SafetensorError or ValueError for other bytes."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    payload: Payload = {group: {} for group in json.loads(header["__metadata__"]["groups"])}
    for path, tensor in load(data).items():
        group, name = path.split("/", 1)
        payload[group][name] = tensor
    return payload


def payload_of(data: bytes, path: Path) -> Payload:
    """Return the payload in a file's bytes. Raise RunError, naming the file, if they are invalid."""
    try:
        return from_bytes(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def read_payload(path: Path) -> Payload:
    """Read a payload. Raise RunError, naming the file, if it cannot be read."""
    if not path.is_file():
        raise RunError(f"{path} is missing or not a file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from error
    return payload_of(data, path)


HASH = 16
"""Number of bytes of an input's hash."""
Rows = npt.NDArray[np.float32]


def hashes(inputs: npt.NDArray[np.generic]) -> list[bytes]:
    """Return a hash of the content of each input (N, ...)."""
    flat = np.ascontiguousarray(inputs).reshape(len(inputs), -1).view(np.uint8)
    return [hashlib.blake2b(row.tobytes(), digest_size=HASH).digest() for row in flat]


class FeatureCache:
    """The cached features of one frozen encoder, `width` numbers per input, on the machine that has the inputs.

    The encoder's folder contains blocks that never change: `BLOCK.npy` with rows of features, and `BLOCK.ids.npy` with
    the hashes of the inputs. A block's name is a hash of its rows and the hashes, by which a process detects damage
    when it first reads the block. Rows are read through a memory map. Two processes may write blocks with the same
    rows, which is harmless.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self.places: dict[bytes, tuple[Path, int]] = {}
        self.read_blocks: set[str] = set()

    def take(self, ids: list[bytes], into: Rows) -> list[int]:
        """Copy cached rows into `into` (N, width), and return the positions of inputs without intact cached rows."""
        if any(each not in self.places for each in ids):
            self._look()
        by_block: dict[Path, list[tuple[int, int]]] = {}
        for i, each in enumerate(ids):
            if each in self.places:
                block, row = self.places[each]
                by_block.setdefault(block, []).append((i, row))
        missing = {i for i, each in enumerate(ids) if each not in self.places}
        for block, pairs in by_block.items():
            here, there = map(list, zip(*pairs, strict=True))
            try:
                into[here] = np.load(block, mmap_mode="r", allow_pickle=False)[there]
            except (OSError, ValueError, IndexError):  # deleted or changed in the meantime
                missing |= set(here)
        return sorted(missing)

    def add(self, ids: list[bytes], rows: Rows) -> None:
        """Store rows (N, width) of inputs. Raise OSError or RunError on failure."""
        for folder in (self.folder.parent, self.folder):  # folders above these belong to the user and may be links
            refuse_link(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # derived from private data
        block = self.folder / f"{self._sum(ids, rows)}.npy"
        write_bytes(block, _bytes(rows))
        write_bytes(block.with_suffix(".ids.npy"), _bytes(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, HASH)))
        self._know(block, ids)

    def _look(self) -> None:
        for file in sorted(self.folder.glob("*.ids.npy")):
            block = file.with_name(f"{file.name.removesuffix('.ids.npy')}.npy")
            if block.name in self.read_blocks or file.is_symlink() or block.is_symlink():
                continue
            self.read_blocks.add(block.name)
            try:
                ids = [row.tobytes() for row in np.load(file, allow_pickle=False)]
                rows = np.load(block, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError):
                continue
            if rows.dtype == np.float32 and rows.shape == (len(ids), self.width) and self._sum(ids, rows) == block.stem:
                self._know(block, ids)

    def _sum(self, ids: list[bytes], rows: Rows) -> str:
        return hashlib.sha256(self.folder.name.encode() + b"".join(ids) + rows.tobytes()).hexdigest()[:32]

    def _know(self, block: Path, ids: list[bytes]) -> None:
        for row, each in enumerate(ids):
            self.places[each] = block, row


def _bytes(array: npt.NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


NEWEST, DURABLE = "checkpoint.json", "checkpoint-durable.json"
"""The files of the last checkpoint, and of the last checkpoint that was synced to disk."""
KEPT = "checkpoint-[0-9]*.json"
"""Pattern of the files of the checkpoints after the last training rounds, named by `kept_place`."""


class StateLost(RunError):
    """A silo's private state is missing or damaged. The message names the silo, the round and the file."""


class SiloStore:
    """The private states of silos, each in its own folder below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, kept: KeptState) -> State:
        """Load a silo's state. Raise StateLost if its file is missing or does not match its hash."""
        path = self._file(kept.silo, kept.t)
        if path.exists() and not path.is_file():
            raise StateLost(f"{_whose(kept)}, {path}, is not a file", kept.silo)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StateLost(f"{_whose(kept)}, {path}, cannot be read: {error.strerror}", kept.silo) from None
        if sum_of_bytes(data).sha256 != kept.sha256:
            raise StateLost(f"{_whose(kept)}, {path}, does not match its hash: the file is damaged", kept.silo)
        return payload_of(data, path)

    def save(self, silo: SiloId, t: int, state: State, needed: Collection[int] = ()) -> KeptState:
        """Save the state after round t. Keep the previous state and the states to which the silo would return after the
        `needed` rounds, and delete other older states."""
        folder, data = self._folder(silo), to_bytes(state)
        refuse_link(folder)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the folder {folder}: {error.strerror}") from None
        write_bytes(self._file(silo, t), data)
        older = [version for version in self.versions(silo) if version < t]
        stay = {max((version for version in older if version <= each), default=None) for each in needed}
        for version in older[:-1]:
            if version not in stay:
                self._file(silo, version).unlink()
        return KeptState(silo=silo, t=t, sha256=sum_of_bytes(data).sha256)

    def begin(self) -> None:
        """Create the folder of all states, without which states cannot be saved."""
        refuse_link(self.root)
        self.root.mkdir(parents=True, exist_ok=True)

    def forget(self, silo: SiloId, after: int) -> None:
        """Delete a silo's states from rounds after `after`."""
        refuse_link(self._folder(silo))
        for version in self.versions(silo):
            if version > after:
                self._file(silo, version).unlink()

    def forget_all(self, after: int) -> None:
        """Delete the states of all silos from rounds after `after`."""
        for silo in self.silos():
            self.forget(silo, after)

    def silos(self) -> list[SiloId]:
        """Return the silos that have a folder."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            return [entry.name for entry in entries]

    def versions(self, silo: SiloId) -> list[int]:
        """Return the rounds of a silo's stored states, oldest first."""
        return sorted(int(path.stem) for path in self._folder(silo).glob("[0-9]*.safetensors"))

    def sync(self, kept: KeptState) -> None:
        """Sync a state to disk if it is still stored."""
        path = self._file(kept.silo, kept.t)
        if path.exists():  # a later state may have replaced it
            sync(path)
            sync(path.parent)

    def _folder(self, silo: SiloId) -> Path:
        return self.root / silo

    def _file(self, silo: SiloId, t: int) -> Path:
        return self._folder(silo) / f"{t:06d}.safetensors"


def _whose(kept: KeptState) -> str:
    return f"silo {kept.silo!r}: its state of round {kept.t + 1} of the schedule"


@dataclass(frozen=True)
class Saved:
    """The state from which a run continues."""

    server: State
    checkpoint: Checkpoint
    damage: str = ""
    """Description of the damage to the newest checkpoint, if `checkpoint` is an older one."""


class ServerStore:
    """The server's checkpoints, each of which consists of the server's state, the run's counters, and the hashes of the
    files that belong to the checkpoint.

    `root` is the folder "state" of a run's folder. If `keep` is more than 1, the checkpoints of this number of training
    rounds are kept.
    """

    def __init__(self, root: Path, keep: int = 1) -> None:
        self.root, self.keep = root, keep
        self.durable: Checkpoint | None = None
        """The last checkpoint that was synced to disk."""

    @property
    def needed(self) -> list[int]:
        """The rounds after which the run may have to continue, in addition to the newest round."""
        durable = [] if self.durable is None else [self.durable.t]
        return sorted({*kept_positions(self.root), *durable})

    def save(
        self, t: int, server: State, run_state: RunState, files: Sums, durable: bool = False, trains: bool = False
    ) -> None:
        """Save the checkpoint after round t, from which a run resumes, and sync it to disk if `durable`. `files` are
        the other files of the run's folder that belong to it; `trains` is whether t is a training round."""
        name, data = server_place(t), to_bytes(server)
        self.root.mkdir(parents=True, exist_ok=True)
        write_bytes(self.root / name, data, durable)
        checkpoint = Checkpoint.model_validate({
            "schema": SCHEMA, "t": t, "server": name, **run_state.model_dump(include=COUNTED),
            "files": {**files, f"{self.root.name}/{name}": sum_of_bytes(data)},
        })  # fmt: skip
        if trains and self.keep > 1:  # saved before the newest checkpoint, so that no earlier round is ever missing
            write_record(self.root / kept_place(t), checkpoint, durable)
        write_record(self.root / NEWEST, checkpoint, durable)
        if durable:
            write_record(self.root / DURABLE, checkpoint, durable)
            self.durable = checkpoint
        self._forget_older(name)

    def tidy(self, saved: Saved) -> None:
        """Clean up after a killed process, and make the checkpoint from which the run continues the newest one."""
        if saved.damage:
            write_record(self.root / NEWEST, saved.checkpoint, lasting=True)
        forget_kept(self.root, saved.checkpoint.t)
        self._forget_older(saved.checkpoint.server)

    def _forget_older(self, newest: str) -> None:
        kept = kept_positions(self.root)
        for t in kept[: -self.keep] if self.keep > 1 else kept:
            (self.root / kept_place(t)).unlink()
        durable = self.durable.server if self.durable else newest
        needed = {newest, durable, *map(server_place, kept_positions(self.root))}
        for old in self.root.glob("server-*.safetensors"):
            if old.name not in needed:
                old.unlink()

    def load(self) -> Saved | None:
        """Load the newest checkpoint, or the last durable checkpoint if a file of the newest one is damaged. Returns
        None before the first checkpoint. Raises RunError, naming the file, if both checkpoints are damaged."""
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
            raise RunError(f"{damage[0]}; no other checkpoint is intact. Delete {self.root} to start the run again")
        return found[0] if found else None

    def _whole(self, checkpoint: Checkpoint, damage: str) -> Saved:
        """Return the checkpoint with the server's state. Raise DataError or RunError if one of its files is damaged."""
        for place, known in checkpoint.files.items():
            check_file(self.root.parent / place, known, growing=place.endswith(GROWING))
        if Path(checkpoint.server).name != checkpoint.server:
            raise DataError(f"{self.root}: server = {checkpoint.server!r}, expected the name of a file in this folder")
        return Saved(read_payload(self.root / checkpoint.server), checkpoint, damage)


def server_place(t: int) -> str:
    """Return the name of the file with the server's state after round t."""
    return f"server-{t:06d}.safetensors"


def kept_place(t: int) -> str:
    """Return the name of the kept checkpoint after training round t."""
    return f"checkpoint-{t:06d}.json"


def kept_positions(root: Path) -> list[int]:
    """Return the positions of the kept checkpoints in the schedule, oldest first."""
    numbers = (path.stem.partition("-")[2] for path in root.glob(KEPT))
    return sorted(int(number) for number in numbers if number.isdecimal())


def forget_kept(root: Path, after: int) -> None:
    """Delete the kept checkpoints from rounds after `after`."""
    for t in kept_positions(root):
        if t > after:
            (root / kept_place(t)).unlink()


COUNTED = set(RunState.model_fields)
"""The keys of a run's counters in a checkpoint."""


def read_kept(path: Path) -> dict[SiloId, KeptState]:
    """Return the record of each silo's last state, from a file. Return an empty dictionary if the file is missing.
    Raise DataError if it is damaged."""
    found: dict[SiloId, KeptState] = {}
    for value, where in lines_of(path):
        kept = checked(value, KeptState, where)
        found[kept.silo] = kept
    return found
