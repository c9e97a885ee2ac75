"""Preparation of raw inputs for models: images, rows of tables, and sequences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..core import ConfigurationError, DataError, SiloId, UnlikeColumn
from ..core.devices import FLOAT, check_memory, memory
from ..core.quantity import Quantity
from .checks import channels_first, dtype_name, finite_array, image_array, plain_array, series_array, token_array
from .lazy_rows import LazyInputs
from .raw_samples import Array, Pool
from .series_standardization import Scaling
from .settings import Normalize
from .sources.image_folders import ImageFormat
from .sources.tables import rows_of
from .subgroups import Subgroups, given
from .tables.encoding import Encoder
from .tables.frames import FrameSheet, is_frame

SequenceKind = Literal["tokens", "series"]


@dataclass(frozen=True)
class SequenceFormat:
    """The common length of sequences, and their padding."""

    kind: SequenceKind
    length: int
    """T, the number of steps of every input."""
    pad: int = 0
    """tokens: the id used to pad shorter sequences."""
    masked: bool = False
    """series: whether the last channel is a mask, 1 for real steps and 0 for padding."""
    cut: bool = False
    """Whether longer sequences are truncated; otherwise they are refused."""

    def __call__(self, rows: Any, origin: str) -> Array:
        """Return tokens (N, T) int64 or series (N, T, C) float32, from an array or a list of sequences. Raises
        DataError for other rows, and for longer sequences unless they are truncated."""
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
                row[:steps, sequence.shape[-1] :] = 1  # the mask, if there is one
        return filled


def sequence_format(
    given: Sequence[tuple[str, Any]], kind: SequenceKind, pad: int = 0, length: int | None = None
) -> SequenceFormat:
    """Return the format that fits all sequences, from (origin, rows): as long as the longest, or `length`. Series get a
    mask if their lengths differ. Raises DataError for rows that are not sequences."""
    lengths = {n for origin, rows in given for n in _lengths(whole_or_rows(rows, kind, origin))}
    count = sum(len(rows) for _, rows in given)
    found = SequenceFormat(kind, length or max(lengths), pad, kind == "series" and len(lengths) > 1, length is not None)
    if len(lengths) > 1:
        check_memory(count * found.length * FLOAT, f"{count:,} sequences of {found.length:,} steps take", "length")
    return found


def _lengths(sequences: Sequence[Array] | Array) -> set[int]:
    return {sequences.shape[1]} if isinstance(sequences, np.ndarray) else set(map(len, sequences))


def whole_or_rows(rows: Any, kind: SequenceKind, origin: str) -> Sequence[Array] | Array:
    """Return sequences as an array (N, T) or (N, T, C) if they have equal lengths, else as a list of (T,) or (T, C)."""
    checked = token_array if kind == "tokens" else series_array
    if isinstance(rows, (list, tuple)) or (isinstance(rows, np.ndarray) and rows.dtype == object):
        each = [plain_array(row, f"{origin}, row {number}") for number, row in enumerate(rows)]
        if len({len(row) for row in each if row.ndim}) > 1:
            wide = {row.shape[1:] for row in each}
            if len(wide) > 1:
                raise DataError(f"{origin}: steps have shapes {sorted(wide)[:3]}, expected one shape for all steps")
            return [checked(row[None], f"{origin}, row {number}")[0] for number, row in enumerate(each)]
        rows = each
    return checked(plain_array(rows, origin), origin)


def sequences_of(pool: Pool) -> SequenceFormat | None:
    """Return the format of sequences of equal length; None for other inputs."""
    if pool.series or (pool.tokens and pool.x.ndim == 2):
        return SequenceFormat("tokens" if pool.tokens else "series", pool.x.shape[1])
    return None


SHOWN = 3
"""Number of different notes in a summary line."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Model inputs without labels, and notes about unusual ones."""

    x: Tensor
    """(N, ...) float32, or int64 for token ids."""
    notes: tuple[str, ...] = ()
    """(N,) properties of raw inputs that make predictions unreliable, mostly ""; empty if the inputs were not raw."""
    files: tuple[str, ...] = ()
    """(N,) the name of each input's file; empty if inputs are not separate files."""
    unlike_columns: tuple[UnlikeColumn, ...] = ()
    """Columns in which the table rows as a whole are unlike the silo's own; at most 5 % of batches have a false one."""
    subgroup: Tensor | None = None
    """(N,) int64, the subgroup of each input, -1 if unknown; None if all are unknown."""
    why: Tensor | None = None
    """(N,) int64 of Reason, OUTSIDE or EMPTY for rows of a table that are not answered; None if all are answered."""

    @property
    def told(self) -> str:
        """The notes with their counts in one line; "" without notes."""
        noted = Counter(note for note in self.notes if note)
        if not noted:
            return ""
        kinds = ", ".join(f"{note} ({count})" for note, count in noted.most_common(SHOWN))
        more = ", ..." if len(noted) > SHOWN else ""
        return f"{noted.total()} of {len(self.notes)} inputs are unlike the training inputs: {kinds}{more}"

    @property
    def lines(self) -> list[str]:
        """Warnings: a line about the notes, and one per column that is unlike the silo's own."""
        return [*([self.told] if self.told else []), *map(str, self.unlike_columns)]


