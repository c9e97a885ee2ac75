"""The silos of a federation, and what it takes to show their inputs and to read new ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..core import ConfigurationError, DataError, Silo, SiloId, check_silo_name
from ..core.memory import FLOAT, memory
from .checks import InputForm, check_silo, plain_array, written
from .image_format import ImageFormat
from .lazy import LazyInputs
from .pools import Array, finite_array, image_array, token_array
from .population import Population, SilosByName
from .sequences import SequenceFormat
from .settings import Normalise
from .splits import NAMES
from .table_encoding import Encoder

SHOWN = 3
"""Kinds of notes that a line names."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs without labels as a model takes them, and what is unusual about each."""

    x: Tensor
    """(N, *shape) float32, or int64 for ids of tokens."""
    notes: tuple[str, ...] = ()
    """(N,) what a prediction of a raw input cannot rest on, "" for most; empty where the inputs were not raw."""

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
class Silos(Sequence[Silo]):
    """All silos, and what it takes to show their inputs and to read new ones."""

    silos: Sequence[Silo]
    classes: tuple[str, ...]
    """The name of each class."""
    normalise: Normalise | None = None
    """The constants that images were normalised with; none where the inputs are not images."""
    encoders: Mapping[SiloId, Encoder] = field(default_factory=dict)
    """What makes each silo's features from the rows of a table; empty where the inputs came ready to use."""
    image_format: ImageFormat = field(default_factory=ImageFormat)
    """What raw images are brought to; it changes nothing where all have one shape and no other was asked for."""
    sequence_format: SequenceFormat | None = None
    """What raw sequences are brought to; None where the inputs are none, and where they came ready to use."""
    positive: str | None = None
    """Which of two classes figures of classification are of; None for the second one, and where there are more."""

    def __repr__(self) -> str:
        """Number, shape and classes; not the data, which nobody should find in a log."""
        return f"Silos({len(self)} silos, inputs {self.shape}, {len(self.classes)} classes)"

    @overload
    def __getitem__(self, index: int) -> Silo: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Silo, ...]: ...
    @overload
    def __getitem__(self, index: SiloId) -> Silo: ...
    def __getitem__(self, index: int | slice | SiloId) -> Silo | tuple[Silo, ...]:
        """A silo by its number or its name, or several by a slice. Raises DataError for a name that none has."""
        if isinstance(index, str):
            return self.named(index)
        return tuple(self.silos[index]) if isinstance(index, slice) else self.silos[index]

    def __len__(self) -> int:
        return len(self.silos)

    @property
    def images(self) -> bool:
        return self.normalise is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one model input: (C, H, W) of an image, (D,) of features, (T,) of tokens, (T, C) of a series."""
        return tuple(self.silos[0].train.x.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The type of model inputs: float32, or int64 for ids of tokens."""
        return self.silos[0].train.x.dtype

    def named(self, name: SiloId) -> Silo:
        """The silo of this name. Raises DataError if there is none."""
        if name in self.by_name:
            return self.by_name[name]
        shown = f"{', '.join(self.names[:20])}{', ...' if len(self.names) > 20 else ''}"
        raise DataError(f"no silo {name!r}, expected one of {shown}")

    @property
    def names(self) -> Sequence[SiloId]:
        """The names of all silos, in their order."""
        return self.silos.names if isinstance(self.silos, Population) else [silo.name for silo in self.silos]

    @property
    def by_name(self) -> Mapping[SiloId, Silo]:
        if isinstance(self.silos, Population):
            return SilosByName(self.silos)
        return {silo.name: silo for silo in self.silos}

    def check(self, batch_size: int) -> None:
        """Raises DataError for the first silo that cannot train: no usable name, inputs or labels that no model takes,
        an empty split, one class, less than a batch.

        Of a population only the first silo is looked at here; each is when it is made.
        """
        if len(self.classes) < 2:
            raise DataError(f"one class in total, {self.classes[0]!r}, expected two or more")
        form = None
        for silo in self.silos[:1] if isinstance(self.silos, Population) else self.silos:
            check_silo_name(silo.name)
            check_silo(silo, len(self.classes), form)
            form = InputForm.of(silo)
            for name in NAMES:
                if not len(getattr(silo, name)):
                    raise DataError(f"silo {silo.name!r}: its {name} split is empty, expected at least one sample")
            if bool((silo.train.y == silo.train.y[0]).all()):
                only = self.classes[int(silo.train.y[0])]
                raise DataError(f"silo {silo.name!r}: all its training labels are {only!r}, expected two classes")
            if len(silo.train) < batch_size:
                raise DataError(
                    f"silo {silo.name!r}: {len(silo.train)} training samples are fewer than a batch of {batch_size}; "
                    "lower training.batch_size or give it more"
                )

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

        Images are brought to the silos' size and channels, sequences to their length. The rows of a table need the silo
        whose encoder is to read them. Raises DataError for another shape, and for no inputs.
        """
        if self.sequence_format is not None:
            _check_any(inputs)
            return torch.from_numpy(self.sequence_format(inputs, "inputs"))
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
            self.named(silo)
            if inputs.dtype.kind not in "fiub" or np.isinf(inputs).any():
                raise DataError(
                    "rows of a table: expected finite numbers, NaN where one is missing, and the number of each "
                    "category; caveat.data.read_inputs reads rows with text from a csv file"
                )
            return torch.from_numpy(self.encoders[silo](inputs))
        if self.normalise is None:
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
        return normalised(self.image_format(images), self.normalise)

    def to_image(self, x: Tensor) -> Array:
        """uint8 pictures (..., H, W, C) of normalised inputs (..., C, H, W). Raises DataError without images."""
        if self.normalise is None:
            raise DataError("these inputs are not images")
        x, channels = x.detach().cpu(), x.shape[-3]
        pixels = (x * _constants(self.normalise.std, channels) + _constants(self.normalise.mean, channels)) * 255
        return pixels.round().clamp(0, 255).to(torch.uint8).movedim(-3, -1).contiguous().numpy()


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


def normalised(images: Array, normalise: Normalise) -> Tensor:
    """Model inputs (N, C, H, W) float32 from images (N, H, W, C) uint8.

    Raises ConfigurationError if there is neither one constant for all channels nor one for each.
    """
    channels = images.shape[-1]
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(255)
    return x.sub_(_constants(normalise.mean, channels)).div_(_constants(normalise.std, channels))


def _constants(values: tuple[float, ...], channels: int) -> Tensor:
    if len(values) not in (1, channels):
        raise ConfigurationError(
            f"data.normalise has {len(values)} numbers for images of {channels} channels, expected 1 or {channels}"
        )
    return torch.tensor(values).view(-1, 1, 1)
