"""Schema agreement before training, for silos whose data stay on separate machines.

Each silo describes its own data (`own_schema`), the server merges these descriptions into a shared schema
(`shared_schema`), and each silo encodes its data with it (`own_silos`). The resulting silo is bit-identical to the silo
that `caveat.data.load` makes from the files of all silos on one machine.
"""

import dataclasses
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from statistics import median_low
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from ..core import DataError, DataWarning, Refused, SiloId
from .build import one_silo, read_outside
from .checks import check_samples
from .lazy_rows import changed, row_parts, some_rows
from .preprocessing import check_normalize
from .quantities import own_sums
from .raw_samples import Array, Index, Pool, ordered, shown
from .settings import DataSettings
from .shared_schema import ColumnSchema, DataSchema, SharedColumn, SharedSchema, reason
from .side_by_side import MAGNITUDES, lacks_most, magnitude, other_unit, spelled_apart, unlike_texts
from .silo_collection import Silos
from .silo_indices import own_indices
from .sources import read_silo, source_of_silo
from .sources.image_folders import common_format
from .splits import Rearrange
from .tables.cell_formats import one_spelling, variants
from .tables.column_refusals import TELLING
from .tables.declarations import LabelCode, OwnColumn
from .tables.encoding import all_missing, recoded, seen, some_missing
from .tables.reading_settings import TableColumn

LIKE_NAMES = "which would be sent to the server and look like names"


def own_settings(
    settings: DataSettings,
    source: str,
    *,
    target: str | None = None,
    categorical: Sequence[str] | None = None,
    numeric: Sequence[str] | None = None,
    decimal: str | None = None,
    separator: str | None = None,
    thousands: str | None = None,
    missing: Sequence[str | float] | None = None,
    label_codes: Sequence[LabelCode] | None = None,
    rename_columns: Sequence[OwnColumn] | None = None,
    groups: str | None = None,
    time: str | None = None,
) -> DataSettings:
    """Return the federation's settings with a silo's own source and overrides. Raises ConfigurationError unless a
    single silo can read that source."""
    source_of_silo(source)
    own: dict[str, Any] = {
        "target": target, "categorical": categorical and tuple(categorical), "numeric": numeric and tuple(numeric),
        "decimal": decimal, "separator": separator, "thousands": thousands, "missing": missing and tuple(missing),
        "label_codes": label_codes and tuple(label_codes),
        "rename_columns": rename_columns and tuple(rename_columns), "groups": groups, "time": time,
    }  # fmt: skip
    given = {key: value for key, value in own.items() if value is not None}
    return dataclasses.replace(settings, source=source, **given)


def own_schema(
    settings: DataSettings,
    seed: int,
    name: SiloId,
    allowed: Collection[str] | None = None,
    rearrange: Rearrange | None = None,
    check: Callable[[Sequence[int], tuple[str, ...]], None] = lambda counts, classes: None,
    magnitudes: bool = False,
    grid: Sequence[float] | None = None,
) -> DataSchema:
    """Return the schema of a silo's own data, to be sent to the server.

    `check` is called with the number of training rows per class, and the classes. `magnitudes` says whether the
    magnitudes of numbers may leave the silo. With a `grid`, the schema has the sums of a quantity's targets on it.

    Raises DataError for unusable data, and Refused for a text column that is not in `allowed` and for labels or texts
    that look like names of persons, because these texts would leave the silo.
    """
    pool = read_silo(settings, name)
    index = own_indices(pool, settings, seed, rearrange).indices["train"]
    for column in pool.table:
        if allowed is not None and column.categories is not None and column.name not in allowed:
            raise Refused(
                f"silo {name!r}, {settings.source.removeprefix('csv:')}: column {shown(column.name)} contains text "
                f"whose categories would leave the silo; {_instead(pool, column, index)}",
                "categorical",
                column.name,
            )
    check(np.bincount(pool.y[index], minlength=len(pool.classes)).tolist(), pool.classes)
    schema = _schema_of(pool, index, settings.target or "")
    if pool.value is not None and grid is not None:
        schema = dataclasses.replace(schema, sums=own_sums(pool.value[index], settings, grid))
    return schema if magnitudes else schema.without_magnitudes()


def _instead(pool: Pool, column: TableColumn, index: Index) -> str:
    """Return the remedy for a column whose categories the silo does not allow to leave it."""
    left_out = f"remove the column with {shown(column.name)} = false in [data.rename_columns] of silo.toml"
    (known,) = [each for each in seen(pool.table, [some_rows(pool.x, index)]) if each.name == column.name]
    if _like_names(known.categories or (), index):
        return f"{left_out}; naming the column in categorical would not help, because its texts look like names"
    return f"{left_out}; or name the column in categorical, in [data] of silo.toml, to allow its categories to leave"


