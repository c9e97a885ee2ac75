"""The board as a page: Markdown, HTML with a picture per column, and a table on a terminal."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..analysis.statistics import Interval
from ..core.text import minus, signed
from ..files import write_bytes
from ..html import svg
from ..html.diagrams import Dot, dot_plot, dots, lay_out, named
from ..html.svg import Chart
from ..html.templates import Table, column, render, table, words
from ..terminal.tables import Heading, TextTable, text_table
from .board import Board, BoardRow, Decided
from .cell_metrics import RISK
from .rule import MOST_LOST, RULE, chosen_default, recommendations


class Shown(NamedTuple):
    """A column of the board."""

    key: str
    head: str
    help: str
    signed: bool = False
    digits: int = 1


COLUMNS = (
    Shown("accuracy", "accuracy", "percentage points above training alone at each silo", True),
    Shown("nll", "NLL", "improvement over the reference in percent", True),
    Shown("augrc", "AUGRC", "improvement over the reference in percent", True),
    Shown("new", "new classes", "percent of inputs of new classes that raise an alarm", digits=0),
    Shown("far", "far inputs", "percent of inputs with strong noise or from other data that raise an alarm", digits=0),
    Shown("time", "time", "time of training and predictions, as a multiple of the reference's"),
)
FOLDED = (
    Shown("traffic", "traffic", "bytes without those of evaluations, as a multiple of the reference's"),
    Shown("own", "own inputs", "percent of the silos' own test inputs that raise an alarm"),
    Shown("near", "near inputs", "percent of shifted inputs of known classes that raise an alarm", digits=0),
    Shown("error_auroc", "AUROC of errors", "in percent, as a mean over silos", digits=0),
)


ABSENT = "\N{EN DASH}"
COUNTS = "won / lost / undecided"


def written(shown: Shown, value: Interval, interval: bool = True) -> str:
    """Return an estimate with its interval; a dash if there is none."""
    if math.isnan(value.mean):
        return ABSENT
    write: Callable[[str], str] = signed if shown.signed else minus
    mean, low, high = (write(f"{each:.{shown.digits}f}") for each in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]" if interval and value.low < value.high else mean


def ordered(board: Board) -> list[BoardRow]:
    """Return the rows, the best NLL first; rows without a finite NLL are last."""
    return sorted(
        board.rows, key=lambda row: -row.columns["nll"].mean if row.columns["nll"].mean > -math.inf else math.inf
    )


def board_table(board: Board) -> TextTable:
    """Return the board for a terminal."""
    heads = [
        Heading("row", words=True),
        *(Heading(each.head, wraps=True) for each in COLUMNS),
        Heading("flags", words=True),
    ]
    rows = [
        (row.name, *(written(each, row.columns[each.key], interval=each.key in ("nll", "augrc")) for each in COLUMNS),
         "; ".join(_flags(row)))
        for row in ordered(board)
    ]  # fmt: skip
    return text_table(heads, rows, about(board), default(board), gap=1)


def _flags(row: BoardRow) -> list[str]:
    return [*row.flags, *([f"{row.failed} cells failed"] if row.failed else [])]


def about(board: Board) -> str:
    names, seeds = ", ".join(board.federations), ", ".join(map(str, board.seeds))
    return f"{len(board.federations)} federations ({names}), seeds {seeds}; reference {board.settings.reference}"


def default(board: Board) -> str:
    chosen, why = chosen_default(board)
    return f"By the rule for defaults: {chosen} ({why})."


def won(row: BoardRow, figure: str) -> str:
    return " / ".join(map(str, row.wins[figure]))


def contrast_cells(each: Decided) -> tuple[str, ...]:
    shown = Shown("", "", "", True)
    p = ABSENT if math.isnan(each.p) else f"{each.p:.3f}"
    return each.claim, f"{each.a} over {each.b}", each.figure, written(shown, each.improvement), p, each.verdict


CONTRAST_HEADS = ("contrast", "rows", "figure", "percent better", "p", "verdict")
NOTE = (
    "Numbers are means over federations, with 95 % intervals for other federations and seeds (a bootstrap of "
    "federations and, within them, seeds, with Student's t for their small number). Won / lost / undecided: numbers of "
    "federations on which the interval of the difference over seeds and test inputs is above 0, is below 0, or "
    "contains 0. Flags are problems that chance does not explain (at 5 %): false "
    "alarms above 5 %, calibration errors, and broken guarantees (errors among answered inputs above "
    f"{RISK:.0%}). Cells count as collapsed if their accuracy is not above the majority's. Flags count cells."
)


RECOMMENDED_HEADS = ("silos differ in", "federations", "time up to", "row", "NLL", "AUGRC", "time")
RECOMMENDED = (
    "The row with the best NLL, within the time, of the rows that are better than the reference in NLL and AUGRC (both "
    f"intervals are above 0) and lose at most {MOST_LOST:g} % on any federation; the reference if no row is. NLL and "
    "AUGRC are improvements over the reference in percent. They are optimistic, because the rows were chosen by them."
)


def recommended_cells(board: Board) -> list[tuple[str, ...]]:
    """Return the cells of the table of recommended rows."""
    shown = Shown("", "", "", True)
    return [
        (each.difference, str(each.federations), "any" if math.isinf(each.most_time) else f"{each.most_time:g}",
         each.row, written(shown, each.nll), written(shown, each.augrc), f"{each.time:.2f}")
        for each in recommendations(board)
    ]  # fmt: skip


def markdown(board: Board, command: str) -> str:
    """Return the board in Markdown."""
    shown = [*COLUMNS, *FOLDED]
    counts = [f"{figure} {COUNTS}" for figure in ("NLL", "AUGRC")]
    heads = ["row", *(each.head for each in shown), *counts, "flags"]
    rows = [
        [row.name, *(written(each, row.columns[each.key]) for each in shown), won(row, "nll"), won(row, "augrc"),
         "; ".join(_flags(row))]
        for row in ordered(board)
    ]  # fmt: skip
    decided = [contrast_cells(each) for each in board.contrasts]
    advised = recommended_cells(board)
    parts = [
        "# Leaderboard of uncertainty", f"Made by `{command}`. {about(board)}.", _pipes(heads, rows), NOTE,
        *(f"- {each.head}: {each.help}." for each in shown), f"{RULE} {default(board)}",
        *([_pipes(RECOMMENDED_HEADS, advised), RECOMMENDED] if advised else []),
        *([_pipes(CONTRAST_HEADS, decided), CONTRASTS] if decided else []),
    ]  # fmt: skip
    return "\n\n".join(parts).replace(".\n\n- ", ".\n- ").replace(f"{NOTE}\n- ", f"{NOTE}\n\n- ") + "\n"


CONTRASTS = (
    "Contrasts were fixed before the run. p-values are from the exact sign-flip test over federations, with Holm's "
    "correction over all contrasts, and intervals hold for all contrasts together. With n federations, the smallest "
    "p-value is 2 to the power 1 - n, so few federations can decide few contrasts, and fewer than six can decide none."
)


def _pipes(heads: "tuple[str, ...] | list[str]", rows: "list[list[str]] | list[tuple[str, ...]]") -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _dot(value: Interval) -> Dot:
    return Dot(value.mean) if math.isnan(value.low) else Dot(value.mean, value.low, value.high)


def picture(board: Board, shown: Shown) -> Chart | None:
    """Return a line per row: the mean and its interval, the best NLL first."""
    rows = [row for row in ordered(board) if math.isfinite(row.columns[shown.key].mean)]
    limits = svg.limits([end for row in rows for end in _dot(row.columns[shown.key]).known])
    if not rows or limits is None:
        return None
    place = lay_out([("", [row.name for row in rows])], 20, limits, right=70, most=24)
    drawn = []
    for row, y in zip(rows, place.at, strict=True):
        value = row.columns[shown.key]
        dot = _dot(value)
        note = svg.text(svg.WIDTH, y + 4, written(shown, value, interval=False), "end")
        drawn.append(
            svg.group(
                f"{row.name}: {written(shown, value)}", dots(place.frame, 0, [(dot, y)], 4.2), note, class_=svg.color(0)
            )
        )
    ticks = svg.written(svg.inner_ticks(limits), lambda v: minus(f"{v:g}"))
    label = f"{shown.head} by row, with intervals"
    return Chart(shown.head, dot_plot(place, label, ticks, shown.help, *named(place), *drawn), "")


def grids(board: Board) -> tuple[Table | None, Table | None, Table | None]:
    """Return the board, the folded columns, and the contrasts as tables of the page."""
    rows = ordered(board)
    names = [row.name for row in rows]

    def columns(some: tuple[Shown, ...]) -> list:  # type: ignore[type-arg]
        return [column(each.head, [written(each, row.columns[each.key]) for row in rows], each.help) for each in some]

    counts = [column(f"{head} {COUNTS}", [won(row, key) for row in rows]) for key, head in
              (("nll", "NLL"), ("augrc", "AUGRC"))]  # fmt: skip
    flags = words("flags", ["; ".join(_flags(row)) for row in rows])
    main = table([words("row", names), *columns(COLUMNS), flags], NOTE)
    folded = table([words("row", names), *counts, *columns(FOLDED)])
    cells = list(zip(*map(contrast_cells, board.contrasts), strict=True))
    return main, folded, table(map(words, CONTRAST_HEADS, cells), CONTRASTS) if cells else None


def write_board(board: Board, command: str) -> tuple[Path, Path]:
    """Write board.md and board.html to the board's folder; return their paths."""
    main, folded, contrasts = grids(board)
    text, page = board.folder / "board.md", board.folder / "board.html"
    write_bytes(text, markdown(board, command).encode())
    charts = [chart for each in COLUMNS if (chart := picture(board, each)) is not None]
    parts = {"about": about(board), "command": command, "rule": RULE, "default": default(board)}
    advised = (
        table(map(words, RECOMMENDED_HEADS, zip(*cells, strict=True)), RECOMMENDED)
        if (cells := recommended_cells(board))
        else None
    )
    html = render(
        "board.html.j2", **parts, advised=advised, board=main, folded=folded, contrasts=contrasts, charts=charts
    )
    write_bytes(page, html.encode())
    return text, page
