"""Verdicts on a comparison: which method leads, whether this is shown, and how many runs are done."""

from collections.abc import Sequence
from statistics import fmean

from ...core.text import equation, initial, joined, listed, percent, plural, probability
from ...files import schema
from ...files.schema import CURVES, Comparison, Measure, Setting, predicted
from ...uncertainty.statistical_tests import binomial_tail
from .budgets import added, at_common_round, pairs_of, range_of, rising, trained, unequal_budgets
from .by_domain import by_domain
from .wording import LEVEL, figure, interval, ranked, with_unit

_BARELY = 0.2
"""Share of the possible gain over the majority-class baseline below which no methods are compared."""


_MOST_FAILED = 6
_MOST_OTHERS = 4


def verdict(record: Comparison, setting: Setting) -> str:
    """Return the verdict on the first metric under one setting: unequal budgets, which method leads, by how much, and
    with what significance."""
    told = unequal_budgets(record, setting)
    parts = [f"Rounds differ ({told}), so methods are not ranked.", added(record, setting)] if told else []
    return " ".join(
        filter(None, [*parts, _leader(record, setting), _of_equal_budgets(record, setting) if told else ""])
    )


def _of_equal_budgets(record: Comparison, setting: Setting) -> str:
    """Return the differences that are shown between methods with the same number of rounds, as a sentence."""
    measure, taken, told = record.measures[0], trained(record, setting), list[str]()
    pairs, missed = record.results(setting, measure).pairs, unlearned(record, setting)
    for pair in pairs:
        gaps = [gap_between(pairs, *names, measure) for names in ((pair.a, pair.b), (pair.b, pair.a))]
        shown = [gap for gap in gaps if gap and ahead(gap) and gap.a not in missed]
        if shown and taken.get(pair.a) == taken.get(pair.b):
            lead = _lead(shown[0].a, shown[0].b, shown[0], measure).removesuffix(".")
            told.append(f"at {range_of(taken[pair.a])} rounds each, {lead}")
    return f"On test data, {listed(told, _MOST_OTHERS)}." if told else ""


def _leader(record: Comparison, setting: Setting) -> str:
    measure = record.measures[0]
    results = record.results(setting, measure)
    order = ranked(results.rows, measure)
    if not order:
        return "No method has a result yet."
    if len(order) == 1:
        return f"Only {order[0].row} has a result: {measure.title} {_with_interval(measure, order[0])}."
    if measure.higher is None:
        return (
            f"{initial(measure.title)} ranges from {_with_interval(measure, order[-1])} with {order[-1].row} "
            f"to {_with_interval(measure, order[0])} with {order[0].row}."
        )
    first, second = order[:2]
    missed, most = unlearned(record, setting), beside(record, setting, judged(record))
    without, short = WITHOUT[predicted(record.measures)]
    if first.row in missed:
        which = "No method" if len(missed) == len(order) else f"{first.row}, which has the best mean {measure.title},"
        return (
            f"{which} is {'not ' * (len(missed) < len(order))}shown to be better than {without} "
            f"({most}): {first.row} has {measure.title} "
            f"{_with_interval(measure, first)}. Differences between models that may not have learned do not rank "
            "methods."
        )
    pair, others = gap_between(results.pairs, first.row, second.row, measure), ""
    if missed:
        others = f" Not shown to be better than {short} ({most}): {listed(missed, _MOST_OTHERS)}."
    if unequal_budgets(record, setting):
        return at_common_round(record, setting)
    little = f"No method is more than barely better than {short} ({most}). " * barely(record, setting)
    if within := _all_within(record, setting, order, results.pairs):
        return f"{little}{within}{others}"
    others = _others(order, results.pairs, measure) + others
    if pair is None or pair.mean is None:
        return (
            f"{first.row} has the best mean, {measure.title} {_with_interval(measure, first)}, followed by "
            f"{second.row} with {_with_interval(measure, second)}; the difference was not tested.{others}"
        )
    tested = _tested(pair, min(first.seeds, second.seeds), results.inputs_sampled)
    worse = _behind_in(record, setting, first.row) if ahead(pair) else ""
    return f"{little}{_lead(first.row, second.row, pair, measure)} {tested}{worse}{others}"


