"""The folder of a comparison: finished and failed runs, their metrics, and the values chosen by tuning."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...config import Config
from ...config.toml import toml
from ...core import ConfigurationError, Payload, SiloId
from ...files import FINAL, RUN, Manifest, manifest_of, read, read_payload, read_plain, read_rows
from ...files.schema import CURVES, Measure, MethodVariant, RoundRow, Sets, Setting, SiloRecord, Summary, as_json
from ...metrics import LOWER_IS_BETTER
from ...runs.spec_file import described_config, differences, read_run_file
from .grid import Grid, PlannedRun


def inputs_file(folder: Path) -> Path:
    """Return the file with every test input's contributions to a run's metrics, next to the run's folder."""
    return folder.with_name(f"{folder.name}.inputs.safetensors")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run's folder."""

    folder: Path

    @cached_property
    def _manifest(self) -> Manifest:
        return manifest_of(self.folder)

    @cached_property
    def summary(self) -> Summary:
        """The run's summary. As other properties, raises DataError if it is damaged or of another run."""
        self._manifest.check(RUN, "splits.json", "rounds.jsonl", "ledger.jsonl")
        return read(self.folder / "summary.json", Summary)

    @cached_property
    def _file(self) -> dict[str, Any]:
        """The summary as plain values, for look-ups by path."""
        return as_json(self.summary)

    @cached_property
    def splits(self) -> Any:
        """Sizes and hashes of the data."""
        self._manifest.check("splits.json")
        return read_plain(self.folder / "splits.json")

    @cached_property
    def rows(self) -> list[RoundRow]:
        """All validation rows, in the order of rounds, silos and models."""
        self._manifest.check("rounds.jsonl")
        return [row for row in read_rows(self.folder / "rounds.jsonl")[0] if row.split == "validation"]

    @property
    def inputs(self) -> Payload | None:
        """Every test input's contributions to the metrics, by silo; None if not recorded yet."""
        return self._inputs if inputs_file(self.folder).exists() else None

    @cached_property
    def _inputs(self) -> Payload:
        return read_payload(inputs_file(self.folder))

    def rows_of(self, model: str = "") -> list[RoundRow]:
        """Return a row per round and silo, for that model or, if it does not exist, the first one (the predictor)."""
        wanted = [row for row in self.rows if row.model == model] or self.rows
        first: dict[tuple[int, str], RoundRow] = {}
        for row in wanted:
            first.setdefault((row.round, row.silo), row)
        return list(first.values())

    @property
    def rounds(self) -> int:
        return self.summary.rounds_run

    @property
    def silos(self) -> list[SiloRecord]:
        """The silos that took part in training."""
        return [silo for silo in self.summary.silos if not silo.newcomer]

    def score(self, model: str = "") -> tuple[float, float]:
        """Return a model's mean accuracy, or minus a metric that is better if lower, and mean log-likelihood on
        validation data after the last round."""
        last = [row for row in self.rows_of(model) if row.round == self.rounds]
        name = self._curves[0]
        first = _mean(getattr(row, name) for row in last)
        return -first if name in LOWER_IS_BETTER else first, -_mean(row.nll for row in last)

    @property
    def _curves(self) -> tuple[str, str]:
        """The metrics that are shown over rounds."""
        target = self.summary.target
        return CURVES["classes" if target is None else "time" if target.event else "quantity"]

    def curve(self) -> list[tuple[int, float, float]]:
        """Return per round the means over silos of two metrics (`CURVES`) on validation data, as trained: without the
        final model, whose temperature is fitted, unless there is no other."""
        at: dict[int, list[RoundRow]] = {}
        rows, (first, second) = self.rows_of(), self._curves
        for row in [row for row in rows if row.phase != FINAL] or rows:
            at.setdefault(row.round, []).append(row)
        return [
            (
                number,
                _mean(getattr(row, first) for row in at[number]),
                _mean(getattr(row, second) for row in at[number]),
            )
            for number in sorted(at)
        ]

    def of_silos(self, measure: Measure) -> dict[SiloId, float]:
        """Return the metric of every silo that has it; empty for a metric of the whole run."""
        if not measure.figure:
            return {}
        path = measure.figure if "/" in measure.figure else f"test/{measure.figure}"
        found = {silo["name"]: looked_up(silo, path) for silo in self._file["silos"] if not silo.get("newcomer")}
        return {name: value for name, value in found.items() if value is not None}

    def without_inputs(self, measure: Measure) -> float | None:
        """Return the mean over silos of a metric of the distribution of all training targets, if known."""
        found = self.of_silos(replace(measure, figure=f"reference_{measure.figure}")) if measure.figure else {}
        return _mean(found.values()) if found else None

    def of_run(self, measure: Measure) -> float | None:
        """Return a metric of the whole run; None for a metric of silos, or if the run lacks it."""
        return looked_up(self._file, measure.path) if measure.path else None


