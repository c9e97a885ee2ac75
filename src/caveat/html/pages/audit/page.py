"""The audit as one page that holds everything it shows and asks the network for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from ....core.text import percent
from ....files.schema.audit import AuditFile, FusedCopies
from ... import templates
from ...charts.diagrams import rank_plane
from ...charts.svg import Chart
from ...tables import Table, column, table
from .drawings import CURVES, curves, legend, means_by_size, sweep_chart

_TEMPLATE = "pages/audit/audit.html.j2"


def render(audit: AuditFile) -> str:
    """The page's text, from what audit.json holds."""
    return templates.render(
        _TEMPLATE,
        audit=audit,
        broken=[finding for finding in audit.findings if finding.verdict == "does not hold"],
        open=[finding for finding in audit.findings if finding.verdict == "cannot say"],
        sweep=sweep_table(audit.runs),
        chart=sweep_figure(audit.runs),
        legend_entries=legend(audit.runs),
        plane=plane_figure(audit.plane),
        fusion=fusion_table(audit.fusion),
        shares=", ".join(map(fraction, audit.shares)),
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
    without = ", ".join(name for name in CURVES if name in rows[0] and name not in curves(rows))
    about = "Means over test inputs, silos and seeds, in nats (vacuity: a share); strokes up and down are the range "
    about += "over seeds. The broken lines fall as a variance and as a standard deviation do."
    return Chart("More data", drawn, about + (f" Zero somewhere, so not drawn: {without}." if without else ""))


def plane_figure(plane: Sequence[Sequence[int]]) -> Chart:
    """How many test inputs have which ranks of either uncertainty."""
    label = "Ranks of epistemic against ranks of aleatoric uncertainty"
    about = "Test inputs with all data, ranked in their silo by both uncertainties, all silos and seeds; darker is "
    about += "more. A diagonal means that the two names order inputs alike."
    return Chart("Aleatoric against epistemic", rank_plane(plane, ("aleatoric", "epistemic"), label), about)


def sweep_table(rows: Sequence[Mapping[str, float]]) -> Table | None:
    """A row per share: means over seeds."""
    names, accuracy = [name for name in CURVES if all(name in row for row in rows)], means_by_size(rows, "accuracy")
    columns = [
        column("training examples", (f"{size:.4g}" for size, *_ in accuracy), "of a silo, mean over silos"),
        column("accuracy", (percent(mean) for _, mean, _, _ in accuracy)),
        *(column(name, (f"{mean:.3g}" for _, mean, _, _ in means_by_size(rows, name))) for name in names),
    ]
    return table(columns, "Means over test inputs, silos and seeds; uncertainties in nats, vacuity as a share.")


def fusion_table(fusion: Mapping[str, Sequence[Sequence[FusedCopies]]]) -> Table | None:
    """A row per number of copies, two columns per rule: means over silos and seeds."""
    if not fusion:
        return None
    copies = [row.copies for row in next(iter(fusion.values()))[0]]
    columns = [column("copies", (f"{count:.0f}" for count in copies))]
    for rule, by_seed in fusion.items():
        for name in ("vacuity", "confidence"):
            means = [sum(getattr(rows[i], name) for rows in by_seed) / len(by_seed) for i in range(len(copies))]
            columns.append(column(f"{name}, {rule}", (f"{mean:.3g}" for mean in means)))
    caption = (
        "Means over the test inputs of the runs with all data: a rule that knows what a copy is leaves both as they "
    )
    return table(columns, f"{caption}are.")
