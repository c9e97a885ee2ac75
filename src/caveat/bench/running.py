"""Make the cells of a board in order, several at a time."""

import inspect
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .. import api
from ..core import ConfigurationError
from ..files import locked, nothing_begun, write_bytes
from ..methods import METHODS
from ..runs.fingerprints import text_of
from ..runs.other_uncertainty import TRAINED
from ..runs.progress import Progress
from .board import Board
from .cell_files import CellPlace, cell_files, read_cell
from .federations import BoardFederation, deal
from .make_cell import make_cell
from .settings import MAJORITY, POOLED, BoardSettings

KEPT = "settings.toml"
"""The settings of a board, copied to its folder before anything runs."""


@dataclass(frozen=True)
class Bench:
    """The cells of a board, and where they are."""

    settings: BoardSettings
    federations: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    data: Path
    out: Path

    @property
    def places(self) -> list[CellPlace]:
        """All cells; cells that share silos follow each other."""
        return [CellPlace(f, m, seed) for seed in self.seeds for f in self.federations for m in self.methods]

    def missing(self) -> list[CellPlace]:
        """Return the cells that do not exist yet. Raises DataError for a damaged cell."""
        return [place for place in self.places if read_cell(self.out, place) is None]

    def board(self) -> Board:
        """Return the board of the existing cells."""
        return Board.read(self.out, self.settings, self.federations, self.methods, self.seeds)

    def check_folder(self, settings: Path) -> None:
        """Raise ConfigurationError if the folder has other settings, or another kind of files, and DataError for a
        damaged cell."""
        kept = self.out / KEPT
        if kept.exists():
            if kept.read_bytes() != settings.read_bytes():
                text = f"the settings of a board cannot change, but its {KEPT} differs from {settings}"
                raise ConfigurationError(f"--out {self.out}: {text}; name a new folder")
        elif not nothing_begun(self.out):
            raise ConfigurationError(f"--out {self.out} exists and is not a board; name a new folder")
        self.missing()

    def check(self) -> None:
        """Raise ConfigurationError for settings of missing cells that do not fit, or a method that violates the
        contract of methods."""
        todo = [place for place in self.places if not cell_files(self.out, place)[0].exists()]
        missing = {(place.federation, place.method) for place in todo}
        for name in self.federations:
            if not (methods := [method for method in self.trained if (name, method) in missing]):
                continue
            federation = self.dealt(name, self.seeds[0])
            for method in methods:
                made, model, _ = self.settings.method_of(method, name, federation.settings)
                silos = federation.pooled().silos if method == POOLED else federation.silos
                try:
                    api.check_call(silos, made, model=model, seed=self.seeds[0], uncertainty=TRAINED)
                except ConfigurationError as error:
                    raise ConfigurationError(f"row {method!r} on {name}: {error}") from None
        self._admit()

    @property
    def trained(self) -> list[str]:
        return [method for method in self.methods if method != MAJORITY]

    def _admit(self) -> None:
        """Check methods that are not built in against the contract with which built-in methods are tested.

        The manifest is the TOML file next to the file of the method.
        """
        from ..testing.contract import check_method
        from ..testing.federation import Violation

        for cls in METHODS.added:
            method: Any = cls()
            if method.name not in self.methods:
                continue
            self._same_code(method)
            manifest = Path(inspect.getfile(cls)).with_suffix(".toml")
            few = replace(method, rounds=2) if hasattr(method, "rounds") else method
            try:
                check_method(few, manifest)
            except (Violation, ConfigurationError) as error:
                raise ConfigurationError(f"--rows {method.name}: the method cannot be a row: {error}") from None

    def _same_code(self, method: Any) -> None:
        """Raise ConfigurationError if the folder has cells of an earlier version of a custom method."""
        for place in (place for place in self.places if place.method == method.name):
            if (cell := read_cell(self.out, place)) is not None and cell.code != text_of(method):
                text = f"the classes of {method.name!r} have changed since its cells were made"
                again = f"delete {self.out / 'cells' / f'*.{method.name}.*'} to make them again, or name a new folder"
                raise ConfigurationError(f"--out {self.out}: {text}; {again}")

    def dealt(self, name: str, seed: int) -> BoardFederation:
        return _dealt(name, self.data, seed, self.settings.tests)

    def make(self, workers: int, progress: Progress) -> None:
        """Make the missing cells; the same call continues after an interruption."""
        missing = self.missing()
        with locked(self.out / "cells"):
            progress.begin("the board", len(missing))
            try:
                for number, (place, seconds) in enumerate(self._made(missing, workers), 1):
                    progress.round(number, str(place), {"seconds": seconds})
            finally:
                progress.end()

    def _made(self, missing: Sequence[CellPlace], workers: int) -> Iterator[tuple[CellPlace, float]]:
        """Make cells, in other processes if there are several workers; yield each with its seconds."""
        if workers == 1:
            for place in missing:
                yield place, self.make_one(place)
            return
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
            waiting: dict[Future[float], CellPlace] = {pool.submit(self.make_one, place): place for place in missing}
            while waiting:
                for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(done), done.result()

    def make_one(self, place: CellPlace) -> float:
        began = time.perf_counter()
        make_cell(place, self.settings, self.dealt(place.federation, place.seed), self.out)
        return time.perf_counter() - began


@lru_cache(maxsize=2)
def _dealt(name: str, folder: Path, seed: int, tests: int) -> BoardFederation:
    return deal(name, folder, seed, tests)


def keep_settings(out: Path, path: Path) -> None:
    """Copy the settings of a board to its folder."""
    try:
        (out / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: {error.strerror}") from None
    write_bytes(out / KEPT, path.read_bytes())


def data_folder(given: Path | None) -> Path | None:
    """Return the folder of the data sets, from the option or from CAVEAT_DATA."""
    named = os.environ.get("CAVEAT_DATA")
    return given or (Path(named) if named else None)
