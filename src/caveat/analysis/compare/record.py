"""What `comparison.json` holds: the cells of a comparison, and the tables that they make."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..._version import __version__
from ...core import DataError
from ..statistics import Interval, Values, holm, interval, mean_ranks, over_seeds, paired
from .grid import Grid, Measure, MethodRow, SettingColumn
from .results import ComparisonFolder, FinishedRun

SCHEMA = 1


def recorded(results: ComparisonFolder) -> dict[str, Any]:
    """The whole comparison as it is now, finished or not. Numbers that do not exist are None.

    Raises DataError if runs to be compared had different data.
    """
    grid = results.grid
    _check_data(results)
    tables = [_table(results, column, measure) for column in grid.columns for measure in grid.measures]
    found: dict[str, Any] = _without_nan({
        "schema": SCHEMA, "version": __version__, "title": grid.title, "command": grid.command, "about": grid.about,
        "seeds": list(grid.seeds),
        "rows": [{"name": r.name, "method": _method(grid, r), "sets": list(r.sets), "note": r.note} for r in grid.rows],
        "columns": [{"name": c.name, "recipe": c.recipe, "sets": list(c.sets)} for c in grid.columns],
        "rounds_of": grid.rounds_of,
        "tuning": _tuning(grid),
        "measures": [vars(measure) for measure in grid.measures],
        "cells": [_cell(results, *place) for place in grid.places()],
        "tables": tables,
        "paper": _paper(grid, tables),
    })  # fmt: skip
    return found


def _check_data(results: ComparisonFolder) -> None:
    first: dict[tuple[str, int], FinishedRun] = {}
    for column, row, seed in results.grid.places():
        cell = results.cell(column, row, seed)
        if cell is not None and (found := results.done(cell)) is not None:
            other = first.setdefault((column.name, seed), found)
            if other.splits != found.splits:
                raise DataError(f"{other.folder} and {found.folder} had different data; remove the older one")


def _method(grid: Grid, row: MethodRow) -> str:
    return grid.first(row, grid.columns[0]).config().method.name


def _tuning(grid: Grid) -> dict[str, Any] | None:
    if grid.tuning is None:
        return None
    return {
        "key": grid.tuning.key, "values": {row.name: list(grid.values(row)) for row in grid.rows},
        "seed": grid.seeds[0], "seeds": list(grid.seeds_tried),
        "runs": len(grid.tuning.values) * len(grid.seeds_tried),
        "by": f"accuracy{f' of the {grid.judged} model' * bool(grid.judged)} on validation data",
    }  # fmt: skip


def _cell(results: ComparisonFolder, column: SettingColumn, row: MethodRow, seed: int) -> dict[str, Any]:
    about = {"row": row.name, "column": column.name, "seed": seed, "status": "missing", "error": "", "folder": "",
             "tuned": {}, "tuning": _trials(results, column, row) if seed == results.grid.seeds[0] else []}  # fmt: skip
    cell = results.cell(column, row, seed)
    if cell is None:
        never = results.why_none(column, row)
        return about | ({"status": "failed", "error": never} if never else {})
    about |= {"folder": cell.folder, "tuned": dict(each.split("=", 1) for each in cell.tuned)}
    if why := results.failure(cell):
        return about | {"status": "failed", "error": why}
    found = results.done(cell)
    return about | ({} if found is None else {"status": "done", **_figures(results.grid, found)})


def _trials(results: ComparisonFolder, column: SettingColumn, row: MethodRow) -> list[dict[str, Any]]:
    """What tuning tried: the score is the mean accuracy on validation data."""
    return [
        {
            "value": value,
            "score": score[0] if (score := results.score(cells)) else None,
            "error": next((why for cell in cells if (why := results.failure(cell))), ""),
        }
        for value, cells in results.grid.trials(row, column)
    ]


def _figures(grid: Grid, found: FinishedRun) -> dict[str, Any]:
    per_silo = {measure.name: found.of_silos(measure) for measure in grid.measures}
    return {
        "rounds": found.rounds,
        "seconds": sum(found.summary["seconds"].values()),
        "bytes_up": found.summary["traffic"]["bytes_up"],
        "bytes_down": found.summary["traffic"]["bytes_down"],
        "silos": [
            {"name": silo["name"], "domain": silo["domain"],
             "figures": {name: values[silo["name"]] for name, values in per_silo.items() if silo["name"] in values}}
            for silo in found.silos
        ],
        "figures": {m.name: found.of_run(m) for m in grid.measures if m.path},
        "curve": found.curve(),
    }  # fmt: skip


def _table(results: ComparisonFolder, column: SettingColumn, measure: Measure) -> dict[str, Any]:
    finished = {row.name: _finished(results, column, row) for row in results.grid.rows}
    values = {name: _values(found, measure) for name, found in finished.items()}
    ranked = {name: found for name, found in values.items() if any(found.values())}
    ranks = mean_ranks(ranked, measure.higher) if measure.higher is not None and measure.figure else {}
    rows = [
        _row(results, column, row, measure, finished[row.name], values[row.name]) | {"rank": ranks.get(row.name)}
        for row in results.grid.rows
    ]
    _mark_best(rows, measure)
    return {"column": column.name, "measure": measure.name, "rows": rows, "pairs": _pairs(values)}


def _finished(results: ComparisonFolder, column: SettingColumn, row: MethodRow) -> dict[int, FinishedRun]:
    cells = {seed: results.cell(column, row, seed) for seed in results.grid.seeds}
    found = {seed: results.done(cell) for seed, cell in cells.items() if cell is not None}
    return {seed: done for seed, done in found.items() if done is not None}


def _values(finished: Mapping[int, FinishedRun], measure: Measure) -> Values:
    """Per seed and silo; a measure of the whole run counts as that of a single silo."""
    if measure.figure:
        return {seed: found.of_silos(measure) for seed, found in finished.items()}
    whole = {seed: found.of_run(measure) for seed, found in finished.items()}
    return {seed: {"": value} for seed, value in whole.items() if value is not None}


def _row(
    results: ComparisonFolder,
    column: SettingColumn,
    row: MethodRow,
    measure: Measure,
    finished: Mapping[int, FinishedRun],
    values: Values,
) -> dict[str, Any]:
    failed = sum(_cell_failed(results, column, row, seed) for seed in results.grid.seeds)
    about = {"row": row.name, "seeds": len(finished), "failed": failed, "best": False}
    if not any(values.values()):
        return about
    found = about | _bounded(interval(values), measure)
    if measure.figure:
        domains = {silo["name"]: silo["domain"] for done in finished.values() for silo in done.silos}
        found |= {"worst": _worst(values, measure), **_groups(values, domains, measure)}
    return found


def _bounded(found: Interval, measure: Measure) -> dict[str, float]:
    """An interval within what the measure can be: none is negative, and a share is at most 1."""
    return {
        "mean": found.mean,
        "low": max(found.low, 0.0),
        "high": min(found.high, 1.0 if measure.percent else math.inf),
    }


def _cell_failed(results: ComparisonFolder, column: SettingColumn, row: MethodRow, seed: int) -> bool:
    cell = results.cell(column, row, seed)
    if cell is None:
        return bool(results.why_none(column, row))
    return results.failure(cell) is not None


def _worst(values: Values, measure: Measure) -> float | None:
    """The mean over seeds of the worst silo's figure; None where neither side is worse."""
    if measure.higher is None:
        return None
    worst = min if measure.higher else max
    ends = [worst(silos.values()) for silos in values.values() if silos]
    return sum(ends) / len(ends)


