"""Who was left out or began afresh: silos that were not counted, are without final figures, or lost their states."""

from __future__ import annotations

from ....core.text import listed, percent, plain, ranges
from ....files.run_folder import RunFolder, natural
from ....files.schema.ledger import purpose
from ....files.schema.rounds import LeftOut
from ...tables import Table, table, words

_MOST_ROWS = 60
_MOST_RANGES = 8
_MOST_NAMES = 12
_LONGEST_REASON = 300


def absence(run: RunFolder) -> Table | None:
    """A row per silo, work and reason, those of most rounds if there are too many; None if nobody was left out."""
    cases: dict[tuple[str, str, str], list[int]] = {}
    for row in run.left_out:
        cases.setdefault(_case(row), []).append(row.round)
    often = sorted(cases, key=lambda case: -len(set(cases[case])))[:_MOST_ROWS]
    shown = sorted(often, key=lambda case: (natural(case[0]), min(cases[case])))
    hidden = len(cases) - len(shown)
    caption = "Silos that were asked and not counted: what came of these rounds came from the others."
    if hidden:
        caption += f" Shown are the {_MOST_ROWS} cases of most rounds; {hidden:,} are not."
    columns = [
        words("silo", (plain(silo) for silo, _, _ in shown)),
        words("rounds", (ranges(cases[case], _MOST_RANGES) for case in shown)),
        words("asked to", (plain(asked) for _, asked, _ in shown)),
        words("why it was not counted", (why for _, _, why in shown)),
    ]
    return table(columns, caption)


def _case(row: LeftOut) -> tuple[str, str, str]:
    return row.silo, purpose(row.phase, row.split), plain(row.left_out, _LONGEST_REASON)


def newcomers(run: RunFolder) -> str:
    """The silos that took no part and what the federation's model is worth there, in words; empty without any."""
    return listed([f"{plain(s.name)} ({percent(s.test.accuracy)})" for s in run.newcomers], _MOST_NAMES)


def absent(run: RunFolder) -> str:
    """The silos that the final figures are without, in words; empty where there are none."""
    return listed([plain(name) for name in run.absent], _MOST_NAMES)


def lacking(run: RunFolder) -> str:
    """The methods beside a finished run that have no result, in words; empty where there are none."""
    return listed([plain(name) for name in run.lacking], _MOST_NAMES)


def afresh(run: RunFolder) -> str:
    """The silos whose states were lost on the way, and when, in words; empty where there are none."""
    reset = run.summary.reset if run.summary else []
    return listed([f"{plain(each.silo)} (after round {each.round})" for each in reset], _MOST_NAMES)


def went_back(run: RunFolder) -> str:
    """To which rounds a run went back by command, in words; empty where it did not."""
    backs = run.summary.rollbacks if run.summary else []
    return listed([f"after round {each.undone} to round {each.to}" for each in backs], _MOST_NAMES)


def unlike(run: RunFolder) -> str:
    """The silos whose updates exceeded the bound on norms or were far from all others, in words; empty without any."""
    bounded, far, other = dict[str, list[int]](), dict[str, list[int]](), dict[str, list[int]]()
    for row in run.noted:
        for where, holds in (
            (bounded, row.times_bound is not None or "not finite" in row.noted),
            (far, row.times_far is not None),
            (other, "examples" in row.noted),
        ):
            if holds:
                where.setdefault(row.silo, []).append(row.round)
    kinds = ((bounded, "longer than the bound"), (far, "far from all others"), (other, "of another number of examples"))
    told = [
        f"{plain(silo)} {what} ({ranges(rounds, _MOST_RANGES)})"
        for where, what in kinds
        for silo, rounds in sorted(where.items(), key=lambda each: natural(each[0]))
    ]
    return listed(told, _MOST_NAMES)


def withdrawn(run: RunFolder) -> str:
    """The silos whose rows have left during the run, how many of which split, in words; empty where none have."""
    left = [(s.name, s.dropped) for s in (run.summary.silos if run.summary else []) if s.dropped]
    return listed(
        [f"{plain(silo)} ({', '.join(f'{split} {count:,}' for split, count in of.items())})" for silo, of in left],
        _MOST_NAMES,
    )
