"""The expected times of the missing runs of a comparison, from rehearsals."""

from dataclasses import replace
from pathlib import Path

from ... import data
from ...core.text import duration
from ...data import Silos
from ...runs.plan.estimate import plan_configured
from ...terminal.tables import Heading, TextTable, text_table
from .folder import ComparisonFolder
from .grid import Grid
from .runner import check_folder


def plan_table(grid: Grid, folder: Path, workers: int, device: str | None = None) -> TextTable:
    """Return a table of the missing runs of each row with their expected times. No file is written.

    One run per row and setting is rehearsed for a few steps; the runs with other seeds or other tuned values are
    assumed to take the same time, and an interrupted run the time of a whole run. Raises ConfigurationError for a
    folder with other settings, and CaveatError for a run that would fail.
    """
    results = ComparisonFolder(grid, folder)
    check_folder(results)
    counts, seconds = dict.fromkeys(grid.rows, 0), dict.fromkeys(grid.rows, 0.0)
    for setting in grid.columns:
        silos: Silos | None = None
        for method in grid.rows:
            if count := results.missing(method, setting):
                run = grid.first(method, setting)
                config = results.config(run, results.known_rounds(run))
                if device is not None:
                    config = replace(config, engine=replace(config.engine, device=device))
                silos = silos or data.load(config.data, config.seed)
                counts[method] += count
                seconds[method] += count * plan_configured(config, silos).seconds.most
    rows = [(each.name, str(counts[each]), duration(seconds[each])) for each in grid.rows if counts[each]]
    total = sum(seconds.values())
    caption = f"{duration(total / workers)} with {workers} workers, if there are as many free cores"
    ends = ("all", str(sum(counts.values())), duration(total))
    heads = [Heading("row", words=True, wraps=True), Heading("missing runs"), Heading("time with one worker")]
    return text_table(heads, [*rows, ends], grid.title, caption, ends=[len(rows) - 1])
