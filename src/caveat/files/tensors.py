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


def payload_of(data: bytes, path: Path) -> Payload:
    """The payload in the bytes of a file. Raises RunError naming a file that holds none."""
    try:
        return from_bytes(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def read_payload(path: Path) -> Payload:
    """A payload from a file; raises RunError naming a file that cannot be read."""
    if not path.is_file():
        raise RunError(f"{path} is missing, or is no file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from error
    return payload_of(data, path)


HASH = 16
"""Bytes of the hash of an input."""
Rows = npt.NDArray[np.float32]


def hashes(inputs: npt.NDArray[np.generic]) -> list[bytes]:
    """A hash of the content of each input (N, ...)."""
    flat = np.ascontiguousarray(inputs).reshape(len(inputs), -1).view(np.uint8)
    return [hashlib.blake2b(row.tobytes(), digest_size=HASH).digest() for row in flat]


class FeatureCache:
    """The rows of one encoder, each `width` numbers."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self.places: dict[bytes, tuple[Path, int]] = {}
        self.read_blocks: set[str] = set()

    def take(self, ids: list[bytes], into: Rows) -> list[int]:
        """Put the rows of inputs that have some into (N, width), and return the positions of those that have none.

        Blocks that are damaged or gone count as none.
        """
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
            except (OSError, ValueError, IndexError):  # deleted or changed since it was read
                missing |= set(here)
        return sorted(missing)

    def add(self, ids: list[bytes], rows: Rows) -> None:
        """Keep rows (N, width) of inputs. Raises OSError or RunError where that cannot be done."""
        for folder in (self.folder.parent, self.folder):  # what is above them the user has named
            refuse_link(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # what is in it was made of private data
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
        """A block's name: a hash of the encoder, which the folder is called by, and of all that is in the block."""
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
