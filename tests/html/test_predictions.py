"""The page of predictions says what was decided about new inputs, and whether these are like the silo's own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from html_page import Page
from markupsafe import Markup

from caveat.cli.prediction_output import warnings_at
from caveat.core import Decision, Prediction, Reason, UnlikeColumn
from caveat.core.quantity import restored
from caveat.core.text import percent
from caveat.files.schema import WarningRecord
from caveat.html.p_value_charts import by_row, curve
from caveat.html.predicted_inputs import PredictedInputs, SiloAdvice
from caveat.html.predicted_tables import surest
from caveat.html.predictions import next_steps, render, sentence, verdicts

INPUTS = 20
NEAR = "2 of these are nearly undecided (a probability below 60 %). "
CAN_BE_WRONG = "Without an alarm, a prediction can still be wrong"
WRONG = f"{NEAR}{CAN_BE_WRONG}"


def made(low: int, **more: Any) -> PredictedInputs:
    """Predictions of which the first `low` are unfamiliar and abstained from."""
    p = torch.linspace(0.1, 1, INPUTS, dtype=torch.float64)
    p = torch.cat([p[::2], p[1::2]])  # in no order of rows
    p[:low] = 0.01
    logits = torch.linspace(-3, 3, INPUTS, dtype=torch.float64)
    decision = torch.where(p <= 0.05, int(Decision.ABSTAIN), int(Decision.GLOBAL))
    prediction = Prediction.from_logits(torch.stack([logits, -logits], 1)[None], decision)
    prediction = replace(
        prediction, familiarity=p, nearness=torch.ones_like(p), sureness=torch.ones_like(p), typicality=p,
        false_alarm_rate=0.05, ranked_among=99,
    )  # fmt: skip
    prediction = replace(prediction, **more)
    cells = {"age": [str(20 + i) for i in range(INPUTS)], "<b>sex</b>": ["female"] * INPUTS}
    return PredictedInputs(prediction, ["ill", "well"], "fedavg", "VA", "new.csv", cells, lambda i: None)


def steps(found: PredictedInputs) -> list[str]:
    return next_steps(found, verdicts(found))


def test_what_was_decided_is_said_first_with_its_reasons() -> None:
    found = made(3)
    assert (
        sentence(found).striptags()
        == "A person decides 3 of 20 inputs (3 unlike the silo's own inputs), and the model decides 17."
    )
    assert found.reasons[:4] == [Reason.UNFAMILIAR] * 3 + [Reason.NONE]


def test_more_alarms_than_expected_lead_the_headline_and_columns_count_once() -> None:
    age = UnlikeColumn("age", "median", 62.0, 31.0, 0.001)
    found = made(9, unlike_columns=(age, replace(age, figure="missing"), replace(age, name="sex")))
    said = sentence(found).striptags()
    rely = "Do not rely on these 20 predictions yet, nor on the 11 of them without an alarm"
    assert said == f"{rely}: together, the inputs are unlike the silo's own."
    most = "together, the inputs are unlike the silo's own, most of all the first 9."
    assert sentence(made(9)).striptags() == f"{rely}: {most}"
    assert sentence(made(20)).startswith("<b>Do not rely on these 20 predictions yet</b>: together")
    text = next(line.text for line in verdicts(found) if line.text.startswith("Over all rows"))
    assert "unlike the silo's own: age, sex." in text
    page = Page(render(found)).text
    strangest = page.partition(
        "The strangest inputs, lowest p-value (typicality among 99 calibration inputs, so at least 1/100) first"
    )[2]
    assert all(f"row {i} " in strangest for i in range(9))
    assert "row 9 " not in strangest
    assert "model" not in strangest
    assert "A person decides each." not in strangest  # the first step says so of all
    assert strangest.count(" unlike the silo's own inputs ") == 9
    some = replace(made(12, ranked_among=18), files=[f"{i}.png" for i in range(INPUTS)])
    assert not some.all_unlike
    assert "A person decides each." in Page(render(some)).text  # files have no rows to list
    rows = Page(render(replace(some, files=()))).text
    assert "A person decides rows 0 to 11. " in rows
    assert "A person decides each." not in rows


@pytest.mark.parametrize(("low", "kind"), [(0, "good"), (3, "unknown"), (8, "bad")])
def test_more_alarms_than_chance_are_called_unlike_the_silos_own(low: int, kind: str) -> None:
    # The threshold is that of 99 calibration inputs: five or more of 20 in 0.9 % of files.
    line = verdicts(made(low))[0]
    assert line[0] == kind
    why = " (8 unlike the silo's own inputs)" * (kind == "bad")
    chance = "; this is more than chance explains (p < 0.001)" * (kind == "bad")
    chance += "; chance can still explain the difference (p = 0.092)" * (low == 3)
    told = f"{low} of 20 inputs raise an alarm{why}; about 1 is expected (5 in 100) if inputs are like the silo's own"
    told += f"{chance}. An input with an alarm "
    assert line[1].replace("\xa0", " ").startswith(told)


def test_alarms_that_chance_barely_explains_have_no_good_mark() -> None:
    found = made(4)
    assert found.alarms is not None
    assert 0.01 <= found.alarms.p < 0.05
    (line,) = verdicts(found)
    assert line.kind == "open"
    said = "Check the file first: 4 of 20 inputs raise an alarm, about 1 is expected; as many or more happen by chance "
    said += f"in {percent(found.alarms.p)} of files of the silo's own inputs. If these inputs are its own, a "
    assert sentence(found).striptags() == f"{said}person decides 4 and the model 16."
    told = "An input with an alarm is more unusual than all but 4 of the 99 calibration inputs of the silo, "
    assert line.text == f"{told}as 5 in 100 of the silo's own are."
    check, person, use = steps(found)
    assert check == ("Compare units, codes and selection of the inputs with those of the silo's own inputs. If they "
                     "differ, have a person decide all inputs.")  # fmt: skip
    assert person.startswith("Otherwise, have a person decide 4 inputs with ")
    assert use.startswith(f"Use the labels of the other 16 inputs in the CSV then. {WRONG}")
    person, use = steps(made(3))
    assert person.startswith("Have a person decide 3 inputs with ")
    assert use.startswith("Use the labels of the other 17 inputs in the CSV. ")


def test_inputs_like_the_silos_own_are_rarely_called_unlike() -> None:
    """A threshold from 60 calibration inputs is the same for all 1,000 new ones, whose number of alarms thus varies."""
    random, wrong = torch.Generator().manual_seed(0), 0
    for _ in range(300):
        calibration, new = torch.rand(60, generator=random).double(), torch.rand(1000, generator=random).double()
        p = (1 + (calibration[None] <= new[:, None]).sum(1)).double() / 61
        prediction = Prediction.from_logits(torch.zeros(1, 1000, 2).double(), Decision.GLOBAL)
        prediction = replace(prediction, typicality=p, false_alarm_rate=0.05, ranked_among=60)
        found = PredictedInputs(prediction, ["ill", "well"], "fedavg", "VA", "new.csv", {}, lambda i: None)
        wrong += verdicts(found)[0][0] == "bad"
    assert wrong <= 9  # 1 % is promised; 22 % with a binomial test


def test_too_few_calibration_inputs_allow_no_verdict() -> None:
    (line,) = verdicts(made(0, ranked_among=18))
    assert line == ("unknown", "No alarm is possible: p-values rank inputs among 18 calibration inputs only.")


def test_columns_notes_and_undefined_probabilities_are_verdicts() -> None:
    column = UnlikeColumn("age", "median", 62.0, 31.0, 0.001)
    found = made(1, unlike_columns=(column,), input_notes=("sex: never seen: 'x'",) * 2 + ("",) * (INPUTS - 2))
    found.prediction.probs[4] = torch.nan
    lines = verdicts(found)
    assert [kind for kind, _ in lines] == ["bad", "bad", "open", "open"]
    assert lines[0][1].startswith("Over all rows, these columns are unlike the silo's own: age.")
    assert lines[1][1] == "1 of 20 inputs have probabilities that are not finite."
    assert "2 of 20 inputs are unlike the training inputs: sex: never seen: 'x' (2)" in lines[3][1]
    page = Page(render(found))
    assert "age median 62 31 0.001" in page.text


def test_without_p_values_nothing_is_claimed_of_familiarity() -> None:
    nothing = dict.fromkeys(("familiarity", "nearness", "sureness", "typicality"))
    found = made(0, **nothing, false_alarm_rate=0.0)
    assert verdicts(found) == [("unknown", "No alarm is possible: the run has no p-values for inputs.")]
    assert Page(render(found)).sections == ["overview", "strangest"]


def test_the_page_shows_the_strangest_and_the_surest_with_their_values() -> None:
    text = render(made(2))
    page = Page(text)
    assert page.sections == ["overview", "together", "strangest"]
    assert "row 0 ill" not in page.text.partition("Strangest")[0]
    strangest = page.text.partition("The strangest inputs")[2]
    assert strangest.index("row 1") < strangest.index("row 0") < strangest.index("row 2")
    assert "a person unlike the silo's own inputs 99.8 % 0.010" in strangest
    assert "unfamiliar" not in strangest
    assert "22 female" in strangest
    assert "<b>sex</b>" not in text
    assert "https://" not in text
    assert all(a["aria-label"] for a in page.all("svg") if a.get("aria-hidden") != "true")


def test_columns_explain_what_alarms_do_not_show() -> None:
    missing = UnlikeColumn("ca", "share missing", 0.99, 0.0, 0.001)
    found = made(1, unlike_columns=(missing, replace(missing, name="thal", here=0.3)))
    assert "missing" not in sentence(found)
    person, why, *_ = steps(found)
    assert person.startswith("Have a person decide all 20 inputs")
    assert why == ("Find out why columns are mostly missing (ca 99 %): if they are not measured where these rows come "
                   "from, do not use this silo's model for such rows.")  # fmt: skip
    known = replace(found, source="b.csv", others=("b",), in_sample="Trained on.", missing_there={"ca", "slope"})
    here, unfit = "Here, columns are mostly missing (ca 99 %)", "standardization and calibration of silo VA do not fit"
    assert steps(known)[2] == f"{here}, as in the calibration rows of silo b: {unfit} such rows."
    assert steps(replace(known, missing_there={"slope"}))[2] == f"{here}: {unfit} such rows."
    assert not any("do not use this silo's model" in step for step in steps(known))
    assert why in steps(replace(known, in_sample=""))
    columns, alarms = verdicts(found)
    assert (columns.kind, alarms.kind) == ("bad", "open")
    assert alarms.text.startswith("The absence of an alarm is no evidence here: 1 of 20 inputs raise an alarm")


def test_no_inputs_are_a_page(tmp_path: object) -> None:
    none = made(0)
    empty = Prediction.from_logits(torch.zeros(1, 0, 2, dtype=torch.float64))
    found = replace(none, prediction=empty, cells={})
    assert "0 inputs predicted. It is unknown whether the inputs are like the silo's own." in Page(render(found)).text


def test_what_to_do_follows_from_the_verdicts() -> None:
    assert steps(made(0)) == [f"Use the labels of the CSV. {WRONG}."]
    found = made(3)
    step, others = steps(found)
    csv = "with <code>decides</code> = person in the CSV"
    assert step == f"Have a person decide 3 inputs {csv}: 3 with an alarm (typicality of at most 0.05)."
    assert others == f"Use the labels of the other 17 inputs in the CSV. {WRONG}."
    expected = "of the silo's answered test inputs, 1 of 40 were wrong (2.5 %, 95 % interval 0.4 % to 12.9 %)."
    assert steps(replace(found, tested=(1, 40)))[1].endswith(f"{WRONG}: {expected}")
    assert steps(replace(found, tested=(0, 0))) == steps(found)
    at_silo = steps(replace(found, tested=(12, 322), own=(3, 40), limit=9.0))[1]
    assert at_silo.endswith(
        f"{WRONG}: of the silo's answered test inputs, 3 of 40 were wrong (7.5 %, 95 % interval 2.6 % to "
        "19.9 %); of all silos' test inputs with total_uncertainty up to 9, 12 of 322 were wrong (3.7 %, 95 % "
        "interval 2.1 % to 6.4 %; the limit was chosen on these inputs)."
    )
    decision = torch.full((INPUTS,), int(Decision.GLOBAL))
    decision[-2:] = int(Decision.ABSTAIN)
    both = "3 with a reason (typicality of at most 0.05 or uncertainty above the policy&#39;s limit)"
    assert both in steps(made(1, decision=decision))[0]
    person, check, *_ = steps(made(8))
    assert check.startswith("Check units, codes and selection")
    assert person == "Have a person decide all 20 inputs, as the column <code>decides</code> of the CSV says."
    pictures = steps(replace(made(8), cells={}, image=lambda i: "png"))
    assert pictures[1] == "Check orientation, contrast and source of the images before you rely on any prediction."


@pytest.mark.parametrize(("low", "at"), [(0, None), (4, 0), (8, 1)])
def test_images_of_the_silo_to_compare_with_are_in_the_runs_report_if_it_has_any(low: int, at: int | None) -> None:
    pictures = replace(made(low), cells={}, image=lambda i: "png")
    shown, where = replace(pictures, own_images=True), '(the run\'s report has some: "Examples of test inputs", VA)'
    assert [where in step for step in steps(shown)] == [i == at for i in range(len(steps(pictures)))]
    assert not any("Examples of test inputs" in step for step in steps(pictures))
    noted = replace(shown, prediction=replace(made(0).prediction, typicality=None, false_alarm_rate=0.0))
    assert f"with those of the silo's own inputs {where} before using" in steps(noted)[-1]


def test_a_file_named_like_another_silo_asks_for_that_silo() -> None:
    p = torch.tensor([0.01, 0.5, 0.01, 0.6, 0.7] * 4, dtype=torch.float64)  # alarms in no order of rows
    unlike = made(0, typicality=p)
    assert unlike.all_unlike
    named = steps(replace(unlike, source="b c.csv", others=("b c",)))
    own = "predict them with its standardization and calibration"
    from_source = "If you know from their source, not from alarms, that these inputs belong to"
    assert Markup(named[-1]).striptags() == f"{from_source} silo b c, {own}: --silo 'b c'"
    assert named[0].startswith("Have a person decide all 20")
    trained = steps(replace(made(8), source="b c.csv", others=("b c",), in_sample="Trained on."))
    assert not any("several sources" in step for step in trained)
    assert Markup(trained[0]).striptags() == f"These inputs belong to silo b c. P{own[1:]}: --silo 'b c'"
    assert trained[1].startswith("Until then, have a person decide all 20")
    assert trained[-1] == "Do not judge the model by these predictions: Trained on."
    assert sum("--silo" in step for step in trained) == 1
    other = steps(replace(unlike, others=("b c", "d")))
    assert Markup(other[-1]).striptags() == (f"{from_source} another silo (b c, d), {own}: --silo NAME")
    named_b = [replace(unlike, source=source, others=("b",)).namesake for source in ("b.csv", "b", "c.b")]
    assert named_b == ["b", "b", ""]
    given = "caveat predict runs/x 'b c.csv' --silo VA --out v1.2/new --report new.html"
    other = replace(unlike, source="b c.csv", others=("b c",), command=given)
    page = Page(render(other)).text
    again = "caveat predict runs/x 'b c.csv' --silo 'b c' --out 'v1.2/new-b c' --report 'new-b c.html'"
    assert page.index(again) < page.index("The strangest inputs") < page.index(given)
    known = replace(other, prediction=made(3).prediction)
    assert not any("--silo" in step for step in steps(known))
    changed = replace(made(8), source="new.csv", others=("d",), command="caveat predict new some/new.csv --silo VA")
    several, apart = (Markup(step).striptags() for step in steps(changed)[-2:])
    assert several.startswith(
        "If the file has several sources, predict each as a file of its own: p-values change near row 8"
    )
    which = "these inputs, or those of one part, belong to another silo (d), predict them, as a file of their own, with"
    assert which in apart
    assert apart.endswith(": caveat predict new PART.csv --silo NAME")


def test_the_limit_of_the_runs_report_is_applied() -> None:
    found = made(3)
    total = found.prediction.uncertainty["total"]
    limit = float(total.sort().values[-5])  # four inputs are above, none of them with an alarm
    assert not any(doubtful and value > limit for doubtful, value in zip(found.doubtful, total, strict=True))
    limited = replace(found, limit=limit, tested=(7, 323))
    assert sum(limited.referred) == 7
    over = f"4 only for an uncertainty above {limit:.3g}"
    said = sentence(limited).striptags()
    assert (
        said == f"A person decides 7 of 20 inputs ({over}, 3 unlike the silo's own inputs), and the model decides 13."
    )
    person, others = steps(limited)
    csv = "with <code>decides</code> = person in the CSV"
    assert person == (
        f"Have a person decide 7 inputs {csv}: 3 with an alarm (typicality of at most 0.05) and 4 that are "
        f"only uncertain (total_uncertainty above {limit:.3g} nats, the limit of the run&#39;s report)."
    )
    told = f"of all silos' test inputs with total_uncertainty up to {limit:.3g}, 7 of 323 were wrong (2.2 %, 95 % "
    told += "interval 1.1 % to 4.4 %; the limit was chosen on these inputs)."
    assert others == f"Use the labels of the other 13 inputs in the CSV. {CAN_BE_WRONG}: {told}"
    only, _ = steps(replace(made(0), limit=limit, tested=(7, 323)))
    report = ", the limit of the run&#39;s report"
    assert only == f"Have a person decide 4 inputs {csv}: 4 with total_uncertainty above {limit:.3g} nats{report}."
    total[-1] = 5.0
    one, _ = steps(replace(limited, limit=4.0))
    assert "3 with an alarm (typicality of at most 0.05) and 1 that is only uncertain (total_uncertainty above " in one
    p = torch.tensor([0.01, 0.5, 1.0, 0.6] * 5, dtype=torch.float64)
    mixed = replace(made(0, typicality=torch.where(p < 0.55, 0.01, p)), limit=limit)
    assert "nor on the 10 of them without an alarm" in sentence(mixed).striptags()


def test_shifted_columns_come_first_and_no_probability_is_rounded_to_one() -> None:
    cells = {f"c{i}": ["0"] * INPUTS for i in range(12)}
    shifted = replace(made(3, unlike_columns=(UnlikeColumn("c11", "median", 62.0, 31.0, 0.001),)), cells=cells)
    shifted.prediction.probs[0] = torch.tensor([0.9999, 0.0001])
    page = Page(render(shifted)).text
    assert "uncertainty c11 c0 c1" in page
    assert "> 99.9 %" in page
    assert "100.0 %" not in page.partition("The strangest inputs")[2]


def test_equal_scores_are_no_alarm_beside_the_band_of_chance() -> None:
    """Of inputs like the silo's own, 18 of 20 have the nearness 1 if 90 % of its calibration inputs do."""
    tied = torch.ones(INPUTS, dtype=torch.float64)
    tied[:2] = 0.1
    chart = curve(made(0, nearness=tied), "nearness", "")
    assert chart is not None
    drawn = str(chart.drawing)
    (line,) = re.findall(r'<polyline points="([^"]*)" class="stroke"', drawn)
    start, low, end = ([float(each) for each in point.split(",")] for point in line.split())
    assert abs((low[1] - start[1]) / (low[0] - start[0]) - (end[1] - start[1]) / (end[0] - start[0])) < 1e-3
    assert drawn.count('class="track"') == 1
    assert render(made(0)).count('class="track"') == 4


