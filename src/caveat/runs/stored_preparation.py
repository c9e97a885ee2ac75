"""Preparation of a run's inputs, stored in its folder, so the run predicts without its training data."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from ..core import (
    ConfigurationError,
    DataError,
    SiloId,
    check_silo_name,
)
from ..core.errors import message_of
from ..core.quantity import Quantity, restored
from ..data import Normalize, Preparation
from ..data.checks import dtype_name
from ..data.preprocessing import SequenceFormat
from ..data.series_standardization import Scaling
from ..data.silo_collection import SiloNames
from ..data.sources.image_folders import ImageFormat
from ..data.subgroups import Subgroups
from ..data.tables.declarations import NOTHING, Declared
from ..data.tables.drift_reference import NO_REFERENCE, ColumnReference, Reference
from ..data.tables.encoding import Encoder, TableLayout
from ..data.tables.reading_settings import CsvFormat, TableColumn
from ..files import read, schema, write_record

PREPARATION = "preparation.json"


def keep_preparation(folder: Path, preparation: Preparation) -> None:
    """Write the preparation of inputs."""
    write_record(folder / PREPARATION, as_record(preparation), lasting=True)


def kept_preparation(folder: Path) -> Preparation:
    """Read the preparation of a run's inputs. Raises DataError if the file is missing or damaged."""
    path = folder / PREPARATION
    return from_record(read(path, schema.PreparationFile), str(path))


def as_record(preparation: Preparation) -> schema.PreparationFile:
    """Return the contents of the file."""
    names = preparation.names
    found: dict[str, Any] = {"population": len(names)} if isinstance(names, SiloNames) else {"silos": list(names)}
    table, images, sequences = _table(preparation), _images(preparation), preparation.sequence_format
    return schema.PreparationFile.model_validate({
        "schema": schema.SCHEMA, **found, "classes": list(preparation.classes),
        "shape": list(preparation.shape), "dtype": dtype_name(preparation.dtype), "table": table, "images": images,
        "sequences": None if sequences is None else schema.SequenceRecord(**vars(sequences)),
        "scalings": {name: {"means": each.means, "scales": each.scales} for name, each in preparation.scalings.items()},
        "subgroups": None if preparation.subgroups is None else vars(preparation.subgroups),
        "target": None if preparation.target is None else dataclasses.asdict(preparation.target),
    })  # fmt: skip


def from_record(record: schema.PreparationFile, where: str) -> Preparation:
    """Return the inverse of `as_record`. Raises DataError, prefixed with `where`, for inconsistent contents."""
    for name in record.silos:
        check_silo_name(name, f"{where}: ")
    if len(set(record.silos)) < len(record.silos) or bool(record.silos) == (record.population is not None):
        raise DataError(f"{where}: silos: expected distinct names, or their number")
    images = record.images
    sequences = record.sequences
    return Preparation(
        names=record.silos if record.population is None else SiloNames(record.population),
        classes=tuple(record.classes),
        shape=tuple(record.shape),
        dtype=getattr(torch, record.dtype),
        normalize=None if images is None else Normalize(mean=tuple(images.mean), std=tuple(images.std)),
        encoders={} if record.table is None else _encoders(record.table, record, where),
        image_format=ImageFormat()
        if images is None
        else ImageFormat(images.size, images.channels, images.exif_rotation),
        sequence_format=None
        if sequences is None
        else SequenceFormat(sequences.kind, sequences.length, sequences.pad, sequences.masked, sequences.cut),
        scalings=_scalings(record, where),
        subgroups=None if record.subgroups is None else _subgroups(record.subgroups),
        target=None if record.target is None else _target(record.target, where),
    )


def _target(record: schema.QuantityRecord, where: str) -> Quantity:
    try:
        return restored(**vars(record))
    except ValueError as error:
        raise DataError(f"{where}: target: {error}") from None


def _subgroups(record: schema.SubgroupsRecord) -> Subgroups:
    return Subgroups(record.column, tuple(record.values), tuple(record.edges))


def _scalings(record: schema.PreparationFile, where: str) -> dict[SiloId, Scaling]:
    if not record.scalings:
        return {}
    sequences = record.sequences
    masked = sequences is not None and sequences.masked
    wide = {len(numbers) + masked for each in record.scalings.values() for numbers in (each.means, each.scales)}
    fits = sequences is not None and sequences.kind == "series" and wide == {record.shape[-1]}
    if not fits or set(record.scalings) != set(record.silos):
        raise DataError(f"{where}: scalings: silos, channels and input shape do not agree")
    return {name: Scaling(tuple(each.means), tuple(each.scales), masked) for name, each in record.scalings.items()}


