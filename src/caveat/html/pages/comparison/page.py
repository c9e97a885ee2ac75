"""The page of a comparison: it holds everything it shows and asks the network for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from ....files.schema.comparison import Comparison, Measure, Setting
from ...templates import environment
from ..run.figures import Chart
from . import pictures, tables
from .plots import paper_swatch, swatch
from .verdict import leaders, state, verdict

_TEMPLATE = "comparison.html.j2"


@dataclass(frozen=True)
class MeasureSection:
    """What is shown of one measure under one setting."""

    setting: str
    measure: str
    differences: Sequence[Chart]
    pairs: tables.Table | None
    domains: tables.Table | None
    silos: Chart | None
    silo_table: tables.Table | None


@dataclass(frozen=True)
class SettingSection:
    """What is shown of one setting, whichever measure is chosen."""

    setting: str
    verdict: str
    table: tables.Table | None
    curves: Sequence[Chart]
    trade_offs: Sequence[Chart]


def render(record: Comparison) -> str:
    """The page's text."""
    wholes = [_whole(record, setting) for setting in record.columns]
    parts = [_part(record, setting, measure) for setting in record.columns for measure in record.measures]
    known, alarm = state(record)
    template = environment(Path(__file__).parent).get_template(_TEMPLATE)
    return template.render(
        record=record,
        known=known,
        alarm=alarm,
        failed=[run for run in record.cells if run.status == "failed"],
        leaders=leaders(record),
        facts=pictures.facts(record),
        legend=_legend(record),
        headlines=[(m.name, pictures.headline(record, m), pictures.scales(record, m)) for m in record.measures],
        wholes=wholes,
        parts=parts,
        tuning_table=tables.tuning_table(record),
        paper_table=tables.paper_table(record),
        run_table=tables.run_table(record),
        contents=_contents(record, parts, wholes),
    )


def _whole(record: Comparison, setting: Setting) -> SettingSection:
    return SettingSection(
        setting.name,
        verdict(record, setting),
        tables.main_table(record, setting),
        pictures.curves(record, setting),
        pictures.trade_offs(record, setting),
    )


def _part(record: Comparison, setting: Setting, measure: Measure) -> MeasureSection:
    domains, silos = record.places(setting, "domains"), record.places(setting, "silos")
    return MeasureSection(
        setting.name,
        measure.name,
        pictures.differences(record, setting, measure),
        tables.pair_table(record, setting, measure),
        tables.place_table(record, setting, measure, domains, "domain") if len(domains) > 1 else None,
        pictures.silos(record, setting, measure),
        tables.place_table(record, setting, measure, silos, "silo"),
    )


def _legend(record: Comparison) -> list[tuple[Markup, str]]:
    legend = [(swatch(series), name) for name, series in record.series.items()]
    return [*legend, (paper_swatch(), "paper")] if record.paper else legend


def _contents(
    record: Comparison, parts: Sequence[MeasureSection], wholes: Sequence[SettingSection]
) -> list[tuple[str, str]]:
    """The sections that the page has, each with its heading."""
    have = {
        "table": ("Table", any(whole.table for whole in wholes)),
        "differences": ("Differences", any(part.differences for part in parts)),
        "silos": ("Silos", any(part.silos or part.domains for part in parts)),
        "rounds": ("Rounds", any(whole.curves for whole in wholes)),
        "trade-offs": ("Trade-offs", any(whole.trade_offs for whole in wholes)),
        "tuning": ("Tuning", True),
        "paper": ("Paper", record.paper is not None),
        "runs": ("Runs", bool(record.cells)),
        "again": ("Run it again", bool(record.command)),
    }
    return [(name, heading) for name, (heading, there) in have.items() if there]
