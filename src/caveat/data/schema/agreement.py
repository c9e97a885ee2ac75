"""What silos have to agree on before they train together where no single machine holds the data of two of them.

Every silo says of its own data what others have to know (`sketch`), the server makes of all sketches what holds for
all (`agree`), and every silo reads its data by that (`own_silos`): bitwise the silo that `caveat.data.load` would make
of the files of all silos on one machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import ValidationError

from ...core import ConfigurationError, DataError, SiloId
from ..assembly import check_normalise, own_plot, settle
from ..image_format import common_frame
from ..pools import Array, Pool, TextColumn, ordered
from ..settings import DataSettings, check_source
from ..silos import Silos
from ..sources.by_name import OWN, read_outside, read_own
from ..table_encoding import recoded, seen
from .records import ColumnSchema, DataSchema, SharedColumn, SharedSchema, reason

__all__ = ["DataSchema", "SharedSchema", "agree", "check_fits", "own_settings", "own_silos", "sketch"]

TELLING = 20
"""So many texts in a column, and more than one for every two rows, are taken for names or identifiers of persons."""
THEY = "they would be told to the server and look like names"


def own_settings(
    settings: DataSettings, source: str, target: str | None = None, categorical: Sequence[str] | None = None
) -> DataSettings:
    """The federation's settings with a silo's own source in place, and its own target and categorical if given.

    Raises ConfigurationError unless one silo can read that source with them.
    """
    kinds = check_source("source", source)
    if len(kinds) > 1 or kinds[0] not in ("csv", "npz", "images", "digits"):
        raise ConfigurationError(f"data.source = {source!r} is none that one silo can read: expected {OWN}")
    return dataclasses.replace(
        settings,
        source=source,
        target=settings.target if target is None else target,
        categorical=settings.categorical if categorical is None else tuple(categorical),
    )


def sketch(settings: DataSettings, seed: int, name: SiloId) -> DataSchema:
    """What the silo says of its data, read as its own settings say.

    Raises DataError for data that cannot be used, and for labels or a column of texts that look like names of
    persons: they would leave the silo.
    """
    return _sketch(read_own(settings, name), settings, seed)


def _sketch(pool: Pool, settings: DataSettings, seed: int) -> DataSchema:
    index = own_plot(pool, settings, seed).indices["train"]
    # The server names the column to predict, unless the silo does.
    if len(pool.classes) > max(TELLING, len(index) / 2):
        raise DataError(
            f"{pool.origin or pool.domain}: {len(pool.classes)} labels in {len(index)} rows; {THEY}: set data.target "
            "in silo.toml to the column to predict"
        )
    train = pool.x[index] if pool.table else pool.x[:0]
    known = seen(pool.table, train)
    for column in known:
        if len(column.categories or ()) > max(TELLING, len(train) / 2):
            raise DataError(
                f"{pool.origin or pool.domain}: column {column.name!r} has {len(column.categories or ())} texts in "
                f"{len(train)} rows; {THEY}: leave the column out"
            )
    try:
        columns = tuple(_column(column, pool.x[:, i], train[:, i]) for i, column in enumerate(known))
        return DataSchema(pool.classes, pool.x.shape[1:], columns)
    except ValidationError as error:
        raise DataError(f"silo {pool.domain!r}: {reason(error)}") from error


def _column(column: TextColumn, values: Array, train: Array) -> ColumnSchema:
    if column.categories is not None:
        return ColumnSchema(column.name, "texts", column.categories)
    holds: Literal["numbers", "nothing"] = "nothing" if bool(np.isnan(values).all()) else "numbers"
    return ColumnSchema(column.name, holds, missing=bool(np.isnan(train).any()))


def agree(sketches: Mapping[SiloId, DataSchema], settings: DataSettings) -> SharedSchema:
    """What holds for all silos, the same whatever order they come in; `settings` are the federation's.

    Classes and categories are those of all silos, in the order that `caveat.data.load` gives them; columns are in the
    order of the first silo by name; images get the size and colours of the settings, or 3 channels where some have
    them. Raises DataError, with silos and what differs, if there is no such thing.
    """
    if not sketches:
        raise DataError("no silo has said what its data are, expected at least one")
    sketches = dict(sorted(sketches.items()))
    columns = _agreed_columns(sketches, settings)
    pools = [_empty(name, each.shape) for name, each in sketches.items()]
    frame = common_frame(pools, settings.size, settings.channels)
    images = pools[0].images
    check_normalise(images, settings.normalise)
    shape = frame.shape(pools[0].x) if images else pools[0].x.shape[1:]
    try:
        return SharedSchema(_agreed_classes(sketches), shape, settings.size, columns)
    except ValidationError as error:
        raise DataError(f"what {', '.join(sketches)} have together: {reason(error)}") from error


def check_fits(agreement: SharedSchema, name: SiloId, sketch: DataSchema) -> None:
    """Raises DataError if a silo that joins later has a label, a column or a shape that is not agreed.

    A category that is not agreed becomes zeros, and images get the agreed size and colours.
    """
    unknown = [label for label in sketch.labels if label not in agreement.classes]
    if unknown:
        raise DataError(f"silo {name!r} has label {unknown[0]!r}, expected those agreed: {_listed(agreement.classes)}")
    _check_order({name: sketch}, agreement.classes)
    agreed = {column.name: "numbers" if column.categories is None else "texts" for column in agreement.columns}
    own = {column.name: column.holds for column in sketch.columns}
    if differing := sorted(set(own) ^ set(agreed)):
        raise DataError(f"silo {name!r} differs in columns {_listed(differing)}, expected those agreed")
    for column, holds in own.items():
        if holds not in ("nothing", agreed[column]):
            raise DataError(
                f"column {column!r} holds {holds} at silo {name!r}, {agreed[column]} are agreed; "
                "name it in data.categorical if its numbers are codes of categories"
            )
    x = _empty(name, sketch.shape).x
    shape = agreement.frame.shape(x) if sketch.images else x.shape[1:]
    if shape != tuple(agreement.shape):
        raise DataError(f"silo {name!r} has inputs of shape {x.shape[1:]}, expected {tuple(agreement.shape)} as agreed")


def own_silos(settings: DataSettings, seed: int, name: SiloId, agreement: SharedSchema) -> Silos:
    """The one silo that reads its own data, in what is agreed.

    Its splits and tensors are bitwise those that `caveat.data.load` gives it beside the files of the other silos.
    Raises DataError if the data do not fit the agreement.
    """
    pool = read_own(settings, name)
    check_fits(agreement, name, _sketch(pool, settings, seed))
    number = np.array([agreement.classes.index(label) for label in pool.classes], dtype=np.int64)
    layout = agreement.layout
    # With the agreed columns, so that rows to predict can have categories that the silo's own lack.
    x = recoded(pool.x, pool.table, layout.columns) if pool.table else pool.x
    pool = dataclasses.replace(pool, x=x, y=number[pool.y], classes=agreement.classes, table=layout.columns)
    return settle(pool, agreement.frame, layout, settings, seed, read_outside(settings))


def _agreed_classes(sketches: Mapping[SiloId, DataSchema]) -> tuple[str, ...]:
    """The labels of all silos. Where all name the same in one order of their own, they are in that order."""
    orders = {sketch.labels for sketch in sketches.values()}
    classes = (
        orders.pop() if len(orders) == 1 else ordered([label for each in sketches.values() for label in each.labels])
    )
    if len(classes) < 2:
        raise DataError(f"all labels of {', '.join(sketches)} are {classes[0]!r}, expected two classes or more")
    whole = {name: all(map(_is_whole, sketch.labels)) for name, sketch in sketches.items()}
    if len(set(whole.values())) > 1:
        number, text = (next(name for name in whole if whole[name] is kind) for kind in (True, False))
        raise DataError(
            f"labels are numbers at silo {number!r} ({_listed(sketches[number].labels)}) and texts at silo {text!r} "
            f"({_listed(sketches[text].labels)}); expected one name for each class at all silos"
        )
    _check_order(sketches, classes)
    return classes


def _check_order(sketches: Mapping[SiloId, DataSchema], classes: Sequence[str]) -> None:
    # Splits are drawn class by class: another order of classes at a silo would be another split.
    for name, sketch in sketches.items():
        if tuple(label for label in classes if label in set(sketch.labels)) != tuple(sketch.labels):
            raise DataError(
                f"silo {name!r} has its labels in the order {_listed(sketch.labels)}, expected that of "
                f"{_listed(classes)}: name the classes of all silos alike, in one order"
            )


def _agreed_columns(sketches: Mapping[SiloId, DataSchema], settings: DataSettings) -> tuple[SharedColumn, ...]:
    first, *others = sketches
    names = [column.name for column in sketches[first].columns]
    for other in others:
        columns = {column.name for column in sketches[other].columns}
        if bool(columns) != bool(names):
            table, none = (first, other) if names else (other, first)
            raise DataError(f"silo {table!r} has a table, silo {none!r} has none; expected the same at all silos")
        if differing := sorted(columns ^ set(names)):
            raise DataError(
                f"silos {first!r} and {other!r} differ in columns {_listed(differing)}; expected the same at all silos"
            )
    named = {name: {column.name: column for column in each.columns} for name, each in sketches.items()}
    return tuple(
        _agreed_column({silo: columns[name] for silo, columns in named.items()}, name in settings.categorical)
        for name in names
    )


def _agreed_column(at: Mapping[SiloId, ColumnSchema], categorical: bool) -> SharedColumn:
    """A column from what each silo says of it."""
    holding = {kind: [silo for silo, column in at.items() if column.holds == kind] for kind in ("numbers", "texts")}
    name = next(iter(at.values())).name
    if holding["numbers"] and holding["texts"]:
        raise DataError(
            f"column {name!r} holds texts at silo {holding['texts'][0]!r} and numbers at {holding['numbers'][0]!r}; "
            "expected the same at all silos: name it in data.categorical if its numbers are codes of categories"
        )
    if holding["texts"] or categorical:
        return SharedColumn(name, ordered([text for column in at.values() for text in column.categories]))
    return SharedColumn(name, flagged=any(column.missing for column in at.values()))


def _empty(name: SiloId, shape: Sequence[int]) -> Pool:
    """A pool without samples, for what is a matter of their shape alone."""
    x = np.empty((0, *shape), np.uint8 if len(shape) == 3 else np.float32)
    return Pool(x, np.empty(0, np.int64), (), name, origin=f"silo {name!r}")


def _is_whole(label: str) -> bool:
    try:
        int(label)
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
