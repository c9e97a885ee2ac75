"""Build the record in `comparison.json` from the runs of a comparison."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._version import __version__
from ...core import DataError
from ...files import schema
from ...files.schema import CURVES, SCHEMA, Measure, MethodVariant, Setting, predicted
from ...html.run.classification import majority
from ...metrics import HIGHER_IS_BETTER, LOWER_IS_BETTER, UNBOUNDED
from ..statistics import Interval, Steps, Values, estimate, interval, mean_ranks, simultaneous
from .compared_run import FinishedRun
from .folder import ComparisonFolder
from .grid import OWN, Grid
from .per_input import TELLING, contrast_records, paired, steps_of


def comparison_of(results: ComparisonFolder) -> schema.Comparison:
    """Return the record of a comparison, finished or not; numbers that are not yet known are None. Raises DataError if
    runs had different data."""
    grid = results.grid
    _check_data(results)
    tables = tuple(_table(results, setting, measure) for setting in grid.columns for measure in grid.measures)
    return schema.Comparison(
        schema=SCHEMA,
        version=__version__,
        title=grid.title,
        command=grid.command,
        about=grid.about,
        seeds=grid.seeds,
        rows=tuple(
            schema.ComparedMethod(name=m.name, method=grid.method_of(m), sets=m.sets, note=m.note) for m in grid.rows
        ),
        columns=grid.columns,
        match_rounds=grid.match_rounds,
        tuning=_tuning(grid),
        measures=grid.measures,
        cells=tuple(_run(results, *place) for place in grid.places()),
        tables=tables,
        paper=_paper(grid, tables),
        contrasts=contrast_records(results),
    )


def _check_data(results: ComparisonFolder) -> None:
    first: dict[tuple[str, int], FinishedRun] = {}
    for setting, method, seed in results.grid.places():
        planned = results.planned(setting, method, seed)
        if planned is not None and (found := results.done(planned)) is not None:
            other = first.setdefault((setting.name, seed), found)
            if other.splits != found.splits:
                text = "have the same column and seed, but different data; remove the older folder"
                raise DataError(f"{other.folder} and {found.folder} {text}")


def _tuning(grid: Grid) -> schema.TuningReport | None:
    if grid.tuning is None:
        return None
    return schema.TuningReport(
        key=grid.tuning.key,
        values={method.name: list(grid.values(method)) for method in grid.rows},
        seed=grid.seeds[0],
        seeds=grid.seeds_tried,
        runs=len(grid.tuning.values) * len(grid.seeds_tried),
        by=f"{CURVES[predicted(grid.measures)][0]}{f' of the {grid.judged} model' * bool(grid.judged)} on validation "
        "data",
    )


def _run(results: ComparisonFolder, setting: Setting, method: MethodVariant, seed: int) -> schema.ComparedRun:
    tried = _trials(results, setting, method) if seed == results.grid.seeds[0] else ()
    planned = results.planned(setting, method, seed)
    folder, tuned, found = "", {}, None
    if planned is None:
        why = results.why_none(setting, method)
    else:
        folder, tuned = planned.folder, dict(each.split("=", 1) for each in planned.tuned)
        why, found = results.failure(planned) or "", results.done(planned)
    figures = {} if found is None else _figures(results.grid, found)
    return schema.ComparedRun(
        row=method.name,
        column=setting.name,
        seed=seed,
        status="failed" if why else "missing" if found is None else "done",
        error=why,
        folder=folder,
        tuned=tuned,
        tuning=tried,
        **figures,
    )


def _trials(results: ComparisonFolder, setting: Setting, method: MethodVariant) -> tuple[schema.Trial, ...]:
    return tuple(
        schema.Trial(
            value=value,
            score=abs(score[0]) if (score := results.tuning.score(runs)) else None,
            error=next((why for run in runs if (why := results.failure(run))), ""),
        )
        for value, runs in results.tuning.tried(method, setting)
    )


def _figures(grid: Grid, found: FinishedRun) -> dict[str, Any]:
    per_silo = {measure.name: found.of_silos(measure) for measure in grid.measures}
    traffic = found.summary.traffic
    return {
        "rounds": found.rounds,
        "seconds": sum(found.summary.seconds.values()),
        "bytes_up": traffic and traffic.bytes_up,
        "bytes_down": traffic and traffic.bytes_down,
        "silos": tuple(
            schema.SiloFigures(
                name=silo.name,
                domain=silo.domain,
                figures={name: values[silo.name] for name, values in per_silo.items() if silo.name in values},
            )
            for silo in found.silos
        ),
        "figures": {measure.name: found.of_run(measure) for measure in grid.measures if measure.path},
        "curve": tuple(found.curve()),
        "majority": _majority(found),
        "without_inputs": {
            each.name: value for each in grid.measures if (value := found.without_inputs(each)) is not None
        },
    }


def _majority(found: FinishedRun) -> schema.MajorityRecord | None:
    """Return the comparison with each silo's most frequent class; None if a silo's inputs were not counted by class."""
    classes = found.summary.classes or []
    of = [each for silo in found.silos if (each := majority(silo, classes)) is not None]
    if not of or len(of) < len(found.silos):
        return None
    whole = sum(of[1:], start=of[0])
    mean = math.fsum(each.share for each in of) / len(of)
    return schema.MajorityRecord(accuracy=mean, gained=whole.gained, lost=whole.lost)


def _table(results: ComparisonFolder, setting: Setting, measure: Measure) -> schema.MeasureTable:
    methods = results.grid.rows
    finished = {method.name: _finished(results, setting, method) for method in methods}
    values = {name: _values(found, measure) for name, found in finished.items()}
    known = {name: found for name, found in values.items() if any(found.values())}
    steps = {name: _steps(finished[name], measure) for name in known}
    intervals = {name: interval(found, steps=steps[name]) for name, found in known.items()}
    ranks = mean_ranks(known, measure.higher) if measure.higher is not None and measure.figure else {}
    rows = tuple(
        schema.Result(
            row=name,
            seeds=len(finished[name]),
            failed=sum(_has_failed(results, setting, method, seed) for seed in results.grid.seeds),
            **(_spread(intervals[name], measure, finished[name], known[name]) if name in known else {}),
            rank=ranks.get(name),
        )
        for name, method in ((method.name, method) for method in methods)
    )
    return schema.MeasureTable(
        column=setting.name,
        measure=measure.name,
        rows=rows,
        **_pairs(measure, {name: finished[name] for name in known}),
    )


def _finished(results: ComparisonFolder, setting: Setting, method: MethodVariant) -> dict[int, FinishedRun]:
    planned = {seed: results.planned(setting, method, seed) for seed in results.grid.seeds}
    found = {seed: results.done(run) for seed, run in planned.items() if run is not None}
    return {seed: done for seed, done in found.items() if done is not None}


def _values(finished: Mapping[int, FinishedRun], measure: Measure) -> Values:
    """Return a metric per seed and silo; a metric of the whole run counts as a single silo's."""
    if measure.figure:
        return {seed: found.of_silos(measure) for seed, found in finished.items()}
    whole = {seed: found.of_run(measure) for seed, found in finished.items()}
    return {seed: {"": value} for seed, value in whole.items() if value is not None}


