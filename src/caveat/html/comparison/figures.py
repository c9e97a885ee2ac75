"""The figures of a comparison's page, with their captions; `plots.py` draws them."""

from collections.abc import Sequence
from functools import partial

from ...core.text import initial, joined
from ...core.text import tick as plain_tick
from ...files.schema import CURVES, ComparedRun, Comparison, DifferenceRecord, Measure, Setting, predicted
from ..diagrams import Dot
from ..svg import Chart, Point
from . import budgets, wording
from . import verdict as verdicts
from .plots import MethodRow, Place, course, course_chart, forest, method_limits, method_plot, plane

_FAR = 2.0
"""Settings share an axis if the common range is at most this multiple of their longest range."""


def headline(record: Comparison, measure: Measure) -> tuple[list[Chart], str]:
    """Return a dot plot per setting, best first, on one scale if their ranges allow it, and a note."""
    rows = {setting.name: _rows(record, setting, measure) for setting in record.columns}
    most = {each.name: verdicts.baseline(record, each, measure) for each in record.columns}
    own = {name: _with(found, most[name]) for name, each in rows.items() if (found := method_limits(each, measure))}
    shared = _shared(list(own.values()))
    charts, lines = [], 0
    for name, each in rows.items() if own else ():
        of = f"{initial(measure.title)} of {len(each)} methods{f' on {name}' if name else ''}"
        shown = shared or own.get(name, (0.0, 1.0))
        lines += (share := most[name]) is not None and shown[0] <= share <= shown[1]
        title = name or initial(wording.header(measure))
        charts.append(Chart(title, method_plot(each, measure, shown, f"{of}, with 95 % intervals", most[name])))
    intervals = wording.interval_caption(row.value for each in rows.values() for row in each)
    note_below = f"Mean over silos and seeds, {intervals}; {wording.better(measure) or 'neither direction is better'}."
    if any(budgets.pairs_of(record, setting, measure) for setting in record.columns):
        note_below += " Intervals describe retraining with other seeds; compare methods by their differences only."
    if any(row.seeds for each in rows.values() for row in each):
        note_below += " A small dot is one seed."
    if any(row.apart for each in rows.values() for row in each):
        note_below += " Methods with hollow marks have another number of rounds than those with filled marks: compare "
        note_below += "only methods with equal numbers of rounds."
    if any(row.paper is not None for each in rows.values() for row in each):
        note_below += " A hollow diamond is the paper's result."
    if lines:
        without = verdicts.WITHOUT[predicted(record.measures)][0]
        note_below += f" A dashed line is the {measure.title} of {without}."
    return charts, note_below + (" Every setting has its own scale." if len(rows) > 1 and shared is None else "")


def _with(found: Point, value: float | None) -> Point:
    """Return a range with the value, unless this more than doubles the range."""
    wide = found if value is None else (min(found[0], value), max(found[1], value))
    return wide if wide[1] - wide[0] <= _FAR * (found[1] - found[0]) else found


def _shared(ranges: Sequence[Point]) -> Point | None:
    """Return one range for all; None if the ranges are too far apart."""
    if not ranges:
        return None
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    return (low, high) if high - low <= _FAR * max(high - low for low, high in ranges) else None


def _rows(record: Comparison, setting: Setting, measure: Measure) -> list[MethodRow]:
    rows, rounds = [], budgets.trained(record, setting) if budgets.unequal_budgets(record, setting) else {}
    apart = budgets.others(record, setting) if rounds else []
    for row in record.rows:
        after = f"{budgets.range_of(rounds[row.name])} rounds" if row.name in rounds else ""
        failed, missing = (record.runs(row, setting, status) for status in ("failed", "missing"))
        absent = "failed" if failed else "to come" if missing else "no result"
        result, printed = record.result(row, setting, measure), record.printed(row, setting, measure)
        seeds = wording.per_seed(record, row, setting, measure) if len(record.seeds) < wording.SEEDS else {}
        series, other = record.series[row.name], row.name in apart
        rows.append(MethodRow(row.name, series, result, printed, absent, seeds, after, other))
    if rounds:
        return rows  # not ranked
    order = [result.row for result in wording.ranked(record.results(setting, measure).rows, measure)]
    return sorted(rows, key=lambda row: order.index(row.name) if row.name in order else len(order))


