"""What the folder of a comparison holds so far: which runs are done, which failed, what tuning has chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core import SiloId
from .grid import Cell, Column, Grid, Measure, Row, Sets


@dataclass(frozen=True)
class Found:
    """A finished run's folder."""

    folder: Path

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The validation rows of what silos predict, by round; of the first model where there are several."""
        found: dict[tuple[int, str], dict[str, Any]] = {}
        with (self.folder / "rounds.jsonl").open() as file:
            for line in map(json.loads, file):
                if line.get("split") == "validation" and "left_out" not in line:
                    found.setdefault((line["round"], line["silo"]), line)
        return list(found.values())

    @property
    def rounds(self) -> int:
        return int(self.summary["rounds_run"])

    @property
    def silos(self) -> list[Mapping[str, Any]]:
        """Those that took part in training."""
        return [silo for silo in self.summary["silos"] if not silo.get("newcomer")]

    def score(self) -> tuple[float, float]:
        """Mean accuracy on validation data after the last round, then the mean negative log-likelihood, negated."""
        last = [row for row in self.rows if row["round"] == self.rounds]
        return _mean(last, "accuracy"), -_mean(last, "nll")

    def curve(self) -> list[tuple[int, float, float]]:
        """Round, and the mean over silos of accuracy and entropy on validation data."""
        rounds = sorted({row["round"] for row in self.rows})
        at = {number: [row for row in self.rows if row["round"] == number] for number in rounds}
        return [(number, _mean(rows, "accuracy"), _mean(rows, "entropy")) for number, rows in at.items()]

    def of_silos(self, measure: Measure) -> dict[SiloId, float]:
        """The measure of every silo that has it; empty for a measure of the whole run."""
        if not measure.figure:
            return {}
        path = measure.figure if "/" in measure.figure else f"test/{measure.figure}"
        found = {silo["name"]: looked_up(silo, path) for silo in self.silos}
        return {name: value for name, value in found.items() if value is not None}

    def of_run(self, measure: Measure) -> float | None:
        """A measure of the whole run; None for one of silos, or where the run has none."""
        return looked_up(self.summary, measure.path) if measure.path else None


def looked_up(record: Any, path: str) -> float | None:
    """The number at a path of keys, of entries of lists by `name` or `domain`, and of "*" for the first of a mapping,
    as of the first model, which is the one that silos predict with; None where there is none.
    """
    for part in path.split("/"):
        if isinstance(record, list):
            record = next((each for each in record if part in (each.get("name"), each.get("domain"))), None)
        elif isinstance(record, Mapping):
            record = next(iter(record.values()), None) if part == "*" else record.get(part)
        else:
            return None
    return float(record) if isinstance(record, int | float) else None


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else float("nan")


class Results:
    """The runs of a comparison in its folder."""

    def __init__(self, grid: Grid, folder: Path) -> None:
        self.grid, self.folder = grid, folder
        self._found: dict[Path, Found] = {}

    def place(self, cell: Cell) -> Path:
        return self.folder / cell.folder

    def done(self, cell: Cell) -> Found | None:
        """The cell's run, if it is finished."""
        place = self.place(cell)
        if place not in self._found:
            if not (place / "summary.json").exists():
                return None
            self._found[place] = Found(place)
        return self._found[place]

    def failure(self, cell: Cell) -> str | None:
        """Why the cell's run failed, if it did."""
        note = self.note_of_failure(cell)
        return note.read_text().strip() if note.exists() and self.done(cell) is None else None

    def note_of_failure(self, cell: Cell) -> Path:
        place = self.place(cell)
        return place.with_name(f"{place.name}.failed")

    def chosen(self, row: Row, column: Column) -> Sets | None:
        """The value that the row keeps in the column; None while that is open, or if every trial failed.

        The best mean accuracy on validation data, then the best likelihood, then the first tried.
        """
        trials = self.grid.tried(row, column)
        if not trials:
            return ()
        if any(self.done(cell) is None and self.failure(cell) is None for cell in trials):
            return None
        scores = {cell.tuned: found.score() for cell in trials if (found := self.done(cell))}
        return max(scores, key=lambda tuned: scores[tuned]) if scores else None

    def cell(self, column: Column, row: Row, seed: int) -> Cell | None:
        """The run in a place of the table; None while tuning has not chosen."""
        chosen = self.chosen(row, column)
        return None if chosen is None else self.grid.at(row, column, seed, chosen)

    def rounds(self, cell: Cell) -> int | None:
        """How long the cell trains, if another row decides that. Raises LookupError while that one is not done."""
        lead = self.grid.rounds_of
        if not lead or cell.row.name == lead:
            return None
        row = next(row for row in self.grid.rows if row.name == lead)
        leader = self.cell(cell.column, row, cell.seed)
        found = self.done(leader) if leader else None
        if found is None:
            raise LookupError(lead)
        return found.rounds

    def open(self) -> list[Cell]:
        """What can be run now: not done, not failed, and nothing to wait for."""
        wanted: dict[str, Cell] = {}
        for column in self.grid.columns:
            for row in self.grid.rows:
                for cell in self.grid.tried(row, column):
                    wanted.setdefault(cell.folder, cell)
        for column, row, seed in self.grid.places():
            if (chosen := self.cell(column, row, seed)) is not None:
                wanted.setdefault(chosen.folder, chosen)
        return [cell for cell in wanted.values() if self._can_run(cell)]

    def _can_run(self, cell: Cell) -> bool:
        if self.done(cell) is not None or self.failure(cell) is not None:
            return False
        try:
            self.rounds(cell)
        except LookupError:
            return False
        return True

    def total(self) -> int:
        """Runs of the whole comparison."""
        trials = max((len(self.grid.values(row)) for row in self.grid.rows), default=0)
        return len(self.grid.rows) * len(self.grid.columns) * (max(trials, 1) + len(self.grid.seeds) - 1)