def test_a_file_of_known_and_foreign_rows_is_said_and_drawn() -> None:
    p = torch.linspace(0.1, 1, INPUTS, dtype=torch.float64)
    p[8:] = 0.01
    found = made(0, typicality=p, familiarity=p)
    text = next(line.text for line in verdicts(found) if line.kind == "open")
    assert text.startswith("P-values change near row 8 (Pettitt's test, ")
    assert "): 0 of the first 8 inputs and 12 of the other 12 raise an alarm. " in text
    assert any(
        "predict each as a file of its own: p-values change near row 8, and perhaps again." in step
        for step in steps(found)
    )
    chart = by_row(found)
    assert chart is not None
    own, alarms = re.findall(r'<g class="(c\d)"><path d="([^"]*)"', str(chart.drawing))
    assert (own[0], own[1].count("M"), alarms[0], alarms[1].count("M")) == ("c0", 8, "c1", 12)
    assert "P-values change" not in str(verdicts(made(3)))


def test_repeated_inputs_and_equal_predictions_are_said() -> None:
    assert any("Only 12 of 20 inputs are different" in line.text for line in verdicts(replace(made(0), different=12)))
    assert verdicts(replace(made(0), different=20)) == verdicts(made(0))
    found = made(0)
    found.prediction.probs[:15] = torch.tensor([0.9, 0.1])
    told, many = "The 20 inputs have 6 different predictions", ", so many have equal p-values."
    features, single = ", because the model maps several of them to the same ", replace(found, different=20)
    assert f"{told}{features}features{many}" in Page(render(single)).text
    assert f"{told}{features}codewords{many}" in Page(render(replace(single, features="codewords"))).text
    assert f"{told}, because inputs are repeated{many}" in Page(render(replace(found, different=6))).text
    for different in (None, 7):  # neither cause is known to be the only one
        assert f"{told}{many}" in Page(render(replace(found, different=different))).text
    assert "different predictions" not in Page(render(made(0))).text