def _behind_in(record: Comparison, setting: Setting, first: str) -> str:
    """Return the other metrics in which a method is shown to be worse than another one, as a sentence; "" if none."""
    told = list[str]()
    for measure in record.measures[1:]:
        pairs = pairs_of(record, setting, measure) if measure.higher is not None else []
        names = dict.fromkeys(name for pair in pairs for name in (pair.a, pair.b) if name != first)
        better = [name for name in names if ahead(gap_between(pairs, name, first, measure))]
        told += [f"{measure.title} than {joined(better)}"] if better else []
    corrected = "at p < 0.05, corrected for pairs, not for metrics"
    return f" {first} has a worse {listed(told, _MOST_OTHERS)} ({corrected})." if told else ""


def _all_within(
    record: Comparison, setting: Setting, order: Sequence[schema.Result], pairs: Sequence[schema.DifferenceRecord]
) -> str:
    """Return the statement that no difference is shown between any two methods, and how large a difference can be; ""
    if one is shown, or if a pair has no test."""
    ends = [abs(end) for pair in pairs for end in (pair.low, pair.high) if end is not None]
    if len(order) < 3 or len(ends) < len(order) * (len(order) - 1):
        return ""
    if any(pair.p_adjusted is None or pair.p_adjusted < LEVEL for pair in pairs):
        return ""
    names, measure = [each.row for each in order], record.measures[0]
    between = joined(names) if len(names) <= _MOST_OTHERS else f"all {len(names)} methods"
    free = f"; with {ALONE}, silos send nothing" * (free_alone(record, setting) and not rising(record, setting))
    seeds = plural(min(each.seeds for each in order), "seed")
    within = f"all within {gap_text(measure, max(ends))}; simultaneous 95 % intervals, {seeds}"
    text = f"No difference in {measure.title} is shown between {between} ({within}){free}."
    return f"{text}{by_domain(record, setting)}{_elsewhere(record, setting)}"


def free_alone(record: Comparison, setting: Setting) -> bool:
    """Return whether there are runs of training alone, and silos send nothing in them, except for metrics."""
    alone = (row for row in record.rows if row.name == ALONE)
    return {run.bytes_up for row in alone for run in record.runs(row, setting, "done")} == {0}


def _elsewhere(record: Comparison, setting: Setting) -> str:
    """Return the differences in other metrics that are significant after a correction for pairs and metrics, as a
    sentence. Without any, return the smallest p-value before the correction for metrics, of metrics with a better
    direction if one of these is small; "" if none is small."""
    count, shown, least = len(record.measures), list[str](), (True, LEVEL, "")
    for measure in record.measures[1:]:
        found = dict[str, list[schema.DifferenceRecord]]()
        for pair in pairs_of(record, setting, measure):
            if pair.mean and pair.p_adjusted is not None and pair.p_adjusted < LEVEL:
                least = min(least, (measure.higher is None, pair.p_adjusted, measure.title))
                gap = pair if (pair.mean > 0) == bool(measure.higher) else _turned(pair)
                if pair.p_adjusted * count < LEVEL:
                    found.setdefault(gap.a, []).append(gap)
        for name, gaps in found.items():
            ps = joined([equation(gap.p_adjusted or 0.0) for gap in gaps])
            text = f"{name} has a {'higher' if measure.higher else 'lower'} {measure.title} than "
            shown.append(f"{text}{joined([gap.b for gap in gaps])} ({ps})")
    text = f" In the other {plural(count - 1, 'metric')}, after a correction for all {count}, "
    if shown:
        return f"{text}{listed(shown, _MOST_OTHERS)}."
    undirected, p, name = least
    of = "" if undirected else " of metrics with a better direction"
    told = f"(smallest p{of}, corrected for pairs only: {probability(p)}, {name})"
    return f"{text}no difference is shown {told}." if name else ""


WITHOUT = {
    "classes": (
        "always predicting each silo's most frequent training class",
        "always predicting the most frequent class",
    ),
    **dict.fromkeys(("quantity", "time"), ("predicting without inputs", "predictions without inputs")),
}
"""The baseline of each kind, in a sentence and in short."""


