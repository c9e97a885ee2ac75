"""Figures of two classes are told with what they rest on: inputs, intervals, and what the majority comes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import caveat
from caveat import data
from caveat.files import RunFolder, read_run
from caveat.html.run.classification import baseline, judged, judged_together, without_gain
from caveat.html.run.silos import silo_section
from caveat.terminal.results import class_table
from caveat.uncertainty.statistical_tests import auroc_interval, wilson

NAMES = ("healthy", "ill")


def ward(ill: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs that tell nothing of labels, of which so many are positive."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)).astype(np.float32), (np.arange(n) < ill * n).astype(int)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A hospital of mostly ill patients beside larger ones of healthy ones, by a method that cannot tell them."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    silos = data.from_arrays(
        {"coast": ward(0.2, 200, 1), "hill": ward(0.3, 200, 2), "valley": ward(0.9, 60, 3)}, classes=NAMES
    )
    training = caveat.Training(batch_size=16, lr=0.01)
    model = caveat.ModelSettings(name="linear", dropout=0.0)
    caveat.run(silos, caveat.FedAvg(rounds=2, training=training), model=model, every=2, out=folder)
    return read_run(folder)


def test_the_majority_is_that_of_training_data_and_its_share_of_test_data(run: RunFolder) -> None:
    summary = json.loads((run.path / "summary.json").read_text())
    for silo, found in zip(summary["silos"], judged(run), strict=True):
        confusion, most = silo["classification"]["confusion"], np.argmax(silo["class_counts"])
        assert found.majority is not None
        assert found.majority.name == NAMES[most] == ("ill" if silo["name"] == "valley" else "healthy")
        assert found.majority.share == pytest.approx(sum(confusion[most]) / silo["n_test"])
        assert found.accuracy is not None
        right = confusion[0][0] + confusion[1][1]
        assert (found.accuracy.value, found.accuracy.of) == (pytest.approx(right / silo["n_test"]), silo["n_test"])
        assert found.accuracy.interval == wilson(right, silo["n_test"])
    together = judged_together(run)
    assert together.majority is not None
    assert together.majority.right == sum(each.majority.right for each in judged(run) if each.majority)
    assert together.inputs == sum(silo["n_test"] for silo in summary["silos"])


def test_sensitivity_and_specificity_have_the_intervals_of_their_counts(run: RunFolder) -> None:
    summary = json.loads((run.path / "summary.json").read_text())
    for silo, found in zip(summary["silos"], judged(run), strict=True):
        at = silo["classification"]["operating"]
        assert found.sensitivity is not None
        assert found.specificity is not None
        assert found.sensitivity.of + found.specificity.of == silo["n_test"]
        assert found.sensitivity.interval == wilson(at["true_positives"], found.sensitivity.of)
        assert found.specificity.interval == wilson(at["true_negatives"], found.specificity.of)


def test_a_silo_where_the_majority_is_ahead_is_named_and_marked(run: RunFolder) -> None:
    """A mean above the majority can hide a hospital where the model is worse than looking at nobody."""
    assert [each.behind for each in judged(run)] == [True, True, True]  # also where it is only as good
    kind, text = baseline(run) or ("", "")
    assert kind == "bad"  # over all silos together
    assert "It predicts class healthy for all 92 test inputs: 60.9 % of these have this class." in text.striptags()
    found = silo_section(run)
    assert found is not None
    assert found.worst is not None
    of = {column.header: column.cells for column in found.worst.columns}
    order = [cell.text for cell in of["silo"]]
    worse = {name for name, cell in zip(order, of["gain over most frequent class"], strict=True) if cell.flag}
    assert worse == set(without_gain(run)[0])  # only what is shown beyond chance
    assert of["gain over most frequent class"][-1].text.startswith("\N{MINUS SIGN}")  # all inputs
    assert " of " in of["specificity"][0].text


def test_the_terminal_has_them_too(run: RunFolder) -> None:
    table = class_table(run)
    assert table is not None
    console = Console(width=100)
    with console.capture() as shown:
        console.print(table)
    lines = shown.get().splitlines()
    assert next(line for line in lines if "sensitivity" in line and "majority" in line).split()[:4] == [
        "silo",
        "test",
        "accuracy",
        "majority",
    ]
    assert any(line.split()[:2] == ["valley", "12"] for line in lines)


def test_several_classes_have_no_such_table_and_no_sentence_where_none_is_behind(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    silos = data.from_arrays({name: (rng.normal(y[:, None], 0.1, (300, 2)), y) for name in ("coast", "hill")})
    training = caveat.Training(batch_size=16, lr=0.05, local_epochs=8)
    model: dict[str, Any] = {"model": caveat.ModelSettings(name="linear", dropout=0.0)}
    caveat.run(silos, caveat.FedAvg(rounds=3, training=training), every=3, out=tmp_path / "run", **model)
    found = read_run(tmp_path / "run")
    assert class_table(found) is None
    kind, text = baseline(found) or ("", "")
    assert (kind, "Better than always predicting the most frequent class" in text) == ("good", True)
    for each, silo in zip(judged(found), silos, strict=True):
        most = np.bincount(silo.train.y).argmax()
        assert each.majority is not None
        assert each.majority.share == pytest.approx(float((silo.test.y == most).double().mean()))


def test_intervals_of_an_auroc_hold_it_and_narrow_with_inputs() -> None:
    for value in (0.0, 0.3, 0.85, 1.0):
        low, high = auroc_interval(value, 30, 20)
        assert 0 <= low <= value <= high <= 1
        assert high - low > 0.05  # also where not one pair is in the wrong order
        narrower = auroc_interval(value, 300, 200)
        assert narrower[1] - narrower[0] < (high - low) / 2


def test_intervals_of_an_auroc_cover_that_of_two_normal_classes() -> None:
    """In 95 % of draws, of few and unequal inputs as hospitals have them."""
    rng = np.random.default_rng(1)
    truth, held = 0.8, 0  # P(X < Y) = Phi(d / sqrt 2)
    apart, draws = 0.8416212 * np.sqrt(2), 400
    for _ in range(draws):
        x, y = rng.normal(size=12), rng.normal(apart, size=30)
        low, high = auroc_interval(float((x[:, None] < y).mean()), 30, 12)
        held += low <= truth <= high
    assert 0.92 <= held / draws <= 0.98
