"""What runs say of classes: the positive one by name, thresholds from calibration splits, silos that lack a class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import caveat as command
from sklearn.metrics import average_precision_score, confusion_matrix, f1_score, roc_auc_score

import caveat
from caveat import data
from caveat.core import ConfigurationError

NAMES = ("ill", "well")
MODEL = caveat.ModelSettings(name="mlp", width=4, features=4, hidden=4, dropout=0.0)
TRAINING = caveat.Training(batch_size=16, lr=0.05, local_steps=4)


def patients(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return x, (x[:, 0] + rng.normal(size=n) > 0.3).astype(int)


def silos(**options: Any) -> data.Silos:
    """A large hospital, a small one, and one whose test part holds one class alone."""
    x_test, y_test = patients(40, 5)
    well = y_test == 1
    arrays = {
        "large": patients(600, 11),
        "small": patients(120, 2),
        "well only": (*patients(80, 3), x_test[well], y_test[well]),
    }
    split = data.Split(train=0.5, validation=0.1, calibration=0.4)
    return data.from_arrays(arrays, classes=NAMES, split=split, **options)


def run(found: data.Silos, **settings: Any) -> caveat.Run:
    return caveat.run(found, caveat.FedAvg(rounds=2, training=TRAINING), model=MODEL, every=2, **settings)


@pytest.fixture(scope="module")
def finished() -> caveat.Run:
    return run(silos(positive_class="ill"))


def records(finished: caveat.Run) -> dict[str, dict[str, Any]]:
    return {silo["name"]: silo for silo in finished.summary["silos"]}


def predicted(finished: caveat.Run, split: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per silo the labels of a split, and the probabilities of both classes."""
    found = {silo.name: getattr(silo, split) for silo in finished.silos}
    return {name: (each.y.numpy(), finished.predictor(name)(each.x).probs.numpy()) for name, each in found.items()}


def test_figures_are_scikit_learns_of_what_the_run_predicts(finished: caveat.Run) -> None:
    of_silos = predicted(finished, "test")
    merged = tuple(np.concatenate(each) for each in zip(*of_silos.values(), strict=True))
    every = {name: record["test"] for name, record in records(finished).items()} | {"": finished.summary["pooled"]}
    for name, (y, probs) in {**of_silos, "": merged}.items():
        if name == "well only":
            continue
        found, ill = every[name], y == 0
        for figure, score in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
            assert abs(found[figure] - score(ill, probs[:, 0])) <= found[f"{figure}_tolerance"] + 1e-9 <= 0.002
        assert found["f1"] == pytest.approx(f1_score(y, probs.argmax(1), pos_label=0))
    confusion = finished.summary["classification"]["confusion"]
    assert confusion == confusion_matrix(merged[0], merged[1].argmax(1)).tolist()


def test_a_figure_is_absent_at_a_silo_without_a_class_and_in_means_of_the_others(finished: caveat.Run) -> None:
    found = {name: record["test"] for name, record in records(finished).items()}
    assert found["well only"].keys() & {"auroc", "average_precision", "balanced_accuracy", "f1", "sensitivity"} == set()
    assert 0 <= found["well only"]["specificity"] <= 1
    mean = finished.summary["mean"]
    assert mean["auroc"] == pytest.approx((found["large"]["auroc"] + found["small"]["auroc"]) / 2)
    assert mean["specificity"] == pytest.approx(np.mean([each["specificity"] for each in found.values()]))
    worst = finished.summary["models"]["global"]["worst"]
    assert worst["auroc"] == min(found["large"]["auroc"], found["small"]["auroc"])
    assert finished.summary["models"]["global"]["pooled"]["auroc"] == finished.summary["pooled"]["auroc"]


def test_thresholds_come_from_calibration_splits(finished: caveat.Run) -> None:
    """The silo's own with 50 inputs of each class, else the federation's, of all silos' calibration splits."""
    at = {name: record["classification"]["operating"] for name, record in records(finished).items()}
    assert {name: each["whose"] for name, each in at.items()} == {
        "large": "silo", "small": "federation", "well only": "federation",
    }  # fmt: skip
    calibration, test = predicted(finished, "calibration"), predicted(finished, "test")
    merged = tuple(np.concatenate(each) for each in zip(*calibration.values(), strict=True))
    for name, (y, probs) in {"large": calibration["large"], "small": merged}.items():
        ill, called = y == 0, probs[:, 0] > at[name]["threshold"]
        best = max(((probs[:, 0] >= t)[ill].mean() - (probs[:, 0] >= t)[~ill].mean()) for t in probs[:, 0])
        assert called[ill].mean() - called[~ill].mean() == pytest.approx(best)
        assert (at[name]["positives"], at[name]["negatives"]) == (ill.sum(), (~ill).sum())
    for name, (y, probs) in test.items():
        called, found = probs[:, 0] > at[name]["threshold"], records(finished)[name]["test"]
        assert found["specificity"] == pytest.approx((~called[y == 1]).mean())
        assert at[name]["true_positives"] == called[y == 0].sum()
    pooled = finished.summary["classification"]["operating"]
    assert pooled["true_positives"] == sum(each["true_positives"] for each in at.values())