def judged(record: Comparison) -> Measure | None:
    """Return the metric by which methods are compared with a baseline: accuracy, or the first one of a quantity or a
    time; None if it is not compared."""
    name = CURVES[predicted(record.measures)][0]
    return next((measure for measure in record.measures if measure.figure == name), None)


def baseline(record: Comparison, setting: Setting, measure: Measure | None) -> float | None:
    """Return the metric of the baseline, mean over runs: the accuracy of always predicting each silo's most frequent
    class, or the metric of the distribution of all training targets; None if unknown."""
    runs = record.runs(setting=setting, status="done")
    if measure is not None and measure.figure == "accuracy":
        return fmean(found) if (found := [run.majority.accuracy for run in runs if run.majority]) else None
    known = [run.without_inputs.get(measure.name) for run in runs] if measure else []
    return fmean(found) if (found := [value for value in known if value is not None]) else None


def beside(record: Comparison, setting: Setting, measure: Measure | None) -> str:
    """Return the baseline's metric as text; "" if unknown."""
    found = baseline(record, setting, measure)
    if measure is None or found is None:
        return ""
    return percent(found) if measure.percent else f"{measure.title} {figure(measure, found)}"


def unlearned(record: Comparison, setting: Setting) -> list[str]:
    """Return the methods that are not better than the baseline beyond chance.

    For classes, this is a sign test on the test inputs for which only the method or only the baseline is right,
    corrected for the number of methods. It tests mean numbers over seeds, because seeds share inputs. For a
    quantity or a time, a method is returned if the upper end of its interval, or else its metric, reaches the baseline.
    """
    measure = judged(record)
    if measure is not None and measure.figure != "accuracy":
        most = baseline(record, setting, measure)
        rows = ranked(record.results(setting, measure).rows, measure) if most is not None else []
        return [row.row for row in rows if (row.high if row.high is not None else row.mean or 0.0) >= (most or 0.0)]
    runs = {row.name: record.runs(row, setting, "done") for row in record.rows}
    # If every silo's test inputs have one class, no method can be better.
    beside = {name: [m for run in each if (m := run.majority) and m.accuracy < 1] for name, each in runs.items()}
    known = {name: found for name, found in beside.items() if found}
    missed = []
    for name, found in known.items():
        gained, lost = (round(fmean(getattr(each, side) for each in found)) for side in ("gained", "lost"))
        if binomial_tail(gained, gained + lost, 0.5) >= LEVEL / len(known):
            missed.append(name)
    return missed


def accuracies(record: Comparison, setting: Setting) -> list[schema.Result]:
    """Return the accuracies of all methods, best first; empty if accuracy is not compared."""
    found = (measure for measure in record.measures if measure.figure == "accuracy")
    return [row for measure in found for row in ranked(record.results(setting, measure).rows, measure)]


def barely(record: Comparison, setting: Setting) -> bool:
    """Return whether no method is more than barely better than the majority-class baseline: the best gain over it is
    below 20 % of the possible gain."""
    most, results = baseline(record, setting, judged(record)), accuracies(record, setting)
    return bool(results) and most is not None and most < 1 and (results[0].mean or 0) - most < _BARELY * (1 - most)


ALONE = "local"


def state(record: Comparison) -> tuple[str, str]:
    """Return how many runs are done, and a warning about missing and failed runs; "" without any."""
    done, failed, missing = (len(record.runs(status=status)) for status in ("done", "failed", "missing"))
    alarms = []
    if failed:
        runs = [
            f"{run.row}{f' on {run.column}' if run.column else ''} with seed {run.seed}"
            for run in record.runs(status="failed")
        ]
        alarms.append(f"{plural(failed, 'run')} failed: {listed(runs, _MOST_FAILED)}.")
    if missing:
        alarms.append(f"{plural(missing, 'run')} to come.")
    if alarms:
        alarms.append("Metrics are from the finished runs only.")
    return f"{done} of {plural(len(record.cells), 'run')} done", " ".join(alarms)


def gap_between(
    pairs: Sequence[schema.DifferenceRecord], first: str, second: str, measure: Measure
) -> schema.DifferenceRecord | None:
    """Return by how much `first` is better than `second`: positive is better for either direction of the metric."""
    found = next((pair for pair in pairs if {pair.a, pair.b} == {first, second}), None)
    return found if found is None or (found.a == first) == (measure.higher is not False) else _turned(found)


