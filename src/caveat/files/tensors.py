"""Tensors in files: payloads as safetensors, and the cache of a frozen encoder's features.

Reading a file never unpickles anything.
"""

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.torch import load, save

from ..core import Payload, RunError
from .writing import refuse_link, write_bytes


def to_bytes(payload: Payload) -> bytes:
    """Return a payload in the safetensors format, with tensors named "group/name"."""
    flat = {
        f"{group}/{name}": tensor.contiguous() for group, named in payload.items() for name, tensor in named.items()
    }
    # Stored separately because a group may be empty.
    return save(flat, {"groups": json.dumps(list(payload))})


def from_bytes(data: bytes) -> Payload:
    """Return the payload of bytes from `to_bytes`. Raise SafetensorError or ValueError for other bytes."""
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

    The encoder's folder holds blocks that never change: `BLOCK.npy` with rows, and `BLOCK.ids.npy` with the hashes of
    their inputs. A block's name is a hash of both, which reveals damage when a process first reads it. Rows are read
    through a memory map. Two processes that compute the same rows write two blocks, which is harmless.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self.places: dict[bytes, tuple[Path, int]] = {}
        self.read_blocks: set[str] = set()

    def take(self, ids: list[bytes], into: Rows) -> list[int]:
        """Copy cached rows into (N, width), and return the positions of inputs without rows or with damaged blocks."""
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
        for folder in (self.folder.parent, self.folder):  # the parent folders are the user's
            refuse_link(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # derived from private data
        block = self.folder / f"{self._sum(ids, rows)}.npy"
        write_bytes(block, _bytes(rows))
        write_bytes(_ids_of(block), _bytes(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, HASH)))
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


def _ids_of(block: Path) -> Path:
    return block.with_suffix(".ids.npy")


def _bytes(array: npt.NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
