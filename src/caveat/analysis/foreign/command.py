"""Carry out `caveat foreign`: train the battery's federations, or take finished runs, and measure them."""

from __future__ import annotations

import csv
import dataclasses
import io
import tomllib
from collections.abc import Sequence
from pathlib import Path

from ...config import one_of
from ...core import ConfigurationError
from ...files.atomic import write_bytes
from ...runs.configured import open_run
from ...runs.progress import Progress
from ...terminal.tables import Heading, TextTable, text_table
from ...uncertainty.familiarity import SCORE
from ..compare.command import asked, compare
from ..compare.folder import ComparisonFolder
from .battery import Row, means, measure

FEDERATIONS = Path(__file__).parent / "federations"
METHODS = Path(__file__).parent / "methods.toml"


def variants() -> dict[str, str]:
    """The methods of the battery by name, and their settings as a comparison takes them."""
    return {name: f"{name}: {sets}" for name, sets in tomllib.loads(METHODS.read_text()).items()}


def federations() -> list[str]:
    """The names of the battery's federations."""
    return sorted(path.stem for path in FEDERATIONS.glob("*.toml"))


def battery(
    names: Sequence[str],
    methods: Sequence[str],
    sets: Sequence[str],
    seeds: str,
    out: Path,
    workers: int,
    progress: Progress,
) -> list[Row]:
    """Train the named federations with each method and seed below `out`, and measure every run.

    The same call continues what was interrupted. Raises ConfigurationError for a name that there is not.
    """  # fmt: skip
    for given, known, option in ((names, federations(), "--federations"), (methods, [*variants()], "--methods")):
        for name in given:
            if name not in known:
                raise ConfigurationError(f"{option} {name}: there is no such name{one_of(name, known)}")
    prepare(out)
    rows: list[Row] = []
    for name in names:
        rows_of = [variants()[method] for method in methods]
        recipe = str(FEDERATIONS / f"{name}.toml")
        grid = asked(recipe, None, rows_of, seeds, sets, (), None, 1, None)
        compare(grid, out / name, workers, progress)
        results = ComparisonFolder(grid, out / name)
        for run in results.known():
            if results.done(run) is not None:
                found = measure(open_run(results.place(run)), name, run.seed)
                rows += [dataclasses.replace(row, method=run.method.name) for row in found]
        write(rows, out / "foreign.csv")
    return rows


def prepare(out: Path) -> None:
    """Make the folder for results. Raises ConfigurationError if that cannot be, before anything is measured."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: {error.strerror}") from error


def of_runs(folders: Sequence[Path]) -> list[Row]:
    """Measure finished runs, each of which counts as a federation of its own."""
    rows: list[Row] = []
    for folder in folders:
        run = open_run(folder)
        rows += measure(run, str(folder), int(run.summary["seed"] or 0))
    return rows


def write(rows: Sequence[Row], path: Path) -> None:
    """Write rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(Row)])
    for row in rows:
        writer.writerow(["" if value is None else value for value in dataclasses.astuple(row)])
    write_bytes(path, text.getvalue().encode())


def tables(rows: Sequence[Row]) -> list[TextTable]:
    """Per federation, a row per kind of inputs: how well each method's familiarity, and its best other score, tell."""
    found = means(rows)
    shown = []
    for federation in dict.fromkeys(row.federation for row in rows):
        methods = list(dict.fromkeys(row.method for row in rows if row.federation == federation))
        kinds = dict.fromkeys((row.inputs, row.far) for row in rows if row.federation == federation and row.score)
        cells = [
            (f"{kind}{' *' if far else ''}", *(_cell(found, federation, method, kind, far) for method in methods))
            for kind, far in kinds
        ]
        heads = [Heading("inputs", words=True, wraps=True), *(Heading(name, wraps=True) for name in methods)]
        title = f"{federation}: AUROC of unfamiliar (best other score)"
        shown.append(text_table(heads, cells, title, "* far from all that the federation knows", gap=2))
    return shown


def _cell(
    found: dict[tuple[str, str, str, bool, str], tuple[float, float, int]],
    federation: str, method: str, kind: str, far: bool,
) -> str:  # fmt: skip
    cells = {key[-1]: value[0] for key, value in found.items() if key[:4] == (federation, method, kind, far)}
    others = [value for score, value in cells.items() if score != SCORE]
    best = f" ({_short(max(others))})" if others else ""
    return f"{_short(cells[SCORE])}{best}" if SCORE in cells else best.strip()


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")
