"""The folder of a comparison: its open, finished and failed runs."""

from pathlib import Path

from ...config import Config
from ...core import ConfigurationError
from ...files.schema import MethodVariant, Sets, Setting
from ...runs.spec_file import described_config, differences, read_run_file
from .compared_run import FinishedRun
from .grid import Grid, PlannedRun
from .tuning import Tuning


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
        """Return why a planned run failed or cannot run; None if neither is so."""
        if self.done(run) is not None:
            return None
        note = self.note_of_failure(run)
        if note.is_file():
            return note.read_text().strip()
        return self._without_lead(run) if self._follows(run) else None

    def _without_lead(self, run: PlannedRun) -> str | None:
        """Return why the number of rounds of a run will never be known; None if it is known or may become known."""
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
        """Return why tuning can never choose a value; "" if it may."""
        trials = [run for _, runs in self.tuning.tried(method, setting) for run in runs]
        failures = [why for trial in trials if (why := self.failure(trial))]
        ended = all(self.done(trial) or self.failure(trial) for trial in trials)
        return failures[0] if failures and ended else ""

    def rounds(self, run: PlannedRun) -> int | None:
        """Return the rounds of the method to which a run is matched, if any. Raises LookupError while unknown."""
        if not self._follows(run):
            return None
        leader = self._lead(run)
        found = self.done(leader) if leader else None
        if found is None:
            raise LookupError(self.grid.match_rounds)
        return found.rounds

    def known_rounds(self, run: PlannedRun) -> int | None:
        """Return the rounds of the method to which a run is matched; None without such a method, or while unknown."""
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

    def missing(self, method: MethodVariant, setting: Setting) -> int:
        """Return the number of runs of a row under a setting, trials of tuning included, that are not finished."""
        known = (run for run in self.known() if (run.method, run.setting) == (method, setting))
        return self._total(method, setting) - sum(self.done(run) is not None for run in known)

    def total(self) -> int:
        """Return the number of runs of the whole comparison that are known so far."""
        return sum(self._total(method, setting) for setting in self.grid.columns for method in self.grid.rows)

    def _total(self, method: MethodVariant, setting: Setting) -> int:
        values, tried = len(self.tuning.trials(method, setting)), len(self.grid.seeds_tried)
        more = len(method.then.values) if method.then else 0
        again = len(set(self.grid.seeds) & set(self.grid.seeds_tried))
        return (values + more) * tried + len(self.grid.seeds) - again
