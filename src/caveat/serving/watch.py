"""A watch of a served model: inputs, a table's columns and outcomes, with a state that is kept in a file.

The probability of ever raising a false alarm is at most `alarm`, for all monitors together: each monitor raises an
alarm when its evidence reaches the number of monitors divided by `alarm`. With `between`, the mean number of inputs
between false alarms is at least `between`. An input is counted once by its id, which the file contains as a keyed hash.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core import ConfigurationError, DataError
from ..data.new_inputs import TABLES, labeled_inputs, noted_inputs
from ..data.sources.base import locate
from ..data.sources.tables import rows_of
from ..data.tables.files import read_sheet
from ..files import record_of, write_record
from ..files.schema import AlarmRaised, WatchFile
from ..files.writing import privately
from ..uncertainty.monitoring import ColumnMonitor, Monitor, OutcomeMonitor, RankMonitor
from .served_model import WATCHED, RunModel, ServedInputs, ServedModel

MOST_IDS = 50_000
"""Number of ids, and of answers without an outcome, that are remembered; the oldest are forgotten first."""
MOST_POINTS = 200
"""Maximum number of points of the evidence over time."""
MOST_ALARMS = 100
"""Number of alarms that are remembered; the oldest are forgotten first."""
ADVICE = {
    "inputs": "compare recent inputs with those that the model was calibrated on; until the cause is known, do not "
    "rely on its guarantees; if the change is permanent, fit the model to new data (caveat join)",
    "columns": "check the unit and the source of this column; until the cause is known, do not rely on the answers",
    "outcomes": "do not rely on the guarantee of errors or intervals; calibrate the model with recent outcomes (caveat "
    "join)",
}


class Watch:
    """Monitors of a model, and their findings."""

    def __init__(self, model: ServedModel, alarm: float, between: int | None = None) -> None:
        self.model, self.alarm, self.between, self.salt = model, alarm, between, secrets.token_hex(16)
        endless = between is not None
        ranked = model.n_calibration > 0 and "typicality" in model.output_names and model.ranks_watched
        count = ranked + bool(model.known) + (model.promised is not None)
        if not count:
            raise ConfigurationError(f"silo {model.silo}: nothing to watch: no p-values, no columns and no guarantee")
        self.level = (alarm if between is None else 1 / between) / count
        """The rate of false alarms of each monitor; its inverse is the evidence that raises an alarm."""
        self.monitors: dict[str, Monitor] = {}
        if ranked:
            self.monitors["inputs"] = RankMonitor(model.n_calibration, self.level, endless=endless)
        if model.known:
            self.monitors["columns"] = ColumnMonitor(model.known, 0, endless=endless)
        if model.promised is not None:
            promised = model.promised
            self.monitors["outcomes"] = OutcomeMonitor(promised.risk, promised.ranked_among, endless=endless)
        self.ids: dict[str, None] = {}
        self.answered: dict[str, tuple[float, float]] = {}
        """The lowest and the highest right outcome of each answer without one, by a keyed hash of its id and row."""
        self.alarms: list[AlarmRaised] = []
        self.points: list[tuple[int, float]] = []
        self.repeats = self.every = 0

    def add(
        self,
        found: dict[str, NDArray[Any]],
        asked: ServedInputs,
        ids: Sequence[str] | None = None,
        wrong: Sequence[bool | None] | None = None,
        answer: str | None = None,
    ) -> None:
        """Add inputs by their outputs, ids (by default their content) and whether answers are wrong, if known; or the
        id of the `answer`, for outcomes that come later."""
        promised = self.model.promised if answer is not None else None
        right = [] if promised is None else promised.right(found).tolist()
        for i in range(len(asked)):
            content = asked.x if asked.rows is None else asked.rows
            id = np.asarray(content[i]).tobytes() if ids is None else ids[i].encode("utf-8", "backslashreplace")
            if self._repeated(id):
                self.repeats += 1
                continue
            for monitor in self.monitors.values():
                if isinstance(monitor, RankMonitor):
                    monitor.add(rank_of(float(found["typicality"][i]), monitor.n))
                elif isinstance(monitor, ColumnMonitor) and asked.rows is not None:
                    monitor.add(self._values(asked.rows[i]))
                elif isinstance(monitor, OutcomeMonitor) and wrong is not None and (error := wrong[i]) is not None:
                    monitor.add(error)
            if answer is not None and right and not math.isnan(right[i][0]):
                _remember(self.answered, self._hash(_place(answer, i)), tuple(right[i]))
            self._settle()

    def waits_for(self, answer: str, row: int) -> bool:
        """Return whether a row of an answer has no outcome yet, and its input has counted."""
        return self._hash(_place(answer, row)) in self.answered

    def add_outcome(self, answer: str, row: int, outcome: float) -> bool:
        """Add the outcome of a row of an answer; for a class, its number. Return whether it counts, which it does
        once, if the row `waits_for` it."""
        given = self.answered.pop(self._hash(_place(answer, row)), None)
        monitor = self.monitors.get("outcomes")
        if given is None or not isinstance(monitor, OutcomeMonitor):
            return False
        monitor.add(not given[0] <= outcome <= given[1])
        self._settle()
        return True

    def _settle(self) -> None:
        """Look for alarms after an input or an outcome."""
        alarmed = [monitor for name, monitor in self.monitors.items() if self._check(name, monitor)]
        self._point()
        for monitor in alarmed:
            if monitor.endless:
                monitor.begin_anew()

    def _hash(self, id: bytes) -> str:
        return hashlib.blake2b(id, key=bytes.fromhex(self.salt), digest_size=8).hexdigest()

    def _repeated(self, id: bytes) -> bool:
        """Return whether an id has occurred, and remember it."""
        known = self._hash(id)
        return known in self.ids or _remember(self.ids, known, None)

    def _values(self, row: NDArray[Any]) -> NDArray[Any]:
        """Return a raw row with NaN for missing categories."""
        texts = np.array([column.categories is not None for column in self.model.columns])
        return np.where(texts & (row == -1), np.nan, row)

    def _check(self, name: str, monitor: Monitor) -> bool:
        """Return whether a monitor raises an alarm, and remember it."""
        once = not monitor.endless and any(each.monitor == name for each in self.alarms)
        if once or monitor.evidence < 1 / self.level:
            return False
        column, change = "", 0
        if isinstance(monitor, ColumnMonitor):
            at = int(monitor.by_column.argmax())
            column, change = self.model.columns[at].name, monitor.change(at)
            column += "" if monitor.of_values(at) else " (missing values)"
        elif isinstance(monitor, RankMonitor | OutcomeMonitor):
            change = monitor.change
        found = AlarmRaised(monitor=name, at=monitor.t, since=change + 1, column=column)
        self.alarms = [*self.alarms[1 - MOST_ALARMS :], found]
        return True

    @property
    def evidence(self) -> float:
        """The largest evidence of a monitor, as a share of the evidence that raises an alarm."""
        return max(float(monitor.evidence) * self.level for monitor in self.monitors.values())

    @property
    def count(self) -> int:
        """The number of inputs that counted."""
        return max(monitor.t for monitor in self.monitors.values())

    def _point(self) -> None:
        self.every = self.every or 1
        if self.points and self.points[-1][0] == self.count:  # an outcome
            self.points[-1] = (self.count, self.evidence)
        elif self.count % self.every == 0:
            self.points.append((self.count, self.evidence))
        if len(self.points) > MOST_POINTS:
            self.points, self.every = self.points[1::2], 2 * self.every

    def record(self) -> WatchFile:
        return WatchFile(
            model=self.model.version, silo=self.model.silo, alarm=self.alarm, between=self.between,
            salt=self.salt, ids=list(self.ids), answered=dict(self.answered), repeats=self.repeats, every=self.every,
            points=self.points, alarms=self.alarms,
            monitors={name: monitor.state() for name, monitor in self.monitors.items()},
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write the state to a file for its owner. Raises RunError if it cannot be written."""
        write_record(path, self.record(), opener=privately)

    @classmethod
    def opened(cls, path: Path, model: ServedModel, alarm: float, between: int | None = None) -> Watch:
        """Return a new watch, or the one in a file. Raises DataError for the file of another model, or a damaged one,
        ConfigurationError for another rate of alarms."""
        kept = record_of(path, WatchFile)
        if kept is None:
            return cls(model, alarm, between)
        if (kept.model, kept.silo) != (model.version, model.silo):
            raise DataError(f"{path} is the state of a different model, of silo {kept.silo}; expected a new file")
        if kept.between != between or (between is None and kept.alarm != alarm):
            option = f"--alarm {kept.alarm:g}" if kept.between is None else f"--between {kept.between}"
            raise ConfigurationError(f"expected {option}, as in {path}: the alarm rate of a watch cannot change")
        watch = cls(model, kept.alarm, between)
        watch.salt, watch.ids, watch.answered = kept.salt, dict.fromkeys(kept.ids), dict(kept.answered)
        watch.alarms, watch.points = list(kept.alarms), [(int(t), float(share)) for t, share in kept.points]
        watch.repeats, watch.every = kept.repeats, kept.every
        try:
            if kept.monitors.keys() != watch.monitors.keys():
                raise ValueError(f"has monitors {', '.join(kept.monitors)}, expected {', '.join(watch.monitors)}")
            for name, monitor in watch.monitors.items():
                monitor.restore(kept.monitors[name])
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: {error}") from None
        return watch

    def mean_with(self, others: Sequence[WatchFile]) -> MeanEvidence | None:
        """Return the mean over silos of evidence, None without others. Raises what `check_others` raises."""
        if not others:
            return None
        self.check_others(others)
        every = [self.record(), *others]
        return MeanEvidence(len(every), sum(map(_evidence, every)) / len(every), 1 / self.alarm)

    def check_others(self, others: Sequence[WatchFile]) -> None:
        """Raise ConfigurationError for two states of a silo, its own included, and for a state with `between`, whose
        evidence is of another kind."""
        if others and any(each is not None for each in (self.between, *(other.between for other in others))):
            raise ConfigurationError("--with: a mean over silos needs watches with --alarm, not with --between")
        silos = [self.model.silo, *(each.silo for each in others)]
        if twice := next((silo for i, silo in enumerate(silos) if silo in silos[:i]), None):
            raise ConfigurationError(f"--with: silo {twice} has two states, expected one of each other silo")

    def page(self) -> str:
        """Return a page of the findings."""
        from ..html.watch import Found, render

        rows = [Found(name, each.t, float(each.evidence) * self.level) for name, each in self.monitors.items()]
        columns = self.monitors.get("columns")
        shares = columns.by_column * self.level if isinstance(columns, ColumnMonitor) else ()
        by_column = {each.name: float(share) for each, share in zip(self.model.columns, shares, strict=False)}
        alarms = [(each, ADVICE[each.monitor]) for each in self.alarms]
        return render(self.record(), rows, by_column, alarms)

    def lines(self) -> list[str]:
        """Return the findings, and what to do."""
        told = [
            f"{name}: {monitor.t:,} counted, evidence {float(monitor.evidence):.3g}, alarm at {1 / self.level:.3g}"
            for name, monitor in self.monitors.items()
        ]
        told += [f"{self.repeats:,} repeats were not counted"] if self.repeats else []
        for each in self.alarms:
            which = f" in column {each.column}" if each.column else ""
            told.append(
                f"ALARM of {each.monitor}{which} at input {each.at:,}, likely since input {each.since:,}: "
                f"{ADVICE[each.monitor]}"
            )
        return told if self.alarms else [*told, "no alarm: the evidence of a change is below the level of an alarm"]


