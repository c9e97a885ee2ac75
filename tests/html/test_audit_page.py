"""The picture of an audit has each estimate beside its limit, and the advice follows from the verdicts."""

from __future__ import annotations

import re

from caveat.files.schema import Finding
from caveat.html.audit import findings_figure

FALLS = Finding(
    "epistemic and data", "it falls", "holds", "", {"exponent": {"mean": -1, "low": -1.2, "high": -0.8}, "limit": -0.25}
)
REVERSED = Finding(
    "aleatoric and epistemic", "they differ", "does not hold", "",
    {"rank_correlation": {"mean": -0.95, "low": -1.1, "high": -0.92}, "limit": 0.9},
)  # fmt: skip


def test_an_estimate_stands_beside_its_limit_and_a_reversed_ranking_is_the_same_ranking() -> None:
    figure = findings_figure([FALLS, REVERSED, Finding("confidence", "", "cannot say", "", {})])
    assert figure is not None
    titles = re.findall(r'<g class="c\d"><title>([^<]*)', str(figure.drawing))
    assert titles == [
        "epistemic and data: -1.00 (-1.20 to -0.80), limit -0.25, holds",
        "aleatoric and epistemic: 0.95 (0.92 to 1.00), limit 0.9, does not hold",
    ]
    limits = [float(x) for x in re.findall(r'<line x1="([\d.]+)"[^>]*class="boundary"', str(figure.drawing))]
    marks = [float(x) + 4.2 for x in re.findall(r'd="M([\d.]+),[\d.]+a4.2', str(figure.drawing))]
    assert marks[0] < limits[0] < limits[1] < marks[1]
    assert findings_figure([]) is None
