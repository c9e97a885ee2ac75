"""What a silo's source was when its splits were made, and how it differs now: counts that stay at the silo."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..core import DataError, Tensors
from ..data.pools import Array, Pool
from ..data.splits import HASH, contents, keyed
from ..files.reading import sum_of
from ..files.schema.small_files import SourceState


class SourceChange(NamedTuple):
    """How a source differs from the rows that were stored of it."""

    gone: int
    new: int
    relabelled: int
    """Rows that are there with another label."""
    leaving: tuple[int, ...]
    """Which of the stored rows are not there any more as they were, label included."""

    def __str__(self) -> str:
        return f"{_count(self.gone)} gone, {_count(self.new)} new, {_count(self.relabelled)} of another label"

    @property
    def none(self) -> bool:
        """Whether the same rows are there, in whatever order."""
        return not (self.gone or self.new or self.relabelled)


def _count(rows: int) -> str:
    return f"{rows} row{'' if rows == 1 else 's'}"


def looks_of(files: Sequence[Path]) -> str:
    """A hash of names, sizes and times of files: where it is the same, they are taken to hold the same."""
    found = [(path.name, (of := path.stat()).st_size, of.st_mtime_ns, of.st_ctime_ns) for path in files]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def holds_of(files: Sequence[Path]) -> str:
    """A hash of what files hold, and of their names."""
    return hashlib.sha256(json.dumps([(path.name, sum_of(path).sha256) for path in files]).encode()).hexdigest()


def state_of(files: Sequence[Path]) -> SourceState:
    """What files look like and hold."""
    return SourceState(looks=looks_of(files), holds=holds_of(files))


def rows_of(pool: Pool, columns: Sequence[str], key: bytes) -> Tensors:
    """Per row of a pool, in its order: its position, and the keyed hashes of its content and of its label.

    Raises DataError, naming it, for a column that a table has no more.
    """
    if absent := [name for name in columns if name not in {column.name for column in pool.table}]:
        raise DataError(f"{pool.origin or pool.domain}: no column {absent[0]!r} any more")
    labels = keyed((label.encode() for label in pool.classes), key)
    return {
        "position": torch.arange(len(pool.y)),
        "content": _tensor(keyed(contents(pool, columns), key)),
        "label": _tensor([labels[label] for label in pool.y.tolist()]),
    }


def _tensor(hashes: Sequence[bytes]) -> torch.Tensor:
    found: Array = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH)
    return torch.from_numpy(found.copy())


def change_of(then: Tensors, now: Tensors) -> SourceChange:
    """How rows differ, whatever their order; of equal rows of which fewer are left, the last ones are gone."""
    before, after = _rows(then), _rows(now)
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    other_label = (_by_content(gone) & _by_content(new)).total()
    leaving = []
    for i in range(len(before) - 1, -1, -1):
        if gone[before[i]] > 0:
            gone[before[i]] -= 1
            leaving.append(i)
    count = len(leaving)
    return SourceChange(count - other_label, new.total() - other_label, other_label, tuple(reversed(leaving)))


def _rows(tensors: Tensors) -> list[tuple[bytes, bytes]]:
    return [
        (bytes(content), bytes(label))
        for content, label in zip(tensors["content"].numpy(), tensors["label"].numpy(), strict=True)
    ]


def _by_content(rows: Counter[tuple[bytes, bytes]]) -> Counter[bytes]:
    found = Counter[bytes]()
    for (content, _), count in rows.items():
        found[content] += count
    return found