def differences(record: Comparison, setting: Setting, measure: Measure) -> Chart | None:
    """Return the differences of the best method, or of the one with the largest mean, from all others; None without
    any. If the metric has a better direction, positive is better."""
    results, pairs = record.results(setting, measure), budgets.pairs_of(record, setting, measure)
    order = [each.row for each in wording.ranked(results.rows, measure)]
    gaps = [gap for name in order[1:] if (gap := verdicts.gap_between(pairs, order[0], name, measure))]
    if not gaps:
        return None
    caption = f"Simultaneous 95 % intervals of {_all(pairs)}, for {wording.scope(results)}."
    if any(gap.p_adjusted is not None and gap.p_adjusted < wording.LEVEL for gap in gaps):
        caption += f" A mark is colored if p, corrected for {_all(pairs)}, is below {wording.LEVEL:g}."
    about = f"Differences in {measure.title} of {order[0]} from other methods, with simultaneous 95 % intervals"
    drawn = forest(gaps, order[0], measure, about)
    title = f"{order[0]} against every other method, {wording.header(measure)}"
    return Chart(title, drawn, caption)


def _all(pairs: Sequence[DifferenceRecord]) -> str:
    return f"all {len(pairs)} pairs" if len(pairs) > 1 else "the one pair"


def curve(record: Comparison, setting: Setting, several: Sequence[str] = ()) -> Chart | None:
    """Return the first metric on validation data (`CURVES`) over rounds, means over the seeds that finished; the
    caption names the methods with `several` models."""
    classes = (kind := predicted(record.measures)) == "classes"
    title = f"{initial(CURVES[kind][0])} on validation data{', %' * classes}"
    rows = ((row.name, record.runs(row, setting, "done")) for row in record.rows)
    courses = [found for name, runs in rows if (found := course(name, record.series[name], runs))]
    if not courses:
        return None
    drawn = course_chart(
        courses, f"{title}, of {len(courses)} methods",
        (lambda value: plain_tick(100 * value)) if classes else plain_tick,
    )  # fmt: skip
    caption = "Mean over seeds; the band extends from the lowest to the highest seed."
    if several:
        caption += f" The curve of a method with several models ({joined(several)}) shows one of these models alone."
    return Chart(title, drawn, caption)


def cost_plane(record: Comparison, setting: Setting) -> Chart | None:
    """Return the first metric against megabytes sent or, if nothing is sent, against seconds; None if unknown, or if
    budgets differ."""
    first = record.measures[0]
    sent, time = ("MB per run, up and down", ["bytes_up", "bytes_down"], 1e6), ("seconds per run", ["seconds"], 1.0)
    runs = {row.name: record.runs(row, setting, "done") for row in record.rows}
    anything = any(_cost(each, sent[1], sent[2]) for each in runs.values())
    axis, keys, unit = sent if anything else time
    costs = {name: _cost(each, keys, unit) for name, each in runs.items()}
    places = []
    for row in record.rows:
        cost, y = costs[row.name], wording.dot(record.result(row, setting, first))
        if cost is not None and y:
            note = f"{row.name}: {wording.figure(first, y.value)} {first.name}, {cost:.4g} {axis}"
            places.append(Place(row.name, record.series[row.name], Dot(cost), y, note))
    axes = (axis, wording.directed(wording.header(first), first))
    title = f"{initial(first.title)} against {axis}"
    drawn = plane(places, axes, (wording.setting_value, partial(wording.tick, first)), title)
    caption = (
        f"Lines are 95 % intervals; costs are means over seeds{', on the machine that ran them' * (not anything)}."
    )
    return None if drawn is None or budgets.unequal_budgets(record, setting) else Chart(title, drawn, caption)


def _cost(runs: Sequence[ComparedRun], keys: Sequence[str], unit: float) -> float | None:
    """Return the mean cost of a run, summed over `keys`; None if one of them is unknown."""
    known = [cost for key in keys if (cost := wording.mean_of(runs, key)) is not None]
    return sum(known) / unit if len(known) == len(keys) else None