def ahead(gap: schema.DifferenceRecord | None) -> bool:
    """Return whether the first method of a difference is shown to be better."""
    return bool(gap and gap.mean and gap.mean > 0 and gap.p_adjusted is not None and gap.p_adjusted < LEVEL)


def winner(record: Comparison, setting: Setting, measure: Measure) -> str:
    """Return the method that is shown to be better than all others; "" without one, or if budgets differ."""
    order, pairs = ranked(record.results(setting, measure).rows, measure), pairs_of(record, setting, measure)
    gaps = [gap_between(pairs, order[0].row, each.row, measure) for each in order[1:]]
    return order[0].row if gaps and measure.higher is not None and all(map(ahead, gaps)) else ""


def _others(order: Sequence[schema.Result], pairs: Sequence[schema.DifferenceRecord], measure: Measure) -> str:
    """Return the methods behind the best two, and those of them that the best is significantly ahead of."""
    first, others = order[0].row, order[2:]
    if not others:
        return ""
    told = {each.row: f"{each.row} ({with_unit(measure, each.mean)})" for each in others}
    gaps = {each.row: gap_between(pairs, first, each.row, measure) for each in others}
    found = {row: gap for row, gap in gaps.items() if gap is not None and gap.p_adjusted is not None}
    if not found:
        return f" The others: {listed(list(told.values()), _MOST_OTHERS)}."
    clear = [row for row, gap in found.items() if ahead(gap)]
    parts = [
        (" not" * (rows is not clear), rows) for rows in (clear, [row for row in told if row not in clear]) if rows
    ]
    texts = [f"is{no} significantly ahead of {listed([told[row] for row in rows], _MOST_OTHERS)}" for no, rows in parts]
    return f" {first} {' and '.join(texts)}."


def _turned(pair: schema.DifferenceRecord) -> schema.DifferenceRecord:
    mean, low, high = (None if value is None else -value for value in (pair.mean, pair.high, pair.low))
    return pair.model_copy(update={"a": pair.b, "b": pair.a, "mean": mean, "low": low, "high": high})


def _lead(first: str, second: str, gap: schema.DifferenceRecord, measure: Measure) -> str:
    if gap.mean is None:
        raise ValueError(f"no difference between {first} and {second} is known")
    by = gap_text(measure, abs(gap.mean))
    ahead, bounds = first if gap.mean >= 0 else second, interval(measure, gap if gap.mean >= 0 else _turned(gap))
    between = f" (simultaneous 95 % interval {bounds})" if bounds else ""
    known = gap.low is not None and gap.low > 0 if gap.p_adjusted is None else gap.p_adjusted < LEVEL
    if not known:
        return f"It is not decided whether {first} or {second} is better: {by} in favor of {ahead}{between}."
    if gap.mean < 0:
        # If runs failed, the means are over different seeds, and pairs may contradict them.
        return f"{first} has the better mean, but is behind {second} by {by} on their common seeds."
    return f"{first} is ahead of {second} by {by}{between}."


def gap_text(measure: Measure, gap: float) -> str:
    """Return a difference that is not negative, with its unit."""
    unit = f" points of {measure.title}" if measure.percent else f" in {measure.title}"
    same = figure(measure, gap) == figure(measure, 0.0)
    return ("less than " + ("0.1" if measure.percent else "0.001") if same else figure(measure, gap)) + unit


def _tested(gap: schema.DifferenceRecord, seeds: int, inputs_sampled: bool) -> str:
    if gap.p_adjusted is None:
        if seeds < 2 or gap.mean is None or gap.low is not None:
            return "One seed allows no test." if seeds < 2 else "The difference was not tested."
        return "No test is possible: all seeds have the same difference, or a silo has a single test input."
    found = "significant" if gap.p_adjusted < LEVEL else "not significant"
    where = "" if inputs_sampled else " on these inputs"
    p = f"corrected {equation(gap.p_adjusted)}"
    return f"With {plural(seeds, 'seed')}, the difference is {found}{where} ({p})."


def _with_interval(measure: Measure, result: schema.IntervalRecord) -> str:
    bounds = interval(measure, result)
    return with_unit(measure, result.mean) + (f" (95 % interval {bounds})" if bounds else "")
