"""Batches of inputs from files, for the watch."""

from __future__ import annotations

import numpy as np

from ..core import ConfigurationError, DataError
from ..data.new_inputs import TABLES, labeled_inputs, noted_inputs
from ..data.sources.base import locate
from ..data.sources.tables import rows_of
from ..data.tables.files import read_sheet
from .served_model import WATCHED, RunModel, ServedInputs, ServedModel
from .watch import Watch


def add_file(watch: Watch, model: ServedModel, path: str, id: str | None, target: str | None) -> None:
    """Add the inputs of a file. Raises ConfigurationError for a column that it lacks, and what reading raises."""
    if not isinstance(model, RunModel):
        raise ConfigurationError("caveat watch needs a run folder; caveat serve watches an exported file")
    preparation, silo, found = model.run.preparation, model.silo, locate(str(path))
    rows, ids = None, None
    if found.suffix.lower() in TABLES and not found.is_dir() and model.encoder is not None:
        csv_format = model.encoder.csv_format
        sheet = read_sheet(found, csv_format.of(found.stem, silo).separator)
        if id is not None and id not in sheet.columns:
            raise ConfigurationError(f"--id {id}: {found} has {', '.join(sheet.columns)}")
        ids = None if id is None else [text.strip() for text in sheet.column(id)]
        if ids is not None and (empty := next((i for i, text in enumerate(ids) if not text), None)) is not None:
            raise DataError(f"{found}, line {sheet.lines[empty]}: no value of {id!r}, expected one in every row")
        rows = rows_of(sheet, model.columns, csv_format, silo)
    elif id is not None:
        raise ConfigurationError(f"--id {id}: {found} is not a table")
    labeled = None if target is None else labeled_inputs(path, preparation, silo, target)
    inputs = noted_inputs(path, preparation, silo) if labeled is None else labeled.inputs
    asked = ServedInputs(inputs.x, inputs.notes, inputs.why, inputs.subgroup, rows)
    (outputs,) = model.ask([asked])
    wrong = None
    if labeled is not None and model.promised is not None:
        y = labeled.y.numpy()
        wrong = model.promised.wrong(outputs, y[:, 0] if y.ndim == 2 else y)  # observed times, whatever the event
    watched = outputs.pop(WATCHED, outputs.get("typicality", np.zeros(0)))
    watch.add(outputs | {"typicality": watched}, asked, ids, wrong)
