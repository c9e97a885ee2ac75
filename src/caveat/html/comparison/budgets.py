"""Budgets of a comparison: numbers of rounds, who leads at a common round, and which methods still learned."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean

from ...core.text import joined, listed, percent, plural
from ...files.schema import CURVES, Comparison, DifferenceRecord, Measure, Setting, predicted

_UNEVEN = 4.0
"""Ratio of times of a method's runs above which costs in time are ranges."""
_LEVEL = 0.0005
"""Difference below which two accuracies are called equal."""
_RISING = 0.02
"""Increase of the accuracy in the last third of rounds above which more rounds are advised."""


def trained(record: Comparison, setting: Setting) -> dict[str, tuple[int, int]]:
    """Return the minimum and the maximum number of rounds of each method's finished runs."""
    rounds = {row.name: [run.rounds for run in record.runs(row, setting, "done") if run.rounds] for row in record.rows}
    return {name: (min(each), max(each)) for name, each in rounds.items() if each}


def unequal_budgets(record: Comparison, setting: Setting) -> str:
    """Return how many rounds each method trained; empty if the numbers are equal."""
    taken = trained(record, setting)
    if len(set(taken.values())) < 2:
        return ""
    by_rounds: dict[tuple[int, int], list[str]] = {}
    for name, of in sorted(taken.items(), key=lambda each: -each[1][1]):
        by_rounds.setdefault(of, []).append(name)
    return "; ".join(f"{joined(names)} {range_of(of)} rounds" for of, names in by_rounds.items())


def longest(record: Comparison, setting: Setting) -> str:
    """Return the method with the largest number of rounds."""
    return max((of[1], name) for name, of in trained(record, setting).items())[1]


def pairs_of(record: Comparison, setting: Setting, measure: Measure) -> list[DifferenceRecord]:
    """Return the differences of all pairs of methods; none if budgets differ."""
    return [] if unequal_budgets(record, setting) else list(record.results(setting, measure).pairs)


def added(record: Comparison, setting: Setting) -> str:
    """Return the methods that trained for more rounds than asked for, as a sentence; empty without any."""
    told = []
    for row in record.rows:
        asked = [each.removeprefix("rounds=") for each in (*setting.sets, *row.sets) if each.startswith("rounds=")]
        ran = trained(record, setting).get(row.name, (0, 0))
        if asked and asked[-1].isdecimal() and ran[1] > int(asked[-1]) and not record.match_rounds:
            told.append(f"{row.name} adds rounds by itself ({asked[-1]} asked for, {range_of(ran)} trained).")
    return " ".join(told)


def seconds_per_round(record: Comparison, setting: Setting) -> list[list[float]]:
    """Return the seconds per round of each method's finished runs, for methods that have some."""
    runs = [record.runs(row, setting, "done") for row in record.rows]
    return [found for of in runs if (found := [run.seconds / run.rounds for run in of if run.seconds and run.rounds])]


def uneven(times: Iterable[Sequence[float]]) -> float:
    """Return the largest ratio of the times of a method's runs, if it is so large that times say little about methods;
    0 otherwise."""
    fold = max((max(of) / min(of) for of in times if of), default=0.0)
    return fold if fold > _UNEVEN else 0.0


def others(record: Comparison, setting: Setting) -> list[str]:
    """Return the methods whose number of rounds is not the most frequent one, or not the smallest of several equally
    frequent ones."""
    taken = trained(record, setting)
    frequent = Counter(taken.values())
    usual = min(frequent, key=lambda of: (-frequent[of], of), default=(0, 0))
    return [name for name, of in taken.items() if of != usual]


def range_of(of: tuple[int, int]) -> str:
    return str(of[0]) if of[0] == of[1] else f"{of[0]} to {of[1]}"


def rising(record: Comparison, setting: Setting, until: float = inf) -> str:
    """Return the methods whose validation accuracy increased by more than two points in the last third of the rounds,
    or of those up to `until`."""
    gains = {}
    for row in record.rows if predicted(record.measures) == "classes" else ():
        curves = [
            [value for at, value, _ in run.curve if value is not None and at <= until]
            for run in record.runs(row, setting, "done")
        ]
        known = [each[-1] - each[-1 - len(each) // 3] for each in curves if len(each) >= 3]
        if known and fmean(known) > _RISING:
            gains[row.name] = fmean(known)
    each = [f"{name} by {100 * gain:.1f}" for name, gain in gains.items()]
    return f"{listed(each, 4)} points" if each else ""


def at_common_round(record: Comparison, setting: Setting) -> str:
    """Return which method leads on validation data at the last round for which all runs have metrics."""
    runs = {row.name: done for row in record.rows if (done := record.runs(row, setting, "done"))}
    known = [{at for at, accuracy, _ in run.curve if accuracy is not None} for each in runs.values() for run in each]
    common = set.intersection(*known) if known else set()
    if not common:
        return "No round has validation metrics of all methods."
    last = max(common)
    found = {
        name: fmean(accuracy for run in each for at, accuracy, _ in run.curve if at == last and accuracy is not None)
        for name, each in runs.items()
    }
    if (kind := predicted(record.measures)) != "classes":
        texts = [f"{name} {value:.3f}" for name, value in sorted(found.items(), key=lambda each: each[1])]
        return f"At round {last}, the last common one, {CURVES[kind][0]} is {joined(texts)}."
    (first, best), (second, other), *others = sorted(found.items(), key=lambda each: -each[1])
    where = f"At round {last}, the last common one,"
    behind = "".join(f", {name} {percent(accuracy)}" for name, accuracy in others)
    behind += f"; mean of {plural(min(map(len, runs.values())), 'seed')}, difference not tested"
    gained = rising(record, setting, last)
    since = f" In the last third of these rounds, validation accuracy rose for {gained}"
    more = f"{since}: the order may change." if gained else ""
    if best - other < _LEVEL:
        same = f"{where} {first} and {second} have the same accuracy on validation data"
        return f"{same} ({percent(best)}{behind}): which is better is not decided.{more}"
    return (
        f"{where} {first} leads on validation data by {100 * (best - other):.1f} points "
        f"({percent(best)}, {second} {percent(other)}{behind}).{more}"
    )
