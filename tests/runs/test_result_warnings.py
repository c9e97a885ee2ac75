"""Warnings about results: what is warned of, where it is shown, and that nothing else is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from commands import caveat as command
from hospitals import Notes
from html_page import Page
from own_runs import run, three_silos
from torch import Tensor, nn

import caveat
from caveat.cli.prediction_output import prediction_rows
from caveat.core import Caution, Payload, Prediction, ResultWarning, SiloContext, SiloId, State, Tensors
from caveat.html.run.page import write_report


def test_sets_that_hold_all_classes_are_said_where_a_user_looks(tmp_path: Path) -> None:
    with pytest.warns(ResultWarning, match="FedAvg: Every prediction set of test inputs holds all classes at s0, s1"):
        done = run(three_silos(), tmp_path / "run", uncertainty=caveat.Uncertainty(set_coverage=0.99))
    every = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    (found,) = [each for each in every if each["kind"] == "full_sets"]
    assert (found["kind"], found["silos"]) == ("full_sets", ["s0", "s1", "s2"])
    assert "fewer than 99 calibration inputs" in found["text"]
    assert "set_coverage" in found["advice"]
    assert found in done.summary["warnings"]
    assert found["text"] in write_report(tmp_path / "run").read_text()


def test_unusual_data_are_said_in_the_report(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, level in {"north": 200, "south": 0}.items():
        rows = [f"{level + (level > 0) * rng.integers(-50, 50)},{i % 7 + rng.random():.2f},{i % 2}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["chol,age,ill", *rows]) + "\n")
    data = [tmp_path / f"{name}.csv" for name in ("north", "south")]
    done = command("run", *data, "--target", "ill", "--set", "rounds=1", "--out", tmp_path / "run")
    told = "column 'chol' has 0 in 60 of 120 rows (all 60 of south), far from all other values"
    assert done.exit_code == 0
    assert done.stderr.count(told) == 1
    every = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    texts = [each["text"] for each in every if each["kind"] == "data"]
    assert texts == [f"{told}: if that means missing, set data.rename_columns.chol = {{ missing = [0] }}."
                     .replace("column", "Column", 1)]  # fmt: skip
    (line,) = next(each["settings"] for each in every if each["kind"] == "data")
    assert line == "data.rename_columns.chol = { missing = [0] }"
    proposed = (
        f"repeat the run with caveat run {tmp_path}/run/config.toml --set '{line}' --out {tmp_path}/run-corrected"
    )
    assert proposed in Page((tmp_path / "run" / "report.html").read_text()).text
    again = command("run", tmp_path / "run/config.toml", "--set", line, "--out", tmp_path / "run-corrected")
    assert again.exit_code == 0, again.stderr
    every = json.loads((tmp_path / "run-corrected" / "summary.json").read_text())["warnings"]
    assert not [each for each in every if "far from all other values" in each["text"]]
    assert "repeat the run" not in Page((tmp_path / "run-corrected" / "report.html").read_text()).text
    assert f"Unusual data</strong>: {' '.join(texts)}" in unescape((tmp_path / "run" / "report.html").read_text())
    card = command("card", tmp_path / "run", "--silo", "north")
    assert card.exit_code == 0, card.stderr
    assert "chol" in card.stdout
    assert "far from all other" not in card.stdout  # a card names no values of silos


class Doubtful(caveat.FedAvg):
    """A method that warns of some of its evaluations; the last one is that of the final model."""

    warned: ClassVar[tuple[int, ...]]
    evaluations: ClassVar[list[int]]

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return {"inputs": torch.tensor(float(len(x)))}

    def cautions(self, silos: Mapping[SiloId, Mapping[str, Tensor]], classes: int) -> Iterator[Caution]:
        self.evaluations.append(number := len(self.evaluations) + 1)
        if number in self.warned:
            yield Caution("doubt", f"Evaluation {number}.", "Try again.")


@pytest.mark.parametrize(
    ("warned", "told"), [((1, 2, 3, 4, 5, 6), 2), ((1, 3, 4, 6), 4), ((1, 3, 5), None), ((5, 6), None), ((), None)]
)
def test_a_warning_of_two_evaluations_in_a_row_is_reported_once_during_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: tuple[int, ...], told: int | None
) -> None:
    monkeypatch.setattr(Doubtful, "warned", warned, raising=False)
    monkeypatch.setattr(Doubtful, "evaluations", [], raising=False)
    progress = Notes()
    done = run(three_silos(), tmp_path, Doubtful(), rounds=5, progress=progress)
    expected = [f"round {told}: doubt: Evaluation {told}. Try again."] if told else []
    assert [note for note in progress.notes if "doubt" in note] == expected
    assert ("doubt" in {each["kind"] for each in done.summary["warnings"]}) == (6 in warned)


def test_sets_from_enough_rows_are_not_warned_of(tmp_path: Path) -> None:
    asked = caveat.Uncertainty(set_coverage=0.5, false_alarm_rate=0.2)
    found = run(three_silos(), tmp_path, uncertainty=asked).summary.get("warnings", ())
    assert {each["kind"] for each in found}.isdisjoint({"full_sets", "few_calibration_inputs"})


def test_one_warning_names_the_silos_with_too_few_calibration_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: (rng.normal(size=(n, 2)), np.arange(n) % 3) for name, n in {"a": 25, "b": 50, "c": 70}.items()}
    asked = caveat.Uncertainty(set_coverage=0.9, policy="guaranteed", guarantee_scope="silo")
    training = caveat.Training(batch_size=8)
    done = run(caveat.data.from_arrays(arrays), tmp_path, uncertainty=asked, training=training)
    (found,) = (each for each in done.summary["warnings"] if each["kind"] == "few_calibration_inputs")
    assert found["silos"] == ["a", "b", "c"]
    assert "alarm rate holds for all of a (8), b (16) together, not for each: that takes 19." in found["text"]
    assert "for all of a (8) together, not for each: that takes 9." in found["text"]
    assert "not about each of a (8), b (16), c (20): that takes 77." in found["text"]
    assert done.summary["alarms"] == {"least": 19, "pooled": 24}


def test_without_19_calibration_inputs_in_all_no_alarm_can_be_raised(tmp_path: Path) -> None:
    done = run(three_silos(), tmp_path, caveat.Local())
    assert "No alarm can be raised at s0 (8), s1 (8), s2 (8): that takes 19." in done.summary["warnings"][-1]["text"]


def test_a_warning_about_all_of_many_silos_names_their_number(tmp_path: Path) -> None:
    silos = {f"s{i}": three_silos_rows(20 + i % 2) for i in range(13)}
    done = run(caveat.data.from_arrays(silos), tmp_path, training=caveat.Training(batch_size=8))
    (found,) = (each for each in done.summary["warnings"] if each["kind"] == "few_calibration_inputs")
    assert len(found["silos"]) == 13
    sizes = [silo["n_calibration"] for silo in done.summary["silos"]]
    ends = " to ".join(dict.fromkeys(map(str, (min(sizes), max(sizes)))))
    assert f"holds for all of the 13 silos ({ends}) together, not for each: that takes 19." in found["text"]


def three_silos_rows(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(rows, 2)), np.arange(rows) % 3


def test_predictions_come_with_the_warnings_that_concern_the_silo(tmp_path: Path) -> None:
    run(three_silos(), tmp_path / "run", model=None, uncertainty=caveat.Uncertainty(set_coverage=0.99))
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 2), np.float32))
    found = command("predict", tmp_path / "run", tmp_path / "new.npz", "--silo", "s1")
    assert "warning: Every prediction set of test inputs holds all classes at s0, s1" in found.stderr
    assert found.stdout.startswith("row,label,")


def test_a_class_without_calibration_inputs_is_named(tmp_path: Path) -> None:
    """One silo has no input of class 2; the other's sets cover all classes."""
    random = np.random.default_rng(0)
    y = {"a": np.arange(200) % 2, "b": np.arange(200) % 3}
    silos = caveat.data.from_arrays({k: (random.normal(size=(200, 2)).astype(np.float32), v) for k, v in y.items()})
    done = run(silos, tmp_path, uncertainty=caveat.Uncertainty(set_coverage=0.5))
    (found,) = [each for each in done.summary["warnings"] if each["kind"] == "absent_classes"]
    assert found["silos"] == ["a"]
    in_sets = r"(in none|each in at most \d+) of 16 prediction sets of validation inputs"
    assert re.match(rf"Without calibration inputs: class '2' at a \({in_sets}\)\. The coverage", found["text"])