def _groups(values: Values, domains: Mapping[str, str], measure: Measure) -> dict[str, Any]:
    """The same by domain, where there are several, and by silo."""
    names = list(dict.fromkeys(domains.values()))
    by_domain = {
        domain: interval({s: {k: v for k, v in silos.items() if domains[k] == domain} for s, silos in values.items()})
        for domain in names
    }
    by_silo = {
        silo: over_seeds({seed: found[silo] for seed, found in values.items() if silo in found}) for silo in domains
    }
    return {
        "domains": {name: _bounded(each, measure) for name, each in by_domain.items()} if len(names) > 1 else {},
        "silos": {name: _bounded(each, measure) for name, each in by_silo.items()},
    }


def _mark_best(rows: Sequence[dict[str, Any]], measure: Measure) -> None:
    means = [row["mean"] for row in rows if row.get("mean") is not None and not math.isnan(row["mean"])]
    if measure.higher is None or not means:
        return
    best = max(means) if measure.higher else min(means)
    for row in rows:
        row["best"] = row.get("mean") == best


def _pairs(values: Mapping[str, Values]) -> list[dict[str, Any]]:
    """Every pair of rows, on the seeds and silos that both have; p-values also as Holm corrects them."""
    names = [name for name, found in values.items() if any(found.values())]
    found = [(a, b, paired(values[a], values[b])) for b, a in itertools.combinations(names, 2)]
    corrected = holm([difference.p for _, _, difference in found])
    return [
        {"a": a, "b": b, **vars(difference), "p_holm": p}
        for (a, b, difference), p in zip(found, corrected, strict=True)
    ]


def _paper(grid: Grid, tables: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The paper's figures beside ours."""
    if (paper := grid.published) is None:
        return None
    ours = {(t["column"], t["measure"], row["row"]): row for t in tables for row in t["rows"]}
    figures = []
    for each in paper.figures:
        found = ours[each.column, each.measure, each.row]
        mean = found.get("mean")
        figures.append({
            "row": each.row, "column": each.column, "measure": each.measure, "paper": each.value, "ours": mean,
            "low": found.get("low"), "high": found.get("high"),
            "difference": None if mean is None else mean - each.value,
        })  # fmt: skip
    return {"source": paper.source, "differs": paper.differs, "claims": list(paper.claims), "figures": figures}


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