def looked_up(record: Any, path: str) -> float | None:
    """Return the number at a path of keys, of list entries by `name` or `domain`, and of "*" for the first entry of a
    mapping (the first model is the one that predicts); None if it does not exist."""
    for part in path.split("/"):
        if isinstance(record, list):
            record = next((each for each in record if part in (each.get("name"), each.get("domain"))), None)
        elif isinstance(record, Mapping):
            record = next(iter(record.values()), None) if part == "*" else record.get(part)
        else:
            return None
    return float(record) if isinstance(record, int | float) else None


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values that are not None; NaN without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


KILLED = "its process ended"
"""The beginning of the error of a run whose process was killed."""


@dataclass(frozen=True)
class Tuning:
    """The tuning of a grid: finished and open trials."""

    grid: Grid
    done: Callable[[PlannedRun], FinishedRun | None]
    """Returns a run's result if it is finished."""
    failure: Callable[[PlannedRun], str | None]
    """Returns a run's error if it failed."""

    def chosen(self, method: MethodVariant, setting: Setting) -> Sets | None:
        """Return the value chosen for a method under a setting; None while trials are open, or if every trial failed.

        The choice is the best mean accuracy (or CRPS, or Brier score) on validation data; ties go to the best
        likelihood, then to the first value. A value with a failed trial is excluded; a killed process, which may have
        another cause, leaves the choice open.
        """
        if self.grid.tuning is None:
            return ()
        chosen = self._best([runs for _, runs in self.trials(method, setting)])
        if chosen is None or method.then is None:
            return chosen
        return self._best([runs for _, runs in self._refined(method, setting, chosen)])

    def _best(self, trials: Sequence[list[PlannedRun]]) -> Sets | None:
        failures = [self.failure(run) for runs in trials for run in runs if self.done(run) is None]
        if any(why is None or why.startswith(KILLED) for why in failures):
            return None
        scores = {runs[0].tuned: score for runs in trials if (score := self.score(runs))}
        return max(scores, key=lambda tuned: scores[tuned]) if scores else None

    def trials(self, method: MethodVariant, setting: Setting) -> list[tuple[Any, list[PlannedRun]]]:
        """Return every value of the plan's key so far, with its runs: the values that every method tries and, while the
        best is the smallest or the largest, one beyond it by a factor of three, as often as the plan allows."""
        found = self.grid.trials(method, setting)
        for _ in range(self.grid.tuning.extensions if self.grid.tuning else 0):
            further = self._beyond(method, setting, found)
            if further is None:
                break
            found = [*found, further]
        return found

    def _beyond(
        self, method: MethodVariant, setting: Setting, found: list[tuple[Any, list[PlannedRun]]]
    ) -> tuple[Any, list[PlannedRun]] | None:
        """Return a value beyond the best one by a factor of three, with its runs; None if the best one is not at an end
        or not known yet, or if the key does not allow such a value."""
        chosen = self._best([runs for _, runs in found])
        value = next((value for value, runs in found if runs[0].tuned == chosen), None)
        numbers = [value for value, _ in found if isinstance(value, int | float) and not isinstance(value, bool)]
        if value is None or len(numbers) < len(found) or value not in (min(numbers), max(numbers)):
            return None
        further = float(f"{value * 3 if value == max(numbers) else value / 3:.2g}")
        runs = self.grid.tries(method, setting, (self.grid.override(further),))
        return (further, runs) if further != value and _can_be(runs[0]) else None

    def _refined(self, method: MethodVariant, setting: Setting, chosen: Sets) -> list[tuple[Any, list[PlannedRun]]]:
        """Return the values of a method's own key, with their runs."""
        then = method.then
        if then is None:
            return []
        return [(v, self.grid.tries(method, setting, (*chosen, f"{then.key}={toml(v)}"))) for v in then.values]

    def tried(self, method: MethodVariant, setting: Setting) -> list[tuple[Any, list[PlannedRun]]]:
        """Return every value tried so far, with its runs."""
        found = self.trials(method, setting)
        chosen = self._best([runs for _, runs in found]) if method.then else None
        if chosen is None or method.then is None:
            return found
        return [*found, *((f"{method.then.key}={v}", runs) for v, runs in self._refined(method, setting, chosen))]

    def score(self, runs: list[PlannedRun]) -> tuple[float, float] | None:
        """Return means over runs of `FinishedRun.score`; None unless all runs are done."""
        found = [self.done(run) for run in runs]
        scores = [each.score(self.grid.judged) for each in found if each is not None]
        if len(scores) < len(runs):
            return None
        accuracies, likelihoods = zip(*scores, strict=True)
        return sum(accuracies) / len(runs), sum(likelihoods) / len(runs)