@pytest.mark.parametrize("per_class", [True, False])
def test_a_class_with_few_calibration_inputs_is_named_where_coverage_is_by_class(
    per_class: bool, tmp_path: Path
) -> None:
    """A tenth of a silo's inputs are of class 0: fewer than the 9 calibration inputs that sets of 90 % take."""
    random = np.random.default_rng(0)
    y = np.r_[np.zeros(40), np.ones(180), np.full(180, 2)].astype(int)
    silos = caveat.data.from_arrays({k: (random.normal(size=(400, 2)).astype(np.float32), y) for k in ("a", "b")})
    asked = caveat.Uncertainty(set_coverage=0.9, sets_per_class=per_class)
    every = run(silos, tmp_path, uncertainty=asked).summary.get("warnings", ())
    found = [each for each in every if each["kind"] == "pooled_classes"]
    assert len(found) == per_class
    if found:
        assert found[0]["silos"] == ["a", "b"]
        assert "fewer than 9 calibration inputs" in found[0]["text"]
        assert re.search(r": 0 \(\d\), \d \(\d+\) at a; 0 \(\d\), \d \(\d+\) at b\. ", found[0]["text"])


def test_inputs_without_probabilities_have_no_label() -> None:
    probs = torch.tensor([[0.2, 0.8], [torch.nan, torch.nan]], dtype=torch.float64)
    found = Prediction(probs, {"total": torch.zeros(2)}, torch.tensor([0, 2]))
    assert [row.split(",")[1] for row in prediction_rows(found, ("no", "yes")).splitlines()[1:]] == ["yes", ""]


@pytest.mark.parametrize(
    ("tokens", "used", "classes", "warns"),
    [(400, 2, 3, True), (400, 1, 2, True), (400, 2, 2, False), (400, 20, 30, False), (15, 1, 3, False)],
)
def test_a_codebook_of_which_hardly_any_word_is_used_has_collapsed(
    tokens: int, used: int, classes: int, warns: bool
) -> None:
    """With a few tokens, a few codewords are all that can be used, and a codeword per class is enough."""
    method = caveat.UEFL(codewords=32, iterations=1)
    use = torch.zeros(32)
    use[:used] = tokens / used
    silos = {name: {"use": use, "own": torch.tensor(0.0)} for name in ("a", "b")}
    assert [each.kind for each in method.cautions(silos, classes)] == ["unused_codewords"] * warns


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