def test_a_score_that_alone_is_low_for_more_inputs_is_said() -> None:
    near = torch.ones(INPUTS, dtype=torch.float64)
    near[:9] = 0.05
    told = "Of these inputs, 9 have a low p-value of nearness alone (at most 0.05), and 3 a low typicality, which is "
    assert f"{told}corrected for 3 scores." in Page(render(made(3, nearness=near))).text
    near[3:] = 1.0
    assert "alone (at most" not in Page(render(made(3, nearness=near))).text


def test_the_reports_advice_against_the_model_leads_and_a_person_decides_all() -> None:
    why = "Do not use it at VA before a test on more inputs there: it is no more accurate than always predicting "
    found = replace(
        made(3), advised=SiloAdvice(f"{why}the most frequent class (15 and 22 of 25 right)."),
        warnings=("Too few rounds.",),
        evaluating="caveat evaluate RUN FILE --silo VA", in_sample="new.csv is a file of the run's data.",
    )  # fmt: skip
    assert sentence(found).striptags() == (
        f"{found.advised.against.replace('use it', 'use this model')} A person decides 20 inputs."
    )
    assert all(found.referred)
    seldom = replace(found, prediction=made(4).prediction)
    assert seldom.alarms is not None
    assert (seldom.alarms.seldom, seldom.all_unlike) == (True, False)
    (alarms,) = (line.text for line in verdicts(seldom) if "alarm" in line.text)
    assert alarms.startswith("4 of 20 inputs raise an alarm; about 1 is expected (5 in 100) if inputs are like")
    assert "; this is more than chance explains (p\xa0=\xa00.027)." in alarms
    person, test, data = steps(found)
    assert data == "Do not judge the model by these predictions: new.csv is a file of the run's data."
    assert Markup(test).striptags().endswith("with caveat evaluate RUN FILE --silo VA.")
    assert person.startswith("Have a person decide all 20 inputs")
    assert "Warning of the run : Too few rounds." in Page(render(found)).text
    labelled = steps(replace(made(8), evaluating=found.evaluating, labelled=True))
    told = "The file has labels: test the model with caveat evaluate RUN FILE --silo VA."
    assert told in [Markup(step).striptags() for step in labelled]
    assert not any("evaluate" in step for step in steps(replace(made(8), evaluating=found.evaluating)))
    assert "for the model" not in render(found)


