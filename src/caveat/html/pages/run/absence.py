"""Who was left out: silos that were asked in some rounds and not counted, and those without final figures."""

from __future__ import annotations

from dataclasses import dataclass

from ....files.run_folder import RunFolder, natural
from ....files.schema.ledger import purpose
from ....files.schema.rounds import LeftOut
from ...text import listed, percent, plain, ranges
from .sections import HtmlCell, HtmlColumn, HtmlTable, table

_MOST_ROWS = 60
_MOST_RANGES = 8
_MOST_NAMES = 12
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Absence:
    caption: str
    table: HtmlTable


def absence(run: RunFolder) -> Absence | None:
    """A row per silo, work and reason, those of most rounds if there are too many; None if nobody was left out."""
    cases: dict[tuple[str, str, str], list[int]] = {}
    for row in run.left_out:
        cases.setdefault(_case(row), []).append(row.round)
    if not cases:
        return None
    often = sorted(cases, key=lambda case: -len(set(cases[case])))[:_MOST_ROWS]
    shown = sorted(often, key=lambda case: (natural(case[0]), min(cases[case])))
    columns = [
        HtmlColumn("silo", [HtmlCell(plain(silo)) for silo, _, _ in shown], words=True),
        HtmlColumn("rounds", [HtmlCell(ranges(cases[case], _MOST_RANGES)) for case in shown], words=True),
        HtmlColumn("asked to", [HtmlCell(plain(asked)) for _, asked, _ in shown], words=True),
        HtmlColumn("why it was not counted", [HtmlCell(why) for _, _, why in shown], words=True),
    ]
    hidden = len(cases) - len(shown)
    caption = "Silos that were asked and not counted: what came of these rounds came from the others."
    if hidden:
        caption += f" Shown are the {_MOST_ROWS} cases of most rounds; {hidden:,} are not."
    return Absence(caption, table(columns))


def _case(row: LeftOut) -> tuple[str, str, str]:
    return row.silo, purpose(row.phase, row.split), plain(row.left_out, _LONGEST_REASON)


def newcomers(run: RunFolder) -> str:
    """The silos that took no part and what the federation's model is worth there, in words; empty without any."""
    return listed([f"{plain(s.name)} ({percent(s.test.accuracy)})" for s in run.newcomers], _MOST_NAMES)


def absent(run: RunFolder) -> str:
    """The silos that the final figures are without, in words; empty where there are none."""
    return listed([plain(name) for name in run.absent], _MOST_NAMES)
