"""Advice on a run's page that rests on several figures at once, with the case in which each figure forbids it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_run import confident_run, decided_run, describe, write_json
from html_page import Page
from markupsafe import Markup

from caveat.config import dump, load, load_kept
from caveat.files import read_run
from caveat.files.schema import RoundRow
from caveat.files.schema.summary_metrics import Selective
from caveat.html.run.more_answers import to_answer_more
from caveat.html.run.overview import overview
from caveat.html.run.page import render
from caveat.html.run.silo_baselines import behind_alone
from caveat.html.run.trust import right_and_wrong, trust
from caveat.runs.spec import spec_of
from caveat.uncertainty.selective_risk import answers_needed
from caveat.uncertainty.statistical_tests import score_interval

RIGHT = [(40, 39, 0.975)] * 9


def change(folder: Path, **changes: Any) -> Path:
    content = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", content | changes)
    return folder


def steps(folder: Path) -> list[str]:
    found = trust(read_run(folder))
    assert found is not None
    return [str(Markup(each).striptags()) for each in found.advice]


def abstaining(folder: Path, risk: list[float], **known: Any) -> Path:
    """A run of two silos of 100 test inputs, whose guarantee of at most 10 % errors answers none of these."""
    decided_run(folder, guaranteed=False)
    content = json.loads((folder / "summary.json").read_text())
    sizes = {"n_train": 70, "n_validation": 10, "n_calibration": 20}
    silos = [silo | sizes | {"test": {"accuracy": 0.8, "coverage": 0.0}} for silo in content["silos"]]
    statement = "no share of inputs can be answered"
    guarantee = (
        content["guarantee"] | {"statement": statement, "coverage": 0.0, "enough": 4400, "enough_share": 0.7} | known
    )
    curve = {"coverage": [0.25, 0.5, 0.7, 1.0], "risk": risk}
    pooled = {"accuracy": 0.8, "coverage": 0.0}
    return change(folder, silos=silos, guarantee=guarantee, pooled=pooled, risk_coverage=curve, streams={})


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (2, "To answer 70 % of inputs takes about 4,400 calibration inputs."),
        (14, ""),
        (
            35,
            "On test inputs, at most 10 % of the most certain 50.0 % are wrong, but 25.0 % (35 of 140) of the most "
            "certain 70.0 %: to answer these takes a better model, not only more calibration inputs.",
        ),
    ],
)
def test_more_calibration_inputs_answer_more_only_if_test_inputs_show_few_errors_there(
    tmp_path: Path, errors: int, said: str
) -> None:
    low, high = score_interval(errors / 140, 140)
    assert (high < 0.1, low > 0.1) == (said.startswith("To answer"), said.startswith("On test"))
    folder = abstaining(tmp_path / "run", [0.0, 0.02, errors / 140, 0.2])
    text = " ".join(Page(render(read_run(folder))).text.replace("\N{NO-BREAK SPACE}", " ").split())
    assert "No share of inputs can be answered. It abstains from every input" in text
    end = text.partition("predicted classes have no guarantee.")[2].partition("\N{RIGHTWARDS ARROW}")[0]
    assert end.strip() == said


def test_a_guarantee_that_answers_some_says_what_answers_more(tmp_path: Path) -> None:
    """Of 14 errors among 140 inputs, chance does not tell whether at most 10 % are wrong."""
    for errors in (2, 14):
        summary = read_run(abstaining(tmp_path / f"{errors}", [0.0, 0.02, errors / 140, 0.2])).summary
        assert summary is not None
        assert summary.guarantee is not None
        some = summary.guarantee.model_copy(update={"guaranteed": True, "limit": 0.2, "coverage": 0.3, "total": 288})
        assert to_answer_more(summary, some) == ""  # silos have fewer inputs
        enough = [silo.model_copy(update={"n_train": 9000}) for silo in summary.silos]
        told = " To answer 70 % of inputs takes at most about 4,400 calibration inputs instead of 288 if errors "
        told += "stay as rare as on these (data.split.calibration)."
        assert to_answer_more(summary.model_copy(update={"silos": enough}), some) == told


def test_more_answers_name_no_share_that_test_inputs_do_not_show(tmp_path: Path) -> None:
    """No share has few errors, or no curve is known."""
    for risk, said in (
        ([0.3, 0.3, 0.25, 0.2], " On test inputs, 25.0 % (35 of 140) of the most certain 70.0 % are wrong: to answer "
         "these takes a better model, not only more calibration inputs."),
        ([], ""),
    ):  # fmt: skip
        summary = read_run(abstaining(tmp_path / f"{len(risk)}", risk or [0.2] * 4)).summary
        assert summary is not None
        assert summary.guarantee is not None
        if not risk:
            summary = summary.model_copy(update={"risk_coverage": Selective(coverage=[], risk=[])})
        assert to_answer_more(summary, summary.guarantee) == said


@pytest.mark.parametrize(("answered", "first"), [(70, "Calibrate on"), (15, "Train for more")])
def test_what_is_nearest_to_a_guarantee_comes_first(tmp_path: Path, answered: int, first: str) -> None:
    """Twice as many calibration inputs, with twice the errors, are enough or are not."""
    folder = abstaining(tmp_path / "run", [0.0, 0.0, 0.1, 0.2], answered=answered, errors=1)
    assert (answers_needed(2, 0.1, 0.1) <= 2 * answered) == (first == "Calibrate on")
    change(folder, seconds={"train": 9.0, "evaluate": 2.0})
    found = steps(folder)
    assert found[1].startswith(first)
    # tested at a part of the level, which needs more inputs
    strict = {"errors": 0, "answered": 15, "upper": 1 - 0.01 ** (1 / 15)}
    assert answers_needed(0, 0.1, 0.1) <= 30 < answers_needed(0, 0.1, 0.01)
    kept = json.loads((folder / "summary.json").read_text())["guarantee"]
    assert steps(change(folder, guarantee=kept | strict))[1].startswith("Train for more")
    change(folder, guarantee=kept)
    (calibrate,) = [each for each in found if "alibrate on about 80 inputs instead of 40" in each]
    assert calibrate.endswith("run-calibrated (about 11 s).")  # as long as this run
    assert found[2].startswith("Or ")
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    few = steps(change(folder, silos=[silo | {"n_train": 30} for silo in silos]))
    assert any(each.removeprefix("Or ")[1:] == "alibrate on more inputs (data.split.calibration)." for each in few)


def test_more_rounds_that_are_known_to_help_come_before_more_calibration_inputs(tmp_path: Path) -> None:
    folder = abstaining(tmp_path / "run", [0.0, 0.0, 0.1, 0.2], answered=70, errors=1)
    rows = [
        RoundRow(round=at, phase="train", split="validation", silo=silo, accuracy=value)
        for silo in "ab" for at, value in ((1, 0.3), (2, 0.6))
    ]  # fmt: skip
    found = trust(replace(read_run(folder), rows=rows))
    assert found is not None
    assert [str(Markup(each).striptags())[:20] for each in found.advice[1:3]] == [
        "Train for more round",
        "Or calibrate on abou",
    ]


def test_the_lowest_coverage_of_sets_and_classes_without_calibration_inputs_are_said(tmp_path: Path) -> None:
    folder = abstaining(tmp_path / "run", [0.0, 0.0, 0.1, 0.2])
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    for silo, covered in zip(silos, (0.95, 0.81), strict=True):
        silo["test"] |= {"set_coverage": covered}
    pooled = {"accuracy": 0.8, "coverage": 0.0, "set_coverage": 0.88, "set_size": 1.5}
    change(folder, silos=silos, pooled=pooled, sets={"coverage": 0.9, "least": 9})
    covers = "contain the class of 88.0 % of test inputs (81 of 100 at b, the lowest), where 90.0 % were asked for"
    assert steps(folder)[0].endswith(f"{covers}.")
    for right, said in (
        (0.7, "Of all inputs, its prediction is right for 80.0 % (the lowest is 70.0 % at b, 70 of 100)."),
        (0.8, ""),
    ):
        silos[1]["test"]["accuracy"] = right
        change(folder, silos=silos, mean={"accuracy": (0.8 + right) / 2}, worst={"silo": "b", "accuracy": right})
        found = overview(read_run(folder))
        assert found is not None
        assert ("lowest" in found.sentence) == bool(said)
        assert said in found.sentence
    warning = {"kind": "absent_classes", "text": "x", "silos": ["a"]}
    end = f"{covers}; do not rule out classes without calibration inputs (see warnings) by the sets of a."
    assert steps(change(folder, warnings=[warning]))[0].endswith(end)
    change(folder, silos=[silo | {"n_test": 10} for silo in silos], warnings=[])
    assert "the lowest" not in steps(folder)[0]  # of 10 inputs each, which show nothing of a single silo


@pytest.mark.parametrize("kind", ["below_reference", "below_majority"])
def test_rounds_that_still_gain_come_before_local_models_which_they_include(tmp_path: Path, kind: str) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0)
    numbers = {"inputs": 1040, "only_baseline": 120, "only_model": 16}
    change(folder, warnings=[{"kind": kind, "text": "x", "against_baseline": numbers}])
    rows = [
        RoundRow(round=at, phase="train", split="validation", silo=f"silo-{i}", accuracy=value)
        for i in range(9) for at, value in ((1, 0.3), (2, 0.5))
    ]  # fmt: skip
    found = trust(replace(read_run(folder), rows=rows))
    assert found is not None
    first, second = [str(Markup(each).striptags()) for each in found.advice]
    assert first.startswith("Train for more rounds with")
    assert """--set 'baselines=["local"]'""" in first
    linear = ": on their own validation inputs, even a linear model of each silo is better than this run"
    assert first.endswith(f" This also trains silos alone{linear if kind == 'below_reference' else ''}.")
    assert second == "Or use another training.lr."
    found = trust(replace(read_run(change(folder, method="local")), rows=rows))
    assert found is not None
    assert not any("alone" in each for each in found.advice)


@pytest.mark.parametrize("spec", [{"federation": {"newcomers": ["silo-0"]}}, {"init_from": "runs/first"}])
def test_training_alone_is_not_proposed_with_settings_that_need_a_global_model(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0)
    assert any("Find out whom the federation helps" in each for each in steps(folder))
    describe(folder, "uefl", spec=spec)
    assert not any("silos alone" in each or "baselines" in each for each in steps(folder))
    warning = {"kind": "below_reference", "text": "x"}
    found = steps(change(folder, warnings=[warning]))
    assert found[0].startswith("Train for more rounds with")
    assert not any("silos alone" in each or "baselines" in each for each in found)


@pytest.mark.parametrize("local", [0.9, 0.99])
def test_commands_start_with_the_settings_of_the_run(tmp_path: Path, local: float) -> None:
    """FedPN's score and policy do not fit local models, of a run whose own local models are better, or are not."""
    folder = decided_run(tmp_path / "run", guaranteed=False)
    content = json.loads((folder / "summary.json").read_text())
    content["models"]["local"] |= {"pooled": {"accuracy": local}, "silos": 2}
    content["streams"]["ind"]["models"]["local"]["pooled"]["accuracy"] = local
    content["policy"] = {"name": "switch", "handover_rate": 0.3}
    del content["guarantee"]
    write_json(folder / "summary.json", content)
    (folder / "config.toml").write_text(dump(load("fedpn-fmnist")))
    found = [*steps(folder), *steps(change(folder, warnings=[{"kind": "below_reference", "text": "x"}]))]
    commands = [shlex.split(words) for each in found for words in re.findall(r"caveat run (.*?) --out", each)]
    assert len(commands) == (4 if local > 0.92 else 2)
    for config, *options in commands:
        spec = spec_of(load_kept(Path(config), options[1::2]))
        for each in (spec, *map(spec.baseline, spec.baselines)):
            assert each.complete_method(20).models


def test_local_models_that_are_better_come_before_other_remedies_with_what_they_cost(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run", guaranteed=False)
    content = json.loads((folder / "summary.json").read_text())
    content["models"]["local"] |= {"pooled": {"accuracy": 0.99}, "silos": 2}
    content["streams"]["ind"]["models"]["local"]["pooled"]["accuracy"] = 0.99
    content["policy"] = {"name": "switch", "handover_rate": 0.3}
    warning = {"kind": "below_reference", "text": "x"}
    del content["guarantee"]
    write_json(folder / "summary.json", content)
    local, fewer, unknown = steps(change(folder, warnings=[warning]))
    assert local.endswith(
        f"{folder}-always. They are right for 99.0 % of own inputs, this run's choice of models for 92.0 %; for inputs "
        "that only other silos know, 0.0 % and 45.0 %."
    )
    assert (
        "it answers 20.0 % of them now, and is right for 50.0 % of all own inputs, the local models for 99.0 %. Lower"
        in fewer
    )
    assert "--set uncertainty.handover_rate=0.15 --out" in fewer
    assert unknown.startswith("Where inputs that only other silos know or that no silo knows can arrive, have a person")
    text = json.loads((folder / "run.json").read_text())
    unused = {"score": "epistemic", "familiarity": False}  # refused with the policy "always"
    write_json(folder / "run.json", text | {"spec": text["spec"] | {"uncertainty": unused}})
    assert 'local models, with uncertainty.policy = "always", without score. They' in steps(folder)[0]
    content["streams"]["ind"]["models"]["global"]["pooled"]["accuracy"] = 0.995  # better there than the local models
    assert not any("handover_rate" in each for each in steps(change(folder, streams=content["streams"])))
    del content["streams"]["ood_local"]
    assert "only other silos know" not in steps(change(folder, streams=content["streams"]))[0]


def beside_alone(folder: Path, confusion: list[list[int]]) -> Path:
    """A run of nine silos that training alone, with this confusion at each silo, is ahead of beyond chance."""
    confident_run(folder, [(40, 32 + i % 2, 0.8) for i in range(9)], off=0)
    beside = confident_run(folder / "baselines" / "local", [(40, 38, 0.95)] * 9, off=0)
    silos = json.loads((beside / "summary.json").read_text())["silos"]
    silos = [silo | {"class_counts": [20, 60], "classification": {"confusion": confusion}} for silo in silos]
    whole = [[9 * n for n in row] for row in confusion]
    change(beside, method="local", silos=silos, classes=["ill", "well"], classification={"confusion": whole})
    return folder


@pytest.mark.parametrize(("confusion", "useful"), [([[9, 1], [1, 29]], True), ([[0, 2], [0, 38]], False)])
def test_training_alone_is_advised_only_if_it_has_learned(
    tmp_path: Path, confusion: list[list[int]], useful: bool
) -> None:
    folder = beside_alone(tmp_path / "run", confusion)
    assert behind_alone(read_run(folder)) == useful
    said = " ".join(steps(folder))
    assert ("Use training alone instead (method local)" in said) == useful
    assert "may be chance" not in said  # it is beyond chance
    one = [[0, 90], [0, 270]]
    change(folder, classes=["ill", "well"], classification={"confusion": one})
    (said,) = steps(folder)
    better = ", or use training alone (method local), which is better than a constant prediction."
    assert said.startswith(
        "Do not use it at any silo: it predicts class well whatever the input. Train for more rounds"
    )
    assert said.endswith(better if useful else "or with another training.lr.")
    beside = folder / "baselines" / "local"
    silos = json.loads((beside / "summary.json").read_text())["silos"]
    change(beside, silos=[silo | {"class_counts": None} for silo in silos])  # the most frequent class is unknown
    unknown = ", or use training alone (method local)." if useful else "or with another training.lr."
    assert steps(folder)[0].endswith(unknown)


def test_a_collapsed_model_without_a_comparison_has_training_alone_as_a_trial(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", RIGHT, off=0)
    change(folder, classes=["ill", "well"], classification={"confusion": [[0, 90], [0, 270]]})
    assert steps(folder)[0].endswith("or with another training.lr, or try training alone (method local).")
    assert steps(change(folder, method="local"))[0].endswith("or with another training.lr.")


def test_the_rule_is_where_right_and_wrong_predictions_differ_most(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", [(100, 80, 0.9)], off=0)
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    count, right = [10, 10, 30, 50], [2, 4, 25, 49]
    silos[0]["reliability"] = {"count": count, "correct": right, "confidence": [1.0, 4.0, 19.0, 45.0]}
    found = right_and_wrong(read_run(change(folder, silos=silos)))
    assert found is not None
    wrong = [n - k for n, k in zip(count, right, strict=True)]
    gaps = [sum(wrong[:i]) / sum(wrong) - sum(right[:i]) / sum(right) for i in range(5)]
    assert gaps.index(max(gaps)) == 2
    told = "(right: 8 % of 80 up to 0.50; wrong: 70 % of 20 up to 0.50). The dotted line is where the"
    assert told in found[0].caption
    (x,) = re.findall(r'<line x1="([\d.]+)"[^>]*class="event"', found[0].drawing)
    assert float(x) == 46 + 418 * 0.5
    assert ">0.50</text>" in found[0].drawing


def test_training_that_still_improves_comes_before_what_a_new_model_makes_void(tmp_path: Path) -> None:
    folder = confident_run(tmp_path / "run", [(40, 37, 0.999)] * 9, off=8, temperature=True)
    assert any("A temperature is fitted" in each for each in steps(folder))
    rows = [
        RoundRow(round=at, phase="train", split="validation", silo=f"silo-{i}", accuracy=value)
        for i in range(9) for at, value in ((1, 0.3), (2, 0.5))
    ]  # fmt: skip
    found = trust(replace(read_run(folder), rows=rows))
    assert found is not None
    told = [str(Markup(each).striptags()) for each in found.advice]
    assert told[0].startswith("Train for more rounds with")
    assert told[0].endswith(" Then judge the new run.")
    assert not any("temperature" in each for each in told)


@pytest.mark.parametrize("rest", [0.05, 0.15])
def test_deferral_that_leaves_many_errors_is_no_remedy(tmp_path: Path, rest: float) -> None:
    folder = confident_run(tmp_path / "run", [(40, 30, 0.75)] * 9, off=0)
    curve = {"coverage": [0.5, 0.9, 1.0], "risk": [0.0, rest, 0.25]}
    said = " ".join(steps(change(folder, risk_coverage=curve)))
    every = (
        "Have a person check every prediction: even without the most uncertain 10 % of test inputs, 15.1 % (49 of 324) "
    )
    assert (every in said) == (rest == 0.15)
    assert ("; of the most certain 50 %, only 0.0 %." in said) == (rest == 0.15)
    assert ("Have a person decide inputs with total_uncertainty" in said) == (rest == 0.05)


@pytest.mark.parametrize(("ece", "kind"), [(0.11, "open"), (0.2, "bad")])
def test_confidence_that_is_off_at_some_silos_by_little_is_no_red_verdict(
    tmp_path: Path, ece: float, kind: str
) -> None:
    folder = confident_run(tmp_path / "run", [(40, 39, 0.976)] * 9, off=3, temperature=True)
    silos = json.loads((folder / "summary.json").read_text())["silos"]
    for silo in silos[:3]:
        silo["test"]["ece"] = ece
    found = trust(read_run(change(folder, silos=silos)))
    assert found is not None
    (line,) = (each for each in found.lines if "overconfident beyond chance" in each.text)
    assert line.kind == kind
    slight = str(line.text).startswith("<b>It is slightly overconfident in some silos</b>: 3 of 9 silos")
    assert slight == (kind == "open")
    assert ("corrected for 5 checks; all predictions are 97.6 % sure on average and 97.5 %" in line.text) == slight
