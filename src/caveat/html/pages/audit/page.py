"""The audit as one page that holds everything it shows and asks the network for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from ....files.schema.audit import AuditFile, FusedCopies
from ...templates import environment
from ...text import percent
from ..run.figures import Chart
from ..run.sections import HtmlCell, HtmlColumn, HtmlTable, table
from .drawings import curves, legend, means_by_size, rank_plane, sweep_chart

_TEMPLATE = "audit.html.j2"
NUMBERS = ("epistemic", "vacuity", "aleatoric", "total")


def render(audit: AuditFile) -> str:
    """The page's text, from what audit.json holds."""
    templates = environment(Path(__file__).parent)
    templates.filters.update(fraction=fraction)
    return templates.get_template(_TEMPLATE).render(
        audit=audit,
        broken=[finding for finding in audit.findings if finding.verdict == "does not hold"],
        open=[finding for finding in audit.findings if finding.verdict == "cannot say"],
        sweep=sweep_table(audit.runs),
        chart=sweep_figure(audit.runs),
        legend=legend(audit.runs),
        plane=Chart("Aleatoric against epistemic", rank_plane(audit.plane), _ABOUT_PLANE),
        fusion=fusion_table(audit.fusion),
    )


_ABOUT_PLANE = (
    "Test inputs with all data, ranked in their silo by both uncertainties, all silos and seeds; darker is more. "
    "A diagonal means that the two names order inputs alike."
)


def fraction(share: float) -> str:
    """A share as 1/4 where a denominator to 1000 gives it exactly, else in decimals."""
    near = Fraction(share).limit_denominator(1000)
    return str(near) if float(near) == share else f"{share:g}"


def sweep_figure(rows: Sequence[Mapping[str, float]]) -> Chart | None:
    """Mean uncertainties over the training examples of a silo."""
    drawn = sweep_chart(rows)
    if drawn is None:
        return None
    without = ", ".join(name for name in NUMBERS if name in rows[0] and name not in curves(rows))
    about = (
        "Means over test inputs, silos and seeds, in nats (vacuity: a share); strokes up and down are the range over "
        "seeds. "
        "The broken lines fall as a variance and as a standard deviation do."
    )
    return Chart("More data", drawn, about + (f" Zero somewhere, so not drawn: {without}." if without else ""))


def sweep_table(rows: Sequence[Mapping[str, float]]) -> HtmlTable:
    """A row per share: means over seeds."""
    names = [name for name in NUMBERS if all(name in row for row in rows)]
    sizes = [size for size, *_ in means_by_size(rows, "accuracy")]
    return table([
        HtmlColumn("training examples", [HtmlCell(f"{size:.4g}") for size in sizes], "of a silo, mean over silos"),
        HtmlColumn("accuracy", [HtmlCell(percent(mean)) for _, mean, _, _ in means_by_size(rows, "accuracy")]),
        *(HtmlColumn(name, [HtmlCell(f"{mean:.3g}") for _, mean, _, _ in means_by_size(rows, name)]) for name in names),
    ])  # fmt: skip


def fusion_table(fusion: Mapping[str, Sequence[Sequence[FusedCopies]]]) -> HtmlTable | None:
    """A row per number of copies, two columns per rule: means over silos and seeds."""
    if not fusion:
        return None
    copies = [row.copies for row in next(iter(fusion.values()))[0]]
    columns = [HtmlColumn("copies", [HtmlCell(f"{count:.0f}") for count in copies])]
    for rule, by_seed in fusion.items():
        for name in ("vacuity", "confidence"):
            means = [sum(getattr(rows[i], name) for rows in by_seed) / len(by_seed) for i in range(len(copies))]
            columns.append(HtmlColumn(f"{name}, {rule}", [HtmlCell(f"{mean:.3g}") for mean in means]))
    return HtmlTable(columns)
