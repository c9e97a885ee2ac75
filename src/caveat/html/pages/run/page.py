"""The report: one page that holds everything it shows and asks the network for nothing."""

from pathlib import Path
from typing import Any

from ....files.rollback import can_go_back
from ....files.run_folder import RunFolder, natural, read_run
from ....files.writing import write_bytes
from ... import templates
from .again import again
from .calibration import reliability, risk_coverage, temperatures
from .classification import classification, own_metrics
from .decisions import decisions
from .familiarity import familiarity
from .gallery import examples, within_budget
from .guarantee import promise
from .incidents import absence, absent, afresh, failures, lacking, newcomers, unlike, went_back, withdrawn
from .ledger import privacy, protection, told_before
from .overview import headline, method_table, overview
from .rounds import cost_table, curves, domains, milestone_table
from .silos import more_panels, silo_table
from .trust import trust
from .uncertainty import codebook, outcome_bars, scatter

_TEMPLATE = "pages/run/run.html.j2"


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of the run in folder `run` to `out`, by default its report.html, and return where it is.

    Raises DataError if `run` is not a run's folder or one of its files is damaged, RunError if it cannot be written.
    """
    return write_page(read_run(run), out or run / "report.html")


def write_page(run: RunFolder, target: Path) -> Path:
    """Write the report of a run that was read to `target`, and return `target`."""
    page = render(run)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, page.encode())
    return target


def render(run: RunFolder) -> str:
    """The text of the page."""
    return templates.render(_TEMPLATE, run=run, **_parts(run))


def _parts(run: RunFolder) -> dict[str, Any]:
    """The parts of the page by name; None for a part that the run has no data for."""
    gallery = within_budget(run.gallery)
    return {
        "overview": overview(run),
        "trust": trust(run),
        "outcomes": outcome_bars(run),
        "familiarity": familiarity(run),
        "failures": failures(run),
        "panels": more_panels(run),
        "silos": sorted((silo.name for silo in run.silos), key=natural),
        "classification": classification(run),
        "own_metrics": own_metrics(run),
        "silo_table": silo_table(run),
        "method_table": method_table(run),
        "curves": curves(run),
        "scatter": scatter(run.features, domains(run)),
        "codebook": codebook(run),
        "reliability": reliability(run),
        "temperatures": temperatures(run),
        "milestone_table": milestone_table(run),
        "gallery": gallery,
        "examples": examples(run, gallery),
        "decisions": decisions(run),
        "promise": promise(run),
        "risk_coverage": risk_coverage(run),
        "absence": absence(run),
        "absent": absent(run),
        "afresh": afresh(run),
        "noted": unlike(run),
        "can_go_back": can_go_back(run.path),
        "went_back": went_back(run),
        "lacking": lacking(run),
        "newcomers": newcomers(run),
        "withdrawn": withdrawn(run),
        "privacy": privacy(run),
        "protection": protection(run.summary.privacy if run.summary else None),
        "greeting": told_before(run.greeting),
        "facts": headline(run),
        "cost_table": cost_table(run),
        "again": again(run),
    }
