"""What a frozen encoder said of inputs, kept on the machine that has them: rows by the content of an input.

A folder per encoder holds blocks that never change once they are written: `BLOCK.npy` with rows, and `BLOCK.ids.npy`
with the hashes of the inputs that they are of. A block's name is a hash of both, by which damage is noticed when a
process first reads it. Rows are read by way of a memory map. Two processes that compute the same rows at once write two
blocks with the same rows, which does no harm.
"""

import hashlib
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .writing import refuse_link, write_bytes

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
