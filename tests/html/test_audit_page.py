"""The picture of an audit has each estimate beside its limit, and the advice follows from the verdicts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from caveat.core.text import MINUS, apart
from caveat.files.schema import AccuracyRecord, AuditFile, Finding, Verdict
from caveat.html.audit import _growth, findings_figure, next_steps, sentence, verdicts

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
    titles = re.findall(r'<g class="c\d"><title>([^<]*)', str(figure.drawing))
    assert titles == [
        "epistemic and data: -1.00 (-1.20 to -0.80), limit -0.25: yes".replace("-", MINUS),
        "aleatoric and epistemic: 0.95 (0.92 to 1.00), limit 0.9: no",
    ]
    limits = [float(x) for x in re.findall(r'<line x1="([\d.]+)"[^>]*class="boundary"', str(figure.drawing))]
    marks = [float(x) + 4.2 for x in re.findall(r'd="M([\d.]+),[\d.]+a4.2', str(figure.drawing))]
    assert marks[0] < limits[0] < limits[1] < marks[1]
    assert findings_figure([]) is None


def test_chart_and_verdicts_name_a_promise_equally() -> None:
    figure = findings_figure([FALLS, REVERSED])
    assert figure is not None
    for finding, word in ((FALLS, "Yes."), (REVERSED, "No.")):
        name = finding.name.capitalize()
        assert f"{name}: {word.lower().rstrip('.')}" in figure.drawing
        (line,) = verdicts([finding])
        assert line.text.startswith(f"<b>{name}: {finding.claim}? {word}</b>")


def test_promises_are_counted_by_verdict_without_those_that_do_not_apply() -> None:
    unrelated = replace(FALLS, verdict="does not apply")
    assert sentence([FALLS, REVERSED, FALLS, unrelated]) == (
        "Of 3 promises of these uncertainties, 1 does not hold and 2 hold."
    )


def advice(*findings: Finding, warning: str | None = None, command: str = "caveat audit c.toml") -> list[str]:
    accuracy = AccuracyRecord(mean=0.9, by_chance=0.5, error=0.1, at_chance=bool(warning), warning=warning)
    known = {"accuracy": accuracy, "findings": list(findings), "command": command}
    return next_steps(AuditFile.model_construct(seeds=[0, 1], runs=[], **known))


def test_what_to_do_does_not_contradict_what_cannot_be_said() -> None:
    assert advice(FALLS) == ["Use these uncertainties as their names say, on data like these."]
    unknown = Finding("confidence", "it is calibrated", "cannot say", "", {})
    assert advice(FALLS, unknown) == [f"Until then, rely only on what holds: {FALLS.name}."]
    open_ = replace(FALLS, verdict="cannot say")
    more, not_yet = advice(open_, unknown)
    assert more.startswith("Repeat the command under Settings with more seeds (--seeds 0,1,2,3)")
    assert advice(open_, command="")[0].startswith("Repeat the audit with seeds 0,1,2,3 to decide")
    _, inputs, _ = advice(open_, replace(unknown, measured={"limit": 0.05}))
    assert inputs == "Repeat with more test inputs, not with more seeds, to decide what is open: confidence."
    assert not_yet == "Do not rely on what is open."
    (step,) = advice(open_, warning="These models have not learned.")
    assert step.startswith("Train for more rounds")  # more seeds of models that have not learned decide nothing


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
        assert (f"Do not rely on it: {each.claim}." in said) == (each.verdict == "does not hold")
        repeated, _, relied = said.partition("Until then, rely only on what holds: ")
        assert each.name not in repeated or each.verdict == "cannot say"
        assert each.name not in relied or each.verdict == "holds"


def test_aleatoric_uncertainty_that_grows_with_data_is_said() -> None:
    few = {"n": 20.0, "aleatoric": 0.05}
    (grown,) = _growth([few, {"n": 160.0, "aleatoric": 0.4}])
    assert "it is 0.050 nats with 20 training examples per silo and 0.400 with 160" in grown
    assert not _growth([few, {"n": 160.0, "aleatoric": 0.04}])


def test_an_interval_that_crosses_its_limit_is_written_with_digits_enough() -> None:
    assert apart(0.8962, 0.98, 0.9) == ["0.896", "0.980", "0.900"]
    assert apart(0.2, 0.5, 0.9) == ["0.20", "0.50", "0.90"]
