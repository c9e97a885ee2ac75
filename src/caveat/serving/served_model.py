"""A silo's model, from a run's folder or an ONNX file, as a function from requests to answers.

Both read rows of tables in the same way as `caveat predict`. No message contains a value of a request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import ConfigurationError, DataError, SiloId
from ..core.quantity import Quantity, restored
from ..data.sources.tables import rows_of
from ..data.tables.declarations import Declared, DictionaryColumn
from ..data.tables.drift_reference import NO_REFERENCE
from ..data.tables.encoding import Encoder, TableLayout
from ..data.tables.frames import Columns, FrameSheet
from ..data.tables.reading_settings import CsvFormat, TableColumn
from ..export.export_model import Arrays, ask_onnx_with, onnx_session
from ..export.exported_function import RawInputs, outputs
from ..export.exported_metadata import promises, recorded
from ..export.wrong_outcomes import Promised
from ..files import RUN, STATES, sum_of
from ..runs.finished_run import Run
from ..runs.fixed_size_batches import FEW, in_parts
from ..runs.initial_model import MODEL
from ..runs.stored_preparation import PREPARATION
from ..uncertainty.monitoring import KnownValues

Array = NDArray[Any]
LONGEST_CELL = 1000
LARGEST = float(np.finfo(np.float32).max)
WATCHED = "watched"
"""The output with the typicality that the watch ranks, if it is not that of the answer."""
DECIDING = (RUN, PREPARATION, MODEL, "model/model.json", STATES)
"""The files of a run that decide its answers; the last one has the hashes of the silos' states."""
MOST_REFUSALS = 20
CELL = re.compile(r"line (\d+): the value of '(.+?)', expected")


class Refusal(Exception):
    """A request that cannot be answered, with the place of each mistake: (row, column, what is expected)."""

    def __init__(self, *places: tuple[int | None, str | None, str]) -> None:
        super().__init__("; ".join(each[2] for each in places))
        self.places = places[:MOST_REFUSALS]

    @property
    def text(self) -> str:
        return "; ".join(_placed(*each) for each in self.places)


def _placed(row: int | None, column: str | None, expected: str) -> str:
    where = [f"row {row}"] if row is not None else []
    return ", ".join([*where, *([f"column {column!r}"] if column is not None else []), expected])


@dataclass(frozen=True)
class Given:
    """The content of a request before it is read: values of a table by column, or inputs."""

    count: int
    columns: Mapping[str, Sequence[Any]] | None = None
    values: Any = None
    groups: list[str] | None = None
    """The ids of inputs for the watch, which counts each id once."""


@dataclass(frozen=True)
class ServedInputs:
    """The inputs of a request."""

    x: Any
    """(N, ...) what the model takes."""
    notes: tuple[str, ...] = ()
    why: torch.Tensor | None = None
    subgroup: torch.Tensor | None = None
    rows: Array | None = None
    """(N, D) the raw rows of a table."""
    told: tuple[str, ...] = ()
    """How all rows together differ from the silo's own."""

    def __len__(self) -> int:
        return len(self.x)

    def part(self, start: int, end: int) -> ServedInputs:
        """Return some of these rows, without the findings about all rows together."""
        there = slice(start, end)
        why, subgroup = (None if each is None else each[there] for each in (self.why, self.subgroup))
        rows = None if self.rows is None else self.rows[there]
        return ServedInputs(self.x[there], self.notes[there], why, subgroup, rows)