@dataclass(frozen=True, eq=False)
class Preparation:
    """Preprocessing fitted on the training data: how to read new inputs and turn them back into images."""

    names: Sequence[SiloId]
    """The names of the silos, in order."""
    classes: tuple[str, ...]
    """The class names."""
    shape: tuple[int, ...]
    """The shape of one model input: (C, H, W) of an image, (D,) of features, (T,) of tokens, (T, C) of a series."""
    dtype: torch.dtype = torch.float32
    """The type of model inputs: float32, or int64 for token ids."""
    normalize: Normalize | None = None
    """Normalization constants of images; None for other inputs."""
    encoders: Mapping[SiloId, Encoder] = field(default_factory=dict)
    """Each silo's encoder of table rows; empty for other inputs."""
    image_format: ImageFormat = field(default_factory=ImageFormat)
    """The size and channels that raw images are converted to."""
    sequence_format: SequenceFormat | None = None
    """The format that raw sequences are padded to; None for other inputs."""
    scalings: Mapping[SiloId, Scaling] = field(default_factory=dict)
    """Each silo's standardization of series; empty without standardization."""
    subgroups: Subgroups | None = None
    """The subgroups of inputs that have their own guarantees, if any."""
    target: Quantity | None = None
    """The quantity to predict, whose bars are the classes; None if the target has classes."""

    def __repr__(self) -> str:
        return f"Preparation({len(self.names)} silos, inputs {self.shape}, {len(self.classes)} classes)"

    @property
    def images(self) -> bool:
        return self.normalize is not None

    @property
    def subgroup_names(self) -> tuple[str, ...]:
        return () if self.subgroups is None else self.subgroups.names

    def check_name(self, silo: SiloId) -> None:
        """Raise DataError if there is no silo of this name."""
        if silo not in self.names:
            raise DataError(no_silo(silo, self.names))

    def inputs(self, x: Tensor | ArrayLike, silo: SiloId | None = None) -> Tensor:
        """Return model inputs (N, ...): tensors unchanged, raw inputs prepared. Raise DataError for other shapes."""
        return self.noted(x, silo).x

    def noted(self, x: Inputs | Tensor | ArrayLike, silo: SiloId | None = None, subgroups: Any = None) -> Inputs:
        """Return model inputs as `inputs` does, with notes if they are or were raw, and with their subgroups.

        `subgroups` (N,) has the value of each input, None if unknown; by default the values of the table's column. An
        input without a subgroup has the guarantees of all inputs together.
        """
        found, raw = self._noted(x, silo), not isinstance(x, Tensor | LazyInputs | Inputs)
        if subgroups is not None:
            return replace(found, subgroup=given(self.subgroups, subgroups, len(found.x)))
        if self.subgroups is not None and raw and (encoder := self.encoders.get(silo or "")) is not None:
            return replace(found, subgroup=self.subgroups.of_rows(x, encoder))
        return found

    def _noted(self, x: Inputs | Tensor | ArrayLike, silo: SiloId | None) -> Inputs:
        if isinstance(x, (Inputs, Tensor, LazyInputs)):
            found = x if isinstance(x, Inputs) else Inputs(cast(Tensor, x))
        elif is_frame(x):
            return self._noted(self._rows(x, silo), silo)
        else:
            raw: Any = _array(x) if self.sequence_format is None else x
            prepared = self.prepare(raw, silo)
            # Rows of a table are prepared by silo, whose name has been checked.
            found = Inputs(prepared, ("",) * len(prepared))
            if self.encoders and silo is not None:
                checked = self.encoders[silo].checked(raw, silo)
                prepared = self.prepare(checked.values, silo)
                why = checked.why if checked.why.any() else None
                found = Inputs(prepared, checked.notes, unlike_columns=checked.unlike, why=why)
        if found.x.shape[1:] != self.shape or not len(found.x) or found.x.dtype != self.dtype:
            given = f"inputs have shape {tuple(found.x.shape)} and dtype {dtype_name(found.x.dtype)}"
            wanted = f"(N, {', '.join(map(str, self.shape))}) and {dtype_name(self.dtype)}"
            raise DataError(f"{given}, expected {wanted}")
        return found

    def _rows(self, frame: Any, silo: SiloId | None) -> Array:
        """Return the rows of a data frame, whose columns may be in any order; further columns are ignored."""
        if not self.encoders or silo is None:
            raise DataError("found a data frame, but the silos were not trained on tables; pass its values as an array")
        self.check_name(silo)
        encoder = self.encoders[silo]
        return rows_of(FrameSheet(frame, silo, "inputs"), encoder.table, encoder.csv_format)

    def prepare(self, inputs: Any, silo: SiloId | None = None) -> Tensor:
        """Prepare raw inputs as model inputs (N, ...): uint8 images (N,H,W) or (N,H,W,C), features (N,D), token ids
        (N,T) or series (N,T,C), or a list of such sequences of any lengths.

        Images get the silos' size and channels, sequences their length. Table rows and standardized series need `silo`.
        Raises DataError for other shapes, and if there are no inputs.
        """
        if self.sequence_format is not None:
            _check_any(inputs)
            found = torch.from_numpy(self.sequence_format(inputs, "inputs"))
            if not self.scalings:
                return found
            if silo is None:
                raise DataError("each silo standardizes series in its own way: pass silo, the silo of these inputs")
            self.check_name(silo)
            return self.scalings[silo](found)
        if not inputs.ndim or not len(inputs):
            raise DataError(f"inputs have shape {inputs.shape}, expected at least one input")
        needed = len(inputs) * math.prod(self.shape) * FLOAT
        if needed > memory():
            raise DataError(
                f"{len(inputs):,} inputs need {needed / 1e9:,.0f} GB of memory; this machine has "
                f"{memory() / 1e9:,.0f} GB. Predict in smaller batches."
            )
        if self.encoders:
            if silo is None:
                raise DataError("each silo encodes rows of a table in its own way: pass silo, the silo of these inputs")
            self.check_name(silo)
            if inputs.dtype.kind not in "fiub" or np.isinf(inputs).any():
                raise DataError(
                    "rows of a table: expected finite numbers, NaN if missing, and the code of each "
                    "category; caveat.data.read_inputs reads rows with text from a csv file"
                )
            return torch.from_numpy(self.encoders[silo](inputs))
        if self.normalize is None:
            if inputs.shape[1:] != self.shape:
                wanted = ", ".join(map(str, self.shape))
                raise DataError(f"inputs have shape {inputs.shape}, expected (N, {wanted})")
            ids = not self.dtype.is_floating_point
            return torch.from_numpy((token_array if ids else finite_array)(inputs, "inputs"))
        first = inputs.ndim == 4 and channels_first(inputs)
        images = image_array(np.moveaxis(inputs, 1, -1) if first else inputs, "inputs")
        channels, *size = self.shape
        if self.image_format.shape(images) != (*size, channels):
            raise DataError(
                f"images (H, W, C) have shape {images.shape[1:]}, expected {(*size, channels)} as in training"
            )
        return normalized(self.image_format(images), self.normalize)

    def to_image(self, x: Tensor) -> Array:
        """Return uint8 images (..., H, W, C) of normalized inputs (..., C, H, W). Raise DataError for other inputs."""
        if self.normalize is None:
            raise DataError("these inputs are not images")
        x, channels = x.detach().cpu(), x.shape[-3]
        pixels = (x * _constants(self.normalize.std, channels) + _constants(self.normalize.mean, channels)) * 255
        return pixels.round().clamp(0, 255).to(torch.uint8).movedim(-3, -1).contiguous().numpy()


