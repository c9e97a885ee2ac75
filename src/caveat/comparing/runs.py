"""Carry out what a comparison still lacks: every run in a process of its own, several at a time, on shared data."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from .. import data
from ..config import Config, load
from ..core import CaveatError, ConfigurationError
from ..data import Silos
from ..experiment import proceed, start
from ..processes import outlive_nobody
from ..progress import Progress
from ..report import write_report
from ..store import replace
from .grid import Cell
from .results import Results

KEPT = 2
"""Federations whose data are kept in memory, for the runs that share them."""


class Runner:
    """Runs cells in forked processes, so that one that fails or is killed takes no other along."""

    def __init__(self, results: Results, workers: int, progress: Progress) -> None:
        self.results, self.workers, self.progress = results, workers, progress
        self.silos: dict[str, Silos] = {}
        self.running: dict[BaseProcess, tuple[Cell, float]] = {}
        self.configs: dict[tuple[str, int | None], Config] = {}
        self.finished = 0

    def prepare(self) -> None:
        """Load the first run's data. Raises DataError if they cannot be used, before anything is written."""
        if waiting := self._waiting():
            self._silos(self._config(waiting[0]))

    def run(self) -> None:
        """Until nothing is left that can be run. What failed before is tried again, once."""
        self._forget_failures()
        total = self.results.total()
        self.finished = total - self._left(total)
        self.progress.begin(self.results.grid.title, total)
        try:
            while (waiting := self._waiting()) or self.running:
                while waiting and len(self.running) < self.workers:
                    self._begin(self._next(waiting))
                    waiting = self._waiting()
                self._wait()
        finally:
            for process in self.running:
                process.kill()
                process.join()
            self.progress.end()

    def _left(self, total: int) -> int:
        places = [self.results.cell(*place) for place in self.results.grid.places()]
        grid = self.results.grid
        trials = [cell for column in grid.columns for row in grid.rows for cell in grid.tried(row, column)]
        done = {cell.folder for cell in (*places, *trials) if cell is not None and self.results.done(cell)}
        return total - len(done)

    def _forget_failures(self) -> None:
        for note in (self.results.folder / "runs").rglob("*.failed"):
            note.unlink()

    def _waiting(self) -> list[Cell]:
        running = {cell.folder for cell, _ in self.running.values()}
        return [cell for cell in self.results.open() if cell.folder not in running]

    def _next(self, waiting: list[Cell]) -> Cell:
        """One whose data are in memory, if there is one."""
        known = [cell for cell in waiting if _key(self._config(cell)) in self.silos]
        return (known or waiting)[0]

    def _config(self, cell: Cell) -> Config:
        rounds = self.results.rounds(cell)
        if (cell.folder, rounds) not in self.configs:
            self.configs[cell.folder, rounds] = cell.config(rounds)
        return self.configs[cell.folder, rounds]

    def _begin(self, cell: Cell) -> None:
        config = self._config(cell)
        silos, place = self._silos(config), self.results.place(cell)
        note = self.results.note_of_failure(cell)
        context = multiprocessing.get_context("fork")  # shares the data, and no pickle
        process = context.Process(target=_carry_out, args=(config, silos, place, note, os.getpid()))
        process.start()
        self.running[process] = cell, time.perf_counter()

    def _silos(self, config: Config) -> Silos:
        key = _key(config)
        if key not in self.silos:
            while len(self.silos) >= KEPT:
                self.silos.pop(next(iter(self.silos)))
            self.silos[key] = data.load(config.data, config.seed)
        return self.silos[key]

    def _wait(self) -> None:
        """Until at least one run has ended."""
        ended = wait([process.sentinel for process in self.running])
        for process in [process for process in self.running if process.sentinel in ended]:
            process.join()
            self._told(process, *self.running.pop(process))

    def _told(self, process: BaseProcess, cell: Cell, began: float) -> None:
        """Say what became of a run; a process that was killed could not leave a note."""
        note = self.results.note_of_failure(cell)
        self.finished += 1
        found = self.results.done(cell)
        if found is None:
            if not note.exists():
                note.parent.mkdir(parents=True, exist_ok=True)
                replace(note, f"its process ended with status {process.exitcode}; was it out of memory?".encode())
            self.progress.note(f"{cell.title} failed: {note.read_text().strip().splitlines()[-1]}")
            return
        mean = {name: found.summary["mean"][name] for name in ("accuracy", "entropy") if name in found.summary["mean"]}
        self.progress.round(self.finished, cell.title, {**mean, "seconds": time.perf_counter() - began})


def check_folder(results: Results) -> None:
    """Raises ConfigurationError if the folder holds something else, or runs of other settings, before anything runs."""
    folder = results.folder
    other = folder.exists() and not (folder / "grid.json").exists()
    if other and (not folder.is_dir() or any(path.suffix != ".part" for path in folder.iterdir())):
        raise ConfigurationError(f"{folder} exists and is not a comparison; name a new folder with --out")
    grid = results.grid
    trials = [cell for column in grid.columns for row in grid.rows for cell in grid.tried(row, column)]
    places = [results.cell(*place) for place in grid.places()]
    for cell in (*trials, *places):
        if cell is not None and (results.place(cell) / "config.toml").exists():
            _check_begun(results, cell)


def _check_begun(results: Results, cell: Cell) -> None:
    begun = load(str(results.place(cell) / "config.toml"))
    try:
        wanted = cell.config(results.rounds(cell))
    except LookupError:
        return
    if begun != wanted:
        differing = ", ".join(_differences(begun, wanted))
        raise ConfigurationError(
            f"{results.place(cell)} holds a run of {cell.row.name} with other settings: {differing}; name a new folder "
            "with --out"
        )


def _differences(begun: Any, wanted: Any) -> list[str]:
    found = []
    for name in begun.__dataclass_fields__:
        one, other = getattr(begun, name), getattr(wanted, name)
        if one != other and hasattr(one, "__dataclass_fields__") and type(one) is type(other):
            found += [f"{name}.{inner}" for inner in _differences(one, other)]
        elif one != other:
            found.append(f"{name} = {one!r}, now {other!r}")
    return found


def _key(config: Config) -> str:
    return f"{config.seed} {config.data!r}"


def _carry_out(config: Config, silos: Silos, place: Path, note: Path, parent: int) -> None:
    """Run or continue one run, in a process of its own; leave a note if it fails."""
    outlive_nobody(parent)
    torch.set_num_threads(1)  # the parent's threads did not come along, and OpenMP would wait for them
    try:
        if (place / "config.toml").exists():
            proceed(place, silos=silos)
        else:
            start(config, place, silos=silos)
        write_report(place)
    except Exception as error:
        note.parent.mkdir(parents=True, exist_ok=True)
        text = str(error) if isinstance(error, CaveatError | OSError) else f"{type(error).__name__}: {error}"
        replace(note, text.encode())