class ServedModel:
    """A model that answers requests. Only one thread at a time may use it."""

    silo: SiloId
    classes: tuple[str, ...]
    version: str
    """SHA-256 of what decides the answers: of an ONNX file, or of a run's files `DECIDING`."""
    kind: str
    """ "images", "table", "tokens", "series" or "features"."""
    dtype: str
    shape: tuple[int, ...]
    promises: tuple[str, ...]
    n_calibration: int
    false_alarm_rate: float
    target: Quantity | None = None
    """The quantity or the time that is predicted, whose bars are the classes."""
    promised: Promised | None = None
    """What is promised about outcomes."""
    known: tuple[KnownValues, ...] = ()
    """Calibration values of a table's columns, for the watch."""
    encoder: Encoder | None = None
    output_names: tuple[str, ...] = ()
    ranks_watched: bool = True
    """Whether the p-values of one model are known, and not only those of the model that a policy chose."""

    def ask(self, asked: Sequence[ServedInputs]) -> list[Arrays]:
        """Return the outputs of several requests, asked as one batch."""
        raise NotImplementedError

    def inputs(self, values: Any) -> ServedInputs:
        """Return inputs from nested lists of numbers. Raises Refusal."""
        raise NotImplementedError

    def _of_rows(self, raw: Array, frame: Any, apart: bool = False) -> ServedInputs:
        raise NotImplementedError

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The names of the predicted values."""
        return ("label",) if self.target is None else self.target.names

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        return () if self.encoder is None else self.encoder.table

    def rows(self, columns: Mapping[str, Sequence[Any]], *, apart: bool = False) -> ServedInputs:
        """Return inputs from the values of a table's columns by name; further columns are ignored. If rows are `apart`,
        they come from several requests and are not tested together. Raises Refusal."""
        if self.encoder is None:
            raise Refusal((None, None, f"the model takes {self.kind}, not rows of a table"))
        names = {*(column.name for column in self.columns), *self._own_names}
        frame = {name: list(values) for name, values in columns.items() if name in names}
        wrong = [
            (row, name, problem)
            for name, values in frame.items()
            for row, value in enumerate(values)
            if (problem := _cell_problem(value))
        ]
        if wrong:
            raise Refusal(*wrong)
        try:
            sheet = FrameSheet(Columns(frame), self.silo, "inputs")
            raw = rows_of(sheet, self.columns, self.encoder.csv_format, self.silo)
            return self._of_rows(raw, Columns(frame), apart)
        except DataError as error:
            raise self._refused(str(error)) from None
        except (ValueError, TypeError, OverflowError, IndexError, KeyError):
            raise self._refused("") from None

    @cached_property
    def _own_names(self) -> tuple[str, ...]:
        """The silo's own names of columns."""
        declared = () if self.encoder is None else self.encoder.csv_format.of(self.silo).declared.rename_columns
        return tuple(column.own for column in declared)

    def _refused(self, text: str) -> Refusal:
        found, names = CELL.search(text), [column.name for column in self.columns]
        if found and found[2] in names:
            return Refusal((int(found[1]) - 1, found[2], "expected a finite number, or null if it is missing"))
        if (lacks := re.search(r"no column '(.+?)', expected", text)) and lacks[1] in names:
            return Refusal((None, lacks[1], "expected this column in every row, with null for a missing value"))
        return Refusal((None, None, "expected rows with the columns of the model"))

    def _array(self, values: Any) -> Array:
        """Return (N, ...) of the model's type and shape. Raises Refusal."""
        wanted = f"expected {self.dtype} (N, {', '.join(map(str, self.shape))})"
        try:
            x = np.array(values)
        except (ValueError, TypeError, OverflowError, MemoryError):
            raise Refusal((None, None, wanted)) from None
        whole = self.dtype != "float32"
        fits = x.dtype.kind in ("iu" if whole else "iuf") and x.shape[1:] == self.shape and len(x) > 0
        if fits and self.dtype == "uint8":
            fits = bool(x.min() >= 0 and x.max() <= 255)
        if fits and not whole:
            fits = bool((abs(x) <= LARGEST).all())
        if not fits:
            raise Refusal((None, None, wanted))
        return x.astype(self.dtype)


def _cell_problem(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return "" if len(value) <= LONGEST_CELL else f"expected at most {LONGEST_CELL} characters"
    if isinstance(value, (int, float)):
        return "" if abs(value) <= LARGEST else "expected a finite number"
    return "expected a number, a text or null"


def version_of(folder: Path) -> str:
    """Return the SHA-256 of the files of a run that determine its answers: runs with the same weights may differ in
    settings, calibration and columns."""
    sums = [f"{place} {sum_of(folder / place).sha256}\n" for place in DECIDING if (folder / place).exists()]
    return hashlib.sha256("".join(sums).encode()).hexdigest()


class RunModel(ServedModel):
    """A silo's model in a run's folder."""

    def __init__(self, run: Run, silo: SiloId) -> None:
        self.run, self.silo, self.raw = run, silo, RawInputs(run.preparation, silo)
        self.predict = partial(in_parts, run.experiment.predictor(silo))
        several = len(run.experiment.complete_method.models) > 1
        self.answers = partial(in_parts, run.experiment.answers(silo)) if several else None
        """Returns the answers of each model, because a policy's choice would change the distribution of p-values."""
        self.classes, self.kind, self.shape = tuple(run.preparation.classes), self.raw.kind, self.raw.shape
        self.dtype = str(self.raw.dtype).removeprefix("torch.")
        self.version = version_of(run.folder)
        self.target, self.promised = run.experiment.target(silo), Promised.of(*recorded(run.experiment, silo))
        if self.kind == "table":
            self.encoder = self.raw.encoder
            single = replace(self.encoder, reference=NO_REFERENCE)
            self.of_one_row = replace(run.preparation, encoders={silo: single})
            known = self.encoder.reference.columns
            self.known = tuple(KnownValues(each.values, each.missing) for each in known)
        with torch.no_grad():
            trial = self.predict(self.raw.prepared(self.raw.batch(1)))
        self.output_names = tuple(outputs(trial))
        self.n_calibration = int(trial.ranked_among if isinstance(trial.ranked_among, int) else trial.ranked_among[0])
        self.false_alarm_rate = trial.false_alarm_rate
        self.promises = tuple(promises(run.experiment, silo, self.output_names, exported=False))

    def inputs(self, values: Any) -> ServedInputs:
        raw = values if self.kind in ("tokens", "series") else self._array(values)
        try:
            if self.kind == "table":
                return self._of_rows(raw, None)
            return ServedInputs(self.run.preparation.noted(raw, self.silo).x)
        except (DataError, ValueError, TypeError, OverflowError):
            shape = ", ".join(map(str, self.shape))
            raise Refusal((None, None, f"expected {self.dtype} (N, {shape})")) from None

    def _of_rows(self, raw: Array, frame: Any, apart: bool = False) -> ServedInputs:
        preparation = self.run.preparation
        found = (self.of_one_row if apart else preparation).noted(raw, self.silo)
        subgroup = found.subgroup
        if preparation.subgroups is not None and frame is not None and self.encoder is not None:
            subgroup = preparation.subgroups.of_rows(frame, self.encoder)
        told = tuple(f"over all rows, column {each.name} is unlike the silo's own" for each in found.unlike_columns)
        return ServedInputs(found.x, found.notes, found.why, subgroup, raw, told)

    def ask(self, asked: Sequence[ServedInputs]) -> list[Arrays]:
        subgroup = None
        if any(each.subgroup is not None for each in asked):
            none = [torch.full((len(each),), -1) if each.subgroup is None else each.subgroup for each in asked]
            subgroup = torch.cat(none)
        x = torch.cat([each.x for each in asked])
        found = self.predict(x, subgroup)
        if any(each.why is not None for each in asked):
            fine = [torch.zeros(len(each), dtype=torch.long) if each.why is None else each.why for each in asked]
            found = found.refusing(torch.cat(fine))
        every = {name: each.numpy() for name, each in outputs(found).items()}
        if self.answers is not None and found.typicality is not None:
            first = next(iter(self.answers(x, subgroup).values()))
            every[WATCHED] = (found if first.typicality is None else first).p_values["typicality"].numpy()
        return split(every, asked)


class OnnxModel(ServedModel):
    """A silo's model in an ONNX file of `caveat export`. Raises ConfigurationError for other files."""

    def __init__(self, path: Path) -> None:
        self.session = onnx_session(path)
        self.version = hashlib.sha256(path.read_bytes()).hexdigest()
        self.output_names = tuple(output.name for output in self.session.get_outputs())
        try:
            self._read(self.session.get_modelmeta().custom_metadata_map)
        except (KeyError, ValueError, TypeError):
            text = f"{path}: expected an ONNX file written by this version of `caveat export`"
            raise ConfigurationError(text) from None

    def _read(self, about: Mapping[str, str]) -> None:
        """Read the metadata. Raises KeyError, ValueError or TypeError for the metadata of other files."""
        inputs = json.loads(about["inputs"])
        self.silo, self.classes = about["silo"], tuple(json.loads(about["classes"]))
        self.kind, self.dtype, self.shape = inputs["kind"], inputs["dtype"], tuple(inputs["shape"][1:])
        self.promises = tuple(json.loads(about["promises"]))
        if target := json.loads(about.get("target", "{}")):
            self.target = restored(**{name: value for name, value in target.items() if name != "predicts"})
        if promised := json.loads(about.get("promised", "{}")):
            self.promised = Promised(**promised)
        self.n_calibration = int(json.loads(about.get("n_calibration", "0")))
        self.false_alarm_rate = float(json.loads(about.get("false_alarm_rate", "0")))
        self.ranks_watched = int(json.loads(about["models"])) == 1
        if self.kind == "table":
            self.encoder = _encoder_of(inputs)

    def inputs(self, values: Any) -> ServedInputs:
        x = self._array(values)
        return self._of_rows(x, None) if self.kind == "table" else ServedInputs(x)

    def _of_rows(self, raw: Array, frame: Any, apart: bool = False) -> ServedInputs:
        if self.encoder is None:
            raise Refusal((None, None, "the model takes no rows"))
        checked = self.encoder.checked(raw, self.silo)
        return ServedInputs(np.ascontiguousarray(raw, np.float32), checked.notes, rows=raw)

    def ask(self, asked: Sequence[ServedInputs]) -> list[Arrays]:
        def ask(x: torch.Tensor, subgroup: torch.Tensor | None) -> dict[str, torch.Tensor]:
            found = ask_onnx_with(self.session, x.numpy())
            return {name: torch.from_numpy(each) for name, each in found.items()}

        found = in_parts(ask, torch.from_numpy(np.concatenate([each.x for each in asked])), size=FEW)
        return split({name: each.numpy() for name, each in found.items()}, asked)


def _encoder_of(inputs: Mapping[str, Any]) -> Encoder:
    """Return an encoder that reads rows as the run does, from the metadata of a file; it encodes nothing."""
    table, trained, rules = [], [], []
    for column in inputs["columns"]:
        categories = tuple(column["categories"]) if "categories" in column else None
        table.append(TableColumn(column["name"], categories))
        seen = None if categories is None else tuple(each for each in categories if each not in column["unseen"])
        trained.append(TableColumn(column["name"], seen))
        if column.keys() & {"range", "values", "missing", "unit"}:
            low_high = tuple(map(float, column["range"])) if "range" in column else None
            rules.append(
                DictionaryColumn(
                    name=column["name"], type="number" if categories is None else "category",
                    unit=column.get("unit", ""), range=low_high,  # type: ignore[arg-type]
                    values=tuple(column.get("values", ())), missing=tuple(column.get("missing", ())),
                    outside="missing" if column.get("outside") == "missing" else "refuse",
                )
            )  # fmt: skip
    csv_format = CsvFormat(declared=Declared(dictionary=tuple(rules)))
    return Encoder(tuple(table), TableLayout(tuple(trained)), (), (), (), csv_format)


def split(found: Arrays, asked: Sequence[ServedInputs]) -> list[Arrays]:
    """Split the outputs of all requests into the outputs of each request."""
    ends = np.cumsum([len(each) for each in asked])[:-1]
    parts = {name: np.split(each, ends) for name, each in found.items()}
    return [{name: each[i] for name, each in parts.items()} for i in range(len(asked))]


def open_model(place: Path, silo: SiloId | None, load: Callable[[Path], Run]) -> ServedModel:
    """Return the model of an ONNX file, or of a silo in a run's folder."""
    from ..core.errors import one_of

    if place.suffix == ".onnx":
        found: ServedModel = OnnxModel(place)
        if silo is not None and silo != found.silo:
            raise ConfigurationError(f"--silo {silo}: {place} is the model of silo {found.silo}")
        return found
    run = load(place)
    names = run.preparation.names
    if silo not in names:
        raise ConfigurationError(f"--silo {silo}: no such silo{one_of(str(silo), names)}")
    return RunModel(run, str(silo))