def no_silo(name: SiloId, names: Sequence[SiloId]) -> str:
    """Return the error message for an unknown silo."""
    return f"no silo {name!r}, expected one of {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"


def _array(x: ArrayLike) -> Array:
    """Return inputs as one array. Raise DataError for no inputs and for rows of different lengths."""
    array = plain_array(x, "inputs")
    _check_any(array)
    return array


def _check_any(inputs: Any) -> None:
    """Raise DataError unless there are inputs."""
    shape = np.shape(inputs) if isinstance(inputs, np.ndarray) else (len(inputs),) if isinstance(inputs, list) else ()
    if not shape or not shape[0]:
        raise DataError(f"inputs have shape {shape}, expected at least one input")


def normalized(images: Array, normalize: Normalize) -> Tensor:
    """Return model inputs (N, C, H, W) float32 from images (N, H, W, C) uint8. Raises ConfigurationError unless there
    is one constant for all channels, or one per channel."""
    channels = images.shape[-1]
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(255)
    return x.sub_(_constants(normalize.mean, channels)).div_(_constants(normalize.std, channels))


def _constants(values: tuple[float, ...], channels: int) -> Tensor:
    if len(values) not in (1, channels):
        raise ConfigurationError(
            f"data.normalize has {len(values)} numbers for images with {channels} channels, expected 1 or {channels}"
        )
    return torch.tensor(values).view(-1, 1, 1)


def check_normalize(images: bool, normalize: Normalize) -> None:
    """Raise ConfigurationError for `data.normalize` if inputs are not images."""
    if not images and normalize != Normalize():
        raise ConfigurationError("data.normalize is for images, but these inputs are not images")