def _like_names(texts: Sequence[str], index: Index) -> bool:
    """Return whether there are so many distinct texts in the training rows that they may be names."""
    return len(texts) > max(TELLING, len(index) / 2)


def _schema_of(pool: Pool, index: Index, target: str) -> DataSchema:
    # The server names the column to predict, unless the silo does.
    if _like_names(pool.classes, index):
        raise Refused(
            f"{pool.origin or pool.domain}: {len(index)} rows have {len(pool.classes)} labels, {LIKE_NAMES}; set "
            "data.target in silo.toml to the column to predict",
            "names",
            target,
        )
    train = some_rows(pool.x, index) if pool.table else pool.x[:0]
    known = seen(pool.table, [train])
    for column in known:
        if _like_names(column.categories or (), index):
            raise Refused(
                f"{pool.origin or pool.domain}: column {shown(column.name)} has {len(column.categories or ())} texts "
                f"in {len(train)} rows, {LIKE_NAMES}; remove the column with {shown(column.name)} = false in "
                "[data.rename_columns] of silo.toml",
                "names",
                column.name,
            )
    try:
        absent = zip(all_missing(pool.x), some_missing(train), strict=True) if pool.table else ()
        columns = tuple(
            _column(column, bool(none), bool(some), [part[:, i] for part in row_parts(train)])
            for i, (column, (none, some)) in enumerate(zip(known, absent, strict=True))
        )
        return DataSchema(pool.classes, pool.x.shape[1:], columns)
    except ValidationError as error:
        raise DataError(f"silo {pool.domain!r}: {reason(error)}") from error


def _column(column: TableColumn, absent: bool, missing: bool, values: Sequence[Array]) -> ColumnSchema:
    """Return the schema of a column. `absent`: whether no row has a value; `missing`: whether a training row has no
    number."""
    if column.categories is not None:
        return ColumnSchema(column.name, "texts", column.categories)
    holds: Literal["numbers", "nothing"] = "nothing" if absent else "numbers"
    found = None if absent else magnitude(np.concatenate(values))
    return ColumnSchema(column.name, holds, missing=missing, magnitude=found)


def shared_schema(schemas: Mapping[SiloId, DataSchema], settings: DataSettings) -> SharedSchema:
    """Merge the schemas of all silos; the order of the silos does not matter. `settings` are the federation's.

    Classes and categories are the union over silos, in the order that `caveat.data.load` uses; columns are in the order
    of the first silo by name; images get the size and channels of the settings, by default 3 channels if some have 3.
    Raises DataError, naming the silos and the difference, if the schemas cannot be merged.
    """
    if not schemas:
        raise DataError("no silo has sent a schema, expected at least one")
    schemas = dict(sorted(schemas.items()))
    columns = _agreed_columns(schemas, settings)
    pools = [_empty(name, each.shape) for name, each in schemas.items()]
    image_format = common_format(pools, settings.size, settings.channels)
    images = pools[0].images
    check_normalize(images, settings.normalize)
    shape = image_format.shape(pools[0].x) if images else pools[0].x.shape[1:]
    classes = settings.classes or _agreed_classes(schemas)
    for name, schema in schemas.items():
        if settings.classes and schema.labels != settings.classes:
            own, expected = _listed(schema.labels), _listed(settings.classes)
            raise DataError(f"silo {name!r} has the classes {own}, expected those of data.classes, {expected}")
    try:
        return SharedSchema(classes, shape, settings.size, columns)
    except ValidationError as error:
        raise DataError(f"the shared schema of {', '.join(schemas)}: {reason(error)}") from error


def check_fits(shared: SharedSchema, name: SiloId, schema: DataSchema) -> None:
    """Raise DataError if a silo that joins later has a label, a column or a shape that the shared schema lacks. A
    category that the shared schema lacks becomes zeros; images get the shared size and channels."""
    labels = schema.labels if shared.target is None else ()  # the labels of a quantity become bars later
    if unknown := [label for label in labels if label not in shared.classes]:
        agreed_labels = _listed(shared.classes)
        raise DataError(f"silo {name!r} has label {unknown[0]!r}, expected one of the agreed labels {agreed_labels}")
    if shared.target is None:
        _check_order({name: schema}, shared.classes)
    agreed = {column.name: "numbers" if column.categories is None else "texts" for column in shared.columns}
    own = {column.name: column.holds for column in schema.columns}
    if differing := sorted(set(own) ^ set(agreed)):
        raise DataError(
            f"silo {name!r} and the agreed schema differ in columns {_listed(differing)}; expected the agreed columns"
        )
    for column, holds in own.items():
        if holds not in ("nothing", agreed[column]):
            raise DataError(
                f"column {column!r} contains {holds} at silo {name!r}, but the agreed schema has {agreed[column]}; "
                "name the column in data.categorical if its numbers are codes of categories"
            )
    x = _empty(name, schema.shape).x
    shape = shared.image_format.shape(x) if schema.images else x.shape[1:]
    if shape != tuple(shared.shape):
        agreed_shape = tuple(shared.shape)
        raise DataError(f"silo {name!r} has inputs of shape {x.shape[1:]}, expected the agreed shape {agreed_shape}")


