"""What went wrong: failures, silos that were left out or lost their state, and unusual updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....core.text import listed, percent, plain, ranges
from ....files.rollback import can_go_back
from ....files.run_folder import RunFolder, natural
from ....files.schema.logs import LeftOut, purpose
from ....files.schema.small_files import Failure
from ...templates import Table, table, words

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


_LONGEST_ERROR = 600
"""Letters of an error that are shown."""


@dataclass(frozen=True)
class Failed:
    """In words: what happened, what to do, and the error itself; `command` continues the run, where one does."""

    what: str
    todo: str
    error: str
    command: str = ""


def failures(run: RunFolder) -> list[Failed]:
    """Of the run itself, or of methods beside it; empty where nothing failed."""
    own = [_failed_told(run, run.failure, "")] if run.failure else []
    return own + [
        _failed_told(run, each.failure, f"{name} beside it ") for name, each in run.beside.items() if each.failure
    ]


def _rate(run: RunFolder) -> str:
    """The learning rate that the run was given; empty where its folder does not say."""
    section = run.settings.get("training")
    found = section.get("lr") if isinstance(section, Mapping) else None
    return f"{found:g}" if isinstance(found, int | float) else ""


def _failed_told(run: RunFolder, failure: Failure, whose: str) -> Failed:
    at = f" at {plain(failure.silo)}" if failure.silo else ""
    what = f"{whose}failed in round {failure.round}{at}"
    # Where and when is said above; the error itself counts rounds of the schedule, from 0.
    error = plain(failure.error.partition(": ")[2] if failure.silo else failure.error, _LONGEST_ERROR)
    if failure.diverged:
        used = _rate(run)
        was = f", which was {used}," if used else ""
        todo = f"No model came of it. Lower training.lr{was} and begin another run; this one would fail again."
        if run.federated and can_go_back(run.path):
            todo += (
                " If a silo is the cause, leave it out: the round has not counted, and the run goes on without it, or "
                "goes back first. This lists the rounds that it can go back to:"
            )
            return Failed(f"{what}: training diverged.", todo, error, f"caveat rollback {run.path.name}")
        return Failed(f"{what}: training diverged.", todo, error)
    if failure.lost:
        todo = "Put the silo's state back from a copy and resume, or have the silo begin afresh:"
        return Failed(
            f"{what}: its private state is lost.", todo, error, f"{run.resumed} --reset {plain(failure.silo)}"
        )
    return Failed(f"{what}.", "Once what is said below is mended, this continues it:", error, run.resumed)