def _images(preparation: Preparation) -> schema.ImageRecord | None:
    constants, image_format = preparation.normalize, preparation.image_format
    if constants is None:
        return None
    return schema.ImageRecord(mean=list(constants.mean), std=list(constants.std), **vars(image_format))


def _table(preparation: Preparation) -> schema.TableRecord | None:
    if not preparation.encoders:
        return None
    first = next(iter(preparation.encoders.values()))
    tables = list(dict.fromkeys(encoder.table for encoder in preparation.encoders.values()))
    number = {table: i for i, table in enumerate(tables)}
    return schema.TableRecord(
        columns=_columns(first.layout.columns),
        flagged=list(first.layout.flagged),
        separator=first.csv_format.separator,
        decimal=first.csv_format.decimal,
        declared=_declared(first.csv_format.declared),
        tables=[_columns(table) for table in tables],
        silos={
            name: schema.SiloEncoder(
                table=number[each.table],
                medians=list(each.medians),
                means=list(each.means),
                scales=list(each.scales),
                reference=_reference(each.reference),
            )
            for name, each in preparation.encoders.items()
        },
    )


def _declared(declared: Declared) -> schema.DeclaredRecord | None:
    if declared == NOTHING:
        return None
    return schema.DeclaredRecord.model_validate(json.loads(json.dumps(dataclasses.asdict(declared))))


def _known_declared(record: schema.DeclaredRecord | None, where: str) -> Declared:
    """Return the inverse of `_declared`. Raises DataError for invalid contents."""
    if record is None:
        return NOTHING
    try:
        return TypeAdapter(Declared).validate_json(record.model_dump_json(), strict=True)
    except (ValidationError, ConfigurationError) as error:
        raise DataError(f"{where}: table.declared: {message_of(error)}") from None


def _reference(reference: Reference) -> schema.ReferenceRecord | None:
    if not reference.columns:
        return None
    columns = [schema.ColumnReferenceRecord(values=list(one.values), missing=one.missing) for one in reference.columns]
    return schema.ReferenceRecord(columns=columns)


def _known_reference(record: schema.ReferenceRecord | None) -> Reference:
    if record is None:
        return NO_REFERENCE
    columns = (ColumnReference(tuple(each.values), each.missing) for each in record.columns)
    return Reference(tuple(columns))


def without_references(record: schema.PreparationFile) -> schema.PreparationFile:
    """Return the contents without values of the silos' rows."""
    value = schema.as_json(record)
    for silo in (value.get("table") or {"silos": {}})["silos"].values():
        silo.pop("reference", None)
    return schema.PreparationFile.model_validate(value)


def _columns(columns: tuple[TableColumn, ...]) -> list[schema.TableColumnRecord]:
    return [
        schema.TableColumnRecord(
            name=column.name, categories=None if column.categories is None else list(column.categories)
        )
        for column in columns
    ]


def _encoders(record: schema.TableRecord, whole: schema.PreparationFile, where: str) -> dict[SiloId, Encoder]:
    layout = TableLayout(_known(record.columns), tuple(record.flagged))
    tables = [_known(table) for table in record.tables]
    names = {column.name for column in layout.columns}
    count = sum(column.categories is None for column in layout.columns)
    fits = all({column.name for column in table} == names and len(table) == len(names) for table in tables)
    if not fits or set(record.silos) != set(whole.silos) or whole.shape != [layout.width]:
        raise DataError(f"{where}: table: columns, silos and input shape do not agree")
    encoders, declared = {}, _known_declared(record.declared, where)
    for name, each in record.silos.items():
        numbers = tuple(each.medians), tuple(each.means), tuple(each.scales)
        if {*map(len, numbers)} != {count} or each.table >= len(tables):
            raise DataError(f"{where}: table.silos.{name}: expected numbers for {count} columns, and a table")
        if each.reference is not None and len(each.reference.columns) != len(tables[each.table]):
            raise DataError(f"{where}: table.silos.{name}.reference: expected values of {len(names)} columns")
        encoders[name] = Encoder(
            tables[each.table],
            layout,
            *numbers,
            CsvFormat(record.separator, record.decimal, declared),
            _known_reference(each.reference),
        )
    return encoders


def _known(columns: list[schema.TableColumnRecord]) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(column.name, None if column.categories is None else tuple(column.categories)) for column in columns
    )
