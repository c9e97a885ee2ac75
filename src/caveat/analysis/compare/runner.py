"""Execute the missing runs of a comparison, several at a time, and write its tables and its page."""

import multiprocessing
import os
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from ... import data, files
from ...config import Config
from ...core import CaveatError, ConfigurationError, DataError
from ...data import Silos
from ...engines.worker_process import end_with_parent
from ...files.schema import CURVES, SCHEMA, Summary, as_json, check_seal, grid_record, predicted, sealed
from ...html.comparison.page import render
from ...html.run.page import write_report
from ...runs.finished_run import open_run
from ...runs.progress import Progress
from ...runs.resume import resume
from ...runs.spec_file import read_run_file
from ...runs.start import check, local_run, start
from .build_record import comparison_of
from .compared_run import inputs_file
from .folder import ComparisonFolder
from .grid import Grid, PlannedRun
from .per_input import write_inputs
from .result_tables import markdown, per_run
from .tuning import KILLED

KEPT = 2
"""Number of federations whose data stay in memory for the runs that share them."""


class Runner:
    """Executes runs in forked processes, so a run that fails or is killed does not affect others."""

    def __init__(self, results: ComparisonFolder, workers: int, progress: Progress, device: str | None = None) -> None:
        """`device` overrides the device in the runs' configurations."""
        self.results, self.workers, self.progress, self.device = results, workers, progress, device
        self.silos: dict[str, Silos] = {}
        self.running: dict[BaseProcess, tuple[PlannedRun, float]] = {}
        self.finished = 0

    def prepare(self) -> None:
        """Check every method under every setting on the data of its first open seed. Raises DataError for invalid data
        and ConfigurationError for settings that do not fit the data."""
        first: dict[tuple[str, str], PlannedRun] = {}
        for run in self._waiting():
            first.setdefault((run.setting.name, run.method.name), run)
        for run in first.values():
            config = self._config(run)
            check(config, self._silos(config), self.results.place(run))
        if first:
            self._check_code()

    def _check_code(self) -> None:
        """Raise RunError if custom code differs from the code of existing runs."""
        for run in self.results.known():
            place = self.results.place(run)
            if (record := read_run_file(place)) is not None and record.code is not None:
                config = self.results.config(run, self.results.known_rounds(run))
                local_run(config, self._silos(config), place).check_code()

    def run(self) -> None:
        """Execute all runs that can start; runs that failed before are repeated."""
        for note in (self.results.folder / "runs").rglob("*.failed"):
            if note.is_file():
                note.unlink()
        self._write_missing_pages()
        total = self.results.total()
        self.finished = sum(self.results.done(run) is not None for run in self.results.known())
        self.progress.begin(self.results.grid.title, total)
        try:
            while (waiting := self._waiting()) or self.running:
                while waiting and len(self.running) < self.workers:
                    # Prefer a run whose data are in memory.
                    known = [run for run in waiting if _key(self._config(run)) in self.silos]
                    self._begin((known or waiting)[0])
                    waiting = self._waiting()
                if self.running:
                    self._wait()
        finally:
            for process in self.running:
                process.kill()
                process.join()
            self.progress.end()

    def _write_missing_pages(self) -> None:
        for run in filter(self.results.done, self.results.known()):
            place = self.results.place(run)
            if not (place / "report.html").exists():
                files.forget_parts(place)  # even if the process id has been reused
                write_report(place)
            if self._decides(run) and not inputs_file(place).exists():
                opened_run = open_run(place)
                write_inputs(opened_run, opened_run.silos)

    def _decides(self, run: PlannedRun) -> bool:
        """Return whether tables use a run; runs of tuning alone are not evaluated on test inputs."""
        return run.seed in self.results.grid.seeds

    def _waiting(self) -> list[PlannedRun]:
        running = {run.folder for run, _ in self.running.values()}
        return [run for run in self.results.open() if run.folder not in running]

    def _config(self, run: PlannedRun) -> Config:
        config = self.results.config(run, self.results.rounds(run))
        return config if self.device is None else replace(config, engine=replace(config.engine, device=self.device))

    def _begin(self, run: PlannedRun) -> None:
        self.results.check_begun(run)
        config, note = self._config(run), self.results.note_of_failure(run)
        try:
            silos = self._silos(config)
        except CaveatError as error:
            self.finished += 1
            self._leave(note, run, str(error))
            return
        context = multiprocessing.get_context("fork")  # fork shares the data without pickling
        place = self.results.place(run)
        deciding = self._decides(run)
        process = context.Process(target=_carry_out, args=(config, silos, place, note, os.getpid(), deciding))
        process.start()
        self.running[process] = run, time.perf_counter()

    def _leave(self, note: Path, run: PlannedRun, why: str) -> None:
        note.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(note, why.encode())
        self.progress.note(f"{run.title} failed: {why.splitlines()[-1]}")

    def _silos(self, config: Config) -> Silos:
        key = _key(config)
        if key not in self.silos:
            while len(self.silos) >= KEPT:
                self.silos.pop(next(iter(self.silos)))
            self.silos[key] = data.load(config.data, config.seed)
        return self.silos[key]

    def _wait(self) -> None:
        ended = wait([process.sentinel for process in self.running])
        for process in [process for process in self.running if process.sentinel in ended]:
            process.join()
            self._told(process, *self.running.pop(process))

    def _told(self, process: BaseProcess, run: PlannedRun, began: float) -> None:
        """Report the result of a run; store an error for a process that was killed."""
        note = self.results.note_of_failure(run)
        self.finished += 1
        found = self.results.done(run)
        if found is None:
            killed = f"{KILLED} with status {process.exitcode}; was it out of memory?"
            self._leave(note, run, note.read_text().strip() if note.exists() else killed)
            return
        figures: dict[str, float] = as_json(found.summary.mean) if found.summary.mean else {}
        shown = CURVES[predicted(self.results.grid.measures)]
        mean: dict[str, float] = {name: figures[name] for name in shown if name in figures}
        self.progress.round(self.finished, run.title, {**mean, "seconds": time.perf_counter() - began})


