"""The tables of a comparison's page."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal
from urllib.parse import quote

from markupsafe import Markup

from ...core.text import MINUS, count, decimal, duration, initial, probability, size
from ...files.schema import (
    ComparedMethod,
    ComparedRun,
    Comparison,
    DifferenceRecord,
    IntervalRecord,
    Measure,
    Setting,
)
from ..svg import element, swatch
from ..templates import Cell, Column, Table, column, table, words
from . import wording
from .budgets import pairs_of, range_of, trained, unequal_budgets, uneven
from .verdict import gap_between, winner

_ARROWS = {True: "\N{NO-BREAK SPACE}\N{UPWARDS ARROW}", False: "\N{NO-BREAK SPACE}\N{DOWNWARDS ARROW}", None: ""}
_EDGE = "at the edge of the tried values: a better value may lie beyond them"


def main_table(record: Comparison, setting: Setting) -> Table | None:
    """Return a row per method: the first metric, its difference to the best, calibration and error detection, worst
    silo, costs, and tuned values."""
    runs = [record.runs(row, setting) for row in record.rows]
    not_done = any(run.status != "done" for run in record.runs(setting=setting))
    rounds, unequal = trained(record, setting), bool(unequal_budgets(record, setting))
    times = [[run.seconds for run in found if run.status == "done" and run.seconds] for found in runs]
    fold = uneven(times)
    keys = dict.fromkeys(key for found in runs for run in found for key in run.tuned)
    columns = [
        words("method", (_name(record, row) for row in record.rows)),
        words("runs", map(_runs, runs) if not_done else [""] * len(runs), "done, out of all planned"),
        column("rounds", (range_of(rounds[row.name]) if row.name in rounds else "" for row in record.rows)),
        _measured(record, setting, record.measures[0]),
        *([] if unequal else _gaps(record, setting, record.measures[0])),
        *(_measured(record, setting, measure) for measure in record.measures[1:] if measure.figure in _MAIN),
        _ranked(record, setting, record.measures[0])[0],
        column("time", (_time(each, fold) for each in times), "per run"),
        column("from silos", (size(wording.mean_of(each, "bytes_up")) for each in runs), "sent, except for metrics"),
        column("to silos", (size(wording.mean_of(each, "bytes_down")) for each in runs), "sent"),
        *(column(key, (_values(each, key) for each in runs), "chosen on validation data") for key in keys),
    ]
    bold = "; a mean in bold is shown to be better than all others" if "<b>" in str(columns) else ""
    failed = "; a triangle marks failed runs" if any(cell.flag for cell in columns[1].cells) else ""
    caption = f"Mean over silos and seeds, with its 95 % interval below{bold}. Costs are per run, mean over seeds"
    caption += f", but times are from the shortest to the longest run: they varied up to {fold:.0f}-fold" * (fold > 0)
    caption += f"{failed}. {wording.POPULATION}"
    if any(measure.figure == "ece" for measure in record.measures):
        caption += " With few test inputs, calibration errors are above 0 by chance, also for calibrated models."
    return table(columns, caption, [row.name for row in record.rows])


def _time(times: Sequence[float], fold: float) -> str:
    """Return the mean time of finished runs or, if times vary much, the shortest and the longest one."""
    if not fold or len(times) < 2:
        return duration(fmean(times) if times else None)
    return f"{duration(min(times))} to {duration(max(times))}"


_MAIN = ("ece", "augrc", "mae", "rmse", "interval_coverage", "interval_width", "c_index", "interval_low")
"""Metrics of the main table besides the first one."""


def metric_table(record: Comparison, setting: Setting) -> Table | None:
    """Return a row per method with the metrics that the main table lacks, and the worst silo and the rank by each
    metric; no rank if budgets differ."""
    others = [measure for measure in record.measures[1:] if measure.figure not in _MAIN]
    columns = [
        words("method", (_name(record, row) for row in record.rows)),
        *(_measured(record, setting, measure) for measure in others),
        *(one for measure in record.measures for one in _ranked(record, setting, measure)),
    ]
    rank = "" if unequal_budgets(record, setting) else " and the rank"
    caption = f"More metrics, and the worst silo{rank} by each metric, mean over seeds."
    return table(columns, caption, [row.name for row in record.rows]) if len(columns) > 1 else None


def _name(record: Comparison, row: ComparedMethod) -> Markup:
    note = element("small", row.note, class_="bounds") if row.note else ""
    return swatch(record.series[row.name]) + Markup(" ") + row.name + note


def _measured(record: Comparison, setting: Setting, measure: Measure) -> Column:
    cells, best = [], winner(record, setting, measure)
    for row in record.rows:
        found = record.result(row, setting, measure)
        cells.append(
            _mean(measure, found, row.name == best) or ("failed" if record.runs(row, setting, "failed") else "")
        )
    of = "of all inputs together, mean over seeds" if measure.path else "mean over silos and seeds"
    return column(wording.header(measure) + _ARROWS[measure.higher], cells, of)


def _gaps(record: Comparison, setting: Setting, measure: Measure) -> list[Column]:
    """Return a column with the lead of the best method over each other method."""
    results = record.results(setting, measure)
    order = wording.ranked(results.rows, measure)
    if len(order) < 2 or measure.higher is None:
        return []
    best, cells = order[0].row, list[str]()
    for row in record.rows:
        pair = None if row.name == best else gap_between(results.pairs, best, row.name, measure)
        cells.append("" if pair is None or pair.mean is None else _behind(measure, pair))
    return [column(f"behind {best}{', points' * measure.percent}", cells, "with simultaneous 95 % interval")]


def _behind(measure: Measure, pair: DifferenceRecord) -> str:
    bounds = wording.interval(measure, pair)
    below = element("small", bounds, class_="bounds") if bounds else ""
    return element("span", wording.figure(measure, pair.mean)) + below


def _mean(measure: Measure, value: IntervalRecord, best: bool = False) -> str:
    if value.mean is None:
        return ""
    # With few errors, the interval is as uncertain as the value.
    bounds = wording.few(value) or wording.interval(measure, value)
    below = element("small", bounds, class_="bounds") if bounds else ""
    return element("b" if best else "span", wording.figure(measure, value.mean)) + below


def _ranked(record: Comparison, setting: Setting, measure: Measure) -> list[Column]:
    name, results = measure.title, [record.result(row, setting, measure) for row in record.rows]
    worst = [wording.figure(measure, one.worst) for one in results]
    ranks = [] if unequal_budgets(record, setting) else [decimal(one.rank, 1) for one in results]
    about_rank = f"mean rank by {name} among the methods, over seeds and silos; 1 is best"
    return [
        column(f"worst silo, {name}", worst, f"{name} of each seed's worst silo, mean over seeds", name),
        column(f"rank, {name}", ranks, about_rank, name),
    ]


def _values(runs: Sequence[ComparedRun], key: str) -> str:
    return ", ".join(dict.fromkeys(wording.setting_value(run.tuned[key]) for run in runs if key in run.tuned))


def _runs(runs: Sequence[ComparedRun]) -> Cell:
    done = f"{sum(run.status == 'done' for run in runs)} of {len(runs)}"
    errors = "; ".join(run.error or "failed" for run in runs if run.status == "failed")
    return Cell(", ".join([done, *wording.not_done(runs)]), errors)


def place_table(
    record: Comparison, setting: Setting, measure: Measure, part: Literal["domains", "silos"], caption: str
) -> Table | None:
    """Return a row per domain or silo and a column per method; None without methods. Silos at which methods differ most
    come first."""
    results = [record.result(row, setting, measure) for row in record.rows]
    places, order = record.places(setting, part), ""
    if part == "silos":
        places = sorted(places, key=lambda place: -_range(result.silos.get(place) for result in results))
        order = "; silos with the largest difference between methods come first"
    columns = [words(part.removesuffix("s"), places)]
    shown = list[IntervalRecord]()
    for found in results:
        of: Mapping[str, IntervalRecord] = getattr(found, part)
        each = [of.get(place, IntervalRecord()) for place in places]
        if part == "silos" and len(record.seeds) < wording.SEEDS:  # intervals over so few seeds say nothing of a silo
            each = [one.model_copy(update={"low": None, "high": None}) for one in each]
        columns.append(column(found.row, (_mean(measure, value) for value in each)))
        shown += each
    if len(columns) < 2:
        return None
    cut = any(one.low == 0 != one.mean or one.high == 1 != one.mean for one in shown) and measure.percent
    unit = " in %" * measure.percent
    told = f"{initial(measure.title)}{unit} by {caption}, {wording.interval_caption(shown)}{order}"
    told += f"{'; intervals are cut at 0 and 100 %' * cut}."
    if part == "silos":
        told += " Differences are not tested: do not choose a method by silo."
        told += " Rounds differ, so this is not a ranking." * bool(unequal_budgets(record, setting))
    return table(columns, told)


def _range(values: Iterable[IntervalRecord | None]) -> float:
    """Return the difference of the largest and the smallest known mean."""
    known = [value.mean for value in values if value is not None and value.mean is not None]
    return max(known, default=0.0) - min(known, default=0.0)


def pair_table(record: Comparison, setting: Setting, measure: Measure) -> Table | None:
    """Return a row per pair of methods, with their difference and its tests."""
    pairs = pairs_of(record, setting, measure)
    columns = [
        words("pair", (f"{pair.a} {MINUS} {pair.b}" for pair in pairs)),
        column("difference", (wording.signed(measure, pair.mean) for pair in pairs)),
        column("simultaneous 95 % interval", (wording.interval(measure, pair) for pair in pairs)),
        column("p", (probability(pair.p) for pair in pairs), "for this pair alone"),
        column("corrected p", (probability(pair.p_adjusted) for pair in pairs), "for all pairs"),
    ]
    about = f"Differences in {measure.title}, first minus second method, on common seeds and silos; intervals and "
    about += "p-values apply to "
    return table(columns, f"{about}{wording.scope(record.results(setting, measure))}.")


def tuning_table(record: Comparison) -> Table | None:
    """Return a row per method and setting: the tried values, with their scores, and the chosen one."""
    tuning = record.tuning
    if tuning is None:
        return None
    found = [(row, setting, record.runs(row, setting)) for setting in record.columns for row in record.rows]
    caption = f"{tuning.key}, chosen by {tuning.by}"
    if tuning.seed is not None:
        caption += f" with seed {', '.join(map(str, tuning.seeds)) or tuning.seed}"
    caption += f", {tuning.runs} runs for every method" if tuning.runs else ""
    caption += "; scores are next to the values; the chosen value is in bold. A triangle marks a choice at the edge of "
    columns = [
        words("method", (_name(record, row) for row, _, _ in found)),
        words("setting", (setting.name for _, setting, _ in found)),
        words("chosen", (_chosen(runs, tuning.key) for _, _, runs in found)),
        words("tried", (_tried(record, runs, tuning.key, tuning.by) for _, _, runs in found)),
    ]
    return table(columns, f"{caption}the tried values.", [row.name for row, _, _ in found])


def _tried(record: Comparison, runs: Sequence[ComparedRun], key: str, by: str) -> str:
    run = next((run for run in runs if run.tuning), None)
    if run is None:
        return ""
    measure = next((m for m in record.measures if by.startswith(m.name)), Measure(name=""))
    chosen, parts = wording.setting_value(run.tuned.get(key)), []
    for trial in run.tuning:
        value = wording.setting_value(trial.value)
        score = element("small", wording.figure(measure, trial.score) or "failed", title=trial.error or None)
        parts.append(element("span", element("b" if value == chosen else "span", value), " ", score, class_="trial"))
    return Markup(" ").join(parts)


def _chosen(runs: Sequence[ComparedRun], key: str) -> Cell:
    """Return the chosen values, flagged if they are the smallest or the largest tried: a better one may lie beyond."""
    tuned = next((run for run in runs if run.tuning and key in run.tuned), None)
    if tuned is None:
        return Cell(_values(runs, key))
    numbers = sorted(number for trial in tuned.tuning if (number := wording.as_number(trial.value)) is not None)
    edge = len(numbers) > 1 and wording.as_number(tuned.tuned[key]) in (numbers[0], numbers[-1])
    return Cell(_values(runs, key), _EDGE if edge else "")


def paper_table(record: Comparison) -> Table | None:
    """Return the paper's results next to those of this comparison."""
    measures = {measure.name: measure for measure in record.measures}
    printed = record.paper.figures if record.paper else ()
    found = [(one, measures[one.measure]) for one in printed if one.measure in measures and one.row in record.series]
    ours = [IntervalRecord(mean=one.ours, low=one.low, high=one.high) for one, _ in found]
    columns = [
        words("method", (one.row for one, _ in found)),
        words("setting", (one.column for one, _ in found)),
        words("measure", (wording.header(measure) for _, measure in found)),
        column("paper", (wording.figure(measure, one.paper) for one, measure in found)),
        column("here", (wording.bracketed(m, own) for (_, m), own in zip(found, ours, strict=True)), "95 % interval"),
        column(
            "difference", (wording.signed(measure, one.difference) for one, measure in found), f"here {MINUS} paper"
        ),
    ]
    caption = "The paper's results, and the results of this comparison with 95 % intervals."
    return table(columns, caption, [one.row for one, _ in found])


