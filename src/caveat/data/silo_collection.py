"""The silos of a federation, in memory or made on demand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..core import Data, DataError, DataWarning, Silo, SiloId, check_silo_name
from ..core.quantity import Quantity, Times
from ..core.settings import check_type
from ..core.silo import positive_class
from .checks import check_class_list, check_numbers, check_tensor, dtype_name
from .preprocessing import Inputs, Preparation, SequenceFormat, no_silo
from .raw_samples import Array
from .series_standardization import Scaling
from .settings import Normalize
from .sources.image_folders import ImageFormat
from .splits import NAMES
from .subgroups import Subgroups
from .tables.encoding import Encoder

KEPT = 4
"""Number of silos kept in memory, because a silo that takes part is requested a few times in a row."""


class InputForm(NamedTuple):
    """The common shape and type of all silos' inputs."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, silo: Silo) -> InputForm:
        return cls(tuple(silo.train.x.shape[1:]), silo.train.x.dtype)


def check_silo(silo: Silo, classes: int, form: InputForm | None = None) -> None:
    """Raise DataError, naming silo and split, unless models can use a silo's data.

    Each split needs inputs (N, ...) of finite float32 or of int64 from 0, in the given form if known, and labels (N,)
    of int64 below `classes`; streams can also have label -1.
    """
    for name in NAMES:
        form = _check_data(getattr(silo, name), f"silo {silo.name!r}, {name}", form, range(classes))
    for name, data in silo.streams.items():
        _check_data(data, f"silo {silo.name!r}, stream {name}", form, range(-1, classes))


def _check_data(data: object, where: str, form: InputForm | None, labels: range) -> InputForm:
    if not isinstance(data, Data):
        raise DataError(f"{where}: found a value of type {type(data).__name__}, expected caveat.data.Data(x, y)")
    x, y = data
    for name, tensor in (("x", x), ("y", y)):
        check_tensor(tensor, f"{where}: {name}")
    if x.dtype not in (torch.float32, torch.int64):
        how = "use x.float()" if x.is_floating_point() else "use x.long() or x.float()"
        raise DataError(f"{where}: x has dtype {dtype_name(x.dtype)}, expected float32, or int64 for token ids; {how}")
    if y.dtype != torch.int64:
        raise DataError(f"{where}: y has dtype {dtype_name(y.dtype)}, expected int64 class indices; use y.long()")
    if x.ndim < 2:
        raise DataError(f"{where}: x has shape {tuple(x.shape)}, expected (N, ...), a row for each sample")
    if y.ndim != 1 or len(x) != len(y):
        found = f"x has shape {tuple(x.shape)} and y has shape {tuple(y.shape)}"
        raise DataError(f"{where}: {found}, expected (N, ...) and (N,)")
    own = InputForm(tuple(x.shape[1:]), x.dtype)
    if form is not None and own != form:
        raise DataError(
            f"{where}: inputs have shape {own.shape} and dtype {dtype_name(own.dtype)}, expected {form.shape} and "
            f"{dtype_name(form.dtype)} as at the first silo"
        )
    if len(y) and (int(y.min()) < labels.start or int(y.max()) >= labels.stop):
        wrong = int(y.min()) if int(y.min()) < labels.start else int(y.max())
        raise DataError(f"{where}: label {wrong} is outside the {labels.stop} classes 0..{labels.stop - 1}")
    check_numbers(x, f"{where}: x")
    return own


def checked(make: Callable[[int, SiloId], Silo], classes: int) -> Callable[[int, SiloId], Silo]:
    """Wrap `make` to check each silo that it makes; all silos must have the form of the first."""
    form: list[InputForm] = []

    def made(number: int, name: SiloId) -> Silo:
        silo: object = make(number, name)
        if not isinstance(silo, Silo):
            raise DataError(
                f"make({number}, {name!r}) returned a value of type {type(silo).__name__}, expected a caveat.data.Silo"
            )
        if silo.name != name:
            raise DataError(f"make({number}, {name!r}) returned a silo called {silo.name!r}, expected the given name")
        check_silo(silo, classes, form[0] if form else None)
        form.append(InputForm.of(silo))
        del form[1:]
        return silo

    return made


