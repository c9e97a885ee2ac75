"""Schemas: one silo's description of its data, and the schema that all silos share.

Both contain only labels, column names and categories: no counts, and no values of numeric columns except, if the silo
allows it, the power of two nearest to a median. For a quantity, a silo's description also contains sums of the targets,
and the shared schema contains the bars.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from ..core import DataError
from ..core.quantity import Quantity, restored
from ..core.settings import frozen_settings
from .sources.image_folders import ImageFormat
from .tables.encoding import TableLayout
from .tables.reading_settings import TableColumn

MOST = 10_000
"""Maximum number of labels, of columns, and of categories of a column."""
Text = Annotated[str, Field(min_length=1, max_length=500)]
Texts = Annotated[tuple[Text, ...], Field(max_length=MOST)]
Said = TypeVar("Said")
Magnitude = Annotated[int, Field(ge=-200, le=200)] | None
"""The power of two that is nearest to the median of absolute values."""
Shape = Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 20)], ...], Field(min_length=1, max_length=3)]


@frozen_settings
class ColumnSchema:
    """A column of one silo's table."""

    name: Text
    holds: Literal["numbers", "texts", "nothing"]
    """The content of the silo's rows; a column with nothing here can have numbers or texts at other silos."""
    categories: Texts = ()
    """The texts of the silo's training split."""
    missing: bool = False
    """Whether a number is missing in the silo's training split."""
    magnitude: Magnitude = None
    """The magnitude of the numbers in the training split; None if the silo does not send it."""

    def __post_init__(self) -> None:
        _distinct("categories", self.categories)
        if self.categories and self.holds != "texts":
            raise DataError(f"column {self.name!r} contains {self.holds}, but has categories")
        if self.magnitude is not None and self.holds != "numbers":
            raise DataError(f"column {self.name!r} contains {self.holds}, but has a magnitude of numbers")


Numbers = Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(max_length=MOST)]


@frozen_settings
class SharedTarget:
    """A quantity or a time that every silo predicts, see `core.quantity`."""

    edges: Numbers
    means: Numbers
    shares: Numbers
    targets: Annotated[int, Field(ge=1)]
    name: str = ""
    declared: bool = False
    standardized: bool = False
    event: str = ""
    horizons: Numbers = ()

    def __post_init__(self) -> None:
        try:
            restored(**vars(self))
        except ValueError as error:
            raise DataError(f"target: {error}") from None


@frozen_settings
class DataSchema:
    """A silo's description of its data, sent before training."""

    labels: Annotated[Texts, Field(min_length=1)]
    """The names of the silo's classes, in its own order."""
    shape: Shape
    """The shape of one raw input: (H, W, C) of an image, (D,) of features or of a table with D columns."""
    columns: Annotated[tuple[ColumnSchema, ...], Field(max_length=MOST)] = ()
    """The columns of a table in the order of its file; empty for images and for features without encoding."""
    sums: Annotated[tuple[Numbers, ...], Field(max_length=3)] = ()
    """Sums of a quantity's training targets, for its bars; empty for classes, and after the silos have agreed."""

    def __post_init__(self) -> None:
        _check_input(self.shape, [column.name for column in self.columns])
        _check_categories([column.categories or () for column in self.columns])
        _distinct("labels", self.labels)

    @property
    def images(self) -> bool:
        return len(self.shape) == 3

    def without_magnitudes(self) -> DataSchema:
        return replace(self, columns=tuple(replace(column, magnitude=None) for column in self.columns))

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)

    @classmethod
    def of_json(cls, value: object) -> DataSchema:
        """The inverse of `to_json`; raises DataError for anything else."""
        return _of_json(TypeAdapter(DataSchema), value, "a silo's schema")


