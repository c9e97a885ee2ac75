"""The page of a quantity flags a coverage only beyond the chance of its calibration and its test inputs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_run import describe, write_json
from html_page import Page

from caveat.files import read_run
from caveat.files.schema import RoundRow, SiloRecord
from caveat.html.run.page import render
from caveat.html.run.quantity import _coverage


@pytest.mark.parametrize("silos", [1, 10])
def test_a_valid_interval_is_rarely_flagged(silos: int) -> None:
    """Coverage at one silo, given its 50 calibration inputs, is beta distributed around 90 %."""
    random, flagged, runs = np.random.default_rng(0), 0, 400
    for _ in range(runs):
        shares = random.binomial(500, random.beta(46, 5, silos)) / 500
        flagged += any(flag(share, silos) for share in shares)
    assert flagged / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_a_low_coverage_is_flagged() -> None:
    assert flag(0.7, 10)
    assert not flag(0.88, 1)


def flag(coverage: float, silos: int) -> bool:
    test = {"interval_coverage": coverage}
    silo = SiloRecord.model_validate({"name": "a", "n_test": 500, "n_calibration": 50, "test": test})
    return bool(_coverage(silo, 0.9, silos).flag)


def quantity_run(folder: Path, errors: list[float], alone: list[float], **more: Any) -> str:
    """The page of a run with these errors by silo, beside training alone and errors of 10 without inputs."""
    for path, method, found in ((folder, "fedavg", errors), (folder / "baselines" / "local", "local", alone)):
        path.mkdir(parents=True)
        describe(path, method)
        tests = [{"mae": mae, "reference_mae": 10.0, "interval_coverage": 0.95, **more} for mae in found]
        silos = [{"name": f"silo {i}", "n_test": 50, "n_calibration": 50, "test": test, "pit": [5.0] * 10}
                 for i, test in enumerate(tests)]  # fmt: skip
        mean = {name: float(np.mean([test[name] for test in tests])) for name in tests[0]}
        target = {"edges": [0.0, 10.0, 20.0], "means": [5.0, 15.0], "shares": [0.5, 0.5], "targets": 100}
        content = {"schema": 1, "method": method, "rounds_run": 1, "complete": True, "silos": silos, "mean": mean}
        write_json(path / "summary.json", content | {"target": target, "intervals": {"coverage": 0.9, "least": 9}})
    observed = [
        {"silo": "silo 0", "observed": [2.0, 3.0], "value": [2.0, 3.0], "low": [None, 1.0], "high": [9.0, None]}
    ]
    write_json(folder / "gallery.json", {"classes": [], "silos": [], "observed": observed})
    return render(read_run(folder))


@pytest.mark.parametrize(
    ("errors", "alone", "said", "unsaid"),
    [
        ([5, 6, 7], [8, 9, 10], "run FILE --silo 'silo 0'", "Compare it"),
        ([5, 6, 7], [2.0, 3.1, 3.9], "Use training alone instead", "Predict new"),
        ([5, 6, 7], [1, 6, 9], "training alone has the lower error", "Use training alone"),
        ([5, 6, 11], [8, 9, 12], "Test it on more inputs of silo 2", "Use training alone"),
        ([12, 12, 12], [8, 9, 10], "Do not use this model", "Predict new"),
    ],
)
def test_the_first_screen_says_what_to_do(
    tmp_path: Path, errors: list[float], alone: list[float], said: str, unsaid: str
) -> None:
    first = Page(quantity_run(tmp_path / "run", errors, alone)).text.partition("Metrics on test")[0]
    assert said in first
    assert unsaid not in first


def test_errors_over_rounds_are_drawn(tmp_path: Path) -> None:
    quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10])
    rows = [RoundRow(round=at, phase="train", split="validation", silo="silo 0", mae=60 / at) for at in (1, 2)]
    page = render(replace(read_run(tmp_path / "run"), rows=rows))
    assert "Mean absolute error per round of 1 silos, from 60 to 30 in the mean" in page
    assert "mean: 30 at the end" in page


def test_two_silos_do_not_show_what_chance_explains(tmp_path: Path) -> None:
    text = Page(quantity_run(tmp_path / "run", [5, 6], [8, 9])).text
    assert "absolute error is 3.00 lower than with training alone." in text


def test_unbounded_intervals_have_a_line_to_the_edge_and_an_infinite_width(tmp_path: Path) -> None:
    text = quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10])
    assert "95.0 % infinite" in Page(text).text
    (lines,) = re.findall(r'<path d="([^"]*)" class="whisker thin"', text)
    ends = [end.split(",")[1] for end in re.split("[ML]", lines)[1:]]
    assert (ends[0], ends[3]) == ("324", "24")  # the lower and the upper edge


def test_wide_intervals_and_skewed_predictions_are_told(tmp_path: Path) -> None:
    page = Page(quantity_run(tmp_path / "a", [5, 6, 7], [8, 9, 10], interval_width=17.0)).text
    assert "their mean width is 17.0, without inputs 18.0, so they are little narrower." in page
    assert "Predictions are too" not in page
    quantity_run(tmp_path / "b", [5, 6, 7], [8, 9, 10], interval_width=9.0)
    content = json.loads((tmp_path / "b/summary.json").read_text())
    content["silos"][1]["pit"] = [1, 1, 1, 1, 2, 4, 8, 10, 10, 12]
    write_json(tmp_path / "b/summary.json", content)
    page = Page(render(read_run(tmp_path / "b"))).text
    assert "little narrower" not in page
    assert "Predictions are too low (silo silo 1, mean PIT 0.73 instead of 0.50), beyond chance." in page
    assert "Run it again" in page
