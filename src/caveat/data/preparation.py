"""Preparation of raw inputs for models: images, rows of tables, and sequences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..core import ConfigurationError, DataError, SiloId
from ..core.devices import FLOAT, check_memory, memory
from .checks import dtype_name, finite_array, image_array, plain_array, series_array, token_array
from .pools import Array, LazyInputs, Pool, row_parts
from .settings import Normalize
from .sources.images import ImageFormat
from .tables.encoding import Encoder

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


SHOWN = 3
"""Kinds of notes that a line names."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs without labels as a model takes them, and what is unusual about each."""

    x: Tensor
    """(N, *shape) float32, or int64 for ids of tokens."""
    notes: tuple[str, ...] = ()
    """(N,) what a prediction of a raw input cannot rest on, "" for most; empty where the inputs were not raw."""
    files: tuple[str, ...] = ()
    """(N,) the name of each input's file; empty where inputs have no files of their own."""

    @property
    def told(self) -> str:
        """How many inputs have which notes, in a line; "" where none has any."""
        noted = Counter(note for note in self.notes if note)
        if not noted:
            return ""
        kinds = ", ".join(f"{note} ({count})" for note, count in noted.most_common(SHOWN))
        more = ", ..." if len(noted) > SHOWN else ""
        return f"{noted.total()} of {len(self.notes)} inputs are unlike those of training: {kinds}{more}"


@dataclass(frozen=True, eq=False)
class Preparation:
    """What it takes to read new inputs of silos, and to show them: all that a prediction needs of the data."""

    names: Sequence[SiloId]
    """The silos whose inputs it prepares, in their order."""
    classes: tuple[str, ...]
    """The name of each class."""
    shape: tuple[int, ...]
    """The shape of one model input: (C, H, W) of an image, (D,) of features, (T,) of tokens, (T, C) of a series."""
    dtype: torch.dtype = torch.float32
    """The type of model inputs: float32, or int64 for ids of tokens."""
    normalize: Normalize | None = None
    """The constants that images are normalised with; none where the inputs are not images."""
    encoders: Mapping[SiloId, Encoder] = field(default_factory=dict)
    """What makes each silo's features from the rows of a table; empty where inputs come ready to use."""
    image_format: ImageFormat = field(default_factory=ImageFormat)
    """What raw images are brought to; it changes nothing where all have one shape and no other was asked for."""
    sequence_format: SequenceFormat | None = None
    """What raw sequences are brought to; None where the inputs are none, and where they came ready to use."""
    scalings: Mapping[SiloId, Scaling] = field(default_factory=dict)
    """What standardises each silo's series; empty where nothing does."""

    def __repr__(self) -> str:
        """Number, shape and classes; not what silos' tables came to."""
        return f"Preparation({len(self.names)} silos, inputs {self.shape}, {len(self.classes)} classes)"

    @property
    def images(self) -> bool:
        return self.normalize is not None

    def check_name(self, silo: SiloId) -> None:
        """Raises DataError if there is no silo of this name."""
        if silo not in self.names:
            raise DataError(no_silo(silo, self.names))

    def inputs(self, x: Tensor | ArrayLike, silo: SiloId | None = None) -> Tensor:
        """Model inputs (N, *shape) from tensors of that shape, which are left as they are, or from raw ones, which are
        prepared. Raises DataError for another shape, and for none.
        """
        return self.noted(x, silo).x

    def noted(self, x: Inputs | Tensor | ArrayLike, silo: SiloId | None = None) -> Inputs:
        """Such inputs with what is unusual about them, where they are raw or have been."""
        if isinstance(x, Inputs):
            found = x
        elif isinstance(x, (Tensor, LazyInputs)):
            found = Inputs(cast(Tensor, x))
        else:
            raw: Any = _array(x) if self.sequence_format is None else x
            prepared = self.prepare(raw, silo)
            # Silos of a table are prepared for by name, which has been checked.
            notes = self.encoders[silo].notes(raw) if self.encoders and silo is not None else ("",) * len(prepared)
            found = Inputs(prepared, notes)
        if found.x.shape[1:] != self.shape or not len(found.x) or found.x.dtype != self.dtype:
            given = f"inputs of shape {tuple(found.x.shape)}, {dtype_name(found.x.dtype)}"
            raise DataError(f"{given}; expected (N, {', '.join(map(str, self.shape))}), {dtype_name(self.dtype)}")
        return found

    def prepare(self, inputs: Any, silo: SiloId | None = None) -> Tensor:
        """Model inputs (N, *shape) from raw ones: uint8 images (N,H,W) or (N,H,W,C), features (N,D), ids of tokens
        (N,T) or series (N,T,C), or a list of such sequences of any lengths.

        Images are brought to the silos' size and channels, sequences to their length. The rows of a table, and series
        that are standardised, need the silo that they are of. Raises DataError for another shape, and for no inputs.
        """
        if self.sequence_format is not None:
            _check_any(inputs)
            found = torch.from_numpy(self.sequence_format(inputs, "inputs"))
            if not self.scalings:
                return found
            if silo is None:
                raise DataError("series that are standardised need the silo that they are of")
            self.check_name(silo)
            return self.scalings[silo](found)
        if not inputs.ndim or not len(inputs):
            raise DataError(f"inputs of shape {inputs.shape}, expected at least one")
        needed = len(inputs) * math.prod(self.shape) * FLOAT
        if needed > memory():
            raise DataError(
                f"{len(inputs):,} inputs take {needed / 1e9:,.0f} GB as a model takes them, this machine has "
                f"{memory() / 1e9:,.0f} of memory: give them in parts"
            )
        if self.encoders:
            if silo is None:
                raise DataError("rows of a table need the silo whose encoder is to read them")
            self.check_name(silo)
            if inputs.dtype.kind not in "fiub" or np.isinf(inputs).any():
                raise DataError(
                    "rows of a table: expected finite numbers, NaN where one is missing, and the number of each "
                    "category; caveat.data.read_inputs reads rows with text from a csv file"
                )
            return torch.from_numpy(self.encoders[silo](inputs))
        if self.normalize is None:
            if inputs.shape[1:] != self.shape:
                wanted = ", ".join(map(str, self.shape))
                raise DataError(f"inputs of shape {inputs.shape}, expected features (N, {wanted})")
            ids = not self.dtype.is_floating_point
            return torch.from_numpy((token_array if ids else finite_array)(inputs, "inputs"))
        images = image_array(inputs, "inputs")
        channels, *size = self.shape
        if self.image_format.shape(images) != (*size, channels):
            raise DataError(
                f"images (H, W, C) of shape {images.shape[1:]}, expected {(*size, channels)} as in training"
            )
        return normalized(self.image_format(images), self.normalize)

    def to_image(self, x: Tensor) -> Array:
        """uint8 pictures (..., H, W, C) of normalised inputs (..., C, H, W). Raises DataError without images."""
        if self.normalize is None:
            raise DataError("these inputs are not images")
        x, channels = x.detach().cpu(), x.shape[-3]
        pixels = (x * _constants(self.normalize.std, channels) + _constants(self.normalize.mean, channels)) * 255
        return pixels.round().clamp(0, 255).to(torch.uint8).movedim(-3, -1).contiguous().numpy()