def test_labels_that_the_report_allows_only_beside_a_person_are_never_left_to_the_model() -> None:
    check = Markup("Check the unusual data of the run (see warnings) first.")
    found = replace(
        made(3), classes=["0", "1"], advised=SiloAdvice(beside=True, check=check),
        confusion=[[25, 1], [7, 28]], positive=1, tested=(8, 61),
    )  # fmt: skip
    only = "only beside a person's own decision"
    why = f"{only}, as the run's report says: the model misses 7 of 35 test inputs of class '1' here."
    first = "First, check the unusual data of the run (see its warning)."
    said = sentence(found).striptags()
    assert said == (f"Use 17 of 20 labels {why} A person decides the 3 other inputs without the model's label (3 "
                    f"unlike the silo's own inputs). {first}")  # fmt: skip
    assert found.decides == ["person"] * INPUTS
    data, person, use = steps(found)
    assert data == f"{check} After a new run, predict this file with it."
    alarm = "3 with an alarm (typicality of at most 0.05)"
    assert person == f"Have a person decide 3 inputs without the model's label: {alarm}."
    rate = "13.1 %, 95 % interval 6.8 % to 23.8 %"
    wrong = (
        f"of all test inputs of the silo, with or without an alarm, 8 of 61 were wrong ({rate}): 7 of 35 of class '1'"
    )
    assert use == f"Use the labels of the other 17 inputs in the CSV {only}. {WRONG}: {wrong} and 1 of 26 of class '0'."
    page = Page(render(found)).text
    assert "beside a person's decision" in page
    assert not any(told in page for told in ("for the model", "global model", "the model decides", "the model 17"))
    seldom = sentence(replace(found, prediction=made(4).prediction)).striptags()
    assert seldom.endswith(f"If these inputs are its own, use 16 of 20 labels {why} {first}")
    assert sentence(replace(found, prediction=made(0).prediction)).striptags() == f"Use 20 of 20 labels {why} {first}"
    unlike = replace(found, prediction=made(8).prediction)
    assert sentence(unlike).startswith("<b>Do not rely on these 20 predictions yet</b>")
    assert check not in steps(unlike)


