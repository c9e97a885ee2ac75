"""Metrics of a user's own stand in what a run writes, computed at silos, and are numbers or nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import caveat
from caveat import data
from caveat.cli.main import app
from caveat.config import loads
from caveat.core import CaveatError, ConfigurationError
from caveat.files import read_run
from caveat.html.run.page import render
from caveat.metrics import custom_metrics as own

MLP = caveat.ModelSettings(name="mlp", width=4)
PLUGIN = """
import numpy as np
import caveat

@caveat.metric
def hits(y, probs):
    assert y.dtype == np.int64 and probs.dtype == np.float64 and probs.shape == (len(y), 10)
    return (probs.argmax(1) == y).mean()

@caveat.metric(name="log loss", higher_is_better=False)
def loss(y, probs):
    return -np.log(probs[np.arange(len(y)), y]).mean()
"""
SETS = ("rounds=1", "data.n_silos=3", "data.samples_per_silo=60", "model.name=mlp",
        'evaluation.metrics=["hits","log loss"]')  # fmt: skip


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = dict(own.METRICS)
    yield
    own.METRICS.clear()
    own.METRICS.update(before)


@pytest.fixture(scope="module")
def silos() -> data.Silos:
    return data.rotated(data.digits(), angles=(0, 90), silos_per_angle=1, samples_per_silo=100)


def test_they_stand_beside_accuracy_for_silos_mean_and_worst(silos: data.Silos, tmp_path: Path) -> None:
    @caveat.metric(higher_is_better=False)
    def misses(y: Any, probs: Any) -> float:
        return float((probs.argmax(1) != y).mean())

    def sometimes(y: Any, probs: Any) -> float:
        return 2.0 if np.array_equal(y, silos[0].test.y.numpy()) else float("nan")

    first = caveat.run(silos, caveat.FedAvg(rounds=1), model=MLP)
    run = caveat.run(silos, caveat.FedAvg(rounds=1), model=MLP, out=tmp_path / "run",
                     metrics={"misses": misses, "sometimes": sometimes})  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for silo in summary["silos"]:
        assert silo["metrics"]["misses"] == pytest.approx(1 - silo["test"]["accuracy"])
    over = summary["metrics"]
    assert over["misses"]["worst"] == pytest.approx(1 - summary["worst"]["accuracy"])
    assert over["misses"]["mean"] == pytest.approx(1 - summary["mean"]["accuracy"])
    assert over["sometimes"] == {"higher_is_better": True, "silos": 1, "mean": 2.0, "worst": 2.0}
    assert summary["mean"] == first.summary["mean"], "no other figure changes"
    page = render(read_run(tmp_path / "run"))
    assert "Custom metrics" in page
    assert "misses" in page
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text()
    assert '"own/misses": {"shape": [], "dtype": "float64", "bytes": 8}' in ledger
    assert caveat.load(tmp_path / "run").predictor("silo-0")(silos[0].test.x) is not None, "no metric is needed"
    with pytest.raises(ConfigurationError, match=re.escape("evaluation.metrics")):
        caveat.run(silos, caveat.FedAvg(rounds=1), model=MLP, out=tmp_path / "run", metrics={"misses": misses})
    assert run.summary == summary


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda y, p: 1 / 0, r"silo 'silo-0' .* metric 'mine' fails: .*ZeroDivisionError: division by zero"),
        (lambda y, p: None, "silo 'silo-0' .* metric 'mine' returned a value of type NoneType, expected a number"),
        (lambda y, p: p, "silo 'silo-0' .* metric 'mine' returned a value of type ndarray, expected a number"),
        (lambda y, p: np.inf, "silo 'silo-0' .* metric 'mine' returned inf, expected a finite number, or NaN"),
    ],
)
def test_what_is_no_figure_is_one_error_with_metric_and_silo(silos: data.Silos, metric: Any, words: str) -> None:
    with pytest.raises(CaveatError, match=words) as caught:
        caveat.run(silos, caveat.FedAvg(rounds=1), model=MLP, metrics={"mine": metric})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([len], "expected a mapping from names to functions"),
        ({"a/b": len}, "name 'a/b', expected text of 1 to 60 printable characters without /"),
        ({"accuracy": len}, "'accuracy' is a built-in metric"),
        ({"a": 0.5}, r"metrics\['a'\] has type float, expected a function"),
    ],
)
def test_what_is_no_metric_is_refused_before_anything_runs(silos: data.Silos, metrics: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        caveat.run(silos, caveat.FedAvg(rounds=1), model=MLP, metrics=metrics)


def test_a_plugin_has_them_for_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    sets = [part for each in SETS for part in ("--set", each)]
    command, plugin = ["run", *sets, "--out", str(tmp_path / "run")], ["--plugin", str(tmp_path / "mine.py")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code != 0
    assert "there is no metric 'hits'" in refused.stderr
    done = CliRunner().invoke(app, [*command, *plugin])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for silo in summary["silos"]:
        assert silo["metrics"]["hits"] == pytest.approx(silo["test"]["accuracy"])
        assert silo["metrics"]["log loss"] == pytest.approx(silo["test"]["nll"], rel=1e-4)
    assert summary["metrics"]["log loss"]["worst"] == max(each["metrics"]["log loss"] for each in summary["silos"])
    own.METRICS.clear()
    (tmp_path / "run" / "report.html").unlink(missing_ok=True)
    again = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert again.exit_code == 0, "a report shows what was measured, and needs no code"
    assert "log loss" in (tmp_path / "run" / "report.html").read_text()


def test_comparisons_have_them_beside_accuracy(silos: data.Silos, tmp_path: Path) -> None:
    found = caveat.compare(
        silos, {"fedavg": caveat.FedAvg(rounds=1), "local": caveat.Local(rounds=1)}, out=tmp_path / "c", seeds=(0,),
        model=MLP, metrics={"below": lambda y, p: -float((p.argmax(1) == y).mean())},
    )  # fmt: skip
    for row in found.to_rows():
        assert row["below"] == pytest.approx(-row["accuracy"])
    table = next(each for each in found.tables if each.measure == "below")
    assert all(row.mean is not None and row.mean < 0 for row in table.rows)
    assert "below" in (tmp_path / "c" / "report.html").read_text()


FLOWER = """
engine.name = "flower"
method.name = "fedavg"
data.source = "on_site"
data.target = "y"
evaluation.metrics = ["hits"]
"""


def test_flower_refuses_them() -> None:
    with pytest.raises(ConfigurationError, match="only by 'single_machine': federations on Flower send no code"):
        loads(FLOWER, "c")