def own_silos(settings: DataSettings, seed: int, name: SiloId, shared: SharedSchema) -> Silos:
    """Read one silo's own data and encode it with the shared schema. Splits and tensors are bit-identical to the result
    of `caveat.data.load` with the files of all silos. Raises DataError if the data do not fit the shared schema."""
    return silos_of(read_silo(settings, name), settings, seed, shared).silos


class OwnSilos(NamedTuple):
    """One silo with its own data, and the schema of that data, without magnitudes."""

    silos: Silos
    schema: DataSchema


def silos_of(
    pool: Pool, settings: DataSettings, seed: int, shared: SharedSchema, rearrange: Rearrange | None = None
) -> OwnSilos:
    """Make the only silo of a pool, as `own_silos` does; `rearrange` changes its splits after they are drawn."""
    check_samples([pool])
    own = own_indices(pool, settings, seed, rearrange)
    schema = _schema_of(pool, own.indices["train"], settings.target or "")
    check_fits(shared, pool.domain, schema)
    if shared.target is None:
        number = np.array([shared.classes.index(label) for label in pool.classes], dtype=np.int64)
        pool = dataclasses.replace(pool, y=number[pool.y], classes=shared.classes)
    layout = shared.layout
    for told in _lacking(shared, pool, schema):
        warnings.warn(told, DataWarning, stacklevel=2)
    # Use the shared columns, so rows to predict can have categories that the silo lacks.
    x = changed(pool.x, partial(recoded, table=pool.table, columns=layout.columns)) if pool.table else pool.x
    pool = dataclasses.replace(pool, x=x, table=layout.columns)
    # Splits are already drawn: from here on, rows that differ only in categories without training rows are equal.
    own = dataclasses.replace(own, domain=own.domain._replace(pool=pool))
    outside = read_outside(settings)
    silos = one_silo(own, shared.image_format, layout, settings, seed, outside, shared.quantity)
    return OwnSilos(silos, schema.without_magnitudes())


def _lacking(shared: SharedSchema, pool: Pool, schema: DataSchema) -> Iterator[str]:
    """Yield a sentence for each column that lacks most categories of other silos, perhaps because they are spelled in
    another way, and for each column with a different magnitude."""
    agreed = {column.name: column.categories or () for column in shared.columns}
    own = {each.name: each.own for each in pool.csv_format.declared.rename_columns}
    for column in schema.columns:
        if lacks_most(column.categories, agreed[column.name]):
            name = column.name
            yield spelled_apart(name, pool.domain, column.categories, agreed[name], own=own.get(name))
    usual = {column.name: column.magnitude for column in shared.columns}
    for column in schema.columns:
        others, mine = usual[column.name], column.magnitude
        if others is not None and mine is not None and abs(mine - others) >= MAGNITUDES:
            yield other_unit(column.name, pool.domain, mine, others, own.get(column.name))


def unlike_silos(schemas: Mapping[SiloId, DataSchema]) -> Iterator[str]:
    """Yield a sentence for the labels and for each column in which some silo has other texts, or another magnitude."""
    columns: dict[str, dict[SiloId, Sequence[str]]] = {}
    for silo, schema in sorted(schemas.items()):
        columns.setdefault("", {})[silo] = schema.labels
        for column in schema.columns:
            columns.setdefault(column.name, {})[silo] = column.categories
    for name, texts in columns.items():
        for silo in unlike_texts(texts)[:1]:
            others = {
                text for other, each in texts.items() if unlike_texts({silo: texts[silo], other: each}) for text in each
            }
            yield spelled_apart(name, silo, texts[silo], others, label=not name)
    yield from _other_magnitudes(schemas)


def _other_magnitudes(schemas: Mapping[SiloId, DataSchema]) -> Iterator[str]:
    found: dict[str, dict[SiloId, int]] = {}
    for silo, schema in sorted(schemas.items()):
        for column in schema.columns:
            if column.magnitude is not None:
                found.setdefault(column.name, {})[silo] = column.magnitude
    for name, at in found.items():
        for silo, own in at.items():
            others = [each for other, each in at.items() if other != silo]
            if others and 2 * sum(abs(own - each) >= MAGNITUDES for each in others) > len(others):
                yield other_unit(name, silo, own, median_low(others))
                break