def test_confidence_that_the_report_calls_too_high_is_said_of_probabilities() -> None:
    told = "Do not trust the probabilities: according to the run's report, confidence is too high."
    assert steps(replace(made(3), advised=SiloAdvice(overconfident=True)))[-1] == told
    assert not any("probabilities:" in step for step in steps(made(3)))


def test_labels_with_nearly_equal_probabilities_are_counted_without_those_of_a_person() -> None:
    assert made(0).undecided == 2
    near = made(0).prediction.probs.topk(2).values.diff().abs().argmin()
    p = torch.linspace(0.1, 1, INPUTS, dtype=torch.float64)
    p[near] = 0.01
    one = made(0, typicality=p)
    assert one.undecided == 1
    assert " 1 of these is nearly undecided (a probability below 60 %). " in steps(one)[-1]
    sure = torch.tensor([[0.9, 0.1]] * INPUTS, dtype=torch.float64)
    assert not any("undecided" in step for step in steps(made(0, probs=sure)))


def test_of_warnings_about_data_the_first_one_is_said() -> None:
    data = [WarningRecord(kind="data", text=f"Column {name} has 0.") for name in "abc"]
    other = WarningRecord(kind="rounds", text="Too few rounds.", silos=["VA"])
    more = "The run's report has 2 more warnings about data."
    assert warnings_at("VA", [*data, other]) == ["Too few rounds.", f"Column a has 0. {more}"]
    assert warnings_at("b", [data[1], other]) == ["Column b has 0."]
    assert warnings_at("b", [other]) == []


