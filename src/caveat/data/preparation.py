"""Preparation of raw inputs for models, without any of the data that models were trained on."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..core import ConfigurationError, DataError, SiloId
from ..core.devices import FLOAT, memory
from .checks import plain_array, written
from .lazy import LazyInputs
from .pools import Array, finite_array, image_array, token_array
from .sequences import Scaling, SequenceFormat
from .settings import Normalize
from .sources.images import ImageFormat
from .tables.encoding import Encoder

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
            given = f"inputs of shape {tuple(found.x.shape)}, {written(found.x.dtype)}"
            raise DataError(f"{given}; expected (N, {', '.join(map(str, self.shape))}), {written(self.dtype)}")
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
