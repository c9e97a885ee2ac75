"""The page of a comparison; it is self-contained and loads nothing from the network."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ...core.text import duration, plural, size
from ...files.schema import Comparison, Measure, Setting, predicted
from .. import templates
from ..svg import swatch
from . import advice, budgets
from . import verdict as verdicts
from .figures import cost_plane, curve, differences, headline
from .models_alone import Summaries, models_alone
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


def facts(record: Comparison) -> list[str]:
    """Return the size and the cost of the comparison."""
    silos_of = {len(run.silos) for run in record.runs(status="done") if run.silos}
    seconds = [run.seconds for run in record.cells if run.seconds is not None]
    sent = [(run.bytes_up or 0) + (run.bytes_down or 0) for run in record.cells]
    judged = verdicts.judged(record)
    most = [share for setting in record.columns if (share := verdicts.beside(record, setting, judged))]
    without = (
        "always predicting the most frequent class" if predicted(record.measures) == "classes" else "without inputs"
    )
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
            "AUGRC is the share of inputs that are predicted wrongly and not withheld, averaged over all shares of "
            "withheld inputs."
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
