"""What a finished run of a comparison has left in its folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core import SiloId
from ...files.reading import RUN, Manifest, manifest_of, read, read_plain
from ...files.run_folder import read_rows
from ...files.schema.grid import Measure
from ...files.schema.logs import RoundRow
from ...files.schema.record import as_json
from ...files.schema.summary import SiloRecord, Summary


@dataclass(frozen=True)
class FinishedRun:
    """A finished run's folder."""

    folder: Path

    @cached_property
    def _manifest(self) -> Manifest:
        return manifest_of(self.folder)

    @cached_property
    def summary(self) -> Summary:
        """Raises DataError if it is damaged, or another run's than the files beside it, as what follows does."""
        self._manifest.check(RUN, "splits.json", "rounds.jsonl", "ledger.jsonl")
        return read(self.folder / "summary.json", Summary)

    @cached_property
    def _file(self) -> dict[str, Any]:
        """The summary as it is written, for what is asked for by a path."""
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

    def rows_of(self, model: str = "") -> list[RoundRow]:
        """A row per round and silo: of that model, or where there is no such of the first, which silos predict with."""
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
        """A model's mean accuracy on validation data after the last round, then its mean log-likelihood."""
        last = [row for row in self.rows_of(model) if row.round == self.rounds]
        return _mean(row.accuracy for row in last), -_mean(row.nll for row in last)

    def curve(self) -> list[tuple[int, float, float]]:
        """Round, and the mean over silos of accuracy and entropy on validation data."""
        at: dict[int, list[RoundRow]] = {}
        for row in self.rows_of():
            at.setdefault(row.round, []).append(row)
        return [
            (number, _mean(row.accuracy for row in at[number]), _mean(row.entropy for row in at[number]))
            for number in sorted(at)
        ]

    def of_silos(self, measure: Measure) -> dict[SiloId, float]:
        """The measure of every silo that has it; empty for a measure of the whole run."""
        if not measure.figure:
            return {}
        path = measure.figure if "/" in measure.figure else f"test/{measure.figure}"
        found = {silo["name"]: looked_up(silo, path) for silo in self._file["silos"] if not silo.get("newcomer")}
        return {name: value for name, value in found.items() if value is not None}

    def of_run(self, measure: Measure) -> float | None:
        """A measure of the whole run; None for one of silos, or where the run has none."""
        return looked_up(self._file, measure.path) if measure.path else None


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


def _mean(values: Iterable[float | None]) -> float:
    """The mean of the values that there are; NaN where there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan
