"""Headlines claim what a run's figures show, on generated summaries and on folders that once provoked a wrong claim."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_run import confident_run, decided_run, describe, write_json
from html_page import Page
from markupsafe import Markup
from scipy.stats import binomtest

from caveat.files import RunFolder, read_run
from caveat.files.schema import Metrics, Reliability, SiloRecord
from caveat.html.run.classification import baseline, judged
from caveat.html.run.confidence import Confidence, SiloConfidence, confidence
from caveat.html.run.guarantee import kept
from caveat.html.run.overview import overview
from caveat.html.run.page import render
from caveat.html.run.trust import trust
from caveat.metrics.calibration import _drawn

Numbers = np.random.Generator
BINS = 15


def band(bins: dict[str, list[float]]) -> dict[str, Any]:
    """The ECE of these bins with its chance band, as a run computes it."""
    count, sums = np.array(bins["count"]), np.array(bins["confidence"])
    null = _drawn(count.astype(float), sums, 400)
    ece = float(np.abs(sums - np.array(bins["correct"])).sum() / count.sum())
    return {"ece": ece, "ece_null": {"mean": float(null.mean()), "upper": float(np.quantile(null, 0.95))}}


def binned(sure: np.ndarray, right: np.ndarray) -> dict[str, list[float]]:
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    return {
        "count": np.bincount(place, minlength=BINS).tolist(),
        "confidence": np.bincount(place, sure, BINS).tolist(),
        "correct": np.bincount(place[right], minlength=BINS).tolist(),
    }


def silo(name: str, sure: np.ndarray, y: np.ndarray, label: np.ndarray, frequent: int, classes: int) -> dict[str, Any]:
    """A silo's record from its test inputs; `frequent` is the most frequent class of its training data."""
    bins, confusion = binned(sure, y == label), np.zeros((classes, classes), int)
    np.add.at(confusion, (y, label), 1)
    return {
        "name": name,
        "n_train": 50,
        "n_calibration": 30,
        "n_test": len(y),
        "class_counts": [40 if k == frequent else 5 for k in range(classes)],
        "test": {"accuracy": float((y == label).mean()), "entropy": 0.2, **band(bins)},
        "reliability": bins,
        "classification": {"confusion": confusion.tolist()},
    }


def run_of(folder: Path, silos: list[dict[str, Any]], classes: int, **more: Any) -> RunFolder:
    folder.mkdir(parents=True)
    describe(folder, "fedavg")
    names = ("count", "confidence", "correct")
    whole = {name: np.sum([each["reliability"][name] for each in silos], 0).tolist() for name in names}
    n = sum(whole["count"])
    accuracies = [each["test"]["accuracy"] for each in silos]
    content: dict[str, Any] = {
        "schema": 1,
        "method": "fedavg",
        "rounds_run": 1,
        "complete": True,
        "classes": [f"class {k}" for k in range(classes)],
        "silos": silos,
        "mean": {"accuracy": float(np.mean(accuracies))},
        "pooled": {"accuracy": sum(whole["correct"]) / n, **band(whole)},
        "classification": {"confusion": np.sum([each["classification"]["confusion"] for each in silos], 0).tolist()},
    }
    content["classification"] |= more.pop("classification", {})
    write_json(folder / "summary.json", content | more)
    return read_run(folder)


def headline(run: RunFolder) -> str:
    """The sentence of the result and all verdicts of the first screen."""
    first, found = overview(run), trust(run)
    assert first is not None
    lines = [line.text for line in found.lines] if found else []
    return " ".join(Markup(each).striptags() for each in [first.sentence, *(each.text for each in first.notes), *lines])


def generated(folder: Path, random: Numbers) -> RunFolder:
    """A run of few or many silos and inputs, of models that have learned everything, something or nothing."""
    classes = int(random.integers(1, 5))
    count, inputs = int(random.choice([1, 2, 9, 60])), int(random.choice([1, 3, 9, 40, 200]))
    skill, over = random.choice([0.0, 0.3, 0.9, 1.0]), random.choice([0.0, 0.0, 0.1])
    silos = []
    for i in range(count):
        frequent = int(random.integers(classes))
        y = np.where(random.random(inputs) < 0.5, frequent, random.integers(classes, size=inputs))
        label = np.where(random.random(inputs) < skill, y, frequent if random.random() < 0.5 else 0)
        sure = np.clip(random.normal((y == label).mean() + over, 0.05, inputs), 1 / classes, 1)
        silos.append(silo(f"silo-{i}", sure, y, label, frequent, classes))
    more: dict[str, Any] = {}
    if random.random() < 0.4:
        covered = float(random.choice([0.0, 0.5, 1.0]))
        for each in silos:
            right = {"answered_accuracy": each["test"]["accuracy"]} if covered else {}
            each["test"] |= {"coverage": covered, **right}
        risk = {"risk": 0.1, "confidence_level": 0.9, "answered": 90, "errors": 3, "total": 100, "guaranteed": True}
        more["guarantee"] = risk | {"limit": 0.5, "statement": "answers 90 % with at most 10 % errors among them"}
        accuracy = float(np.mean([each["test"]["accuracy"] for each in silos]))
        made = {"global": min(1.0, accuracy + float(random.choice([0.0, 0.2, 0.9]))), "switch": accuracy}
        more["models"] = {
            name: {where: {"accuracy": value} for where in ("mean", "worst", "pooled")} for name, value in made.items()
        }
    return run_of(folder, silos, classes, **more)


