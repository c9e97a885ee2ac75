"""Whether methods were given the same rounds, and who leads where all of them still have figures."""

from __future__ import annotations

import shlex
from statistics import fmean

from ....core.text import joined, percent
from ....files.schema.comparison import ComparedRun, Comparison, Setting

_LEVEL = 0.0005
"""Difference of accuracies below which two are level as they are written."""


def unequal_budgets(record: Comparison, setting: Setting) -> str:
    """What is unfair about the rounds of training under a setting; empty where methods took the same."""
    runs = {row.name: record.runs(row, setting, "done") for row in record.rows}
    rounds = {name: [run.rounds for run in each if run.rounds is not None] for name, each in runs.items()}
    taken = {name: (min(each), max(each)) for name, each in rounds.items() if each}
    if len(set(taken.values())) < 2:
        return ""
    by_rounds: dict[tuple[int, int], list[str]] = {}
    for name, of in sorted(taken.items(), key=lambda each: -each[1][1]):
        by_rounds.setdefault(of, []).append(name)
    told = "; ".join(f"{joined(names)} {_range(of)} rounds" for of, names in by_rounds.items())
    return f"{told}. {_at_common_round({name: runs[name] for name in taken})}"


def equal_by(record: Comparison, setting: Setting) -> str:
    """The option by which all methods would have as many rounds as the one that took the most."""
    runs = [run for row in record.rows for run in record.runs(row, setting, "done")]
    longest = max(runs, key=lambda run: run.rounds or 0, default=None)
    return f"--rounds-of {shlex.quote(longest.row)}" if longest else ""


def against(record: Comparison, setting: Setting, first: str, second: str) -> str:
    """After 16 rounds against 6; empty where two methods took the same."""
    found = [
        sorted({run.rounds for run in record.runs(row, setting, "done") if run.rounds is not None})
        for name in (first, second)
        for row in record.rows
        if row.name == name
    ]
    if len(found) < 2 or not all(found) or found[0] == found[1]:
        return ""
    mine, its = (_range((each[0], each[-1])) for each in found)
    return f"After {mine} rounds against {its}, "


def _range(of: tuple[int, int]) -> str:
    return str(of[0]) if of[0] == of[1] else f"{of[0]} to {of[1]}"


def _at_common_round(runs: dict[str, list[ComparedRun]]) -> str:
    """Who leads on validation data at the last round of which all runs have figures; empty without such a round."""
    known = [{at for at, accuracy, _ in run.curve if accuracy is not None} for each in runs.values() for run in each]
    common = set.intersection(*known) if known else set()
    if not common:
        return "No round has validation figures of all of them."
    last = max(common)
    found = {
        name: fmean(accuracy for run in each for at, accuracy, _ in run.curve if at == last and accuracy is not None)
        for name, each in runs.items()
    }
    (first, best), (second, other), *others = sorted(found.items(), key=lambda each: -each[1])
    where = f"At round {last}, the last that all have,"
    behind = "".join(f", {name} {percent(accuracy)}" for name, accuracy in others)
    if best - other < _LEVEL:
        return f"{where} {first} and {second} are level on validation data ({percent(best)}{behind})."
    return (
        f"{where} {first} leads on validation data by {100 * (best - other):.1f} points "
        f"({percent(best)}, {second} {percent(other)}{behind})."
    )