def check_folder(results: ComparisonFolder) -> None:
    """Raise ConfigurationError if the folder is not a comparison or has runs with other settings."""
    folder = results.folder
    if not (folder / "grid.json").exists() and not files.nothing_begun(folder):
        raise ConfigurationError(f"{folder} exists and is not a comparison; choose a new folder with --out")
    for run in results.known():
        results.check_begun(run)


def _key(config: Config) -> str:
    return f"{config.seed} {config.data!r}"


def _carry_out(config: Config, silos: Silos, place: Path, note: Path, parent: int, deciding: bool) -> None:
    """Execute or continue one run in its own process; store its error if it fails. If tables use the run, also store
    the test inputs' contributions to its metrics."""
    end_with_parent(parent)
    torch.set_num_threads(1)  # the parent's threads do not exist here, and OpenMP would wait for them
    try:
        if (place / files.RUN).exists():
            resume(place, silos=silos, device=config.engine.device)
        else:
            start(config, place, silos=silos)
        write_report(place)
        if deciding:
            write_inputs(open_run(place), silos)
    except Exception as error:
        text = str(error) if isinstance(error, CaveatError | OSError) else f"{type(error).__name__}: {error}"
        with suppress(CaveatError, OSError):  # with a full disk, the comparison itself fails with an error
            note.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(note, text.encode())


def compare(grid: Grid, folder: Path, workers: int, progress: Progress, device: str | None = None) -> Path:
    """Execute the missing runs of a comparison, write its tables and its page; return the path of the page.

    `device` overrides the device in the runs' configurations. Settings and data are checked before anything is
    written. After an interruption, finished runs are kept and unfinished ones continue. Raises ConfigurationError or
    DataError.
    """
    grid.check()
    results = ComparisonFolder(grid, folder)
    check_folder(results)
    runner = Runner(results, workers, progress, device)
    runner.prepare()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot create the folder {folder}: {error.strerror}") from error
    (folder / "runs").mkdir(exist_ok=True)
    with files.locked(folder / "runs"):
        files.write_json(folder / "grid.json", sealed({"schema": SCHEMA, **grid_record(grid)}))
        write(results)
        try:
            runner.run()
        finally:
            page = write(results)
    return page


def write(results: ComparisonFolder, out: Path | None = None) -> Path:
    """Write comparison.json, runs.csv, tables.md and the page from the runs so far; return the path of the page."""
    folder, record = results.folder, comparison_of(results)
    files.write_record(folder / "comparison.json", record)
    files.write_bytes(folder / "runs.csv", per_run(record).encode())
    files.write_bytes(folder / "tables.md", markdown(record).encode())
    target = out or folder / "report.html"
    files.write_bytes(target, render(files.read_comparison(folder / "comparison.json"), _summaries(results)).encode())
    return target


def _summaries(results: ComparisonFolder) -> dict[tuple[str, str], list[Summary]]:
    """Return the summaries of the finished runs, by the names of a setting and a method."""
    found: dict[tuple[str, str], list[Summary]] = {}
    for setting, method, seed in results.grid.places():
        planned = results.planned(setting, method, seed)
        if planned is not None and (done := results.done(planned)) is not None:
            found.setdefault((setting.name, method.name), []).append(done.summary)
    return found


def opened(folder: Path) -> ComparisonFolder:
    """Open the folder of a comparison. Raises DataError if it is damaged, or if runs whose results `comparison.json`
    contains were removed."""
    results, path = ComparisonFolder(grid_of(folder), folder), folder / "comparison.json"
    if path.exists():
        done = {(run.row, run.column, run.seed) for run in comparison_of(results).runs(status="done")}
        for run in files.read_comparison(path).runs(status="done"):
            if (run.row, run.column, run.seed) not in done:
                removed = f"it contains the results of a run that was removed: {run.row}, seed {run.seed}"
                raise DataError(f"{path}: {removed}; restore the run, or repeat `caveat compare` to make it again")
    return results


def lacking(folder: Path) -> str:
    """Return how many runs failed or are missing, in words; empty if none."""
    runs = files.read_comparison(folder / "comparison.json").cells
    failed, missing = (sum(run.status == status for run in runs) for status in ("failed", "missing"))
    return f"{failed} of {len(runs)} runs failed, {missing} are missing" if failed or missing else ""


def grid_of(folder: Path) -> Grid:
    """Read the grid from `grid.json`. Raises DataError if it is damaged or has another version."""
    path = folder / "grid.json"
    try:
        value = files.decoded(files.text_of(path) or "", str(path))
        files.check_version(value, str(path))
        check_seal(value, str(path))
        return TypeAdapter(Grid).validate_python(value)
    except ValidationError as error:
        raise DataError(f"{path} was not written by caveat: {error}") from error
