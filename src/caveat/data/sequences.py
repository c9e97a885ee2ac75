"""Sequences of tokens and of measurements: one length, one type, and standardised channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import ConfigurationError, DataError, SiloId
from ..core.devices import FLOAT, check_memory
from .checks import plain_array
from .lazy import row_parts
from .pools import Array, Pool, series_array, token_array

SequenceKind = Literal["tokens", "series"]
Standardize = Literal["none", "silo", "federation"]
Numbers = NDArray[np.float64]


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


@dataclass(frozen=True)
class Scaling:
    """What is taken off the channels of a series, and what they are divided by then."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    """Standard deviations; 1 for a channel that is the same everywhere."""
    masked: bool = False
    """Whether one more channel, the last, is a mask: padded steps stay zeros."""

    def __call__(self, x: Tensor) -> Tensor:
        """(N, T, C) float32 standardised, with the mask as it was where there is one."""
        rest = (0.0,) * self.masked, (1.0,) * self.masked
        means, scales = (torch.tensor([*own, *more]) for own, more in zip((self.means, self.scales), rest, strict=True))
        found = (x - means) / scales
        return found * x[..., -1:] if self.masked else found


@dataclass(frozen=True)
class StepMoments:
    """How many real steps there are, and per channel their mean and the summed squares of distances from it."""

    count: int
    mean: Numbers
    squares: Numbers

    def __add__(self, other: StepMoments) -> StepMoments:
        count = self.count + other.count
        if not count:
            return self
        apart, share = other.mean - self.mean, other.count / count
        squares = self.squares + other.squares + apart**2 * self.count * share
        return StepMoments(count, self.mean + apart * share, squares)

    def scaling(self, masked: bool) -> Scaling:
        """What standardises these steps."""
        scales = np.sqrt(self.squares / max(self.count, 1))
        scales[scales <= 10 * np.finfo(np.float64).eps * np.abs(self.mean)] = 1  # constant, but for rounding
        return Scaling(tuple(self.mean.tolist()), tuple(scales.tolist()), masked)


def moments(x: Array, masked: bool) -> StepMoments:
    """Of the real steps of series (N, T, C), or (N, T, C + 1) with a mask, a part of which is looked at at a time."""
    channels = x.shape[2] - masked
    nothing = StepMoments(0, np.zeros(channels), np.zeros(channels))
    return reduce(StepMoments.__add__, (_moments(part, masked) for part in row_parts(x)), nothing)


def _moments(x: Array, masked: bool) -> StepMoments:
    steps = (x[x[..., -1] > 0][:, :-1] if masked else x.reshape(-1, x.shape[2])).astype(np.float64)
    mean = steps.mean(0) if len(steps) else np.zeros(steps.shape[1])
    return StepMoments(len(steps), mean, ((steps - mean) ** 2).sum(0))


def scalings(train: Mapping[SiloId, Array], standardize: Standardize, masked: bool) -> dict[SiloId, Scaling]:
    """By silo, what standardises its series, from training splits (N, T, C); nothing unless it is asked for."""
    if standardize == "none":
        return {}
    own = {silo: moments(x, masked) for silo, x in train.items()}
    if standardize == "silo":
        return {silo: each.scaling(masked) for silo, each in own.items()}
    return dict.fromkeys(own, _together(own.values()).scaling(masked))


def _together(several: Iterable[StepMoments]) -> StepMoments:
    return reduce(StepMoments.__add__, several)


def check_standardize(pool: Pool, standardize: Standardize) -> None:
    """Raises ConfigurationError for inputs that are no series."""
    if standardize != "none" and not pool.series:
        raise ConfigurationError(
            f"data.standardize = {standardize!r} is for series, these inputs are none; tables are standardised anyway",
            "data.standardize",
        )


def sequences_of(pool: Pool) -> SequenceFormat | None:
    """The format of sequences that are of one length already; None for other inputs."""
    if pool.series or (pool.tokens and pool.x.ndim == 2):
        return SequenceFormat("tokens" if pool.tokens else "series", pool.x.shape[1])
    return None
