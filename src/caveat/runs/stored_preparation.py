"""Preparation of a run's inputs, stored in its folder, so the run predicts without its training data."""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core import (
    ConfigurationError,
    Data,
    DataError,
    Decision,
    Method,
    Silo,
    SiloContext,
    SiloId,
    check_silo_name,
    seeded,
)
from ..core.errors import message_of
from ..core.quantity import Quantity, restored
from ..core.silo import SPLITS, LateData, LazyMapping
from ..data import Normalize, Preparation
from ..data.checks import dtype_name
from ..data.preprocessing import SequenceFormat
from ..data.series_standardization import Scaling
from ..data.silo_collection import SiloNames
from ..data.sources.image_folders import ImageFormat
from ..data.subgroups import Subgroups
from ..data.tables.dictionary import NOTHING, Declared
from ..data.tables.drift_reference import NO_REFERENCE, ColumnReference, Reference
from ..data.tables.encoding import Encoder, TableLayout
from ..data.tables.reading_settings import CsvFormat, TableColumn
from ..files import read, schema, write_record


def check_newcomers(
    newcomers: Collection[SiloId],
    names: Sequence[SiloId],
    method: Method,
    context: Callable[[], SiloContext],
    seed: int,
) -> None:
    """Raise ConfigurationError for newcomers that are unknown, all silos, or left without a trained model. `context`
    returns the server's context."""
    if unknown := sorted({*newcomers} - {*names}):
        shown = f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        raise ConfigurationError(
            f"federation.newcomers: no silo {unknown[0]!r}, silos: {shown}", "federation.newcomers"
        )
    if len(newcomers) == len(names):
        raise ConfigurationError(f"federation.newcomers contains all {len(names)} silos, so no silo would take part")
    if Decision.GLOBAL not in method.models and (kept := _kept(method, context(), seed)):
        raise ConfigurationError(
            f"federation.newcomers does not fit {method.name!r}: {kept[0]} stays at its silo and would be random at a "
            "newcomer; choose a method that sends silos a whole model"
        )


def _kept(method: Method, context: SiloContext, seed: int) -> list[str]:
    """Return parameters that stay at silos, except for normalization, which starts as the identity."""
    with seeded(seed, "init_server"):
        sent = method.broadcast(method.init_server(context)).get("model", {})
    # If there are several models, such as cluster models, each has a numeric prefix.
    there = {*sent, *(name.partition(".")[2] for name in sent if name.partition(".")[0].isdigit())}
    parts = [(path, part) for path, part in context.module.named_modules() if not isinstance(part, _BatchNorm)]
    names = [f"{path}.{name}".lstrip(".") for path, part in parts for name, _ in part.named_parameters(recurse=False)]
    return [name for name in names if name not in there]


@torch.no_grad()
def check_ids(module: nn.Module, x: Tensor, where: str) -> None:
    """Raise DataError for inputs (N, T) int64, N > 0, with an id that the module cannot look up."""
    if (lowest := int(x.min())) < 0:
        raise DataError(f"{where}: token id {lowest}, expected ids from 0")
    highest = x[int(x.flatten(1).amax(1).argmax())]
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    hooks = [part.register_forward_pre_hook(lambda part, given: _look_up(part, given[0], where)) for part in embeddings]
    try:
        with seeded("ids"):
            module.eval()(highest[None])
    except (IndexError, RuntimeError) as error:  # a custom table, or one_hot
        raise DataError(f"{where}: the model cannot look up the id {int(highest.max())}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _look_up(embedding: nn.Module, ids: Tensor, where: str) -> None:
    """Raise DataError unless an embedding has a row for all ids."""
    known = int(embedding.num_embeddings)  # type: ignore[arg-type]
    if ids.numel() and int(ids.max()) >= known:
        raise DataError(
            f"{where}: token id {int(ids.max())}, but the model knows ids from 0 to {known - 1}; give its "
            f"nn.{type(embedding).__name__} a row for every id, or map rare tokens to one id"
        )


PREPARATION = "preparation.json"


def late_silos(prepares: Preparation, read: Callable[[SiloId], Silo]) -> Mapping[SiloId, Silo]:
    """Return silos with known names, whose splits and targets are read on access."""

    def split_of(name: SiloId, split: str) -> Data:
        found: Data = getattr(read(name), split)
        return found

    def silo(name: SiloId) -> Silo:
        train, validation, calibration, test = (LateData.of(partial(split_of, name, split)) for split in SPLITS)
        values = LazyMapping(SPLITS[:-1] if prepares.target else (), lambda split: read(name).values[split])
        return Silo(name, "", train, validation, calibration, test, values=values)

    return LazyMapping(prepares.names, silo)


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
    """Return the same contents without values of the silos' rows."""
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