def test_test_labels_choose_no_threshold(finished: caveat.Run) -> None:
    turned = silos(positive_class="ill")
    others = tuple(
        caveat.data.Silo(s.name, s.domain, s.train, s.validation, s.calibration, s.test.labeled(1 - s.test.y))
        for s in turned
    )
    again = run(data.Silos(others, NAMES, positive="ill"))
    for name, record in records(again).items():
        expected = records(finished)[name]["classification"]["operating"]
        found = record["classification"]["operating"]
        assert {key: found[key] for key in ("threshold", "whose")} == {k: expected[k] for k in ("threshold", "whose")}


def test_a_target_for_sensitivity_and_the_second_class_by_default() -> None:
    found = run(silos(), target_sensitivity=0.8)
    about = found.summary["classification"]
    assert (about["positive"], about["rule"]) == ("well", "sensitivity 0.8")
    y, probs = predicted(found, "calibration")["large"]
    called = probs[y == 1, 1] > records(found)["large"]["classification"]["operating"]["threshold"]
    missed = np.floor((len(called) + 1) * (1 - 0.8)) - 1
    assert (~called).sum() == missed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"positive_class": "sick"},
            "data.positive_class = 'sick': expected one of the two classes, 'ill' or 'well'",
        ),
        ({"positive_class": 1}, "positive_class = 1: must be a valid string"),
    ],
)
def test_a_positive_class_that_there_is_not_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        silos(**options)


def test_several_classes_have_no_positive_one_and_no_threshold() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    with pytest.raises(ConfigurationError, match=r"positive_class = 'a' needs two classes, but there are 3"):
        data.from_arrays({"one": (x, np.arange(60) % 3)}, classes=("a", "b", "c"), positive_class="a")
    made = data.from_arrays({name: (x, np.arange(60) % 3) for name in ("one", "two")}, classes=("a", "b", "c"))
    with pytest.raises(ConfigurationError, match=r"target_sensitivity = 0.9 needs two classes, but there are 3"):
        run(made, target_sensitivity=0.9)
    found = run(made).summary
    assert found["classification"].keys() == {"confusion"}
    assert np.sum(found["classification"]["confusion"]) == sum(silo["n_test"] for silo in found["silos"])
    for figures in (found["pooled"], found["mean"], found["silos"][0]["test"]):
        assert figures["balanced_accuracy"] == pytest.approx(figures["sensitivity"])


def test_the_command_line_refuses_a_class_in_one_line(tmp_path: Path) -> None:
    rows = [f"{k},{k * k % 7},{'yes' if k % 3 else 'no'}" for k in range(90)]
    (tmp_path / "ward.csv").write_text("a,b,sick\n" + "\n".join(rows) + "\n")
    settings = ["method.name='local'", f"data.source='csv:{tmp_path / 'ward.csv'}'", "data.target='sick'", "rounds=1"]
    options = [part for each in [*settings, "data.positive_class='perhaps'"] for part in ("--set", each)]
    found = command("run", *options, "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert "data.positive_class = 'perhaps': expected one of the two classes, 'no' or 'yes'" in found.output
    assert not (tmp_path / "run").exists()


def test_the_page_shows_figures_thresholds_and_confusion(tmp_path: Path) -> None:
    run(silos(positive_class="ill"), out=tmp_path / "run")
    assert command("report", tmp_path / "run").exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'id="errors"' in page
    assert "The positive class is" in page
    assert "predicted as ill" in page
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert f"{summary['silos'][0]['test']['auroc']:.2f} (" in page  # with its interval


def test_a_newcomer_has_the_federations_threshold_and_is_in_no_sum_of_it() -> None:
    found = run(silos(), newcomers=["small"]).summary
    newcomer = next(silo for silo in found["silos"] if silo["name"] == "small")
    of_all = found["classification"]["operating"]
    assert newcomer["classification"]["operating"]["threshold"] == of_all["threshold"]
    assert np.sum(found["classification"]["confusion"]) == sum(
        silo["n_test"] for silo in found["silos"] if silo is not newcomer
    )
    assert found["newcomers"]["mean"]["auroc"] == newcomer["test"]["auroc"]
    assert of_all["positives"] > 0