def _agreed_classes(schemas: Mapping[SiloId, DataSchema]) -> tuple[str, ...]:
    """Return the labels of all silos, in the silos' order if all have the same labels, otherwise sorted."""
    orders = {schema.labels for schema in schemas.values()}
    classes = (
        orders.pop() if len(orders) == 1 else ordered([label for each in schemas.values() for label in each.labels])
    )
    _check_variants("labels", {name: schema.labels for name, schema in schemas.items()})
    if len(classes) < 2:
        raise DataError(f"all labels of {', '.join(schemas)} are {classes[0]!r}, expected two classes or more")
    whole = {name: all(map(_is_whole, schema.labels)) for name, schema in schemas.items()}
    if len(set(whole.values())) > 1:
        number, text = (next(name for name in whole if whole[name] is kind) for kind in (True, False))
        raise DataError(
            f"labels are numbers at silo {number!r} ({_listed(schemas[number].labels)}) and texts at silo {text!r} "
            f"({_listed(schemas[text].labels)}); expected the same name for each class at all silos"
        )
    _check_order(schemas, classes)
    return classes


def _check_order(schemas: Mapping[SiloId, DataSchema], classes: Sequence[str]) -> None:
    # All sources have labels in one order, so another order means other names, or a schema that is not from a source.
    for name, schema in schemas.items():
        if tuple(label for label in classes if label in set(schema.labels)) != tuple(schema.labels):
            raise DataError(
                f"silo {name!r} has its labels in the order {_listed(schema.labels)}, expected "
                f"{_listed(classes)}: use the same class names in the same order at all silos"
            )


def _agreed_columns(schemas: Mapping[SiloId, DataSchema], settings: DataSettings) -> tuple[SharedColumn, ...]:
    first, *others = schemas
    names = [column.name for column in schemas[first].columns]
    for other in others:
        columns = {column.name for column in schemas[other].columns}
        if bool(columns) != bool(names):
            table, none = (first, other) if names else (other, first)
            raise DataError(f"silo {table!r} has a table, but silo {none!r} does not; expected tables at all silos")
        if differing := sorted(columns ^ set(names)):
            raise DataError(
                f"silos {first!r} and {other!r} differ in columns {_listed(differing)}; expected the same columns"
            )
    named = {name: {column.name: column for column in each.columns} for name, each in schemas.items()}
    categorical = (*settings.categorical, *settings.declared.of_type("category"))
    kept = {rule.name for rule in settings.declared.dictionary if rule.values}
    return tuple(
        _agreed_column({silo: columns[name] for silo, columns in named.items()}, name in categorical, name in kept)
        for name in names
    )


def _check_variants(what: str, at: Mapping[SiloId, Sequence[str]]) -> None:
    """Raise DataError for texts of two silos that differ only in case, spaces, Unicode form or leading zeros."""
    for first, second, *_ in variants(text for texts in at.values() for text in texts):
        one, other = (next(silo for silo, texts in at.items() if text in texts) for text in (first, second))
        if one != other:
            raise DataError(
                f"{what}: {first!r} at silo {one!r} and {second!r} at silo {other!r} differ only in case, spaces, "
                "Unicode form or leading zeros; expected one spelling, declared in silo.toml (label_codes, or codes of "
                "rename_columns), or both spellings among the values of data.dictionary"
            )


def _agreed_column(at: Mapping[SiloId, ColumnSchema], categorical: bool, kept: bool) -> SharedColumn:
    holding = {kind: [silo for silo, column in at.items() if column.holds == kind] for kind in ("numbers", "texts")}
    name = next(iter(at.values())).name
    if holding["numbers"] and holding["texts"]:
        raise DataError(
            f"column {name!r} contains texts at silo {holding['texts'][0]!r} and numbers at silo "
            f"{holding['numbers'][0]!r}, expected the same at all silos; name the column in data.categorical if its "
            "numbers are codes of categories"
        )
    if holding["texts"] or categorical:
        if not kept:
            _check_variants(f"column {name!r}", {silo: column.categories for silo, column in at.items()})
        texts = [text for column in at.values() for text in column.categories]
        alike = one_spelling(texts)
        return SharedColumn(name, ordered([alike.get(text, text) for text in texts]))
    told = [column.magnitude for column in at.values() if column.magnitude is not None]
    usual = median_low(told) if len(told) > 1 else None
    return SharedColumn(name, flagged=any(column.missing for column in at.values()), magnitude=usual)


def _empty(name: SiloId, shape: Sequence[int]) -> Pool:
    """Return a pool without samples, for checks that need input shapes only."""
    # Features and token ids are treated the same here; `data.kind` distinguishes them.
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