def _can_be(run: PlannedRun) -> bool:
    try:
        run.config()
    except ConfigurationError:
        return False
    return True


class ComparisonFolder:
    """The runs of a comparison in its folder. Raises ConfigurationError for runs that are not part of the grid."""

    def __init__(self, grid: Grid, folder: Path) -> None:
        self.grid, self.folder = grid, folder
        self._found: dict[tuple[Path, int | None], FinishedRun] = {}
        self._configs: dict[tuple[str, int | None], Config] = {}

    def place(self, run: PlannedRun) -> Path:
        return self.folder / run.folder

    def config(self, run: PlannedRun, rounds: int | None) -> Config:
        if (run.folder, rounds) not in self._configs:
            self._configs[run.folder, rounds] = run.config(rounds)
        return self._configs[run.folder, rounds]

    def done(self, run: PlannedRun) -> FinishedRun | None:
        """Return a planned run's result if it is finished."""
        place, rounds = self.place(run), self.known_rounds(run)
        if (place, rounds) not in self._found:
            if not (place / "summary.json").exists():
                return None
            self.check_begun(run)
            self._found[place, rounds] = FinishedRun(place)
        return self._found[place, rounds]

    def check_begun(self, run: PlannedRun) -> None:
        """Raise ConfigurationError if the folder of a planned run has a run with other settings."""
        place, rounds = self.place(run), self.known_rounds(run)
        if (record := read_run_file(place)) is None:
            return
        if rounds is None and self._follows(run):
            rounds = record.spec["method"]["rounds"]  # not known yet
        found = differences(record.spec, described_config(self.config(run, rounds), record.spec))
        if told := ", ".join(f"{each.key} = {each.was!r}, now {each.now!r}" for each in found):
            raise ConfigurationError(
                f"{place} has a run of {run.method.name} with other settings: {told}; choose a new folder with --out"
            )

    def failure(self, run: PlannedRun) -> str | None:
        """Return why a planned run failed or cannot run; None otherwise."""
        if self.done(run) is not None:
            return None
        note = self.note_of_failure(run)
        if note.is_file():
            return note.read_text().strip()
        return self._without_lead(run) if self._follows(run) else None

    def _without_lead(self, run: PlannedRun) -> str | None:
        """Return why the number of rounds of a run will never be known; None otherwise."""
        lead = self._lead(run)
        why = self.failure(lead) if lead else self.why_none(run.setting, self._leader)
        return f"its number of rounds is that of {self._leader.name}, which failed" if why else None

    def note_of_failure(self, run: PlannedRun) -> Path:
        place = self.place(run)
        return place.with_name(f"{place.name}.failed")

    @property
    def tuning(self) -> Tuning:
        """The state of tuning."""
        return Tuning(self.grid, self.done, self.failure)

    def chosen(self, method: MethodVariant, setting: Setting) -> Sets | None:
        """See `Tuning.chosen`."""
        return self.tuning.chosen(method, setting)

    def planned(self, setting: Setting, method: MethodVariant, seed: int) -> PlannedRun | None:
        """Return a run of the table; None while its tuned value is open."""
        chosen = self.chosen(method, setting)
        return None if chosen is None else self.grid.at(method, setting, seed, chosen)

    def why_none(self, setting: Setting, method: MethodVariant) -> str:
        """Return why tuning cannot choose a value; empty otherwise."""
        trials = [run for _, runs in self.tuning.tried(method, setting) for run in runs]
        failures = [why for trial in trials if (why := self.failure(trial))]
        ended = all(self.done(trial) or self.failure(trial) for trial in trials)
        return failures[0] if failures and ended else ""

    def rounds(self, run: PlannedRun) -> int | None:
        """Return the rounds of the method that a run is matched to, if any. Raises LookupError while not known."""
        if not self._follows(run):
            return None
        leader = self._lead(run)
        found = self.done(leader) if leader else None
        if found is None:
            raise LookupError(self.grid.match_rounds)
        return found.rounds

    def known_rounds(self, run: PlannedRun) -> int | None:
        """Return the rounds of the method that a run is matched to; None if there is none or it is not known yet."""
        try:
            return self.rounds(run)
        except LookupError:
            return None

    def _follows(self, run: PlannedRun) -> bool:
        return self.grid.match_rounds not in ("", run.method.name)

    @property
    def _leader(self) -> MethodVariant:
        return next(method for method in self.grid.rows if method.name == self.grid.match_rounds)

    def _lead(self, run: PlannedRun) -> PlannedRun | None:
        return self.planned(run.setting, self._leader, run.seed)

    def known(self) -> list[PlannedRun]:
        """Return every run that is known to be needed: trials, and runs of the table with a known value."""
        wanted: dict[str, PlannedRun] = {}
        for setting in self.grid.columns:
            for method in self.grid.rows:
                for _, runs in self.tuning.tried(method, setting):
                    wanted |= {run.folder: run for run in runs if run.folder not in wanted}
        for setting, method, seed in self.grid.places():
            if (chosen := self.planned(setting, method, seed)) is not None:
                wanted.setdefault(chosen.folder, chosen)
        return list(wanted.values())

    def open(self) -> list[PlannedRun]:
        """Return the runs that can start now: neither finished nor failed, and not waiting for others."""
        return [run for run in self.known() if self._can_run(run)]

    def _can_run(self, run: PlannedRun) -> bool:
        if self.done(run) is not None or self.failure(run) is not None:
            return False
        return not self._follows(run) or self.known_rounds(run) is not None

    def total(self) -> int:
        """Return the number of runs of the whole comparison that are known so far."""
        return sum(self._total(method, setting) for setting in self.grid.columns for method in self.grid.rows)

    def _total(self, method: MethodVariant, setting: Setting) -> int:
        values, tried = len(self.tuning.trials(method, setting)), len(self.grid.seeds_tried)
        more = len(method.then.values) if method.then else 0
        again = len(set(self.grid.seeds) & set(self.grid.seeds_tried))
        return (values + more) * tried + len(self.grid.seeds) - again
