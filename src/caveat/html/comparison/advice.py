"""What to do after a comparison, and the command that does it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from ...core.text import equation, joined, listed, more_seeds, percent, plural
from ...files.schema import Comparison, DifferenceRecord, Measure, Result, Setting, predicted
from ...uncertainty.statistical_tests import half_width, seeds_needed
from ..commands import changed, option_of
from .budgets import longest, pairs_of, range_of, rising, seconds_per_round, trained, unequal_budgets, uneven
from .verdict import ALONE, WITHOUT, accuracies, ahead, barely, free_alone, gap_between, gap_text, unlearned
from .wording import LEVEL, SEEDS, ranked


class Advice(NamedTuple):
    """What to do now, and what this changes in the comparison."""

    step: str
    seeds: int = 0
    """The number of seeds; 0 if they stay."""
    match: str = ""
    """The method whose number of rounds all others get."""
    more: bool = False
    """Whether to train for more rounds."""
    alone: bool = False
    """Whether to add training alone."""


def next_steps(record: Comparison, setting: Setting) -> list[Advice]:
    """Return what to do next under one setting: repeat with equal budgets, more rounds or seeds, or with a control."""
    measure, results = record.measures[0], record.results(setting, record.measures[0])
    order, short = ranked(results.rows, measure), WITHOUT[predicted(record.measures)][1]
    if barely(record, setting):
        most = percent(accuracies(record, setting)[0].mean)
        text = "Train for more rounds or with another training.lr, and look at the curves and at measures other than "
        text += f"accuracy, before comparing: no method is more than barely better than {short} (the best accuracy is "
        return [Advice(f"{text}{most}).", more=True)]
    if order and order[0].row in unlearned(record, setting):
        return [Advice(f"{order[0].row} is not shown to be better than {short}: add test inputs.")]
    steps, pair = list[Advice](), None
    if len(order) > 1 and measure.higher is not None:
        pair = gap_between(results.pairs, order[0].row, order[1].row, measure)
    if unequal_budgets(record, setting):
        steps.append(_equal(record, setting, order, pair))
    if ALONE not in {row.method or row.name for row in record.rows} and record.rows:
        text = f"Add the method {ALONE} (training alone) as a control, which shows what sharing adds."
        steps.append(Advice(text, alone=True))
    if not unequal_budgets(record, setting) and pair is not None and pair.mean:
        steps += _deciding(record, setting, order, pair)
    return steps


def _equal(record: Comparison, setting: Setting, order: Sequence[Result], pair: DifferenceRecord | None) -> Advice:
    """Return how to compare with equal budgets, with seeds enough to show a difference."""
    most = longest(record, setting)
    ran = range_of(trained(record, setting)[most])
    text = f"Give every method {ran} rounds, like {most},"
    half = None if pair is None else _half(pair)
    if half is None or pair is None:
        return Advice(f"{text} before you compare them{_cost(record, setting, 0)}.", match=most)
    seeds, measure = min(each.seeds for each in order[:2]), record.measures[0]
    now = f"With {plural(seeds, 'seed')}, only differences between {pair.a} and {pair.b} above about "
    now += f"{_roughly(measure, half, 2)} can be detected"
    if seeds >= SEEDS:
        return Advice(f"{text.removesuffix(',')}{_cost(record, setting, 0)}. {now}.", match=most)
    more, level = max(SEEDS, 2 * seeds), LEVEL / len(record.results(setting, measure).pairs)
    then = f"with {more}, differences above roughly {_roughly(measure, half_width(half, seeds, more, level), 1)}, if "
    then += "seeds vary as they do here"
    return Advice(f"{text} and {more} seeds{_cost(record, setting, more)}. {now}; {then}.", seeds=more, match=most)


def _roughly(measure: Measure, gap: float, digits: int) -> str:
    """Return a difference with few significant digits."""
    return f"{float(f'{gap * (100 if measure.percent else 1):.{digits}g}'):g}" + " points" * measure.percent


def _cost(record: Comparison, setting: Setting, seeds: int, times: int = 1) -> str:
    """Return the estimated time of all methods for `times` the largest number of rounds, as text, from the seconds per
    round in this comparison."""
    most = max((of[1] for of in trained(record, setting).values()), default=0)
    if not (each := seconds_per_round(record, setting)):
        return ""
    total = most * times * max(seeds, len(record.seeds))
    if uneven(each):
        some = f"{_about(total * sum(median(of) for of in each))} at the usual speed, "
        some += f"{_about(total * sum(max(of) for of in each))} at the slowest seen here"
    else:
        some = _about(total * max(sum(median(of) for of in each), sum(fmean(of) for of in each)))
    return f" ({'twice as many: ' * (times > 1)}about {some})"


def _about(seconds: float) -> str:
    """Return a duration in steps of one up to ten units, then of five."""
    unit, name = (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
    value = seconds / unit
    return f"{max(1, round(value) if value < 10 else 5 * round(value / 5))} {name}"


def _deciding(record: Comparison, setting: Setting, order: Sequence[Result], pair: DifferenceRecord) -> list[Advice]:
    """Return how to decide between the best two methods of equal budgets, or which to use."""
    first, second, half = order[0].row, order[1].row, _half(pair)
    if len(record.seeds) == 1:
        return [Advice(f"Repeat with {SEEDS} seeds: one seed allows no test.", seeds=SEEDS)]
    if gained := rising(record, setting):
        since = "in the last third of the rounds"
        text = f"Train for more rounds before you choose{_cost(record, setting, 0, 2)}: {since}, validation accuracy "
        text += f"rose for {gained}."
        measure, pairs = record.measures[0], record.results(setting, record.measures[0]).pairs
        gaps = {each.row: gap for each in order if (gap := gap_between(pairs, each.row, ALONE, measure))}
        if free_alone(record, setting) and gaps and not any(ahead(gap) or gap.high is None for gap in gaps.values()):
            text += f" Until then, {ALONE}, with which silos send nothing, is not shown to be worse in {measure.title}"
            behind = [
                f"{gap_text(measure, gap.high)} behind {name}"
                for name, gap in gaps.items()
                if gap.high is not None and gap.high > 0
            ]
            text += f"; it may be up to {joined(behind)}." if behind else "."
            text += _worse_alone(record, setting, order)
        return [Advice(text, more=True)]
    if half is not None and abs(pair.mean or 0.0) <= half:
        seeds, tests = min(order[0].seeds, order[1].seeds), len(record.results(setting, record.measures[0]).pairs)
        if needed := seeds_needed(pair.mean or 0.0, half, seeds, LEVEL / tests):
            text = f"Repeat with about {needed} seeds, which separate {first} and {second} with a chance of 80 % if "
            return [Advice(f"{text}the difference is as estimated and there are enough test inputs.", seeds=needed)]
        text = f"Choose between {first} and {second} by other metrics or by cost: {plural(seeds, 'seed')} show only "
        return [Advice(f"{text}differences above {gap_text(record.measures[0], half)}.")]
    return [Advice(f"Use {first} on silos like these.")] * ahead(pair)


def _worse_alone(record: Comparison, setting: Setting, order: Sequence[Result]) -> str:
    """Return in which other metrics training alone is worse, with p-values corrected for pairs, as a sentence."""
    told = list[str]()
    for measure in record.measures[1:]:
        pairs = pairs_of(record, setting, measure)
        for name in [each.row for each in order] if measure.higher is not None else ():
            gap = gap_between(pairs, name, ALONE, measure)
            if gap and ahead(gap):
                told.append(f"{gap_text(measure, gap.mean or 0)} behind {name} ({equation(gap.p_adjusted or 0)})")
    return f" It may be worse in other metrics: {listed(told, 4)}; p is corrected for pairs only." if told else ""


def _half(pair: DifferenceRecord) -> float | None:
    """Return half the width of an interval; None without one."""
    return None if pair.low is None or pair.high is None else (pair.high - pair.low) / 2


def command(record: Comparison, steps: Sequence[Advice]) -> str:
    """Return the command of the comparison with the changes of all steps; "" if nothing changes, or if no command makes
    these changes."""
    known, options, folder = record.command, dict[str, str](), ""
    if not known.startswith("caveat compare"):
        return ""
    for step in steps:
        if step.alone and option_of(known, "--variant") and not option_of(known, "--methods"):
            known += f" --variant {shlex.quote(f'{ALONE}: method.name={ALONE}')}"
        elif step.alone:
            given = option_of(known, "--methods") or ",".join(row.name for row in record.rows)
            options["--methods"] = f"{given},{ALONE}"
        if step.seeds > len(options.get("--seeds", "").split(",")):
            options["--seeds"] = more_seeds(record.seeds, step.seeds)
        if step.match:
            options["--match-rounds"], folder = step.match, "equal"
        if step.more:
            options["--set rounds"], folder = _doubled(record), "longer"
    if folder:
        words = shlex.split(known)
        usual = f"runs/compare-{Path(words[2]).stem if words[2:] and words[2][0] != '-' else 'NEW'}"
        options["--out"] = f"{option_of(known, '--out') or usual}-{folder}"
    return changed(known, options) if options and all(options.values()) else ""


def _doubled(record: Comparison) -> str:
    """Return twice the number of rounds; "" unless one number is that of all methods."""
    if any(each.startswith("rounds=") for row in record.rows for each in row.sets):
        return ""
    taken = {number for setting in record.columns for of in trained(record, setting).values() for number in of}
    given = option_of(record.command, "--set rounds") or (str(*taken) if len(taken) == 1 else "")
    return str(2 * int(given)) if given.isdecimal() else ""
