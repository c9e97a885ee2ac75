"""The page of a comparison: it holds everything it shows and asks the network for nothing."""

from typing import Any

from ....files.schema import Comparison, Measure, Setting
from ... import templates
from ...charts.svg import swatch
from .pictures import curves, differences, facts, headline, silos, trade_offs
from .tables import contrast_table, main_table, pair_table, paper_table, place_table, run_table, tuning_table
from .verdict import equal_by, leaders, state, unequal_budgets, verdict

_TEMPLATE = "pages/comparison/comparison.html.j2"


def render(record: Comparison) -> str:
    """The text of the page."""
    wholes = [_whole(record, setting) for setting in record.columns]
    parts = [_part(record, setting, measure) for setting in record.columns for measure in record.measures]
    known, alarm = state(record)
    return templates.render(
        _TEMPLATE,
        record=record,
        known=known,
        alarm=alarm,
        failed=[run for run in record.cells if run.status == "failed"],
        leaders=leaders(record),
        budgets=[
            (one.name, told, equal_by(record, one)) for one in record.columns if (told := unequal_budgets(record, one))
        ],
        facts=facts(record),
        methods=[(swatch(series), name) for name, series in record.series.items()],
        verdicts=[(whole["setting"], whole["verdict"]) for whole in wholes],
        settings=_settings(record),
        headlines=[(m.name, *headline(record, m)) for m in record.measures],
        wholes=wholes,
        contrast_table=contrast_table(record),
        parts=parts,
        tuning_table=tuning_table(record),
        paper_table=paper_table(record),
        run_table=run_table(record),
    )


def _whole(record: Comparison, setting: Setting) -> dict[str, Any]:
    """The parts of one setting that do not depend on the chosen measure."""
    return {
        "setting": setting.name,
        "verdict": verdict(record, setting),
        "table": main_table(record, setting),
        "curves": curves(record, setting),
        "trade_offs": trade_offs(record, setting),
    }


def _part(record: Comparison, setting: Setting, measure: Measure) -> dict[str, Any]:
    """The parts of one setting and one measure."""
    several, of_domain = len(record.places(setting, "domains")) > 1, "domain, mean over its silos and seeds"
    return {
        "setting": setting.name,
        "measure": measure.name,
        "differences": differences(record, setting, measure),
        "pairs": pair_table(record, setting, measure),
        "domains": place_table(record, setting, measure, "domains", of_domain) if several else None,
        "silos": silos(record, setting, measure),
        "silo_table": place_table(record, setting, measure, "silos", "silo, mean over seeds"),
    }


def _settings(record: Comparison) -> str:
    """What each method and setting sets, a name followed by its lines."""
    sets = [(one.name, one.sets) for one in record.rows] + [(one.name, one.sets) for one in record.columns if one.name]
    return "\n".join(line for name, keys in sets for line in (name, *(f"    {key}" for key in keys)))
