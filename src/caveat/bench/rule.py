"""The rule that chooses the default from a board, and the rows that the board recommends.

The rule was written before any board was made; the recommendations were added when two seeds of the board existed.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from ..analysis.statistics import Interval
from ..core.text import minus
from .board import IMPROVED, Board, BoardRow, over_federations
from .federations import KNOWN
from .settings import MAJORITY, POOLED

MOST_LOST, EQUAL = 5.0, 2.0
"""Largest loss of a chosen row on one federation, and margin within which a row is equally good, both in percent."""
TIMES = (1.1, 2.0, math.inf)
"""Largest times of recommended rows, as multiples of the reference's."""
FEWEST = 3
"""Smallest number of federations with the same difference between silos for which rows are recommended."""
RULE = (
    "The rule for defaults chooses the cheapest row, except for trivial ones, that is better than the reference in "
    f"NLL and AUGRC (both intervals are above 0), or cheaper and as good (both are above {minus(f'{-EQUAL:g}')} %). "
    f"The row must lose at most {MOST_LOST:g} % on any federation, and be chosen again if any one federation is left "
    "out. Without such a row, the rule chooses the reference."
)


class Recommendation(NamedTuple):
    """The row to use if silos differ in this way and training may take this time."""

    difference: str
    """What differs between silos: "any" for all federations."""
    federations: int
    most_time: float
    """Largest time, as a multiple of the reference's."""
    row: str
    nll: Interval
    augrc: Interval
    time: float


@lru_cache(maxsize=1)
def chosen_default(board: Board) -> tuple[str, str]:
    """Return the row that the rule chooses, and why."""
    reference, chosen = board.settings.reference, cheapest(board, board.federations)
    if chosen == reference:
        return chosen, "no row is better, or as good and cheaper"
    for left_out in board.federations if len(board.federations) > 1 else ():
        again = cheapest(board, [f for f in board.federations if f != left_out])
        if again != chosen:
            return reference, f"without {left_out}, {again} would be chosen instead of {chosen}"
    return chosen, "also chosen if any one federation is left out"


def cheapest(board: Board, federations: Sequence[str]) -> str:
    """Return the cheapest row that is better than the reference, or as good and cheaper, on these federations."""
    reference = next(row for row in board.rows if row.name == board.settings.reference)
    admitted = [
        row
        for row in eligible(board, federations)
        if (low := least(row, federations)) > 0 or (_time(row) < _time(reference) and low > -EQUAL)
    ]
    return min(admitted, key=_time).name if admitted else reference.name


@lru_cache(maxsize=1)
def recommendations(board: Board) -> list[Recommendation]:
    """Return, by difference between silos and largest time, the row with the best NLL of the rows that are better than
    the reference in NLL and AUGRC; the reference if no row is."""
    known = {name: KNOWN[name].difference for name in board.federations if name in KNOWN}
    groups: dict[str, list[str]] = {"any": list(board.federations)}
    for kind in dict.fromkeys(known.values()):
        groups[kind] = [name for name in board.federations if known.get(name) == kind]
    reference = next(row for row in board.rows if row.name == board.settings.reference)
    found = []
    for difference, names in groups.items():
        better = [row for row in eligible(board, names) if least(row, names) > 0]
        for most in TIMES if len(names) >= FEWEST else ():
            rows = [row for row in better if _time(row, names) <= most]
            best = max(rows, key=lambda row: _mean(row, "nll", names).mean, default=reference)
            nll, augrc = (_mean(best, figure, names) for figure in IMPROVED)
            found.append(Recommendation(difference, len(names), most, best.name, nll, augrc, _time(best, names)))
    return found


def eligible(board: Board, federations: Sequence[str]) -> list[BoardRow]:
    """Return the rows that are not trivial, have no failed cell, and lose no federation by more than MOST_LOST."""
    trivial = (MAJORITY, POOLED, board.settings.alone.partition("/")[0])
    return [
        row
        for row in board.rows
        if row.name.partition("/")[0] not in trivial
        and not row.failed
        and all(fmean(row.improved[k].get(f, [-math.inf])) >= -MOST_LOST for k in IMPROVED for f in federations)
    ]


def least(row: BoardRow, federations: Sequence[str]) -> float:
    """Return the lower end of the interval of the improvement, the lower of NLL's and AUGRC's."""
    return min(_mean(row, figure, federations).low for figure in IMPROVED)


def _mean(row: BoardRow, figure: str, federations: Sequence[str]) -> Interval:
    return over_federations({name: row.improved[figure][name] for name in federations})


def _time(row: BoardRow, federations: Sequence[str] | None = None) -> float:
    return fmean(fmean(each) for name, each in row.times.items() if federations is None or name in federations)
