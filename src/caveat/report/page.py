"""The report: one page that holds everything it shows and asks the network for nothing."""

from __future__ import annotations

import os
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import figures, sections
from .absence import absence, absent
from .decisions import decisions
from .folder import Run, read_run
from .gallery import within_budget
from .guarantee import promise
from .privacy import privacy
from .quadrants import examples
from .tables import decimal, percent

_TEMPLATE = "template.html.j2"


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


def render(run: Run) -> str:
    """The page's text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, decimal=decimal)
    gallery = within_budget(run.gallery)
    return environment.get_template(_TEMPLATE).render(
        run=run,
        silo_table=sections.silo_table(run),
        method_table=sections.method_table(run),
        curves=figures.curves(run),
        codebook=figures.codebook(run),
        reliability=figures.reliability(run),
        temperatures=sections.temperatures(run),
        milestone_table=sections.milestone_table(run),
        gallery=gallery,
        examples=examples(run, gallery),
        decisions=decisions(run),
        promise=promise(run),
        risk_coverage=figures.risk_coverage(run),
        absence=absence(run),
        absent=absent(run),
        privacy=privacy(run),
        greeting=str(run.greeting or ""),
        cost_table=sections.cost_table(run),
    )
