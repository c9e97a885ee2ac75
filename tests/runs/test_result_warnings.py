"""Warnings about results: what is warned of, where it is shown, and that nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from own_runs import run, three_silos
from torch import Tensor, nn

import caveat
from caveat.core import ResultWarning
from caveat.html.run.page import write_report


def test_sets_that_hold_all_classes_are_said_where_a_user_looks(tmp_path: Path) -> None:
    with pytest.warns(ResultWarning, match=r"^FedAvg: Every prediction set of test inputs holds all classes at s0, s1"):
        done = run(three_silos(), tmp_path / "run", uncertainty=caveat.Uncertainty(set_coverage=0.99))
    found, few = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert (found["kind"], found["silos"]) == ("full_sets", ["s0", "s1", "s2"])
    assert "fewer than 99 calibration inputs" in found["text"]
    assert "set_coverage" in found["advice"]
    assert done.summary["warnings"] == [found, few]
    assert found["text"] in write_report(tmp_path / "run").read_text()


def test_sets_from_enough_rows_are_not_warned_of(tmp_path: Path) -> None:
    asked = caveat.Uncertainty(set_coverage=0.5, false_alarm_rate=0.2)
    assert "warnings" not in run(three_silos(), tmp_path, uncertainty=asked).summary


def test_one_warning_names_the_silos_with_too_few_calibration_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: (rng.normal(size=(n, 2)), np.arange(n) % 3) for name, n in {"a": 25, "b": 50, "c": 70}.items()}
    asked = caveat.Uncertainty(set_coverage=0.9, policy="guaranteed", guarantee_scope="silo")
    training = caveat.Training(batch_size=8)
    done = run(caveat.data.from_arrays(arrays), tmp_path, uncertainty=asked, training=training)
    (found,) = (each for each in done.summary["warnings"] if each["kind"] == "few_calibration_inputs")
    assert found["silos"] == ["a", "b", "c"]
    assert (
        found["text"].split(": ", 1)[0]
        == "Numbers of calibration inputs are in brackets. No alarm can be raised at a (8), b (16)"
    )
    assert "for all of a (8) together, not for each: that takes 9." in found["text"]
    assert "not about each of a (8), b (16), c (20): that takes 77." in found["text"]


@pytest.mark.parametrize(("tokens", "used", "warns"), [(400, 2, True), (400, 20, False), (15, 1, False)])
def test_a_codebook_of_which_hardly_any_word_is_used_has_collapsed(tokens: int, used: int, warns: bool) -> None:
    """With a few tokens, a few codewords are all that can be used."""
    method = caveat.UEFL(codewords=32, iterations=1)
    use = torch.zeros(32)
    use[:used] = tokens / used
    silos = {name: {"use": use, "own": torch.tensor(0.0)} for name in ("a", "b")}
    assert [each.kind for each in method.cautions(silos)] == ["unused_codewords"] * warns


class Faint(nn.Module):
    """Logits that are too small to say anything, whatever the model has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 1e-4 * self.linear(x)


def test_an_extreme_temperature_is_warned_of(tmp_path: Path) -> None:
    """The optimum itself is found, however far it is from 1."""
    x = np.random.default_rng(0).normal(size=(3, 400, 2)).astype(np.float32)
    silos = caveat.data.from_arrays({f"s{k}": (x[k], (x[k] > 0).sum(1)) for k in range(3)})
    settings = {"rounds": 10, "uncertainty": caveat.Uncertainty(familiarity=False, mc_samples=1)}
    with pytest.warns(ResultWarning, match=r"temperatures .* are extreme \(\S+ for the global model\)"):
        done = run(silos, tmp_path / "run", model=Faint, **settings)
    assert [each["kind"] for each in done.summary["warnings"]] == ["extreme_temperature"]
    assert done.summary["temperature"]["global"] < 1e-3
    assert done.summary["mean"]["nll"] < 0.8
    assert "warnings" not in run(silos, tmp_path / "plain", **settings).summary