def test_shares_of_a_shifted_column_have_their_numbers_of_rows() -> None:
    ca = UnlikeColumn("ca", "share missing", 0.99, 0.0, 0.001, (294, 24))
    slope = replace(ca, name="slope", figure="share of 2", here=0.875, known=0.5, values=(104, 24))
    cells = {"age": ["60"] * INPUTS, "slope": ["2"] * INPUTS, "ca": [""] * INPUTS}
    page = Page(render(replace(made(3, unlike_columns=(ca, slope)), cells=cells))).text
    assert "ca share missing 99.0 % (n = 294) 0.0 % (n = 24)" in page
    assert "slope share of 2 87.5 % (n = 104) 50.0 % (n = 24)" in page
    assert "uncertainty ca slope age" in page
    assert "missing 2 60" in page


def test_without_a_possible_alarm_nothing_says_that_labels_can_be_used() -> None:
    for few in (made(0, typicality=None, false_alarm_rate=0.0), made(0, ranked_among=18)):
        (step,) = steps(few)
        assert step.startswith("Compare units, codes and selection of the inputs with those of the silo's own inputs")


def test_one_input_without_finite_probabilities_says_nothing_of_the_others() -> None:
    found = made(0)
    found.prediction.probs[4] = torch.nan
    assert "All inputs together are unlike" not in Page(render(found)).text
    check, person = steps(found)
    assert check == "Check the values of the 1 input whose probabilities are not finite."
    assert person.startswith("Have a person decide 1 input with ")


@pytest.mark.parametrize("seed", range(100))
def test_no_headline_or_advice_claims_more_than_the_predictions_hold(seed: int) -> None:
    random = np.random.default_rng(seed)
    low, columns = int(random.choice([0, 0, 1, 3, 8, 20])), int(random.choice([0, 0, 2]))
    age = UnlikeColumn("age", "median", 62.0, 31.0, 0.001)
    noted = int(random.choice([0, 0, 3]))
    found = made(
        low, unlike_columns=(age,) * columns, ranked_among=int(random.choice([5, 18, 99])),
        input_notes=("sex: never seen: 'x'",) * noted + ("",) * (INPUTS - noted),
    )  # fmt: skip
    undefined = int(random.choice([0, 0, 1, 20]))
    found.prediction.probs[:undefined] = torch.nan
    lines, said, todo = verdicts(found), sentence(found).striptags(), steps(found)
    unlike = any(line.kind == "bad" and "not finite" not in line.text for line in lines)
    assert ("Do not rely on these" in said) == (len(todo) > 1 and "Check units" in todo[1]) == unlike
    assert unlike == (bool(columns) or (low >= 8 and found.prediction.ranked_among == 99))
    assert any("not finite" in step for step in todo) == bool(undefined)
    assert (todo == [f"Use the labels of the CSV. {WRONG}."]) == (
        all(line.kind == "good" for line in lines) and low == 0
    )
    doubtful = sum(found.doubtful)
    if not unlike and found.alarms is not None:
        told = f"A person decides {doubtful} of {INPUTS} inputs ("
        assert said.startswith(told) or (not doubtful and "The model decides all 20 inputs" in said)
        assert said.endswith((f", and the model decides {INPUTS - doubtful}.", "none has an alarm."))
    assert unlike or ("is unknown whether" in said) == (found.alarms is None)


