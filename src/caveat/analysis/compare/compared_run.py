"""A finished run of a comparison: its metrics, and the file with its test inputs' contributions to them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core import Payload, SiloId
from ...files import FINAL, RUN, Manifest, manifest_of, read, read_payload, read_plain, read_rows
from ...files.schema import CURVES, Measure, RoundRow, SiloRecord, Summary, as_json
from ...metrics import LOWER_IS_BETTER


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
        """The run's summary. Like all properties, it raises DataError if a file is damaged or of another run."""
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
    """Return the mean of the values that are not None; NaN without such values."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan
