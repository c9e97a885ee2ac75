"""The first screen of a run says whether it can be trusted, and what to do: no more and no less than figures tell."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_run import confident_run, decided_run, describe, fake_run, write_json
from html_page import Page
from markupsafe import Markup
from scipy.stats import betabinom, ttest_1samp

from caveat.cli.prediction_output import known_errors
from caveat.data.settings import Split
from caveat.files import read_run
from caveat.files.schema import Metrics, RoundRow, SiloRecord
from caveat.html.diagrams import oracle_risk, risk_curve
from caveat.html.predicted_inputs import NOTHING, SiloAdvice
from caveat.html.run.alarms import familiarity, promised, too_many, too_many_in_all
from caveat.html.run.at_silo import at_silo
from caveat.html.run.confidence import SureErrors, confidence, silos_off
from caveat.html.run.guarantee import exceeding
from caveat.html.run.overview import overview
from caveat.html.run.page import render
from caveat.html.run.silo_baselines import differences_to_alone, worse_alone
from caveat.html.run.trust import Trust, right_and_wrong, trust
from caveat.terminal.results import run_conclusion
from caveat.uncertainty.statistical_tests import score_interval, wilson

RIGHT = [(40, 39, 0.975)] * 9
"""Silos whose confidence is right."""
TOO_SURE = [(40, 37, 0.999)] * 8 + [(40, 40, 0.999)]


def told(folder: Path) -> Trust:
    found = trust(read_run(folder))
    assert found is not None
    return found


def lines(found: Trust) -> list[tuple[str, str]]:
    return [(line.kind, Markup(line.text).striptags()) for line in found.lines]


def advice(found: Trust, without: tuple[str, ...] = ("Find out", "Predict new inputs")) -> str:
    return " ".join(text for each in found.advice if not (text := Markup(each).striptags()).startswith(without))


def change(folder: Path, **changes: Any) -> Path:
    content = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", content | changes)
    return folder


def test_overconfidence_is_what_the_page_begins_with(tmp_path: Path) -> None:
    found = told(confident_run(tmp_path / "run", TOO_SURE, off=8))
    kind, text = lines(found)[0]
    assert kind == "bad"
    assert text == (
        "Do not trust its confidence: of the 360 predictions with confidence above 0.50 (on average 99.9 %), 24 "
        "are wrong, where 0.4 were expected; "
        "8 of 9 silos are overconfident beyond chance (by chance, 0.45 are over- or underconfident)."
    )
    assert "Set uncertainty.temperature_scaling = true" in advice(found)
    page = Page(render(read_run(tmp_path / "run"))).text
    there = ("Do not trust its confidence", "Errors by share answered", "ECE (by chance)")
    assert list(there) == sorted(there, key=page.index)


def test_with_a_temperature_it_is_not_advised_once_more(tmp_path: Path) -> None:
    found = told(confident_run(tmp_path / "run", TOO_SURE, off=8, temperature=True))
    assert "uncertainty.temperature_scaling" not in advice(found)
    again = f"{tmp_path}/run/config.toml --set uncertainty.policy=guaranteed --out {tmp_path}/run-guaranteed"
    assert f"For a bound on errors, run it again with caveat run {again}" in advice(found)


def test_a_calibrated_run_says_what_was_tested_and_on_how_many_inputs(tmp_path: Path) -> None:
    found = told(confident_run(tmp_path / "run", RIGHT, off=1, temperature=True))
    assert lines(found)[1] == (
        "good",
        "No error of its confidence was found in 360 test inputs: they are predicted with 97.5 % confidence on "
        "average and 97.5 % accuracy; the expected calibration error (ECE) is 0.015, where chance explains up to "
        "0.020.",
    )
    assert (
        advice(found) == "Have a person decide inputs with total_uncertainty among the largest 10 % or with an alarm "
        "(for inputs unlike the silo's own, or more uncertain): 36 to 54 of 360 test inputs, with at least 6 of 9 "
        "errors. Of the less uncertain inputs of all silos, 0.9 % (3 of 324) are wrong (95 % interval 0.3 % to 2.7 %); "
        "the limit was chosen on the same inputs."
    )
    silent = told(confident_run(tmp_path / "silent", RIGHT, off=1, temperature=True, unfamiliar=0.0))
    assert "or more uncertain): 36 of 360 test inputs, with 6 of 9 errors. " in advice(silent)


@pytest.mark.parametrize(("off", "kind"), [(0, "good"), (1, "good"), (2, "good"), (3, "bad")])
def test_as_many_silos_as_chance_puts_there_are_no_alarm(tmp_path: Path, off: int, kind: str) -> None:
    # Of 9 silos at 5 %: one or more in 37 % of cases, three or more in 0.8 %; one of four checks.
    found = confidence(read_run(confident_run(tmp_path / "run", [(40, 39, 0.976)] * 9, off=off)))
    assert found is not None
    assert found.kind == kind


def test_confidence_that_is_too_low_is_another_warning(tmp_path: Path) -> None:
    kind, text = lines(told(confident_run(tmp_path / "run", [(40, 39, 0.7)] * 9, off=9)))[0]
    assert kind == "open"
    assert text.startswith("It is underconfident: ")
    assert "9 of 9 silos are underconfident beyond chance" in text


def test_sure_errors_are_judged_by_what_the_confidence_announces() -> None:
    assert SureErrors(17, 600, 0.999, 23).expected == pytest.approx(0.6)
    assert SureErrors(17, 600, 0.999, 23).p < 1e-9
    assert SureErrors(17, 600, 0.97, 23).p > 0.5  # 18 were announced
    assert SureErrors(2, 600, 0.999, 2).p == pytest.approx(0.122, abs=0.001)


def test_where_it_abstains_the_answered_are_counted(tmp_path: Path) -> None:
    page = Page(render(read_run(decided_run(tmp_path / "run")))).text
    assert "fedpn answers 90.0 % of 200 test inputs, 95.0 % of these correctly (171 of 180; 95 %" in page


def test_wrong_answers_to_inputs_that_silos_do_not_know_are_said_first_and_drawn(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    assert lines(told(folder))[0] == (
        "open",
        "Not reliable on inputs that silos do not know: of inputs that only other silos know, "
        "28.0 % were answered wrongly; of inputs that no silo knows, "
        "20.0 % were answered wrongly. Of silos' own inputs, 4.5 % were answered wrongly.",
    )
    page = render(read_run(folder))
    first = Markup(page.partition('id="outcomes"')[0].partition("<body")[2]).striptags()
    assert "are not covered: of those that only other silos know, 28.0" in first
    assert not re.search(r"\b(ind|ood_local|ood_global)\b", first)
    bars = page.split('id="outcomes"')[1].split("</table>")[0].split("<tbody>")[1]
    widths = [(kind, float(w)) for w, kind in re.findall(r'width="([\d.]+)"[^>]*class="outcome (\w+)"', bars)]
    own = [("right", 110 * 0.855 - 1.4), ("wrong", 110 * 0.045 - 1.4), ("abstain", 110 * 0.1 - 1.4)]
    assert widths[4:7] == [(kind, pytest.approx(width, abs=0.01)) for kind, width in own]  # after local, and global
    assert [kind for kind, _ in widths[-2:]] == ["wrong", "abstain"]
    assert 'aria-label="wrong 20.0 %, abstained 80.0 %"' in page


def test_more_than_half_of_a_stream_answered_wrongly_is_bad(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    content = json.loads((folder / "summary.json").read_text())
    content["streams"]["ood_global"]["models"]["switch"]["pooled"] = {"accuracy": 0, "coverage": 1.0,
                                                                     "answered_accuracy": 0.0}  # fmt: skip
    write_json(folder / "summary.json", content)
    assert [kind for kind, text in lines(told(folder)) if "no silo knows, 100.0 %" in text] == ["bad"]


def silo(share: float, n_test: int = 100, n_calibration: int = 99) -> SiloRecord:
    return SiloRecord(name="a", n_test=n_test, n_calibration=n_calibration, test=Metrics(unfamiliar=share))


def test_false_alarms_are_judged_by_their_own_distribution() -> None:
    # 5 of 100 ranks: beta-binomial with 5 and 95.
    limit = int(betabinom.isf(0.05, 100, 5, 95))
    assert not too_many(silo(limit / 100), 0.05, 1)
    assert too_many(silo((limit + 2) / 100), 0.05, 1)
    assert not too_many(silo((limit + 2) / 100), 0.05, 1000)  # among a thousand silos some have as many
    assert not too_many(silo(0.5, n_calibration=18), 0.05, 1)  # its alarms are those of silos together
    many = [silo(0.09)] * 20
    assert not any(too_many(each, 0.05, 20) for each in many)
    assert too_many_in_all(many, 0.05)
    assert not too_many_in_all([silo(0.05)] * 20, 0.05)


def test_silos_that_cannot_raise_an_alarm_are_named(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0, unfamiliar=0.0)
    content = json.loads((folder / "summary.json").read_text())
    content["silos"][4]["n_calibration"] = 18
    write_json(folder / "summary.json", content)
    found = familiarity(read_run(folder))
    assert found is not None
    assert found.kind == "open"
    assert (
        "1 of 9 silos have too few calibration inputs to raise an alarm (a rate of 5 % takes 19): silo-4." in found.text
    )


def test_the_guaranteed_rate_is_that_of_the_run(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0, unfamiliar=0.0)
    described = json.loads((folder / "run.json").read_text())
    described["spec"] = described.get("spec", {}) | {"uncertainty": {"false_alarm_rate": 0.1}}
    write_json(folder / "run.json", described)
    assert promised(read_run(folder)) == 0.1


def test_where_no_silo_can_raise_an_alarm_none_is_counted(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0, unfamiliar=0.0)
    content = json.loads((folder / "summary.json").read_text())
    for each in content["silos"]:
        each["n_calibration"] = 11
    write_json(folder / "summary.json", content)
    assert lines(told(folder))[0] == (
        "open",
        "No unfamiliar input is detected: all silos have too few calibration inputs to raise an alarm (a rate of 5 % "
        "takes 19).",
    )


@pytest.mark.parametrize(
    ("risk", "said"),
    [
        ([0.0, 0.01, 0.025], "Have a person decide inputs with total_uncertainty above 0.321 nats (the most "
                             "uncertain tenth) or with an alarm (for inputs unlike the silo's own, or more uncertain): "
                             "36 to 54 of 360 test inputs, with at least 6 of 9 errors. Of the less uncertain inputs "
                             "of all silos, 0.9 % (3 of 324) are wrong (95 % interval 0.3 % to 2.7 %); the limit was "
                             "chosen on the same inputs."),
        ([0.04, 0.38, 0.4], "Use at most the most certain 50 % of all silos' inputs: of these 3.9 % (7 of 180) are "
                            "wrong (95 % interval 1.9 % to 7.8 %), compared with 40.0 % of all."),
        ([0.3, 0.38, 0.4], ""),
        ([0.02, 0.024, 0.025], ""),
    ],
)  # fmt: skip
def test_what_is_left_to_a_person_is_said_where_it_spares_much(tmp_path: Path, risk: list[float], said: str) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0, temperature=True)
    curve = {"coverage": [0.5, 0.9, 1.0], "risk": risk, "max_uncertainty": [0.1, 0.321, 2.3]}
    assert advice(told(change(folder, risk_coverage=curve))) == said
    summary = read_run(folder).summary
    assert summary is not None
    known = ((3, 324), 0.321) if "above 0.321" in said else ((1, 40), None)
    assert known_errors(summary, "silo-0") == known  # a page of predictions applies the same limit
    del curve["max_uncertainty"]
    without = advice(told(change(folder, risk_coverage=curve)))
    assert without == said.replace("above 0.321 nats (the most uncertain tenth)", "among the largest 10 %")


def test_what_was_noticed_of_foreign_streams(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    content = json.loads((folder / "summary.json").read_text())
    for each in content["silos"]:
        each |= {"n_calibration": 100, "test": each["test"] | {"unfamiliar": 0.02, "novel": 0.01, "unsure": 0.01}}
    content["streams"]["ood_global"]["models"]["switch"]["pooled"] |= {
        "unfamiliar": 0.9,
        "novel": 0.05,
        "unsure": 0.025,
    }
    content["streams"]["ood_global"]["outside"]["switch"]["unfamiliar"] = {"auroc": 0.991, "fpr95": 0.02}
    write_json(folder / "summary.json", content)
    found = familiarity(read_run(folder))
    assert found is not None
    assert found.kind == "good"
    assert found.text == (
        "False alarms: 4.0 % (8 of 200 own test inputs), within the limit of 5 % that is guaranteed on average."
    )
    assert "20.0 % were answered wrongly, and 97.5 % raised an alarm" in lines(told(folder))[0][1]


def test_the_oracle_answers_all_right_predictions_first() -> None:
    assert oracle_risk(0.8, 0.2) == 0
    assert oracle_risk(1.0, 0.2) == pytest.approx(0.2)
    assert oracle_risk(0.9, 0.2) == pytest.approx(0.1 / 0.9)
    drawn = risk_curve([0.5, 1.0], [0.1, 0.2], 100, None, None, "risk")
    assert 'class="oracle"' in drawn
    assert 'class="band"' in drawn
    assert 'class="band"' not in risk_curve([0.5, 1.0], [0.1, 0.2], 0, None, None, "risk")


def test_wrong_answers_of_all_silos_are_shown_surest_first(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", beside=False, silos=30)
    content = json.loads((folder / "gallery.json").read_text())
    image = content["silos"][0]["certain"][0]["image"]
    wrong = {"image": image, "label": 3, "predicted": 8}
    content["sure_errors"] = [wrong | {"probability": p, "silo": f"silo-{i}"} for p, i in ((0.999, 29), (0.9, 2))]
    write_json(folder / "gallery.json", content)
    page = Page(render(read_run(folder)))
    text = " ".join(page.text.split())
    assert "Wrong answers, most confident first 8 99.9 % label 3 silo-29 8 90.0 % label 3 silo-2" in text
    content["sure_errors"] = [each | {"image": None} for each in content["sure_errors"]]
    write_json(folder / "gallery.json", content)
    assert "Wrong answers" not in render(read_run(folder))  # without an image or values, a list shows nothing


def test_training_alone_that_is_better_beyond_chance_is_the_first_advice(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0)
    beside = confident_run(folder / "baselines" / "local", [(40, 40, 0.975 + i / 1000) for i in range(9)], off=0)
    change(beside, method="local")
    content = json.loads((folder / "summary.json").read_text())
    for i, silo in enumerate(content["silos"]):
        silo["test"]["accuracy"] = 0.8 + i / 100
    write_json(folder / "summary.json", content)
    assert advice(told(folder)).startswith("Use training alone instead (method local)")


def with_confusions(folder: Path, of_silo: Callable[[int], list[list[int]]]) -> str:
    """The advice on a run of nine silos with these test inputs of classes a and b, of which b is more frequent."""
    confident_run(folder, RIGHT, off=0)
    content = json.loads((folder / "summary.json").read_text())
    for i, silo in enumerate(content["silos"]):
        silo |= {"class_counts": [5, 6], "classification": {"confusion": of_silo(i)}}
    write_json(folder / "summary.json", content | {"classes": ["a", "b"]})
    return advice(told(folder))


def test_silos_where_the_class_is_ahead_by_chance_and_beyond_are_told_apart(tmp_path: Path) -> None:
    good, same, worse = [[19, 1], [0, 20]], [[0, 10], [1, 9]], [[0, 10], [20, 10]]
    text = with_confusions(tmp_path / "run", lambda i: worse if not i else same if i < 4 else good)
    assert text.startswith(
        "Do not use it at silo-0, where always predicting the most frequent class is more accurate, beyond chance. Do "
        "not use it at silo-1, silo-2, silo-3 before a test on more inputs there: it is no more accurate than always "
        "predicting the most frequent class."
    )


def test_the_most_certain_of_few_inputs_are_no_advice(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", RIGHT[:4], off=0, temperature=True)
    curve = {"coverage": [0.5, 0.9, 1.0], "risk": [0.04, 0.38, 0.4]}  # the first half of 160 inputs
    assert advice(told(change(folder, risk_coverage=curve))) == ""


@pytest.mark.parametrize("called", [20, 9])
def test_a_model_that_predicts_one_class_is_not_to_be_used_anywhere(tmp_path: Path, called: int) -> None:
    folder = confident_run(tmp_path / "run", TOO_SURE, off=8, temperature=True)
    confusion = [[20 - called, called], [12 if called < 20 else 0, 160 if called < 20 else 172]]
    change(folder, classes=["a", "b"], classification={"confusion": confusion})
    page, found = Page(render(read_run(folder))).text, told(folder)
    if called < 20:
        assert "predicts class" not in page
        return
    assert "predicts class b for all 192 test inputs; 89.6 % of these have this class." in page
    assert lines(found)[0] == ("bad", "It predicts class b for all 192 test inputs: 89.6 % of these have this class.")
    assert advice(found).startswith("Do not use it at any silo: it predicts class b whatever the input.")
    assert "guaranteed" not in advice(found)
    assert any("Do not use it at any silo" in line for line in run_conclusion(read_run(folder)))


def collapse(folder: Path, confusion: list[list[int]]) -> str:
    found = told(
        change(confident_run(folder, RIGHT, off=0), classes=["a", "b"], classification={"confusion": confusion})
    )
    return " ".join([*(text for _, text in lines(found)), advice(found)])


def test_a_model_is_called_collapsed_only_beyond_chance(tmp_path: Path) -> None:
    # Better than a constant by 10 inputs to none; of 20 inputs, one of another class shows nothing.
    assert "predicts class" not in collapse(tmp_path / "rare", [[1880, 0], [110, 10]])
    assert "predicts class" not in collapse(tmp_path / "few", [[19, 0], [1, 0]])
    nearly = collapse(tmp_path / "nearly", [[1880, 2], [118, 0]])
    assert "It predicts class a for 1,998 of 2,000 test inputs: 94.1 % of these have this class." in nearly
    assert "it predicts class a for nearly every input" in nearly


def test_foreign_inputs_stand_beside_right_and_wrong_ones(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    content = json.loads((folder / "summary.json").read_text())
    counts = {"ind": ([80, 10], [2, 8]), "ood_local": ([30, 10], [10, 50]), "ood_global": ([0, 0], [10, 90])}
    for name, (right, wrong) in counts.items():
        made = {kind: {"from": [0.0, 0.5], "count": n, "step": 0.5} for kind, n in (("right", right), ("wrong", wrong))}
        content["streams"][name]["models"]["switch"]["uncertainty"] = made
    write_json(folder / "summary.json", content)
    found = right_and_wrong(read_run(folder))
    assert found is not None
    assert [name for _, name in found[1]] == ["right", "wrong", "known to other silos only", "known to no silo"]
    assert "right: 89 % of 90 up to 0.5 nats" in found[0].caption
    assert found[0].drawing.count('class="event"') == 1
    assert "known to other silos only: 40 % of 100 up to" in found[0].caption
    assert "known to no silo: 10 % of 100 up to" in found[0].caption


def test_a_warning_that_a_simple_model_is_better_is_the_first_step_and_not_folded(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0, temperature=True)
    text = (
        "Predictions are less accurate on validation inputs than a ridge classifier: of 1,040, only the baseline is "
        "right for 120, and only the model for 16."
    )
    right = {"inputs": 1040, "only_baseline": 120, "only_model": 16}
    warning = {"kind": "below_reference", "text": text, "advice": "Try more rounds.", "against_baseline": right}
    change(folder, warnings=[warning], mean={"accuracy": 0.97})
    steps = [str(Markup(each).striptags()) for each in told(folder).advice]
    assert steps[0].startswith("Train for more rounds with caveat run ")
    linear = "on their own validation inputs, even a linear model of each silo is better than this run."
    assert steps[0].endswith(f"-longer. This also trains silos alone: {linear}")
    assert steps[1:] == ["Or use another training.lr."]
    python = confident_run(tmp_path / "python", RIGHT, off=0)
    about = json.loads((python / "run.json").read_text())
    write_json(python / "run.json", about | {"spec": about["spec"] | {"data": None}})
    alone = [str(Markup(each).striptags()) for each in told(change(python, warnings=[warning])).advice][1]
    assert alone == f"Or train silos alone (method local): {linear}"
    for temperature, raised in ((0.06, True), (0.9, False)):
        change(folder, temperature={"global": temperature})
        describe(folder, "uefl", spec={"method": {"name": "uefl", "rounds": 25, "training": {"lr": 0.001}}})
        last = str(Markup(told(folder).advice[-1]).striptags())
        assert last.startswith("Or raise training.lr (now 0.001) with caveat run") == raised
        assert last.endswith(": the logits are still small (temperature 0.06).") == raised
        assert ("--set training.lr=0.003" in last) == raised
    page, found = render(read_run(folder)), overview(read_run(folder))
    assert found is not None
    assert found.sentence.striptags().startswith("Do not use it yet: uefl predicts 97.0 % of 360 test inputs")
    end = " A simple linear (ridge) model of each silo's own training inputs is 10 points more accurate on 1,040 "
    assert found.sentence.striptags().endswith(
        f"{end}validation inputs (only it is right for 120, and only this run for 16)."
    )
    assert "1 warning" not in page
    assert "Predict new inputs" not in page
    change(folder, warnings=[warning | {"kind": "below_majority"}], seconds={"train": 90.0, "evaluate": 10.0})
    steps = [str(Markup(each).striptags()) for each in told(folder).advice]
    assert steps[0].endswith("-longer (about 6.7 min). This also trains silos alone.")  # no linear model is better
    change(folder, method="local")
    assert not any("alone" in each for each in told(folder).advice)
    change(folder, method="uefl")
    change(folder, warnings=[{"kind": "below_reference", "text": text, "silos": ["silo-0"]}])
    assert "1 warning" in render(read_run(folder))  # only at some silos


@pytest.mark.parametrize(("unfamiliar", "excess"), [(0.06, False), (0.08, True)])
def test_alarms_of_small_silos_together_are_judged_by_all_their_calibration_inputs(
    tmp_path: Path, unfamiliar: float, excess: bool
) -> None:
    folder = confident_run(tmp_path / "run", [(50, 45, 0.9)] * 40, off=0, unfamiliar=unfamiliar)
    content = json.loads((folder / "summary.json").read_text())
    for each in content["silos"]:
        each["n_calibration"] = 16
    change(folder, silos=content["silos"], alarms={"least": 19, "pooled": 640})
    found = familiarity(read_run(folder))
    assert found is not None
    assert found.kind == ("open" if excess else "unknown")  # more than guaranteed is never good
    assert ("by no more than chance explains" in found.text) == (not excess)
    assert ("more than guaranteed, beyond chance; test inputs may be unlike" in found.text) == excess
    assert "for each" not in found.text  # which is in a warning of the run


def test_chance_does_not_explain_an_excess_that_one_silo_has_beyond_chance(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", [(1000, 900, 0.9), (50, 45, 0.9)], off=0, unfamiliar=0.04)
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    for each in silos:
        each["n_calibration"] = 999
    silos[1]["test"]["unfamiliar"] = 0.3  # 5.2 % of all inputs, but 17 % in the mean over silos
    change(folder, silos=silos)
    found = familiarity(read_run(folder))
    assert found is not None
    assert found.kind == "open"
    assert found.text.startswith("False alarms: 5.2 % (55 of 1,050 own test inputs), above the")
    assert "chance explains" not in found.text
    assert "At silo-1, they are more than guaranteed, beyond chance over all silos." in found.text


def test_a_guarantee_that_test_inputs_exceed_at_its_own_level_is_doubted(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    pooled = {"accuracy": 0.9, "coverage": 0.9, "answered_accuracy": 0.86}  # 25 of 180 wrong, 10 % guaranteed
    change(folder, pooled=pooled, streams={})
    steps = advice(told(folder))
    assert steps.startswith("Until a test on more inputs, have a person check every answer. ")
    inputs, wrong = int((re.search(r"Test it on (\d+) further labelled inputs", steps) or [0, 0])[1]), 25 / 180
    answers = 180 + round(0.9 * inputs)
    rule = f"{answers // 10} of about {answers} answers are wrong, with those of this run (25 wrong), rely on answers, "
    assert f"{rule}and have a person decide the inputs that it abstains from, here 10.0 %; else use more" in steps
    assert score_interval(wrong, 0.9 * inputs)[0] > 0.1 > score_interval(wrong, 0.9 * (inputs - 20))[0]
    page = Page(render(read_run(folder))).text
    assert "86.1 % of these correctly" in page
    assert page.count("Its guarantee of at most 10 % errors among answers is doubtful.") == 1
    assert "makes the guarantee doubtful: if it holds, less than 10 % of tests have as many errors." in page
    strict = json.loads((folder / "summary.json").read_text())["guarantee"] | {"confidence_level": 0.999}
    change(folder, pooled=pooled | {"answered_accuracy": 0.84}, guarantee=strict)  # 29 wrong: beyond chance at 95 %
    assert "Have a person check every answer: its guarantee does not hold here" in advice(told(folder))


def test_silos_with_their_own_guarantees_are_judged_one_by_one(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    content = json.loads((folder / "summary.json").read_text())
    known = {"limit": 0.5, "risk": 0.1, "confidence_level": 0.9, "answered": 90, "errors": 3, "total": 100}
    own = known | {"guaranteed": True, "whose": "silo", "statement": "for this silo by itself"}
    for silo, right in zip(content["silos"], (0.96, 0.5), strict=True):
        test = {"accuracy": right, "coverage": 0.5, "answered_accuracy": right}
        silo |= {"n_calibration": 100, "test": test, "promise": own}
    change(folder, silos=content["silos"], streams={})
    steps = advice(told(folder))
    assert "Have a person check answers at b: more of them are wrong than the guarantee allows." in steps
    assert "check every answer" not in steps
    assert "on average over silos" not in render(read_run(folder))
    content["silos"][1]["promise"] = own | {"whose": "federation"}  # which one silo is no test of
    change(folder, silos=content["silos"])
    assert "Have a person check answers" not in advice(told(folder))


def test_the_share_of_errors_of_a_guarantee_is_one_number_on_the_page(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    assert "weighted" not in render(read_run(folder))
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    for silo, n, right in ((silos[0], 50, 0.60), (silos[1], 450, 0.98)):
        silo |= {"n_calibration": n, "test": {"accuracy": right, "coverage": 0.5, "answered_accuracy": right}}
    change(folder, silos=silos, streams={})
    page = Page(render(read_run(folder))).text
    assert "answers 100 of 200 test inputs, 79 of these correctly." in page
    assert "Found: 5.8 % (21 of 100, weighted)." in page
    assert "50.0 % answered, 5.8 % of these wrong, silos weighted as in calibration; decisions may use" in page
    assert "21.0 %" not in page
    assert "not for a single silo (most wrong at a: 20 of 50)" in page


@pytest.mark.parametrize(
    ("local", "whole", "said"),
    [(0.99, 0.5, "The silos' local models are"), (0.9, 0.99, "The global model is"), (0.945, 0.5, "")],
)
def test_one_model_that_is_better_beyond_chance_than_the_choice_of_models_is_named(
    tmp_path: Path, local: float, whole: float, said: str
) -> None:
    """The choice is right for 92 % of 200 inputs, up to 95 % by chance, and for 95 % of its answers."""
    folder = decided_run(tmp_path / "run")
    models = json.loads((folder / "summary.json").read_text())["models"]
    for name, share in (("local", local), ("global", whole), ("switch", 0.92)):
        models[name] |= {"pooled": {"accuracy": share}, "silos": 2}
    found = told(change(folder, models=models))
    first = " ".join(text for _, text in lines(found))
    best = f"{said} better on own inputs: accuracy 99.0 %, compared with 92.0 % for the run's choice of models."
    assert (best in first) == bool(said)
    assert ("better on own inputs" in first) == bool(said)
    always = "Where only classes that a silo has trained on can arrive, use the local models with caveat run "
    always += f"{folder}/config.toml --set uncertainty.policy=always --out {folder}-always. They are right for "
    always += "99.0 % of own inputs, this run's choice of models for 92.0 %"
    steps = [Markup(each).striptags() for each in found.advice]
    assert [step.startswith(always) for step in steps].count(True) == ("local" in said)
    assert steps[0].startswith("Where inputs that only other silos know or that no silo knows can arrive")
    about = json.loads((folder / "run.json").read_text())
    write_json(folder / "run.json", about | {"spec": about["spec"] | {"data": None}})  # a run from Python
    assert ('use the local models: set uncertainty.policy = "always". They' in advice(told(folder))) == (
        "local" in said
    )


@pytest.mark.parametrize(("silos", "above"), [(1, ["silo-0"]), (100, [])])
def test_errors_above_a_guarantee_at_one_of_many_silos_may_be_chance(
    tmp_path: Path, silos: int, above: list[str]
) -> None:
    """5 of 31 answers are wrong where 5 % are guaranteed: p is about .02, which chance gives at some of 100 silos."""
    guarantee = {"risk": 0.05, "confidence_level": 0.9, "statement": "x", "answered": 100, "errors": 2, "total": 100}
    folder = confident_run(tmp_path / "run", [(31, 26, 0.9), *[(31, 31, 0.9)] * (silos - 1)], off=0)
    tested = json.loads((folder / "summary.json").read_text())["silos"]
    for each in tested:
        each["test"] |= {"coverage": 1.0, "answered_accuracy": each["test"]["accuracy"]}
    change(folder, silos=tested, guarantee=guarantee | {"limit": 0.5, "guaranteed": True})
    summary = read_run(folder).summary
    assert summary is not None
    assert exceeding(summary) == above


def test_where_nothing_is_answered_no_answers_are_advised(tmp_path: Path) -> None:
    """The rule of deferring the most uncertain inputs is about a model that answers the others."""
    folder = decided_run(tmp_path / "run", guaranteed=False)
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    for silo in silos:
        silo["test"] |= {"coverage": 0.0}
    curve = {"coverage": [0.5, 0.9, 1.0], "risk": [0.0, 0.1, 0.2], "max_uncertainty": [0.1, 0.3, 2.3]}
    pooled = {"accuracy": 0.8, "coverage": 0.0}
    change(folder, silos=silos, pooled=pooled, streams={}, risk_coverage=curve)
    steps = [Markup(each).striptags() for each in told(folder).advice]
    assert steps[0] == "Have a person decide every input."
    for silo in silos:
        silo |= {"n_train": 70, "n_validation": 10, "n_calibration": 20}
    sets = {"sets": {"coverage": 0.9, "least": 9}, "pooled": pooled | {"set_coverage": 0.93, "set_size": 1.652}}
    steps = [Markup(each).striptags() for each in told(change(folder, silos=silos, **sets)).advice]
    assert steps[0] == (
        "Have a person decide every input, with the help of the prediction sets: these have 1.65 classes on average, "
        "and contain the class of 93.0 % of test inputs, where 90.0 % were asked for."
    )
    absent = {"kind": "absent_classes", "text": "Without calibration inputs: class '3' at b.", "silos": ["b"]}
    (step,) = [Markup(each).striptags() for each in told(change(folder, warnings=[absent])).advice[:1]]
    assert "; do not rule out classes without calibration inputs (see warnings) by the sets of b" in step
    assert "rule out" not in steps[0]
    shares = dict(each.split("=") for each in re.findall(r"data\.split\.(\w+=[\d.]+)", steps[1]))
    assert Split(**{name: float(share) for name, share in shares.items()}) == Split(0.5, 0.1, 0.4)
    assert steps[1].startswith("Calibrate on about 80 inputs instead of 40, with 100 instead of 140 for training, with")
    assert steps[2].startswith("Or train for more rounds with")
    assert steps[3].startswith("Or allow more than 10 % errors (uncertainty.risk)")
    assert "total_uncertainty" not in " ".join(steps)
    assert "Predict new" not in " ".join(steps)
    assert (
        "answers none of 200 test inputs. Of all inputs, its prediction is right for 80.0 %"
        in Page(render(read_run(folder))).text
    )


@pytest.mark.parametrize(
    ("last", "accuracy", "said"),
    [
        ([0.6] * 9, 0.4, "Train for more rounds with"),
        ([0.3] * 9, 0.4, "Have a person check every prediction: 60.0 % of test inputs (216 of 360) are predicted wr"),
        ([0.6] * 9, 0.975, "Train for more rounds"),
        ([0.3 + i / 50 for i in range(9)], 0.975, "Train for more rounds"),
        ([0.3 + (-1) ** i / 10 for i in range(9)], 0.975, ""),
    ],
)
def test_training_that_still_gains_is_to_be_continued(
    tmp_path: Path, last: list[float], accuracy: float, said: str
) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0)
    pooled = json.loads((folder / "summary.json").read_text())["pooled"]
    change(folder, pooled=pooled | {"accuracy": accuracy}, risk_coverage=None)
    rows = [
        RoundRow(round=at, phase="train", split="validation", silo=f"silo-{i}", accuracy=value)
        for i, end in enumerate(last) for at, value in ((1, 0.3), (2, end))
    ]  # fmt: skip
    run = replace(read_run(folder), rows=rows)
    found, first = trust(run), overview(run)
    assert found is not None
    assert first is not None
    assert first.sentence.striptags().startswith("Do not use it yet: uefl") == (last[0] == 0.6 and accuracy == 0.4)
    assert ("→ Do not use it yet." in run_conclusion(run)) == (last[0] == 0.6 and accuracy == 0.4)
    steps = advice(found)
    assert steps.startswith(said)
    assert bool(steps) == bool(said)
    gain = ttest_1samp([end - 0.3 for end in last], 0).confidence_interval(0.95) if len(set(last)) > 1 else None
    if gain and said:
        assert f"(95 % interval over silos {100 * gain.low:.1f} to {100 * gain.high:.1f})" in steps
    assert ("validation accuracy still rose by" in steps) == ("Train for more" in said)


def test_silos_that_cannot_be_judged_are_not_named_in_advice(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    text = with_confusions(folder, lambda i: [[0, 4], [0, 4]] if not i else [[4, 0], [0, 4]])
    assert "before a test on more inputs there" in text
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    change(folder, silos=[each | {"n_test": 8} for each in silos])
    assert "before a test on more inputs there" not in advice(told(folder))


def test_a_silo_where_training_alone_is_better_is_named(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", [(40, 39, 0.975), (40, 20, 0.5), (40, 39, 0.975)], off=0)
    beside = confident_run(folder / "baselines" / "local", [(40, 37, 0.975), (40, 40, 0.5), (40, 36, 0.975)], off=0)
    change(beside, method="local")
    (l1, u1), (l2, u2) = wilson(20, 40), wilson(40, 40)
    low, high = 0.5 - ((u1 - 0.5) ** 2 + (1 - l2) ** 2) ** 0.5, 0.5 + ((0.5 - l1) ** 2 + (u2 - 1) ** 2) ** 0.5
    said = advice(told(folder))
    instead = "Use training alone (method local) instead at silo-1 (40 of 40 right, this run 20)."
    assert said.startswith(instead)
    assert [at_silo(read_run(folder), silo).against for silo in ("silo-0", "silo-1")] == ["", instead]
    assert "Predict new inputs of silo-0 and silo-2 with" in str(Markup(told(folder).advice[-1]).striptags())
    page = Page(render(read_run(folder)))
    assert f"training alone is better at silo-1 (50.0 points; {100 * low:.1f} to {100 * high:.1f})" in page.text
    flagged = [row["data-name"] for row in page.all("tr") if row.get("data-name")]
    assert "silo-1" in flagged


def test_a_silo_where_training_alone_is_better_may_be_chance_among_many(tmp_path: Path) -> None:
    for silos, known in ((3, ["silo-0"]), (30, [])):
        folder = confident_run(tmp_path / f"{silos}", [(40, 31, 0.5), *[(40, 39, 0.975)] * (silos - 1)], off=0)
        beside = confident_run(folder / "baselines" / "local", [(40, 40, 0.975)] * silos, off=0)
        change(beside, method="local")
        assert worse_alone(read_run(folder)) == known
        page = render(read_run(folder))
        assert page.count('training alone is better, beyond chance over silos"') == len(known)
        assert ("training alone is better at silo-" in page) == bool(known)


def test_training_alone_that_predicts_one_class_is_not_recommended(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", [(40, 39, 0.975), (40, 20, 0.5), (40, 39, 0.975)], off=0)
    beside = confident_run(folder / "baselines" / "local", [(40, 37, 0.975), (40, 40, 0.5), (40, 36, 0.975)], off=0)
    silos = json.loads((beside / "summary.json").read_text())["silos"]
    silos[1]["classification"] = {"positive": "ill", "confusion": [[0, 0], [0, 40]]}
    change(beside, method="local", silos=silos)
    change(folder, classes=["well", "ill"])
    assert not worse_alone(read_run(folder))
    assert "Use training alone" not in advice(told(folder))


def test_confidence_is_flagged_at_silos_beyond_chance_over_all_of_them(tmp_path: Path) -> None:
    """6 of 40 are wrong where 1.8 were expected, p = 0.01: chance gives that at one of 9 silos, not at the only one."""
    for silos, known in ((1, ["silo-0"]), (9, [])):
        folder = confident_run(tmp_path / f"{silos}", [(40, 34, 0.954), *[(40, 39, 0.975)] * (silos - 1)], off=1)
        assert list(silos_off(read_run(folder))) == known


def test_foreign_answers_that_are_wrong_decide_where_it_is_not_used(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    streams = json.loads((folder / "summary.json").read_text())["streams"]

    def steps(**alarms: float) -> list[str]:
        for name, of in alarms.items():
            streams[name]["models"]["switch"]["pooled"]["unfamiliar"] = of
        return [Markup(each).striptags() for each in told(change(folder, streams=streams)).advice]

    where = "Where inputs that only other silos know or that no silo knows can arrive, have a person decide "
    told_wrong = "of answers to inputs that only other silos know, 40.0 % (56 of 140) are wrong; of answers to inputs "
    told_wrong += "that no silo knows, 100.0 % (40 of 40) are wrong."
    assert steps()[0] == f"{where}every input: {told_wrong}"
    every = "every input, not only those with an alarm (for inputs unlike the silo's own, or more uncertain)"
    # all alarms are abstentions
    none = " As many inputs raised an alarm (for inputs unlike the silo's own, or more uncertain) as have no answer."
    assert steps(ood_local=0.3, ood_global=0.8)[0] == f"{where}every input: {told_wrong}{none}"
    alarm = "those with an alarm (for inputs unlike the silo's own, or more uncertain) or without an answer"
    assert steps(ood_local=0.92, ood_global=0.95)[0] == f"{where}{alarm}: {told_wrong}"  # at most 10 % are wrong
    assert steps(ood_local=0.88, ood_global=0.95)[0] == f"{where}{every}: {told_wrong}"
    change(folder, policy={"name": "always"})
    assert steps()[0] == f"{where}{every}: {told_wrong.replace('answers to', 'predictions for')}"
    change(folder, policy={"name": "switch"})
    about = json.loads((folder / "run.json").read_text())
    settings = about["spec"] | {"uncertainty": {"false_alarm_rate": 0.0}}
    write_json(folder / "run.json", about | {"spec": settings})
    rest = " Alarms may detect these: set uncertainty.false_alarm_rate above 0."
    assert steps()[0] == f"{where}every input: {told_wrong}{rest}"
    write_json(folder / "run.json", about)
    only = "Where only inputs like a silo's own can arrive, predict new inputs with caveat predict"
    assert steps()[-1].startswith(only)
    assert steps()[-1].endswith(", and have a person decide those that it abstains from (here 10.0 %).")
    models = json.loads((folder / "summary.json").read_text())["models"]
    better = copy.deepcopy(models)
    better["local"]["pooled"]["accuracy"] = better["local"]["mean"]["accuracy"] = 0.99
    steps_of = {}
    for name, each in (("worse", models), ("better", better)):
        change(folder, models=each)
        steps_of[name] = steps()
    # silos' own inputs have a single advice: this run's answers, or the local models if these are better
    local = "use the local models with"
    assert [sum(local in each for each in steps_of[name]) for name in ("worse", "better")] == [0, 1]
    assert [sum(only in each for each in steps_of[name]) for name in ("worse", "better")] == [1, 0]
    change(folder, models=models)
    streams["ood_global"]["models"]["switch"]["pooled"] |= {"coverage": 0.0}
    assert steps()[0].startswith("Where inputs that only other silos know can arrive, have a person decide every input")
    assert ": of answers to these, 40.0 % (56 of 140) are wrong." in steps()[0]
    del streams["ood_local"], streams["ood_global"]
    assert steps()[-1].startswith("Predict new inputs with caveat predict")


def test_missed_inputs_of_the_positive_class_are_in_the_headline(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0)
    confusion = {"positive": "ill", "confusion": [[67, 10], [27, 82]]}
    change(folder, classes=["well", "ill"], classification=confusion)
    said = "uefl misses 27 of 109 inputs of class 'ill', and predicts this class for 10 of 77 others."
    assert said in Page(render(read_run(folder))).text
    change(folder, classification=confusion | {"operating": {"threshold": 0.4, "whose": "federation"}})
    at = f"{said[:-1]}, by the most probable class rather than by thresholds."
    assert at in Page(render(read_run(folder))).text  # beside sensitivity, which is at thresholds
    change(folder, classification={"confusion": confusion["confusion"]})
    assert "uefl misses" not in Page(render(read_run(folder))).text  # no class is the positive one


def of_classes(folder: Path, confusions: list[list[list[int]]], unfamiliar: float | None = 0.05) -> list[str]:
    """The steps of a run of silos with these test inputs of two classes, of which the second is the positive one."""
    sizes = [sum(map(sum, each)) for each in confusions]
    right = [each[0][0] + each[1][1] for each in confusions]
    confident_run(folder, [(n, k, k / n) for n, k in zip(sizes, right, strict=True)], off=0)
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    for silo, confusion in zip(silos, confusions, strict=True):
        silo |= {"class_counts": [6, 5], "classification": {"confusion": confusion}}
        silo["test"]["unfamiliar"] = unfamiliar
    pooled = [[sum(each[i][j] for each in confusions) for j in (0, 1)] for i in (0, 1)]
    change(folder, silos=silos, classes=["0", "1"], classification={"positive": "1", "confusion": pooled})
    return [Markup(each).striptags() for each in told(folder).advice]


def test_where_the_positive_class_is_missed_a_person_decides_beside_it(tmp_path: Path) -> None:
    """The number of alarms is told if there are fewer than missed inputs."""
    last = of_classes(tmp_path / "a", [[[41, 4], [7, 28]], [[38, 3], [3, 36]], [[10, 0], [11, 19]]])[-1]
    assert last.startswith("Only beside a person's own decision, predict new inputs with caveat predict")
    missed = (
        "it misses 7 of 35, 3 of 39 and 11 of 30 inputs of class '1'; of all 200 test inputs there, 10 raise an alarm, "
    )
    assert last.endswith(f"FILE --silo SILO: {missed}which marks inputs unlike the silo's own or more uncertain.")
    behind = [[[30, 10], [9, 1]], [[41, 4], [7, 28]], [[38, 3], [3, 36]]]
    steps = of_classes(tmp_path / "b", behind)
    assert steps[0].startswith("Do not use it at silo-0")
    assert "predict new inputs of silo-1 and silo-2 with" in steps[-1]
    assert (
        "it misses 7 of 35 and 3 of 39 inputs of class '1'; of all 160 test inputs there, 8 raise an alarm" in steps[-1]
    )
    assert "10 of 50" not in (told_b := Page(render(read_run(tmp_path / "b"))).text.partition("Silos")[0])
    assert "lowest is" not in told_b  # it is named below the headline
    # as many alarms as misses: all of these may have raised one
    last = of_classes(tmp_path / "c", [[[41, 4], [4, 31]]])[-1]
    assert "it misses 4 of 35 inputs of class '1'." in last
    few = of_classes(tmp_path / "d", [[[41, 4], [1, 34]]])
    assert not any("beside a person" in step or "misses" in step for step in few)
    assert few[-1].startswith("Predict new inputs with caveat predict")
    assert "without an alarm" not in of_classes(tmp_path / "e", [[[41, 4], [9, 26]]], None)[-1]
    many = of_classes(tmp_path / "f", [[[40, 5], [7, 28]]] * 6)[-1]
    assert "it misses 42 of 210 inputs of class '1'" in many


def alone_beside(folder: Path, alone: list[int], of: int = 50) -> str:
    """The note on training alone, of a run right for half of `of` inputs at each silo, and training alone for these."""
    right = [of // 2] * len(alone)
    confident_run(folder, [(of, k, k / of) for k in right], off=0)
    beside = confident_run(folder / "baselines" / "local", [(of, k, k / of) for k in alone], off=0)
    change(beside, method="local")
    first = overview(read_run(folder))
    assert first is not None
    return Markup(first.notes[0].text).striptags()


def test_a_silo_that_training_alone_may_serve_better_is_told_beside_the_mean(tmp_path: Path) -> None:
    """Of 50, 25 against 36 is beyond chance at one silo, and not at one of four."""
    said = alone_beside(tmp_path / "a", [36, 24, 20, 23])
    ends = differences_to_alone(read_run(tmp_path / "a"))["silo-0"]
    assert ends.high is not None
    assert ends.low is not None
    assert ends.high < 0
    assert "neither is shown to be better. At silo-0, it is 22.0 points behind (95 % interval over its inputs " in said
    assert f" {-100 * ends.high:.1f} to {-100 * ends.low:.1f}, not corrected for 4 silos)." in said
    assert " At silo" not in alone_beside(tmp_path / "b", [30, 24, 20, 23])  # chance at each silo
    assert " At silo" not in alone_beside(tmp_path / "c", [36, *[23] * 11])  # one of 12 is
    assert " At silo" not in alone_beside(tmp_path / "d", [36, 36, 37, 38])  # the mean shows it
    assert " At silo" not in alone_beside(tmp_path / "e", [16, 4, 2, 3], of=18)  # single silos cannot be judged
    beside = tmp_path / "a" / "baselines" / "local"
    silos = json.loads((beside / "summary.json").read_text())["silos"]
    silos[0]["classification"] = {"positive": "ill", "confusion": [[0, 14], [0, 36]]}  # it predicts one class
    change(beside, silos=silos)
    change(tmp_path / "a", classes=["well", "ill"])
    found = overview(read_run(tmp_path / "a"))
    assert found is not None
    assert " At silo" not in found.notes[0].text


def test_commands_have_the_time_that_they_take_and_not_the_time_of_the_run(tmp_path: Path) -> None:
    folder = change(confident_run(tmp_path / "run", RIGHT, off=0), seconds={"train": 90.0, "evaluate": 10.0})
    (step,) = [Markup(each).striptags() for each in told(folder).advice if "Find out" in each]
    assert "baselines" in step
    assert "(about 3.3 min)" in step  # this run and training alone, each 100 s


def test_a_page_of_predictions_has_the_advice_of_the_report(tmp_path: Path) -> None:
    of_classes(tmp_path / "a", [[[30, 10], [9, 1]], [[41, 4], [7, 28]], [[38, 3], [3, 36]]])
    run = read_run(tmp_path / "a")
    assert at_silo(run, "silo-0").against.startswith("Do not use it at silo-0")
    assert [at_silo(run, silo).beside for silo in ("silo-0", "silo-1", "silo-2")] == [False, True, True]
    of_classes(tmp_path / "b", [[[45, 0], [0, 35]], [[41, 0], [0, 39]]])
    assert at_silo(read_run(tmp_path / "b"), "silo-0") == NOTHING
    sure = read_run(confident_run(tmp_path / "c", TOO_SURE, off=8))
    assert at_silo(sure, "silo-0") == SiloAdvice(overconfident=True)
    data = {"kind": "data", "text": "Column 'chol' has 0 in several rows.", "silos": ["silo-1"]}
    known = read_run(change(confident_run(tmp_path / "d", RIGHT, off=0), warnings=[data]))
    assert at_silo(known, "silo-0") == NOTHING
    assert at_silo(known, "silo-1").check == "Check the unusual data of the run (see warnings) first."
    below = {"kind": "below_reference", "text": "A linear model is better.", "silos": []}
    early = read_run(change(tmp_path / "d", warnings=[below]))
    assert at_silo(early, "silo-0").against == "Do not use it yet: a linear model is better."


def test_unusual_data_come_first(tmp_path: Path) -> None:
    warning = {"kind": "data", "text": "Column 'chol' has 0 in several rows.", "silos": []}
    folder = change(confident_run(tmp_path / "run", RIGHT, off=0), warnings=[warning])
    assert Markup(told(folder).advice[0]).striptags() == "Check the unusual data of the run (see warnings) first."
    line, other = "data.rename_columns.chol = { missing = [0] }", "data.rename_columns.id = false"

    def first(*settings: str) -> str:
        change(folder, warnings=[warning | {"settings": [each]} for each in settings], seconds={"train": 4.0})
        return str(Markup(told(folder).advice[0]).striptags())

    assert first(line) == (
        "Check the unusual data of the run (see warnings) first; if the setting proposed there is right, repeat the "
        f"run with caveat run {folder}/config.toml --set '{line}' --out {folder}-corrected (about 4.0 s)."
    )
    assert f"if the settings proposed there are right, repeat the run with caveat run {folder}/config.toml --set " in (
        both := first(line, other)
    )
    assert both.count("--set 'data.rename_columns.") == 2
    assert (
        first(line, "data.rename_columns.chol = false") == "Check the unusual data of the run (see warnings) first."
    )  # one key twice
    about = json.loads((folder / "run.json").read_text())
    for key in ("rename_columns", "files", "dictionary"):
        spec = about["spec"] | {"data": {"source": "csv:a.csv", key: [{"own": "age", "missing": [0]}]}}
        write_json(folder / "run.json", about | {"spec": spec})
        assert (
            first(line) == "Check the unusual data of the run (see warnings) first."
        )  # the command would replace what is set
    write_json(folder / "run.json", about | {"spec": about["spec"] | {"data": None}})  # a run from Python
    assert first(line) == "Check the unusual data of the run (see warnings) first."


@pytest.mark.parametrize(("wrong", "kind"), [(3, "unknown"), (2, "good")])
def test_a_check_of_confidence_that_is_significant_alone_takes_the_tick_away(
    tmp_path: Path, wrong: int, kind: str
) -> None:
    """Of 400 predictions that are 99.8 % sure, 3 wrong ones have p = 0.047, and 2 have 0.19; five checks are made."""
    folder = confident_run(tmp_path / "run", [(400, 400 - wrong, 0.998)], off=0)
    p = SureErrors(wrong, 400, 0.998, 14 / 15).p
    assert (p < 0.05) == (kind == "unknown")
    found = confidence(read_run(folder))
    assert found is not None
    assert found.p == pytest.approx(5 * p)
    ((shown, text),) = [each for each in lines(told(folder)) if "error of its confidence" in each[1].lower()]
    assert shown == kind
    assert (f"(p = {p:.3f}; corrected for the 5 checks of confidence, p = {5 * p:.2f})." in text) == (kind == "unknown")


@pytest.mark.parametrize(("low", "unstable"), [(0.3, False), (0.25, True)])
def test_training_that_has_fallen_back_is_called_unstable(tmp_path: Path, low: float, unstable: bool) -> None:
    """From 0.5, a fall of the mean by more than 20 points is instability, also where it has risen since."""
    folder = confident_run(tmp_path / "run", RIGHT, off=0)
    rows = [
        RoundRow(round=at, phase="train", split="validation", silo=f"silo-{i}", accuracy=value + i / 1000)
        for i in range(9) for at, value in ((1, 0.496), (2, low - 0.004), (3, 0.796))
    ]  # fmt: skip
    found = trust(replace(read_run(folder), rows=rows))
    assert found is not None
    steps = " ".join(Markup(each).striptags() for each in found.advice)
    told_so = "Training is not stable: validation accuracy was 50.0 % after round 1, 25.0 % after round 2 and 80.0 % "
    told_so += f"after round 3. Train for more rounds with caveat run {folder}/config.toml --set rounds="
    assert (told_so in steps) == unstable
    assert ("or with a lower training.lr." in steps) == unstable
    assert ("validation accuracy still rose by 50.0 points" in steps) == (not unstable)


def test_predictions_that_are_all_below_the_highest_bin_are_judged_once(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", [(400, 90, 0.1)], off=0)
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    silos[0]["reliability"] = {"count": [400, 0], "confidence": [40.0, 0], "correct": [90, 0]}
    change(folder, silos=silos)
    (text,) = [text for _, text in lines(told(folder)) if "underconfident" in text]
    assert text.count("predictions") == 1
    assert right_and_wrong(read_run(folder)) is None  # all of them are in one bin