def _steps(finished: Mapping[int, FinishedRun], measure: Measure) -> Steps:
    return {seed: steps_of(found, measure) for seed, found in finished.items()}


def _spread(whole: Interval, measure: Measure, finished: Mapping[int, FinishedRun], values: Values) -> dict[str, Any]:
    """Return mean and interval; for a metric of silos also the worst silo, and each domain and silo."""
    found: dict[str, Any] = dict(vars(ends_of(whole, measure)))
    if measure.figure:
        domains = {silo.name: silo.domain for done in finished.values() for silo in done.silos}
        found |= {"worst": _worst(values, measure), **_groups(values, domains, measure, finished)}
    return found


def _has_failed(results: ComparisonFolder, setting: Setting, method: MethodVariant, seed: int) -> bool:
    planned = results.planned(setting, method, seed)
    if planned is None:
        return bool(results.why_none(setting, method))
    return results.failure(planned) is not None


def _worst(values: Values, measure: Measure) -> float | None:
    """Return the mean over seeds of the worst silo's value; None if neither direction is worse."""
    if measure.higher is None:
        return None
    worst = min if measure.higher else max
    ends = [worst(silos.values()) for silos in values.values() if silos]
    return sum(ends) / len(ends)


def _groups(
    values: Values, domains: Mapping[str, str], measure: Measure, finished: Mapping[int, FinishedRun]
) -> dict[str, dict[str, schema.IntervalRecord]]:
    """Return the metric by domain, if there are several, and by silo."""
    names, steps = list(dict.fromkeys(domains.values())), _steps(finished, measure)
    by_domain = {
        domain: interval(
            {s: {k: v for k, v in silos.items() if domains[k] == domain} for s, silos in values.items()}, steps=steps
        )
        for domain in names
    }
    by_silo = {
        silo: interval({s: {silo: found[silo]} for s, found in values.items() if silo in found}, steps=steps)
        for silo in domains
    }
    rests = {silo: {"rests_on": n} for silo in domains if (n := rests_on(silo, measure, finished.values())) is not None}
    return {
        "domains": {name: ends_of(each, measure) for name, each in by_domain.items() if len(names) > 1},
        "silos": {name: ends_of(each, measure).model_copy(update=rests.get(name)) for name, each in by_silo.items()},
    }


def _pairs(measure: Measure, finished: Mapping[str, Mapping[int, FinishedRun]]) -> dict[str, Any]:
    """Return the differences of all pairs, and whether they treat test inputs as random, too."""
    names = [(a, b) for b, a in itertools.combinations(finished, 2)]
    found = []
    for a, b in names:
        one, other = finished[a], finished[b]
        seeds = [paired(measure, one[s], other[s]) for s in sorted(one) if s in other]
        found.append([each for each in seeds if each is not None])
    differences = [estimate(seeds) for seeds in found]
    records = [
        schema.DifferenceRecord(a=a, b=b, mean=each.mean, low=low, high=high, p=each.p_different(), p_adjusted=p)
        for (a, b), each, (low, high, p) in zip(names, differences, simultaneous(differences), strict=True)
    ]
    sampled = any(found) and all(each.inputs is not None for seeds in found for each in seeds)
    return {"pairs": tuple(records), "inputs_sampled": sampled}


def _paper(grid: Grid, tables: Sequence[schema.MeasureTable]) -> schema.Paper | None:
    if (paper := grid.published) is None:
        return None
    ours = {(table.column, table.measure, row.row): row for table in tables for row in table.rows}
    figures = []
    for each in paper.figures:
        found = ours[each.column, each.measure, each.row]
        figures.append(
            schema.Printed(
                row=each.row,
                column=each.column,
                measure=each.measure,
                paper=each.value,
                ours=found.mean,
                low=found.low,
                high=found.high,
                difference=None if found.mean is None else found.mean - each.value,
            )
        )
    return schema.Paper(source=paper.source, differs=paper.differs, claims=paper.claims, figures=tuple(figures))


def ends_of(found: Interval, measure: Measure) -> schema.IntervalRecord:
    """Return an interval clipped to the metric's range, which does not change its coverage."""
    if measure.figure.startswith(f"{OWN}/"):  # a custom metric, whose range is unknown
        return schema.IntervalRecord(mean=found.mean, low=found.low, high=found.high)
    most = _largest(measure)
    low, high = max(found.low, 0.0), min(found.high, most)
    return schema.IntervalRecord(mean=found.mean, low=low, high=high)


def _largest(measure: Measure) -> float:
    name = (measure.figure or measure.path).rpartition("/")[2]
    if name == "brier":
        return 2.0
    bounded = measure.percent or name in (HIGHER_IS_BETTER | LOWER_IS_BETTER) - UNBOUNDED
    return 1.0 if bounded else math.inf


def rests_on(name: str, measure: Measure, finished: Iterable[FinishedRun]) -> int | None:
    """Return the number of errors of all seeds, or of correct predictions if fewer, behind a metric of error detection
    at a silo; None for other metrics, and if unknown."""
    if measure.figure.rpartition("/")[2] not in TELLING or "/" in measure.figure:
        return None
    known = [
        (silo.n_test, silo.test.accuracy)
        for found in finished
        for silo in found.silos
        if silo.name == name and silo.n_test and silo.test.accuracy is not None
    ]
    wrong = sum(round(n * (1 - accuracy)) for n, accuracy in known)
    return min(wrong, sum(n for n, _ in known) - wrong) if known else None
