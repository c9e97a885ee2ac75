"""Check that every row and column of every table runs at the paper's width: a short round on a few inputs, no results.

CAVEAT_DATA=DIR python benchmarks/paper_scale.py [TABLE ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from caveat.analysis import reproduced_tables
from caveat.analysis.compare.grid import PlannedRun
from caveat.analysis.reproduced_tables import Scale
from caveat.config import Config
from caveat.core import CaveatError
from caveat.files.schema import MethodVariant, Setting
from caveat.runs.start import start

ROUND = ("rounds=1", "training.batch_size=16", "uncertainty.mc_samples=2", "evaluation.every=1")
FEW = {"samples_per_silo": 60, "test_per_silo": 20}


def short(row: MethodVariant, column: Setting, tuned: tuple[str, ...]) -> Config:
    """The configuration of a row in a column, but for how much and how long."""
    planned = PlannedRun(row, column, 0, tuned)
    found = planned.config()
    sets = [*ROUND, "training.local_steps=2" if found.training.local_steps else "training.local_epochs=1"]
    sets += ["method.iterations=2", "method.extra_rounds=1"] if found.method.name == "uefl" else []
    few = [f"data.{name}={count}" for name, count in FEW.items() if getattr(found.data, name)]
    return replace(
        planned, method=replace(row, sets=(*row.sets, *sets)), setting=replace(column, sets=(*column.sets, *few))
    ).config()


def main() -> None:
    failures = 0
    for name in sys.argv[1:] or reproduced_tables.tables():
        grid = reproduced_tables.grid(reproduced_tables.named(name), Scale.paper, (0,))
        cells = [(row, grid.columns[0]) for row in grid.rows] + [(grid.rows[-1], column) for column in grid.columns[1:]]
        for row, column in cells:
            before, said = time.perf_counter(), "ok"
            try:
                with tempfile.TemporaryDirectory() as folder:
                    start(short(row, column, (grid.override(grid.values(row)[0]),)), Path(folder) / "run")
            except CaveatError as error:
                failures, said = failures + 1, str(error)
            print(f"{name}  {column.name}  {row.name}  {time.perf_counter() - before:.0f} s  {said}", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