class MeanEvidence(NamedTuple):
    """The mean over silos of evidence."""

    silos: int
    evidence: float
    needed: float

    @property
    def alarm(self) -> bool:
        return self.evidence >= self.needed

    @property
    def line(self) -> str:
        told = "ALARM: inputs or outcomes have changed at several silos" if self.alarm else "no alarm"
        return f"mean over {self.silos} silos: evidence {self.evidence:.3g}, alarm at {self.needed:.3g}: {told}"


def _evidence(state: WatchFile) -> float:
    """Return the mean over monitors of a silo's evidence, without bets against a bound, which hold only there."""
    found = [each["urn.wealth" if "urn.wealth" in each else "bets.wealth"] for each in state.monitors.values()]
    return float(np.mean([np.sum(each) for each in found]))


def _place(answer: str, row: int) -> bytes:
    return f"{answer} {row}".encode("utf-8", "backslashreplace")


def _remember(found: dict[str, Any], name: str, value: Any) -> bool:
    """Add a name, forget the oldest of too many, and return False."""
    found[name] = value
    if len(found) > MOST_IDS:
        del found[next(iter(found))]
    return False


def rank_of(p: float, n: int) -> int:
    """Return the rank 1 to n + 1 of a p-value among n calibration inputs."""
    return min(max(round(p * (n + 1)), 1), n + 1)


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
            raise ConfigurationError(f"--id {id}: {found} has no such column (available: {', '.join(sheet.columns)})")
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
