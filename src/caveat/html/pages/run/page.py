"""The report: one page that holds everything it shows and asks the network for nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....files.run_folder import RunFolder, natural, read_run
from ...templates import environment
from . import figures, sections
from .absence import absence, absent, newcomers
from .again import again
from .decisions import decisions
from .gallery import within_budget
from .greeting import told_before
from .guarantee import promise
from .overview import overview
from .panels import more_panels
from .privacy import privacy
from .quadrants import examples
from .scatter import scatter

_TEMPLATE = "run.html.j2"


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of the run in folder `run` to `out`, by default its report.html, and return where it is.

    Raises DataError if `run` is not a run's folder or one of its files is damaged.
    """
    target = out or run / "report.html"
    page = render(read_run(run))
    target.parent.mkdir(parents=True, exist_ok=True)
    # Whoever reads the page while it is written anew sees the old one, not half of the new one.
    half = target.with_name(f".{target.name}.{os.getpid()}")
    half.write_text(page, encoding="utf-8")
    half.replace(target)
    return target


def render(run: RunFolder) -> str:
    """The page's text."""
    parts = _parts(run)
    return (
        environment(Path(__file__).parent).get_template(_TEMPLATE).render(run=run, contents=_contents(parts), **parts)
    )


def _parts(run: RunFolder) -> dict[str, Any]:
    """What the page shows, by name; None for what the run has nothing for."""
    gallery = within_budget(run.gallery)
    return {
        "overview": overview(run),
        "panels": more_panels(run),
        "silos": sorted((silo.name for silo in run.silos), key=natural),
        "silo_table": sections.silo_table(run),
        "method_table": sections.method_table(run),
        "curves": figures.curves(run),
        "scatter": scatter(run.features, figures.domains(run)),
        "codebook": figures.codebook(run),
        "reliability": figures.reliability(run),
        "temperatures": sections.temperatures(run),
        "milestone_table": sections.milestone_table(run),
        "gallery": gallery,
        "examples": examples(run, gallery),
        "decisions": decisions(run),
        "promise": promise(run),
        "risk_coverage": figures.risk_coverage(run),
        "absence": absence(run),
        "absent": absent(run),
        "newcomers": newcomers(run),
        "privacy": privacy(run),
        "greeting": told_before(run.greeting),
        "costs": sections.costs(run),
        "cost_table": sections.cost_table(run),
        "again": again(run),
    }


_CONTENTS = (
    ("overview", "Overview", ("again",)),
    ("silos", "Silos", ("silo_table",)),
    ("decisions", "Decisions", ("decisions",)),
    ("rounds", "Rounds", ("curves",)),
    ("features", "Features", ("scatter",)),
    ("codebook", "Codebook", ("codebook",)),
    ("reliability", "Reliability", ("reliability", "risk_coverage", "temperatures")),
    ("milestones", "Milestones", ("milestone_table",)),
    ("samples", "Examples", ("gallery",)),
    ("left-out", "Left out", ("absence",)),
    ("ledger", "Ledger", ("privacy",)),
    ("cost", "Cost", ("cost_table",)),
    ("again", "Run it again", ("again",)),
)
"""Sections in their order: where, their title, and the parts of which any makes them."""


def _contents(parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(place, title) for place, title, of in _CONTENTS if any(parts[name] for name in of)]
