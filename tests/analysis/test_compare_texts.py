"""Comparisons as markdown and CSV: every figure where it belongs, failures and the paper's figures included."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from caveat.analysis.compare.result_tables import markdown, per_run
from caveat.files.schema import Comparison, Measure
from caveat.html.comparison.verdict import winner


def row(name: str, mean: float | None, **more: Any) -> dict[str, Any]:
    ends = {"low": None if mean is None else mean - 0.01, "high": None if mean is None else mean + 0.01}
    return {"row": name, "mean": mean, **ends, "worst": mean, "seeds": 2, "failed": 0, **more}


def cell(name: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"row": name, "column": "A", "seed": seed, "status": "done", "error": "", "tuned": {"training.lr": "0.1"},
            "tuning": [], "rounds": 3, "seconds": 2.0, "bytes_up": 1_000_000, "bytes_down": 2_000_000, "figures": {},
            "silos": [{"name": "s|0", "domain": "d", "figures": {"accuracy": 0.5}}], **more}  # fmt: skip


RECORD = Comparison.model_validate({
    "schema": 1,
    "seeds": [0, 1],
    "rows": [{"name": "one"}, {"name": "two"}],
    "columns": [{"name": "A"}],
    "tuning": {"key": "training.lr", "runs": 2, "seed": 0},
    "measures": [{"name": "accuracy", "percent": True, "higher": True}],
    "cells": [
        cell("one", 0), cell("one", 1, figures={"accuracy": 0.25}),
        cell("two", 0, status="failed", error="not finite\nat all", silos=[], tuned={}),
    ],
    "tables": [{
        "column": "A", "measure": "accuracy",
        "rows": [row("one", 0.95), row("two", None, worst=None, failed=1)],
        "pairs": [{"a": "two", "b": "one", "mean": -0.02, "low": -0.03, "high": -0.01,
                   "p": 0.01, "p_adjusted": 0.01}],
    }],
    "paper": {"figures": [{"row": "one", "column": "A", "measure": "accuracy", "paper": 0.78}]},
})  # fmt: skip


def test_markdown_has_every_row_with_the_papers_figure_and_its_failures() -> None:
    lines = markdown(RECORD).splitlines()
    assert "| one | 95.0 (94.0 to 96.0) [78.0] | 95.0 |" in lines
    assert "| two | 1 failed |  |" in lines
    assert "- A: two - one -2.0 (-3.0 to -1.0, p = 0.010), of 1 pairs." in lines
    assert "| one | 0.1 | 3 | 2 | 1 | 2 |" in lines
    assert "- two, A, seed 0: failed: at all" in lines


def test_csv_has_a_line_per_silo_and_one_per_run_without_any() -> None:
    lines = list(csv.DictReader(io.StringIO(per_run(RECORD))))
    assert [(line["row"], line["seed"], line["silo"], line["accuracy"]) for line in lines] == [
        ("one", "0", "s|0", "0.5"), ("one", "1", "", "0.25"), ("one", "1", "s|0", "0.5"), ("two", "0", "", ""),
    ]  # fmt: skip
    assert lines[-1]["error"] == "not finite\nat all"


@pytest.mark.parametrize(
    ("higher", "ps", "best"),
    [(True, (0.01, 0.01, 0.5), "a"), (False, (0.5, 0.01, 0.01), "c"), (True, (0.01, 0.2, 0.01), ""),
     (None, (0.01, 0.01, 0.01), "")],
)  # fmt: skip
def test_bold_is_what_is_shown_to_be_better_than_all_others(
    higher: bool | None, ps: tuple[float, ...], best: str
) -> None:
    measure, named = Measure(name="x", higher=higher), zip([("a", "b"), ("a", "c"), ("b", "c")], ps, strict=True)
    pairs = [{"a": a, "b": b, "mean": 0.1, "p_adjusted": p} for (a, b), p in named]
    rows = [row(name, mean) for name, mean in (("a", 0.3), ("b", 0.2), ("c", 0.1))]
    content = {"rows": [{"name": name} for name in "abc"], "measures": [{"name": "x", "higher": higher}], "cells": [],
               "tables": [{"measure": "x", "rows": rows, "pairs": pairs}]}  # fmt: skip
    found = Comparison.model_validate({"schema": 1, "seeds": [0, 1], "columns": [{"name": ""}], **content})
    assert winner(found, found.columns[0], measure) == best
