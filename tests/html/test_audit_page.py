"""The picture of an audit has each estimate beside its limit, and the advice follows from the verdicts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from caveat.core.text import MINUS, apart
from caveat.files.schema import AccuracyRecord, AuditFile, Finding, Verdict
from caveat.html.audit import (
    _CAREFUL,
    _INSTEAD,
    _USE,
    _growth,
    command,
    findings_figure,
    next_steps,
    seeds_to_decide,
    sentence,
    verdicts,
)
from caveat.html.audit_data_fractions import sweep_figure
from caveat.uncertainty.statistical_tests import seeds_needed

_MEANWHILE = (
    "Until the rest is decided, do not use the columns aleatoric and epistemic of single predictions; the report of a "
    "run shows whether total_uncertainty finds errors."
)
FALLS = Finding(
    "epistemic and data", "it falls", "holds", "", {"exponent": {"mean": -1, "low": -1.2, "high": -0.8}, "limit": -0.25}
)
REVERSED = Finding(
    "aleatoric and epistemic", "they differ", "does not hold", "",
    {"rank_correlation": {"mean": -0.95, "low": -1.1, "high": -0.92}, "limit": 0.9},
)  # fmt: skip


def test_an_estimate_stands_beside_its_limit_and_a_reversed_ranking_is_the_same_ranking() -> None:
    figure = findings_figure([FALLS, REVERSED, Finding("confidence", "", "cannot say", "", {})])
    assert figure is not None
    drawn = str(figure.drawing)
    rows = [drawn.index(f">{row}") for row in (
        "Aleatoric and epistemic: no", "Epistemic and data: yes",
    )]  # fmt: skip
    assert rows == sorted(rows)
    assert "Confidence" not in drawn
    titles = re.findall(r'<g class="c\d"><title>([^<]*)', str(figure.drawing))
    assert titles == [
        "aleatoric and epistemic: 0.95 (95 % interval 0.92 to 1.00), promised below 0.9: no",
        "epistemic and data: -1.00 (95 % interval -1.20 to -0.80), promised below -0.25: yes".replace("-", MINUS),
    ]
    limits = [float(x) for x in re.findall(r'<line x1="([\d.]+)"[^>]*class="boundary"', str(figure.drawing))]
    marks = [float(x) + 4.2 for x in re.findall(r'd="M([\d.]+),[\d.]+a4.2', str(figure.drawing))]
    assert marks[1] < limits[1] < limits[0] < marks[0]
    assert findings_figure([]) is None


def test_chart_and_verdicts_name_a_promise_equally() -> None:
    figure = findings_figure([FALLS, REVERSED])
    assert figure is not None
    told = (
        "exponent of n -1.00 (95 % interval -1.20 to -0.80), promised below -0.25.",
        "rank correlation 0.95 (95 % interval 0.92 to 1.00), promised below 0.9.",
    )
    for finding, word, short in zip((FALLS, REVERSED), ("yes", "no"), told, strict=True):
        name = finding.name.capitalize()
        assert f"{name}: {word}" in figure.drawing
        (line,) = verdicts([finding])
        claim = finding.claim.capitalize()
        assert line.text == f"<b>{name}: {word}.</b> {claim}: {short}".replace("-", MINUS)


@pytest.mark.parametrize(("mean", "word"), [(-0.3, "leaning yes"), (-0.2, "leaning no"), (-0.25, "undecided")])
def test_an_undecided_promise_leans_to_the_side_of_its_estimate(mean: float, word: str) -> None:
    measured = {"exponent": {"mean": mean, "low": -0.6, "high": 0.0}, "limit": -0.25}
    open_ = replace(FALLS, verdict="cannot say", measured=measured)
    assert verdicts([open_])[0].text.startswith(f"<b>Epistemic and data: {word}.</b>")
    above = replace(open_, name="seeds")
    other = {"leaning yes": "leaning no", "leaning no": "leaning yes"}.get(word, word)
    assert verdicts([above])[0].text.startswith(f"<b>Seeds: {other}.</b>")


@pytest.mark.parametrize(
    ("verdict", "p", "seeds", "told"),
    [("holds", 0.4, 3, "errors are as by chance (p = 0.40); an excess of 0.05 is ruled out."),
     ("cannot say", 0.4, 3, "errors are as by chance (p = 0.40); an excess of 0.05 is not ruled out."),
     ("does not hold", 0.01, 3, "3 of 9 tests of silos find more calibration error than chance explains (0.5 are "
      "expected; "
      "together p = 0.010, corrected p = 0.020)."),
     ("cannot say", 0.04, 3, "3 of 9 tests of silos find more calibration error than chance explains (0.5 are "
      "expected; "
      "together p = 0.040, corrected p = 0.080)."),
     ("cannot say", 0.01, 1, "errors are above those by chance (p = 0.010); one seed does not decide.")],
)  # fmt: skip
def test_confidence_is_said_in_a_line(verdict: Verdict, p: float, seeds: int, told: str) -> None:
    measured = {"p": p, "p_corrected": 2 * p, "above_chance": [1] * seeds, "limit": 0.05, "silos": 3}
    (line,) = verdicts([Finding("confidence", "it is calibrated", verdict, "", measured)])
    assert line.text.replace("\N{NO-BREAK SPACE}", " ").endswith(f"</b> It is calibrated: {told}")


def test_a_calibration_error_is_said_with_its_size() -> None:
    excess = {"mean": 0.021, "low": -0.006, "high": 0.048}
    measured = {"p": 0.04, "above_chance": [4, 3], "limit": 0.05, "excess": excess, "silos": 9}
    (line,) = verdicts([Finding("confidence", "it is calibrated", "does not hold", "", measured)])
    assert line.text.endswith(f"; the mean excess is 0.021 ({MINUS}0.006 to 0.048).")
    assert line.text.startswith("<b>Confidence: no.</b>")


@pytest.mark.parametrize(("p", "word"), [(0.04, "leaning no"), (0.06, "undecided")])
def test_confidence_that_only_the_correction_leaves_open_leans_to_no(p: float, word: str) -> None:
    measured = {"p": p, "p_corrected": 3 * p, "above_chance": [4, 3], "limit": 0.05, "silos": 9}
    found = Finding("confidence", "it is calibrated", "cannot say", "", measured)
    (line,) = verdicts([found])
    assert line.text.startswith(f"<b>Confidence: {word}.</b>")
    assert (_CAREFUL in advice(found)) == (word == "leaning no")
    assert _CAREFUL not in advice(replace(found, verdict="does not hold"))


def test_models_whose_labels_depend_on_the_seed_are_trained_longer_first() -> None:
    measured = {"rank_correlation": {"mean": 0.4, "low": 0.3, "high": 0.6}, "limit": 0.7, "labels_changed": 0.269}
    found = replace(FALLS, name="seeds", verdict="does not hold", measured=measured)
    instead, longer = advice(found)
    assert instead.startswith("Do not single out inputs by epistemic uncertainty")
    assert longer == (
        "Repeat the audit with twice as many rounds (2 times the training of this one): 26.9 % of labels differ "
        "between two seeds, which more rounds may reduce."
    )
    assert len(advice(replace(found, measured=measured | {"labels_changed": 0.1}))) == 1
    known = audit(found, command="caveat audit digits --set rounds=6 --out a")
    assert command(known) == "caveat audit digits --set rounds=12 --out a-longer"
    open_ = audit(found, replace(FALLS, verdict="cannot say"), command=known.command)
    told = next_steps(open_)[-1]
    assert "twice as many rounds and 5 seeds (5 times the training of this one): 26.9 % of labels" in told
    assert told.endswith(
        "which more rounds may reduce. If estimates stay as here, 5 seeds decide each of "
        f"these with a chance of 80 % or more: {FALLS.name}."
    )
    assert command(open_).endswith("--seeds 0,1,2,3,4")
    near = replace(FALLS, verdict="cannot say", measured={"exponent": {"mean": -1, "low": -10, "high": 8}, "limit": 0})
    other = replace(near, measured=near.measured | {"limit": -1})
    unsure = Finding("confidence", "it is calibrated", "cannot say", "", {"limit": 0.05})
    known = audit(found, near, replace(other, name="disagreement"), unsure, command=known.command)
    assert next_steps(known)[-1].endswith(
        f"If estimates stay as here, {(seeds := seeds_to_decide(known))} seeds decide each of these with a chance of "
        f"80 % or more: {near.name}. Do not expect a few more seeds to decide disagreement: if estimates "
        "are right, this takes more than 50. Confidence takes more test inputs, not seeds."
    )
    assert "Confidence takes" not in next_steps(audit(found, replace(unsure, measured={}), command=known.command))[-1]
    assert f"rounds and {seeds} seeds ({seeds} times the training" in next_steps(known)[-1]
    assert seeds == seeds_needed(1, 9, 2)
    # an interval at the corrected level is wider
    assert seeds_needed(1, 9, 2) < seeds_to_decide(audit(replace(near, measured=near.measured | {"p_corrected": 1.0}),
                                                          replace(near, measured={"p_corrected": 1.0})))  # fmt: skip
    assert command(known).endswith("--seeds " + ",".join(map(str, range(seeds))))
    out_of_reach = audit(found, replace(other, name="disagreement"), command=known.command)
    assert command(out_of_reach) == "caveat audit digits --set rounds=12 --out a-longer"
    assert next_steps(out_of_reach)[-1].endswith(
        "may reduce. Do not expect a few more seeds to decide disagreement: if estimates are right, this takes more "
        "than 50."
    )
    assert command(audit(found)) == ""


def test_promises_are_counted_by_verdict_without_those_that_do_not_apply() -> None:
    unrelated = replace(FALLS, verdict="does not apply")
    assert sentence([FALLS, REVERSED, FALLS, unrelated]) == (
        "Of 3 promises of these uncertainties, 1 does not hold and 2 hold."
    )


def audit(*findings: Finding, warning: str | None = None, command: str = "caveat audit c.toml") -> AuditFile:
    accuracy = AccuracyRecord(mean=0.9, by_chance=0.5, error=0.1, at_chance=bool(warning), warning=warning)
    known = {"accuracy": accuracy, "findings": list(findings), "command": command}
    return AuditFile.model_construct(seeds=[0, 1], runs=[], **known)


def advice(*findings: Finding, warning: str | None = None) -> list[str]:
    return next_steps(audit(*findings, warning=warning))


def test_what_to_do_does_not_contradict_what_cannot_be_said() -> None:
    assert advice(FALLS) == ["Use these uncertainties as their names say, on data like these."]
    unknown = Finding("confidence", "it is calibrated", "cannot say", "", {})
    assert advice(FALLS, unknown) == [f"{_USE[FALLS.name]} {_MEANWHILE}"]
    other = replace(FALLS, name="disagreement")
    assert advice(other, unknown) == [f"Rely only on what holds: {FALLS.claim}. {_MEANWHILE}"]
    open_ = replace(FALLS, verdict="cannot say")
    not_yet, more = advice(open_, unknown)
    assert not_yet == f"Do not rely on these uncertainties yet. {_MEANWHILE}"
    assert more == (
        "Repeat with about 5 seeds. They decide each of the following with a chance of 80 % if its estimate is right: "
        f"{open_.name}."
    )
    assert command(audit(open_)) == "caveat audit c.toml --seeds 0,1,2,3,4"
    assert "5 seeds (--seeds 0,1,2,3,4). They" in next_steps(audit(open_, command=""))[-1]
    assert command(audit(open_, command="")) == command(audit(FALLS)) == ""
    how = "(more data, or a larger data.split.test); more seeds do not help"
    _, inputs, _ = advice(open_, replace(unknown, measured={"limit": 0.05}))
    assert inputs == f"To decide on confidence, repeat the audit with more test inputs {how}."
    _, inputs, _ = advice(open_, replace(unknown, measured={"limit": 0.05, "inputs": 288, "inputs_needed": 1152}))
    assert inputs == f"To decide on confidence, repeat the audit with about 1,152 test inputs instead of 288 {how}."
    near = replace(open_, measured={"exponent": {"mean": -0.3, "low": -0.6, "high": 0.0}, "limit": -0.25})
    assert seeds_to_decide(audit(near)) == seeds_needed(0.05, 0.3, 2)
    at_limit = replace(near, measured={"exponent": {"mean": -0.2501, "low": -0.6, "high": 0.1}, "limit": -0.25})
    _, never = advice(at_limit)
    few = f"Do not expect a few more seeds to decide {open_.name}: if estimates are right, this takes more than 50."
    assert never == f"{few} Such estimates are close to their limits."
    assert command(audit(at_limit)) == ""
    (step,) = advice(open_, warning="These models have not learned.")
    assert step.startswith("Train for more rounds")  # more seeds of models that have not learned decide nothing


def test_the_main_ban_is_first_and_no_later_step_takes_it_back() -> None:
    open_, agree = replace(FALLS, verdict="cannot say"), replace(FALLS, name="seeds", verdict="does not hold")
    main, epistemic, _ = advice(open_, agree)
    assert main.startswith("Do not rely on these uncertainties yet. Until the rest is decided, do not use the column ")
    assert "column aleatoric of single predictions" in main  # that of epistemic is decided
    assert epistemic == _INSTEAD["seeds"]
    main, other, _ = advice(open_, REVERSED)
    assert main == f"Do not rely on these uncertainties yet. {_MEANWHILE}"
    assert other == _INSTEAD[REVERSED.name]


@pytest.mark.parametrize("seed", range(100))
def test_no_advice_claims_more_than_the_findings_hold(seed: int) -> None:
    random = np.random.default_rng(seed)
    kinds: list[Verdict] = ["holds", "holds", "cannot say", "does not apply", "does not hold"]
    of = [kinds[i] for i in random.integers(len(kinds) - int(random.integers(4)), size=random.integers(1, 4))]
    found = [replace(FALLS, name=f"name {i}", claim=f"claim {i}", verdict=verdict) for i, verdict in enumerate(of)]
    found += [Finding("confidence", "it is calibrated", kinds[int(random.integers(2, 4))], "", {})]
    said = " ".join(advice(*found, warning=str(random.choice(["", "Nothing was learned."])) or None))
    verdicts = {each.verdict for each in found}
    assert ("Use these" in said) == (verdicts <= {"holds", "does not apply"} and "Train for more" not in said)
    for each in found:
        told = _INSTEAD.get(each.name, f"Do not rely on it: {each.claim}.")
        assert (told in said) == (each.verdict == "does not hold")
        relied, _, repeated = said.partition("Rely only on what holds: ")[2].partition(f". {_MEANWHILE}")
        assert each.name not in repeated or each.verdict == "cannot say"
        assert each.claim not in relied.split("; ") or each.verdict == "holds"


def test_aleatoric_uncertainty_that_grows_with_data_is_said() -> None:
    few = {"n": 20.0, "aleatoric": 0.05}
    (grown,) = _growth([few, {"n": 160.0, "aleatoric": 0.4}])
    assert "it is 0.050 nats with 20 training examples per silo and 0.400 with 160" in grown
    assert not _growth([few, {"n": 160.0, "aleatoric": 0.04}])


def test_the_cost_of_more_seeds_and_the_exponent_of_aleatoric_uncertainty_are_said() -> None:
    near = replace(
        FALLS, verdict="cannot say", measured={"exponent": {"mean": -0.3, "low": -0.6, "high": 0.0}, "limit": -0.25}
    )
    far = replace(
        near, name="seeds", measured={"rank_correlation": {"mean": 0.3, "low": 0.0, "high": 0.6}, "limit": 0.7}
    )
    rows = [
        {"n": n, "seed": seed, "epistemic": e} for n, e in ((10.0, 1.0), (20.0, 0.8), (40.0, 0.2)) for seed in (0, 1)
    ]
    known = audit(near, far).model_copy(update={"runs": rows})
    seeds = seeds_to_decide(known)
    assert f"about {seeds} seeds, {3 * (seeds - 2)} runs more than these 6. They" in next_steps(known)[-1]
    assert next_steps(known)[-1].endswith(f"right: {near.name} ({seeds}); seeds (5).")
    figure = sweep_figure(rows)
    assert figure is not None
    assert figure.caption.endswith(f"from one size to the next: {MINUS}0.32, {MINUS}2.00.")
    (line,) = verdicts(
        [replace(FALLS, measured=FALLS.measured | {"aleatoric_exponent": {"mean": -0.2, "low": -0.3, "high": -0.1}})]
    )
    assert line.text.endswith(
        f". For aleatoric uncertainty, the exponent of n is {MINUS}0.20 ({MINUS}0.30 to {MINUS}0.10)."
    )


@pytest.mark.parametrize(("high", "told"), [(-0.37, True), (-0.2, False)])
def test_aleatoric_uncertainty_that_decreases_with_data_is_no_noise(high: float, told: bool) -> None:
    falls = {"limit": -0.25, "aleatoric_exponent": {"mean": -0.43, "low": -0.49, "high": high}}
    found = [each for each in advice(replace(FALLS, measured=FALLS.measured | falls)) if "aleatoric" in each]
    assert len(found) == told
    assert all(each.startswith("Do not take aleatoric uncertainty for noise in the data: it dec") for each in found)


def test_an_interval_that_crosses_its_limit_is_written_with_digits_enough() -> None:
    assert apart(0.8962, 0.98, 0.9) == ["0.896", "0.980", "0.900"]
    assert apart(0.2, 0.5, 0.9) == ["0.20", "0.50", "0.90"]
