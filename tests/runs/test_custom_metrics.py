"""Figures of a user's own are of the silos' test splits, and are numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import caveat
from caveat import data
from caveat.core import ConfigurationError


@pytest.fixture(scope="module")
def run() -> caveat.Run:
    silos = data.rotated(data.digits(), angles=(0, 90), silos_per_angle=1, samples_per_silo=100)
    return caveat.run(silos, caveat.FedAvg(rounds=1), model=caveat.ModelSettings(name="mlp"))


def test_figures_are_those_of_the_summary_where_it_has_them(run: caveat.Run) -> None:
    found = run.compute(
        {
            "right": lambda prediction, y: (prediction.label == y).float().mean(),
            "inputs": lambda prediction, y: len(y),
        }
    )
    for record in run.summary["silos"]:
        assert found["silos"][record["name"]]["right"] == pytest.approx(record["test"]["accuracy"])
    assert found["mean"]["right"] == pytest.approx(run.summary["mean"]["accuracy"])
    assert found["mean"]["inputs"] == sum(len(silo.test) for silo in run.silos) / 2


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([], r"metrics = \[\]: expected a mapping from names to functions"),
        ({}, "expected a mapping"),
        ({" ": len}, "name ' ', expected text"),
        ({3: len}, "name 3, expected text"),
        ({"a": 0.5}, r"metrics\['a'\] has type float, expected a function"),
        (
            {"a": lambda p, y: None},
            r"metrics\['a'\] returned a value of type NoneType at silo 'silo-0', expected a number",
        ),
        (
            {"a": lambda p, y: p.probs},
            r"metrics\['a'\] returned a value of type Tensor at silo 'silo-0', expected a number",
        ),
        ({"a": lambda p, y: torch.tensor(float("nan"))}, "returned nan at silo 'silo-0', expected a finite number"),
    ],
)
def test_what_is_no_figure_is_one_line(run: caveat.Run, metrics: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        run.compute(metrics)
