"""The silos of a federation, and what it takes to show their inputs and to read new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..core import DataError, Silo, SiloId, check_silo_name
from .checks import InputForm, check_silo
from .image_format import ImageFormat
from .pools import Array
from .population import Population, SilosByName
from .preparation import Inputs, Preparation, no_silo
from .sequences import Scaling, SequenceFormat
from .settings import Normalise
from .splits import NAMES
from .table_encoding import Encoder


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
    scalings: Mapping[SiloId, Scaling] = field(default_factory=dict)
    """What standardises each silo's series; empty where nothing does."""
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
        raise DataError(no_silo(name, self.names))

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

    @cached_property
    def preparation(self) -> Preparation:
        """What it takes to read new inputs and to show them, without the silos' data."""
        return Preparation(
            self.names, self.classes, self.shape, self.dtype, self.normalise, self.encoders, self.image_format,
            self.sequence_format, self.scalings,
        )  # fmt: skip

    def inputs(self, x: Tensor | ArrayLike, silo: SiloId | None = None) -> Tensor:
        """Model inputs (N, *shape) from tensors of that shape, which are left as they are, or from raw ones, which are
        prepared. Raises DataError for another shape, and for none.
        """
        return self.preparation.inputs(x, silo)

    def noted(self, x: Inputs | Tensor | ArrayLike, silo: SiloId | None = None) -> Inputs:
        """Such inputs with what is unusual about them, where they are raw or have been."""
        return self.preparation.noted(x, silo)

    def prepare(self, inputs: Any, silo: SiloId | None = None) -> Tensor:
        """Model inputs (N, *shape) from raw ones, as `Preparation.prepare` makes them."""
        return self.preparation.prepare(inputs, silo)

    def to_image(self, x: Tensor) -> Array:
        """uint8 pictures (..., H, W, C) of normalised inputs (..., C, H, W). Raises DataError without images."""
        return self.preparation.to_image(x)
