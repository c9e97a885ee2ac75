"""Sequences of tokens and of measurements, brought to one length and to the type that models take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..core import DataError
from ..core.devices import FLOAT, check_memory
from .checks import plain_array
from .pools import Array, series_array, token_array

SequenceKind = Literal["tokens", "series"]


@dataclass(frozen=True)
class SequenceFormat:
    """The length that sequences are brought to, and what the steps are that they lack."""

    kind: SequenceKind
    length: int
    """T, the steps of every input."""
    pad: int = 0
    """tokens: the id behind the end of a shorter sequence."""
    masked: bool = False
    """series: whether the last channel is a mask, 1 where a step is real and 0 behind the end."""
    cut: bool = False
    """Whether a longer sequence loses what is behind `length`; else it is refused."""

    def __call__(self, rows: Any, origin: str) -> Array:
        """(N, T) int64 of tokens or (N, T, C) float32 of series, from an array of that form or a list of sequences.

        Raises DataError for rows that are none, and for longer ones unless they are to be cut.
        """
        sequences = whole_or_rows(rows, self.kind, origin)
        if isinstance(sequences, np.ndarray) and sequences.shape[1] == self.length and not self.masked:
            return sequences
        longest = max(map(len, sequences))
        if longest > self.length and not self.cut:
            raise DataError(f"{origin}: a sequence of {longest} steps, expected at most {self.length}")
        channels = () if self.kind == "tokens" else (sequences[0].shape[-1] + self.masked,)
        return self._padded(sequences, channels)

    def _padded(self, sequences: Sequence[Array] | Array, channels: tuple[int, ...]) -> Array:
        tokens = self.kind == "tokens"
        shape = (len(sequences), self.length, *channels)
        filled = np.full(shape, self.pad if tokens else 0, np.int64 if tokens else np.float32)
        for row, sequence in zip(filled, sequences, strict=True):
            steps = min(len(sequence), self.length)
            if tokens:
                row[:steps] = sequence[:steps]
            else:
                row[:steps, : sequence.shape[-1]] = sequence[:steps]
                row[:steps, sequence.shape[-1] :] = 1  # the mask, where there is one
        return filled


def sequence_format(
    given: Sequence[tuple[str, Any]], kind: SequenceKind, pad: int = 0, length: int | None = None
) -> SequenceFormat:
    """The format that all sequences fit into, from the rows of each origin: of the longest one, or cut to `length`.

    Series get a mask where some are shorter than others. Raises DataError for rows that are no sequences.
    """
    lengths = {n for origin, rows in given for n in _lengths(whole_or_rows(rows, kind, origin))}
    count = sum(len(rows) for _, rows in given)
    found = SequenceFormat(kind, length or max(lengths), pad, kind == "series" and len(lengths) > 1, length is not None)
    if len(lengths) > 1:
        check_memory(count * found.length * FLOAT, f"{count:,} sequences of {found.length:,} steps take", "length")
    return found


def _lengths(sequences: Sequence[Array] | Array) -> set[int]:
    return {sequences.shape[1]} if isinstance(sequences, np.ndarray) else set(map(len, sequences))


def whole_or_rows(rows: Any, kind: SequenceKind, origin: str) -> Sequence[Array] | Array:
    """Sequences as one array (N, T) or (N, T, C) if they are of one length, else as a list of (T,) or (T, C) each."""
    checked = token_array if kind == "tokens" else series_array
    if isinstance(rows, (list, tuple)) or (isinstance(rows, np.ndarray) and rows.dtype == object):
        each = [plain_array(row, f"{origin}, row {number}") for number, row in enumerate(rows)]
        if len({len(row) for row in each if row.ndim}) > 1:
            wide = {row.shape[1:] for row in each}
            if len(wide) > 1:
                raise DataError(f"{origin}: steps of shapes {sorted(wide)[:3]}, expected one shape for all")
            return [checked(row[None], f"{origin}, row {number}")[0] for number, row in enumerate(each)]
        rows = each
    return checked(plain_array(rows, origin), origin)
