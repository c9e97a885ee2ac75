"""The page of a comparison and its plots; it is self-contained and loads nothing from the network."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from ...core.text import duration, initial, joined, plural, size
from ...core.text import tick as plain_tick
from ...files.schema import (
    CURVES,
    ComparedRun,
    Comparison,
    DifferenceRecord,
    Measure,
    Setting,
    predicted,
)
from .. import templates
from ..diagrams import Dot
from ..svg import Chart, Point, swatch
from . import advice, budgets, wording
from . import verdict as verdicts
from .models_alone import Summaries, models_alone
from .plots import MethodRow, Place, course, course_chart, forest, method_limits, method_plot, plane
from .tables import (
    contrast_table,
    main_table,
    metric_table,
    pair_table,
    paper_table,
    place_table,
    run_table,
    tuning_table,
)

_MOST_SILOS = 20
"""Maximum number of silos whose table is shown at once."""
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
        note_below += " Intervals are for retraining with other seeds; compare methods by their differences only."
    if any(row.seeds for each in rows.values() for row in each):
        note_below += " A small dot is one seed; a few seeds are shown individually."
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
    """Return one range for all; None if the settings are too far apart."""
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
    """Return the differences of the best method, or of the one with the largest mean, to all others; None without
    any. Positive is better if a direction of the metric is."""
    results, pairs = record.results(setting, measure), budgets.pairs_of(record, setting, measure)
    order = [each.row for each in wording.ranked(results.rows, measure)]
    gaps = [gap for name in order[1:] if (gap := verdicts.gap_between(pairs, order[0], name, measure))]
    if not gaps:
        return None
    caption = f"Simultaneous 95 % intervals of {_all(pairs)}, for {wording.scope(results)}."
    if any(gap.p_adjusted is not None and gap.p_adjusted < wording.LEVEL for gap in gaps):
        caption += f" A colored mark: p, corrected for {_all(pairs)}, is below {wording.LEVEL:g}."
    about = f"Differences in {measure.title} of {order[0]} to other methods, with simultaneous 95 % intervals"
    drawn = forest(gaps, order[0], measure, about)
    title = f"{order[0]} against each other method, {wording.header(measure)}"
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
        caption += f" A curve of a method with several models ({joined(several)}) is of one of these alone."
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


def facts(record: Comparison) -> list[str]:
    """Return the size and the cost of the comparison."""
    silos_of = {len(run.silos) for run in record.runs(status="done") if run.silos}
    seconds = [run.seconds for run in record.cells if run.seconds is not None]
    sent = [(run.bytes_up or 0) + (run.bytes_down or 0) for run in record.cells]
    judged = verdicts.judged(record)
    most = [share for setting in record.columns if (share := verdicts.beside(record, setting, judged))]
    without = "always the most frequent class" if predicted(record.measures) == "classes" else "without inputs"
    found = [
        f"Baseline ({without}): {' or '.join(dict.fromkeys(most))}" if most else "",
        plural(len(record.rows), "method"),
        plural(len(record.columns), "setting") if len(record.columns) > 1 else "",
        plural(len(record.seeds), "seed"),
        f"{' or '.join(map(str, sorted(silos_of)))} silos" if silos_of else "",
        plural(len(record.cells), "run"),
        f"{duration(sum(seconds))} in total" if seconds else "",
        f"{size(sum(sent))} sent" if any(sent) else "",
    ]
    return [each for each in found if each]


def glossary(record: Comparison) -> str:
    """Return what the page's terms mean."""
    domains = [place for setting in record.columns for place in record.places(setting, "domains")]
    text = "A silo holds data that it does not share. "
    if len(set(domains)) > 1:
        text += f"A domain, such as {domains[-1]}, is a group of silos whose inputs are of one kind. "
    if any(measure.figure == "augrc" for measure in record.measures):
        text += (
            "AUGRC is the share of inputs that are wrong and not withheld, averaged over all shares of withheld inputs."
        )
    return text.strip()


_TEMPLATE = "comparison/comparison.html.j2"


def render(record: Comparison, summaries: Summaries = MappingProxyType({})) -> str:
    """Return the text of the page; `summaries` tell which methods predict with several models."""
    wholes = [_whole(record, setting, models_alone(summaries, setting.name)) for setting in record.columns]
    parts = [_part(record, setting, measure) for setting in record.columns for measure in record.measures]
    known, alarm = verdicts.state(record)
    steps = [(setting.name, step) for setting in record.columns for step in advice.next_steps(record, setting)]
    return templates.render(
        _TEMPLATE,
        record=record,
        known=known,
        alarm=alarm,
        failed=[run for run in record.cells if run.status == "failed"],
        facts=facts(record),
        glossary=glossary(record),
        methods=[(swatch(series), name) for name, series in record.series.items()],
        steps=[f"{name}: {step.step}" if name else step.step for name, step in steps],
        command=advice.command(record, [step for _, step in steps]),
        verdicts=[(whole["setting"], whole["verdict"]) for whole in wholes],
        settings=_settings(record),
        headlines=[(m, *headline(record, m)) for m in record.measures],
        wholes=wholes,
        contrast_table=contrast_table(record),
        parts=parts,
        tuning_table=tuning_table(record),
        paper_table=paper_table(record),
        run_table=run_table(record),
    )


def _whole(record: Comparison, setting: Setting, several: Mapping[str, str]) -> dict[str, Any]:
    return {
        "setting": setting.name,
        "verdict": " ".join([verdicts.verdict(record, setting), *several.values()]),
        "unequal": bool(budgets.unequal_budgets(record, setting)),
        "table": main_table(record, setting),
        "more": metric_table(record, setting),
        "charts": [chart for chart in (curve(record, setting, tuple(several)), cost_plane(record, setting)) if chart],
    }


def _part(record: Comparison, setting: Setting, measure: Measure) -> dict[str, Any]:
    several, of_domain = len(record.places(setting, "domains")) > 1, "domain, mean over its silos and seeds"
    return {
        "setting": setting.name,
        "measure": measure.name,
        "differences": differences(record, setting, measure),
        "pairs": pair_table(record, setting, measure),
        "domains": place_table(record, setting, measure, "domains", of_domain) if several else None,
        "silo_table": place_table(record, setting, measure, "silos", "silo, mean over seeds"),
        "many": len(record.places(setting, "silos")) > _MOST_SILOS,
    }


def _settings(record: Comparison) -> str:
    """Return the overrides of methods and settings, each name followed by its lines."""
    sets = [(one.name, one.sets) for one in record.rows] + [(one.name, one.sets) for one in record.columns if one.name]
    return "\n".join(line for name, keys in sets for line in (name, *(f"    {key}" for key in keys)))