@pytest.mark.parametrize("event", ["", "died"])
def test_a_page_of_a_quantity_has_values_with_intervals(event: str) -> None:
    bars = {"edges": (0.0, 1.0, 2.0, 4.0), "means": (0.5, 1.5, 3.0), "shares": (0.3, 0.3, 0.4), "targets": 90}
    target = restored(event=event, horizons=(1.0,) if event else (), **bars)
    probs = torch.rand(INPUTS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs = probs / probs.sum(1, keepdim=True)
    interval = torch.stack([torch.zeros(INPUTS), torch.linspace(4, 9, INPUTS)], 1).double()
    interval[:, 1] = torch.inf if event else interval[:, 1]
    found = made(0, probs=probs, target=target, interval=interval)
    page = Page(render(found)).text
    wide = "the most uncertain first" if event else "the widest first"
    assert wide in page
    assert ("Predicted median times." if event else "Predicted values.") in page
    assert ("risk_1" in page) == bool(event)
    assert not any(word in page for word in ("nats", "label", "most probable"))
    assert steps(found)[-1] == f"Use the values of the CSV. {CAN_BE_WRONG}."
    if not event:
        most, unsure = surest(found), surest(found, last=True)
        assert (most[0], unsure[0]) == (0, INPUTS - 1)
        assert f"{float(found.figures['value'][0]):.4g}" in page
    nothing = replace(found, prediction=replace(found.prediction, probs=torch.full_like(probs, torch.nan)))
    assert "nan" not in Page(render(nothing)).text


def test_a_p_value_that_all_strangest_inputs_share_is_in_the_caption() -> None:
    p = torch.full((INPUTS,), 0.01, dtype=torch.float64)
    page = Page(render(made(20, typicality=p))).text
    assert "Each of the 12 shown has the p-value 0.010." in page
    assert "20 inputs have p-values as low as these; the most uncertain are shown." in page
    assert "probability uncertainty" in page
    assert "probability p-value uncertainty" in Page(render(made(3))).text
    assert "shown has the p-value" not in Page(render(made(3))).text


@pytest.mark.parametrize(("copies", "told"), [(8, True), (2, False)])
def test_inputs_equal_to_training_inputs_are_told(copies: int, told: bool) -> None:
    distances = torch.linspace(-1, 1, INPUTS, dtype=torch.float64)
    distances[:copies] = -3.3
    found = made(3, uncertainty={"novel": distances}, nearness=(distances == -3.3).double().clamp_min(0.5))
    said = [line for line in verdicts(found) if "equal to a training input" in line.text]
    assert [line.kind for line in said] == ["unknown"] * told
    assert all(
        line.text.startswith(f"{copies} of 20 inputs are (nearly) equal to a training input of") for line in said
    )
    rounded = made(3, uncertainty={"novel": distances}, nearness=torch.full_like(distances, 0.5))
    assert not [line for line in verdicts(rounded) if "equal to a training input" in line.text]
    codewords = replace(found, features="codewords")  # which many inputs share
    assert not [line for line in verdicts(codewords) if "equal to a training input" in line.text]