def run_table(record: Comparison) -> Table | None:
    """Return a row per run, with a link to its report, or with its error if it failed."""
    runs = record.cells
    columns = [
        words("run", map(_link, runs)),
        words("setting", (run.column for run in runs)),
        column("seed", (str(run.seed) for run in runs)),
        words("state", map(_state, runs)),
        column("rounds", (count(run.rounds) for run in runs)),
        column("time", (duration(run.seconds) for run in runs)),
        column("from silos", (size(run.bytes_up) for run in runs)),
        column("to silos", (size(run.bytes_down) for run in runs)),
    ]
    caption = "Links lead to the runs' own pages, in folders next to this one; caveat report FOLDER writes a page that "
    return table(columns, f"{caption}is missing.", [run.row for run in runs])


def _link(run: ComparedRun) -> str:
    if run.status != "done" or not run.folder or run.folder.startswith("/"):
        return run.row
    return element("a", run.row, href=f"{quote(run.folder)}/report.html")


def _state(run: ComparedRun) -> Cell:
    if run.status == "failed":
        return Cell(f"failed: {run.error or 'the error was not recorded'}", run.error)
    return Cell("to come" if run.status == "missing" else "done")


_ABOUT = (
    "Contrasts and margins were fixed before the table was made. Intervals treat test inputs and seeds as random and "
    "silos as fixed. p-values are corrected over all contrasts, both for difference and for equality within the margin "
    "(Holm), and so are intervals of contrasts that are not decided (Bonferroni)."
)


def contrast_table(record: Comparison) -> Table | None:
    """Return a row per contrast; None for a comparison without contrasts."""
    found = record.contrasts
    columns = [
        words("claim", (each.claim for each in found)),
        words("contrast", map(wording.contrast_name, found)),
        column("difference", (wording.gap_of(each, each.mean) for each in found), "shares in percentage points"),
        column("95 % interval", map(wording.gap_interval, found)),
        words("verdict", (wording.contrast_verdict(record, each) for each in found)),
        column("Holm p, different", (probability(each.p_different) for each in found)),
        column("Holm p, equal", (probability(each.p_equal) for each in found)),
    ]
    return table(columns, _ABOUT) if found else None