@pytest.mark.parametrize("seed", range(100))
def test_no_headline_claims_more_than_its_summary_holds(tmp_path: Path, seed: int) -> None:
    run = generated(tmp_path / "run", np.random.default_rng(seed))
    said = headline(run)
    own, frequent = [], []
    for each in run.silos:
        assert each.classification
        assert each.class_counts
        matrix = np.array(each.classification.confusion)
        own.append(int(np.trace(matrix)))
        frequent.append(int(matrix[int(np.argmax(each.class_counts))].sum()))
    sizes = [each.n_test or 0 for each in run.silos]
    behind = [k <= m and k < n for k, m, n in zip(own, frequent, sizes, strict=True)]
    together = "Over all silos together, better than always predicting" in said
    if together or "Better than always predicting the most frequent class" in said:
        assert sum(own) > sum(frequent)
        assert not any(behind) or (max(sizes) < 20 and together)
    if sum(own) <= sum(frequent) <= sum(sizes) - 5:
        assert (
            "It is no more accurate than always predicting the most frequent class" in said
            or "It predicts class" in said
        )
    if sum(sizes) - sum(frequent) < 5:  # no model could be better beyond chance
        assert "etter than always predicting" not in said
    if "No better than always predicting the most frequent class" in said:
        assert f"at {sum(behind)} of {len(own)} silo" in said
    found, summary = confidence(run), run.summary
    assert found is not None
    assert summary is not None
    band_of = summary.pooled.ece_null
    assert band_of is not None
    if "No error of its confidence was found" in said:
        assert band_of.upper <= 0.05
        assert not (summary.pooled.ece_above_chance and (summary.pooled.ece or 0) > 0.02)
    if "Do not trust its confidence" in said:
        assert any(each.over and each.p < 0.05 for each in found.checks)
    if "It is underconfident" in said or "It is slightly" in said:
        assert not any(each.over and each.large and each.p < 0.05 for each in found.checks)
    assert "trusted" not in said
    test = kept(summary)
    claims_of_advice(run, Markup(" ".join(first.advice)).striptags() if (first := trust(run)) else "")
    if only := re.search(r"It predicts class class (\d) for", said):
        assert summary.classification
        matrix, k = np.array(summary.classification.confusion), int(only[1])
        assert matrix[:, k].sum() >= 0.99 * matrix.sum()
        assert matrix[k].sum() <= 0.95 * matrix.sum()
        better, worse = np.trace(matrix) - matrix[k, k], matrix[k].sum() - matrix[k, k]
        assert binomtest(better, max(better + worse, 1), alternative="greater").pvalue >= 0.05
    if summary.guarantee and test is not None and test.risk is not None:
        wrong = test.risk
        missed = re.search(r"Its guarantee of at most 10 % errors among answers is (doubtful|broken|missed)", said)
        assert bool(missed) == (wrong > 0.1 + 1e-9)
        until = "have a person check every answer" in " ".join(first.advice if first else ()).replace("Have", "have")
        assert until <= ("doubtful" in said or "broken" in said)
        alarm = render(run).partition('class="promise')[2].startswith(" alarm") if len(own) < 60 else wrong > 0.1
        assert alarm == (wrong > 0.1 + 1e-9)


def claims_of_advice(run: RunFolder, said: str) -> None:
    """Advice not to use the model somewhere is beyond chance."""
    if not_at := re.search("Do not use it at (silo.*?), where the most frequent class", said):
        for name in re.findall(r"silo-\d+", not_at[1]):
            (record,) = [each for each in run.silos if each.name == name]
            assert record.classification
            matrix, k = np.array(record.classification.confusion), int(np.argmax(record.class_counts))
            better, worse = np.trace(matrix) - matrix[k, k], matrix[k].sum() - matrix[k, k]
            assert binomtest(worse, better + worse, alternative="greater").pvalue < 0.05


Draw = Callable[[Numbers], tuple[np.ndarray, np.ndarray]]


def kinds(inputs: int, accuracy_of: Callable[[np.ndarray], np.ndarray], runs: int = 200) -> dict[str, float]:
    """The shares of verdicts on simulated inputs, of which most are predicted with high confidence."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(runs):
        sure = random.beta(5, 0.5, inputs)
        bins = binned(sure, random.random(inputs) < accuracy_of(sure))
        test = {"accuracy": 0.9, **band(bins)}
        record = SiloRecord.model_validate({"name": "a", "n_test": inputs, "test": test, "reliability": bins})
        one = SiloConfidence(record, inputs, 0.9, 0.9)
        found.append(Confidence([one], Reliability.model_validate(bins), Metrics.model_validate(test)).kind)
    return {kind: found.count(kind) / runs for kind in ("good", "open", "bad")}


def test_overconfidence_among_sure_answers_is_not_hidden_by_underconfidence_elsewhere() -> None:
    random = np.random.default_rng(0)
    sure = np.r_[np.full(2000, 0.57), np.full(2000, 0.995)]
    bins = binned(sure, random.random(4000) < np.r_[np.full(2000, 0.75), np.full(2000, 0.98)])
    test = {"accuracy": 0.865, **band(bins)}
    record = SiloRecord.model_validate({"name": "a", "n_test": 4000, "test": test, "reliability": bins})
    of_silo = [SiloConfidence(record, 4000, 0.865, float(sure.mean()))]
    found = Confidence(of_silo, Reliability.model_validate(bins), Metrics.model_validate(test))
    assert not found.checks[0].over
    assert found.kind == "bad"
    assert " (on average 99.5 %), " in found.found[0].text


def test_a_calibrated_model_is_rarely_called_overconfident() -> None:
    assert kinds(360, lambda sure: sure)["bad"] <= 0.05
    assert kinds(3000, lambda sure: sure)["bad"] <= 0.05
    assert kinds(3000, lambda sure: sure)["good"] >= 0.75


def test_confidence_that_is_off_is_rarely_called_good() -> None:
    assert kinds(360, lambda sure: sure - 0.05)["good"] <= 0.05
    assert kinds(3000, lambda sure: sure - 0.05)["bad"] >= 0.95
    tail = kinds(360, lambda sure: np.where(sure < 14 / 15, sure - 0.15, sure))
    assert tail["good"] <= 0.25


def test_few_inputs_decide_nothing() -> None:
    found = kinds(9, lambda sure: sure)
    assert found["good"] == 0
    assert found["bad"] <= 0.05


def test_small_and_significant_is_called_slightly_overconfident(tmp_path: Path) -> None:
    """An ECE of 0.014, where chance explains 0.013, is not within chance."""
    folder = confident_run(tmp_path / "run", [(4000, 3980, 0.9952)] * 9, off=0, temperature=True)
    content = json.loads((folder / "summary.json").read_text())
    content["pooled"] |= {"ece": 0.01439, "ece_null": {"mean": 0.0102, "upper": 0.01155}}
    write_json(folder / "summary.json", content)
    run = read_run(folder)
    said, found = headline(run), confidence(run)
    assert found is not None
    assert found.kind == "open"
    assert "It is slightly overconfident: " in said
    assert "the ECE over all inputs is 0.014, where chance explains up to 0.012" in said


def test_predictions_below_the_highest_bin_are_judged_by_themselves(tmp_path: Path) -> None:
    """45 predictions that are 73.7 % sure and 60 % right are not covered by hundreds of sure and right ones."""
    folder = confident_run(tmp_path / "run", [(600, 597, 0.995)], off=0)
    content = json.loads((folder / "summary.json").read_text())
    bins = {"count": [45, 555], "confidence": [45 * 0.737, 555 * 0.995], "correct": [27, 552]}
    content["silos"][0] |= {"reliability": bins}
    content["pooled"] |= {"ece": 0.01, "ece_null": {"mean": 0.008, "upper": 0.015}}
    write_json(folder / "summary.json", content)
    said = headline(read_run(folder))
    assert (
        "No error of its confidence is shown; it may be too high: the 45 predictions below the highest of 2 bins of "
        "confidence (0.50) are " in said
    )
    z = 45 * (0.737 - 0.6) / (45 * 0.737 * 0.263) ** 0.5
    p = math.erfc(z / 2**0.5)
    assert f"60.0 % right (p = {p:.3f}; corrected for the 5 checks of confidence, p = {5 * p:.2f})." in said


def hospital(name: str, matrix: list[list[int]]) -> dict[str, Any]:
    y, label = (np.repeat(np.array(where), np.array(matrix).ravel()) for where in ([0, 0, 1, 1], [0, 1, 0, 1]))
    return silo(name, np.full(len(y), 0.8), y, label, 1, 2)


def test_a_hospital_that_gains_nothing_is_named_on_the_first_screen(tmp_path: Path) -> None:
    good, va = hospital("Cleveland", [[30, 5], [4, 40]]), hospital("VA", [[2, 8], [2, 28]])
    blind = hospital("Zurich", [[0, 2], [0, 23]])
    blind["classification"]["operating"] = {"true_positives": 23, "false_positives": 2}
    blind["test"]["specificity"] = 0.0
    run = run_of(tmp_path / "run", [good, va, blind], 2, classification={"positive": "class 1"})
    kind, text = baseline(run) or ("", "")
    assert kind == "unknown"  # 4 inputs show nothing, as do 2
    assert "No better than always predicting the most frequent class at 2 of 3 silos" in text
    assert (
        "VA (30 of 40 right, this baseline 30), Zurich (23 of 25 right, this baseline 23, specificity 0 of 2)" in text
    )
    assert [each.behind for each in judged(run)] == [False, True, True]


def test_many_hospitals_that_gain_nothing_are_counted(tmp_path: Path) -> None:
    silos = [hospital(f"{i}", [[2, 8], [2, 28]]) for i in range(12)] + [hospital("good", [[90, 5], [4, 90]])]
    found = trust(run_of(tmp_path / "run", silos, 2))
    assert found is not None
    said = " ".join(Markup(each).striptags() for each in [*found.advice, *(line.text for line in found.lines)])
    assert "Do not use it at 12 of 13 silos (listed in the table of silos) before a test on more inputs there" in said
    assert "0 (30 of 40 right" not in said


def test_a_run_that_has_learned_nothing_says_so_first(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [hospital("a", [[2, 20], [2, 20]])], 2)
    found = trust(run)
    assert found is not None
    assert found.lines[0].kind == "bad"
    assert "It is no more accurate than always predicting the most frequent class" in found.lines[0].text


def test_one_class_shows_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [hospital("a", [[0, 0], [0, 22]])], 2)
    assert "These test inputs cannot show whether it has learned" in headline(run)


def test_foreign_inputs_are_only_blamed_for_more_errors_than_own_ones(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    content = json.loads((folder / "summary.json").read_text())
    own = content["streams"]["ind"]["models"]["switch"]["pooled"]
    own |= {"coverage": 1.0, "answered_accuracy": 0.879}
    content["streams"]["ood_local"]["models"]["switch"]["pooled"] |= {"coverage": 1.0, "answered_accuracy": 0.873}
    del content["guarantee"]
    write_json(folder / "summary.json", content)
    said = headline(read_run(folder))
    first, _, rest = said.partition("knows: 20.0 % were answered wrongly")
    assert rest.startswith("; of inputs that only other silos know, 12.7 % were answered wrongly. Of silos'")
    assert "Of silos' own inputs, 12.1 % were answered wrongly." in said
    assert first.endswith("Not reliable on inputs that no silo ")


def test_a_promise_that_test_inputs_missed_is_in_the_headline_and_its_box_is_no_green_one(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    content = json.loads((folder / "summary.json").read_text())
    content["pooled"] = {"accuracy": 0.9, "coverage": 0.9, "answered_accuracy": 0.88}
    write_json(folder / "summary.json", content | {"streams": {}})
    run = read_run(folder)
    first = overview(run)
    assert first is not None
    assert (
        "87.8 %</b> of these correctly (158 of 180; 95 % interval 82.2 % to 91.8 %). "
        "Its guarantee of at most 10 % errors among answers is missed" in first.sentence
    )
    assert 'class="promise alarm"' in render(run)
    assert "Found: 12.2 % (22 of 180)." in Page(render(run)).text


def test_curves_end_with_the_model_as_trained(tmp_path: Path) -> None:
    """The rows of the final model have its temperature, so their entropy is not that of other rounds."""
    run = confident_run(tmp_path / "run", [(40, 39, 0.975)], off=0, temperature=True)
    base = {"split": "validation", "silo": "silo-0", "accuracy": 0.9}
    rows = [{**base, "round": i, "phase": "train", "entropy": 0.012} for i in (1, 2)]
    rows.append({**base, "round": 2, "phase": "final", "entropy": 0.305})
    (run / "rounds.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    from fake_run import rebook

    rebook(run)
    found = read_run(run)
    assert [row.entropy for row in found.curve_rows] == [0.012, 0.012]
    assert "before temperature scaling: the mean" in Page(render(found)).text
