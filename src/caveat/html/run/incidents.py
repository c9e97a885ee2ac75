"""Incidents: failures, silos that were excluded or lost their state, and unusual updates."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ...core.text import listed, named, percent, plain, ranges
from ...files import RunFolder, can_go_back, natural
from ...files.schema import Failure, purpose
from ..templates import Table, table, words

_MOST_ROWS = 60
_MOST_RANGES = 8
_MOST_NAMES = 12
_LONGEST_REASON = 300


def absence(run: RunFolder) -> Table | None:
    """Return a row per silo, task and reason, limited to those with the most rounds; None if no silo was excluded."""
    cases: dict[tuple[str, str, str], list[int]] = {}
    for row in run.left_out:
        case = row.silo, purpose(row.phase, row.split), plain(row.left_out, _LONGEST_REASON)
        cases.setdefault(case, []).append(row.round)
    often = sorted(cases, key=lambda case: -len(set(cases[case])))[:_MOST_ROWS]
    shown = sorted(often, key=lambda case: (natural(case[0]), min(cases[case])))
    hidden = len(cases) - len(shown)
    caption = "Silos whose replies were excluded; these rounds aggregated the replies of other silos."
    if hidden:
        caption += f" The table shows the {_MOST_ROWS} cases with the most rounds; {hidden:,} are not shown."
    columns = [
        words("silo", (plain(silo) for silo, _, _ in shown)),
        words("rounds", (ranges(cases[case], _MOST_RANGES) for case in shown)),
        words("asked to", (plain(asked) for _, asked, _ in shown)),
        words("reason", (why for _, _, why in shown)),
    ]
    return table(columns, caption)


def newcomers(run: RunFolder) -> str:
    """Return the held-out silos, with the global model's accuracy there; empty without any."""
    return listed([f"{plain(s.name)} ({percent(s.test.accuracy)})" for s in run.newcomers], _MOST_NAMES)


def absent(run: RunFolder) -> str:
    """Return the silos without final metrics as text; empty if all have them."""
    return named(run.absent)


def lacking(run: RunFolder) -> str:
    """Return the baselines of a finished run that have no result; empty without any."""
    return named(run.lacking)


def afresh(run: RunFolder) -> str:
    """Return the silos that lost their state during the run, with the rounds; empty without any."""
    reset = run.summary.reset if run.summary else []
    return listed([f"{plain(each.silo)} (after round {each.round})" for each in reset], _MOST_NAMES)


def went_back(run: RunFolder) -> str:
    """Return the rollbacks of the run as text; empty without any."""
    backs = run.summary.rollbacks if run.summary else []
    return listed([f"after round {each.undone} to round {each.to}" for each in backs], _MOST_NAMES)


def unlike(run: RunFolder) -> str:
    """Return the silos whose updates exceeded the norm bound or were far from all others; empty without any."""
    bounded, far, other = dict[str, list[int]](), dict[str, list[int]](), dict[str, list[int]]()
    for row in run.noted:
        for where, holds in (
            (bounded, row.times_bound is not None or "not finite" in row.noted),
            (far, row.times_far is not None),
            (other, "examples" in row.noted),
        ):
            if holds:
                where.setdefault(row.silo, []).append(row.round)
    unusual = "with another number of examples"
    kinds = ((bounded, "with norms above the bound"), (far, "far from all others"), (other, unusual))
    texts = [
        f"{plain(silo)} {what} (round{'s' * (len(rounds) > 1)} {ranges(rounds, _MOST_RANGES)})"
        for where, what in kinds
        for silo, rounds in sorted(where.items(), key=lambda each: natural(each[0]))
    ]
    return listed(texts, _MOST_NAMES)


def withdrawn(run: RunFolder) -> str:
    """Return the silos that removed rows during the run, with the number of rows per split; empty without any."""
    left = [(s.name, s.dropped) for s in (run.summary.silos if run.summary else []) if s.dropped]
    return listed(
        [f"{plain(silo)} ({', '.join(f'{split} {count:,}' for split, count in of.items())})" for silo, of in left],
        _MOST_NAMES,
    )


_LONGEST_ERROR = 600
"""Maximum length of an error."""
_USUAL, _FOR_SGD = (0.001, "the default of training.lr"), (0.01, "a usual start for sgd")
"""The learning rates that are tried after a divergence: the default, and one for SGD."""


@dataclass(frozen=True)
class Failed:
    """A failure of the run or of a baseline, the remedy, and the error; `command` continues the run, if possible."""

    own: bool
    what: str
    todo: str
    error: str
    command: str = ""


def failures(run: RunFolder) -> list[Failed]:
    """Return failures of the run and of its baselines; empty if nothing failed."""
    own = [_failed(run, run.failure, "")] if run.failure else []
    return own + [_failed(run, each.failure, f"{name} ") for name, each in run.baselines.items() if each.failure]


def rate(run: RunFolder) -> tuple[float | None, tuple[float, str]]:
    """Return the learning rate, and the highest one to try next with its source, which depends on the optimizer."""
    section = run.section("method").get("training")
    known = section if isinstance(section, Mapping) else {}
    found, usual = known.get("lr"), _FOR_SGD if known.get("optimizer") == "sgd" else _USUAL
    return float(found) if isinstance(found, int | float) else None, usual


def varied(run: RunFolder, name: str, *options: str, command: str = "run") -> str:
    """Return the command that repeats the run with other options, in a folder beside it; empty for a run of a
    federation or from Python."""
    if run.federated or (run.record and run.record.in_python):
        return ""
    folder = run.given or run.path.name
    return shlex.join(["caveat", command, f"{folder}/config.toml", *run.plugins, *options, "--out", f"{folder}-{name}"])


def _failed(run: RunFolder, failure: Failure, whose: str) -> Failed:
    at = f" at {plain(failure.silo)}" if failure.silo and not failure.diverged else ""  # divergence concerns all silos
    what, own = f"{whose}failed in round {failure.round}{at}", not whose
    # `what` has the place, because the error counts rounds of the schedule.
    error = plain(failure.error.partition(": ")[2] if failure.silo else failure.error, _LONGEST_ERROR)
    if failure.diverged:
        found, (highest, source) = rate(run)
        lower = min((found or 10 * highest) / 10, highest)
        was = "" if found is None else f" from {found if found < 1e4 else round(found):,}"
        why = f" ({source})" if lower == highest else ""
        left = "The run has no model." if own else "The run is not affected; only this comparison is missing."
        first = f", first seen in the model of {plain(failure.silo)}" if failure.silo else ""
        what = f"{what}: training diverged{first}. {left}"
        todo = f"Lower training.lr{was} to {lower:g}{why} and start another run; with the same settings it would fail "
        todo += "again."
        if run.federated and can_go_back(run.path):
            todo += (
                " If a silo is the cause, exclude it: the failed round changed nothing. Continue the run without the "
                "silo, or roll the run back first. This command lists the rounds that it can be rolled back to:"
            )
            return Failed(own, what, todo, error, f"caveat rollback {run.path.name}")
        return Failed(own, what, todo, error, varied(run, "lower-lr", "--set", f"training.lr={lower:g}"))
    if failure.lost:
        todo = "Restore the silo's state from a copy and resume the run, or restart the silo without its state:"
        return Failed(
            own, f"{what}: its private state is lost.", todo, error, f"{run.resumed} --reset {plain(failure.silo)}"
        )
    return Failed(own, f"{what}.", "After fixing the cause below, continue the run with:", error, run.resumed)