class SiloNames(Sequence[SiloId]):
    """The names silo-000, silo-001, ..., computed when needed."""

    def __init__(self, count: int) -> None:
        self.total, self.width = count, len(str(count - 1))

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, index: int) -> SiloId: ...
    @overload
    def __getitem__(self, index: slice) -> list[SiloId]: ...
    def __getitem__(self, index: int | slice) -> SiloId | list[SiloId]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.total))]
        if not -self.total <= index < self.total:
            raise IndexError(index)
        return f"silo-{index % self.total:0{self.width}d}"

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Return the number of the silo with this name. Raise ValueError for any other name."""
        number = str(value).removeprefix("silo-")
        if number.isdecimal() and int(number) < self.total and self[int(number)] == value:
            return int(number)
        raise ValueError(f"{value!r} is not among {self[0]} to {self[-1]}")

    def __contains__(self, value: object) -> bool:
        try:
            self.index(value)
        except ValueError:
            return False
        return True


class Population(Sequence[Silo]):
    """Silos made on demand: `make` maps a number and a name to the same silo every time."""

    def __init__(self, count: int, make: Callable[[int, SiloId], Silo]) -> None:
        self.names = SiloNames(count)
        self._made = lru_cache(KEPT)(lambda number: make(number, self.names[number]))

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Silo: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Silo, ...]: ...
    def __getitem__(self, index: int | slice) -> Silo | tuple[Silo, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._made(index % len(self))


class SilosByName(Mapping[SiloId, Silo]):
    """The silos of a population by name, made on lookup."""

    def __init__(self, population: Population) -> None:
        self.population = population

    def __len__(self) -> int:
        return len(self.population)

    def __iter__(self) -> Iterator[SiloId]:
        return iter(self.population.names)

    def __getitem__(self, name: SiloId) -> Silo:
        if name not in self.population.names:
            raise KeyError(name)
        return self.population[self.population.names.index(name)]


@dataclass(frozen=True, eq=False)
class Silos(Sequence[Silo]):
    """All silos, with the preprocessing of their inputs."""

    silos: Sequence[Silo]
    classes: tuple[str, ...]
    """The class names."""
    normalize: Normalize | None = None
    """For this field and the next four, see `Preparation`."""
    encoders: Mapping[SiloId, Encoder] = field(default_factory=dict)
    image_format: ImageFormat = field(default_factory=ImageFormat)
    sequence_format: SequenceFormat | None = None
    scalings: Mapping[SiloId, Scaling] = field(default_factory=dict)
    positive: str | None = None
    """The positive one of two classes; None for the second one, or if there are more than two classes."""
    subgroups: Subgroups | None = None
    """The subgroups of samples that have their own guarantees, if any."""
    target: Quantity | None = None
    """The quantity to predict, whose bars are the classes; None if the target has classes."""
    unusual: tuple[str, ...] = ()
    """Warnings about the source's data, such as columns that do not fit each other at two silos."""

    def __repr__(self) -> str:
        """Return number, shape and classes, but no data, which must not appear in logs."""
        kind = "classes" if self.target is None else f"bars of a {self.target.predicts}"
        return f"Silos({len(self)} silos, inputs {self.shape}, {len(self.classes)} {kind})"

    @overload
    def __getitem__(self, index: int) -> Silo: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Silo, ...]: ...
    @overload
    def __getitem__(self, index: SiloId) -> Silo: ...
    def __getitem__(self, index: int | slice | SiloId) -> Silo | tuple[Silo, ...]:
        """Return a silo by number or name, or several by slice. Raise DataError for an unknown name."""
        if isinstance(index, str):
            return self.named(index)
        return tuple(self.silos[index]) if isinstance(index, slice) else self.silos[index]

    def __len__(self) -> int:
        return len(self.silos)

    @property
    def images(self) -> bool:
        return self.normalize is not None

    @property
    def subgroup_names(self) -> tuple[str, ...]:
        return () if self.subgroups is None else self.subgroups.names

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one model input: (C, H, W) of an image, (D,) of features, (T,) of tokens, (T, C) of a series."""
        return tuple(self.silos[0].train.x.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The type of model inputs: float32, or int64 for token ids."""
        return self.silos[0].train.x.dtype

    def named(self, name: SiloId) -> Silo:
        """Return the silo of this name. Raise DataError if there is none."""
        if name in self.by_name:
            return self.by_name[name]
        raise DataError(no_silo(name, self.names))

    @property
    def names(self) -> Sequence[SiloId]:
        """The names of all silos, in order."""
        return self.silos.names if isinstance(self.silos, Population) else [silo.name for silo in self.silos]

    @property
    def by_name(self) -> Mapping[SiloId, Silo]:
        if isinstance(self.silos, Population):
            return SilosByName(self.silos)
        return {silo.name: silo for silo in self.silos}

    def check(self, batch_size: int, one_class: bool = False) -> None:
        """Raise DataError for the first silo that cannot train: an invalid name, unusable inputs or labels, an empty
        split, a single class unless `one_class`, or fewer samples than a batch.

        Only the first silo of a population is checked here; the others are checked when they are made.
        """
        if len(self.classes) < 2:
            raise DataError(f"only one class, {self.classes[0]!r}, expected two or more")
        form, lone = None, list[str]()
        for silo in self.silos[:1] if isinstance(self.silos, Population) else self.silos:
            check_silo_name(silo.name)
            check_silo(silo, len(self.classes) * (2 if isinstance(self.target, Times) else 1), form)
            form = InputForm.of(silo)
            for name in NAMES:
                if not len(getattr(silo, name)):
                    raise DataError(f"silo {silo.name!r}: its {name} split is empty, expected at least one sample")
            if self.target is None and bool((silo.train.y == silo.train.y[0]).all()):
                told = f"silo {silo.name!r}: all its training labels are {self.classes[int(silo.train.y[0])]!r}"
                # With few rows of a class, all of them can be drawn for other splits.
                if not one_class and not any((getattr(silo, name).y != silo.train.y[0]).any() for name in NAMES):
                    raise DataError(f"{told}, expected two classes")
                lone.append(told)
            if len(silo.train) < batch_size:
                raise DataError(
                    f"silo {silo.name!r}: {len(silo.train)} training samples are fewer than a batch of {batch_size}; "
                    "lower training.batch_size or add samples"
                )
        if lone:
            others = f" (and {len(lone) - 1} more silos have one class)" if len(lone) > 1 else ""
            warnings.warn(f"{lone[0]}: alone it cannot learn any other class{others}", DataWarning, stacklevel=2)

    @cached_property
    def preparation(self) -> Preparation:
        """The preprocessing of new inputs, without the silos' data."""
        return Preparation(
            self.names, self.classes, self.shape, self.dtype, self.normalize, self.encoders, self.image_format,
            self.sequence_format, self.scalings, self.subgroups, self.target,
        )  # fmt: skip

    def inputs(self, x: Tensor | ArrayLike, silo: SiloId | None = None) -> Tensor:
        """See `Preparation.inputs`."""
        return self.preparation.inputs(x, silo)

    def noted(self, x: Inputs | Tensor | ArrayLike, silo: SiloId | None = None, subgroups: Any = None) -> Inputs:
        """See `Preparation.noted`."""
        return self.preparation.noted(x, silo, subgroups)

    def prepare(self, inputs: Any, silo: SiloId | None = None) -> Tensor:
        """See `Preparation.prepare`."""
        return self.preparation.prepare(inputs, silo)

    def to_image(self, x: Tensor) -> Array:
        """See `Preparation.to_image`."""
        return self.preparation.to_image(x)


def population(
    count: int,
    make: Callable[[int, SiloId], Silo],
    classes: Sequence[str],
    normalize: Normalize | None = None,
    positive: str | None = None,
) -> Silos:
    """Return `count` silos that `make` creates on demand, when a round needs them (cross-device).

    ``make(number, name)`` returns a `Silo` of that name, the same one every time: four `Data(x, y)` for training,
    validation, calibration and test, with model inputs (N, ...) of finite float32, or int64 from 0 for token ids, and
    labels (N,) int64 below the number of classes. Neither time nor memory grows with `count`. `normalize` has the
    normalization constants of images, and `positive` is the positive class as in `from_arrays`. Each silo is checked
    when it is made, the first one at once; its inputs determine the shape and type of all. Raises DataError naming
    silo, split and value.
    """
    check_type(count, int, "count", "a whole number of silos")
    check_type(make, Callable, "make", "a function of a number and a name")  # type: ignore[arg-type]
    if count < 1:
        raise DataError(f"count = {count}, expected at least 1 silo")
    names = check_class_list(classes, "population")
    positive_class(positive, names)
    silos = Population(count, checked(make, len(names)))
    silos[0]  # checked immediately
    return Silos(silos, names, normalize, positive=positive)