@frozen_settings
class SharedColumn:
    """A column of every silo's table."""

    name: Text
    categories: Texts | None = None
    """The texts of all training splits; None for a column of numbers."""
    flagged: bool = False
    """Whether a number is missing in some training split; an indicator feature marks such rows."""
    magnitude: Magnitude = None
    """The lower median of the magnitudes that silos sent; None if fewer than two did."""

    def __post_init__(self) -> None:
        _distinct("categories", self.categories or ())
        if self.flagged and self.categories is not None:
            raise DataError(f"column {self.name!r} has categories, but is flagged as numeric")


@frozen_settings
class SharedSchema:
    """The schema of all silos' data, with which each silo encodes its own data."""

    classes: Annotated[Texts, Field(min_length=2)]
    shape: Shape
    """The shape of one input, images resized: (H, W, C) of an image, (D,) of features or of a table with D columns."""
    size: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Side length in pixels to which images are resized, if any."""
    columns: Annotated[tuple[SharedColumn, ...], Field(max_length=MOST)] = ()
    """The columns of a table in the order in which they are encoded."""
    target: SharedTarget | None = None
    """The quantity to predict, whose bars are the classes."""

    def __post_init__(self) -> None:
        _check_input(self.shape, [column.name for column in self.columns])
        _check_categories([column.categories or () for column in self.columns])
        _distinct("classes", self.classes)
        if self.size is not None and (len(self.shape) != 3 or set(self.shape[:2]) != {self.size}):
            raise DataError(f"inputs have shape {tuple(self.shape)}, expected images of {self.size}x{self.size} pixels")

    @property
    def quantity(self) -> Quantity | None:
        """The quantity to predict, if any."""
        return None if self.target is None else restored(**vars(self.target))

    def predicting(self, target: Quantity) -> SharedSchema:
        """Return the schema with a quantity to predict."""
        return replace(self, classes=target.classes, target=SharedTarget(**asdict(target)))

    @property
    def images(self) -> bool:
        return len(self.shape) == 3

    @property
    def image_format(self) -> ImageFormat:
        """The size and channels of every silo's images."""
        return (
            ImageFormat(self.size, self.shape[-1] if self.shape[-1] in (1, 3) else None)
            if self.images
            else ImageFormat()
        )

    @property
    def layout(self) -> TableLayout:
        """The features to which every silo encodes its rows."""
        return TableLayout(
            tuple(TableColumn(column.name, column.categories) for column in self.columns),
            tuple(column.name for column in self.columns if column.flagged),
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one model input: (C, H, W) of an image, (D,) of features."""
        if self.images:
            height, width, channels = self.shape
            return (channels, height, width)
        return (self.layout.width,) if self.columns else tuple(self.shape)

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)

    @classmethod
    def of_json(cls, value: object) -> SharedSchema:
        """The inverse of `to_json`; raises DataError for anything else."""
        return _of_json(TypeAdapter(SharedSchema), value, "the shared schema")


def _check_input(shape: Sequence[int], columns: Sequence[str]) -> None:
    if columns and tuple(shape) != (len(columns),):
        raise DataError(f"inputs have shape {tuple(shape)}, expected ({len(columns)},), the number of columns")
    _distinct("columns", columns)


def _check_categories(categories: Sequence[tuple[str, ...]]) -> None:
    if sum(map(len, categories)) > 10 * MOST:
        raise DataError(f"more than {10 * MOST} categories in all columns together")


def _distinct(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise DataError(f"{what}: a name is duplicated, expected different names")


def _to_json(value: DataSchema | SharedSchema) -> dict[str, Any]:
    plain: dict[str, Any] = TypeAdapter(type(value)).dump_python(value, mode="json")
    return {key: each for key, each in plain.items() if key not in ("sums", "target") or each}


def _of_json(adapter: TypeAdapter[Said], value: object, what: str) -> Said:
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise DataError(f"{what} is malformed: {reason(error)}") from error
    except (DataError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{what} is malformed: {error}") from error


def reason(error: ValidationError) -> str:
    """Return the first problem and its place, without the value, which can be long."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