def no_silo(name: SiloId, names: Sequence[SiloId]) -> str:
    """What to tell where no silo has a name."""
    return f"no silo {name!r}, expected one of {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"


def _array(x: ArrayLike) -> Array:
    """The inputs as one array. Raises DataError if there are none, and for rows of different lengths."""
    array = plain_array(x, "inputs")
    _check_any(array)
    return array


def _check_any(inputs: Any) -> None:
    """Raises DataError unless there are inputs."""
    shape = np.shape(inputs) if isinstance(inputs, np.ndarray) else (len(inputs),) if isinstance(inputs, list) else ()
    if not shape or not shape[0]:
        raise DataError(f"inputs of shape {shape}, expected at least one")


def normalized(images: Array, normalize: Normalize) -> Tensor:
    """Model inputs (N, C, H, W) float32 from images (N, H, W, C) uint8.

    Raises ConfigurationError if there is neither one constant for all channels nor one for each.
    """
    channels = images.shape[-1]
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(255)
    return x.sub_(_constants(normalize.mean, channels)).div_(_constants(normalize.std, channels))


def _constants(values: tuple[float, ...], channels: int) -> Tensor:
    if len(values) not in (1, channels):
        raise ConfigurationError(
            f"data.normalize has {len(values)} numbers for images of {channels} channels, expected 1 or {channels}"
        )
    return torch.tensor(values).view(-1, 1, 1)


def check_normalize(images: bool, normalize: Normalize) -> None:
    """Raises ConfigurationError for constants of `data.normalize` where inputs are features, which have none."""
    if not images and normalize != Normalize():
        raise ConfigurationError("data.normalize is for images, these inputs are features")
