"""The page of a comparison says what the record says: failures too, and no more than its tests allow."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import ERROR, METHODS, fake_comparison
from html_page import Page
from markupsafe import Markup
from rich.console import Console

from caveat.analysis.compare.build_record import ends_of
from caveat.analysis.statistics import interval
from caveat.core import DataError
from caveat.core.text import MINUS, cut, duration, megabytes, probability
from caveat.files import read_comparison
from caveat.files.schema import ComparedRun, Comparison, ContrastRecord, IntervalRecord, Measure
from caveat.html.comparison import advice
from caveat.html.comparison.budgets import others, unequal_budgets
from caveat.html.comparison.by_domain import _p
from caveat.html.comparison.figures import cost_plane, differences, headline
from caveat.html.comparison.page import render
from caveat.html.comparison.plots import course
from caveat.html.comparison.tables import main_table, metric_table, place_table, run_table, tuning_table
from caveat.html.comparison.verdict import _elsewhere, state, verdict, winner
from caveat.html.comparison.wording import bracketed, contrast_verdict, figure, header, ranked, signed
from caveat.html.svg import limits
from caveat.terminal.comparisons import comparison_table, conclusion
from caveat.uncertainty.statistical_tests import half_width, seeds_needed

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SHARE = Measure(name="accuracy", higher=True, percent=True)
LOSS = Measure(name="NLL", higher=False)


def record(**changes: Any) -> Comparison:
    return Comparison.model_validate(fake_comparison(**changes))


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(record(failed=[("fedbn", "", 1)])))


def test_every_part_is_there_and_the_contents_lead_to_them(page: Page) -> None:
    ids = {attributes.get("id") for _, attributes in page.elements}
    links = [href[1:] for a in page.all("a") if (href := a["href"] or "").startswith("#")]
    assert set(links) <= ids
    assert {"table", "silos", "rounds", "tuning", "paper", "runs", "again"} <= set(links)
    assert "caveat compare digits --methods uefl,fedavg,fedbn,local --seeds 0..2 --out DIR" in page.text


def test_it_asks_nobody_for_anything(page: Page) -> None:
    assert not page.all("link")
    assert not page.all("img")
    assert all("src" not in attributes for _, attributes in page.elements)
    assert all(not re.match(r"[a-z]+:|//|/", a["href"] or "") for a in page.all("a"))


def test_runs_that_are_done_lead_to_their_reports_and_failed_ones_show_their_error(page: Page) -> None:
    reports = [a["href"] for a in page.all("a") if (a["href"] or "").endswith("/report.html")]
    assert len(reports) == 11
    assert "runs/all/fedbn/seed-0/report.html" in reports
    assert "runs/all/fedbn/seed-1/report.html" not in reports
    assert ERROR in page.text
    assert "1 run failed: fedbn with seed 1" in page.text
    assert "2 of 3, 1 failed" in page.text


def test_every_measure_of_every_setting_is_there_without_a_script() -> None:
    found = Page(render(record(settings=("MNIST", "Fashion-MNIST"))))
    parts = [a for _, a in found.elements if a.get("data-measure") and a.get("data-column")]
    measures = ["accuracy", "entropy", "NLL", "ECE", "AUROC error"]
    wanted = {(setting, measure) for setting in ("MNIST", "Fashion-MNIST") for measure in measures}
    assert {(part["data-column"], part["data-measure"]) for part in parts} == wanted
    assert not any("hidden" in part for part in parts)


def test_names_are_text_wherever_they_stand() -> None:
    nasty = '"><script>alert(1)</script>'
    found = fake_comparison(methods=(nasty, "b"))
    found["cells"][0]["folder"] = "javascript:alert(1)"
    found["title"] = found["about"] = found["command"] = nasty
    for table in found["tables"]:
        for row in table["rows"]:
            row["silos"][nasty] = row["silos"].pop("silo-0")
    written = render(Comparison.model_validate(found))
    assert len(Page(written).all("script")) == 1
    assert "javascript:" not in written.replace("javascript%3A", "")


def test_a_method_that_failed_throughout_stays_in_every_list() -> None:
    found = record(settings=("MNIST",), failed=[("local", "MNIST", seed) for seed in range(3)])
    written = Page(render(found))
    dots = str(headline(found, found.measures[0])[0][0].drawing)
    assert dots.index(">local<") > dots.index(">fedbn<")
    assert ">failed<" in dots
    assert "0 of 3, 3 failed" in written.text
    assert written.text.count(ERROR) >= 3


def test_what_is_to_come_is_said() -> None:
    known, alarm = state(record(missing=[("uefl", "", 2), ("local", "", 0)]))
    assert known == "10 of 12 runs done"
    assert alarm.startswith("2 runs to come.")
    assert state(record()) == ("12 of 12 runs done", "")


def test_a_record_without_any_figure_is_a_page() -> None:
    everything = [(row, "", seed) for row in METHODS for seed in range(3)]
    written = Page(render(record(missing=everything, paper=False, tuned=False)))
    assert "No method has a result yet." in written.text
    assert "Nothing was tuned" in written.text
    assert "0 of 12 runs done" in written.text


def test_after_the_first_run_there_is_a_page_without_differences() -> None:
    others = [(row, "", seed) for row in METHODS for seed in range(3) if (row, seed) != (METHODS[0], 0)]
    written = Page(render(record(missing=others, paper=False, tuned=False)))
    assert "1 of 12 runs done" in written.text
    assert f"Only {METHODS[0]} has a result" in written.text


def test_every_number_may_be_absent() -> None:
    def emptied(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: value[key] if key in ("schema", "seed", "seeds") else emptied(value[key]) for key in value}
        if isinstance(value, list):
            return [emptied(each) for each in value]
        return None if isinstance(value, float) else value

    assert "No method has a result yet." in Page(render(Comparison.model_validate(emptied(fake_comparison())))).text


def test_twelve_methods_on_a_hundred_silos_fit() -> None:
    many = [f"method-{i}" for i in range(12)]
    found = record(methods=many, seeds=5, silos=100, rounds=300)
    assert len(render(found).encode()) < 8e6
    chart = differences(found, found.columns[0], found.measures[0])
    assert chart is not None
    assert str(chart.drawing).count("whisker") == 11
    assert "all 66 pairs" in chart.caption


def compared(a: float, b: float, measure: Measure, pair: dict[str, Any] | None = None) -> Comparison:
    """Two methods called a and b with those means, and the difference `pair` of both."""
    rows = [{"row": name, "mean": mean, "low": mean, "high": mean, "seeds": 3} for name, mean in (("a", a), ("b", b))]
    return Comparison.model_validate(
        {
            "schema": 1,
            "rows": [{"name": "a"}, {"name": "b"}],
            "measures": [vars(measure)],
            "tables": [{"measure": measure.name, "rows": rows, "pairs": [pair] if pair else []}],
        }
    )


FIXED = "on these inputs"
FOUND = {"a": "a", "b": "b", "mean": 0.02, "low": 0.005, "high": 0.035, "p": 0.01, "p_adjusted": 0.03}
OPEN = {"a": "b", "b": "a", "mean": -0.02, "low": -0.05, "high": 0.01, "p": 0.03, "p_adjusted": 0.09}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            compared(0.95, 0.93, SHARE, FOUND),
            "a is ahead of b by 2.0 points of accuracy (simultaneous 95 % interval 0.5 to 3.5). "
            f"With 3 seeds, the difference is significant {FIXED} (corrected p = 0.030).",
        ),
        (
            compared(0.95, 0.93, SHARE, OPEN),
            "It is not decided whether a or b is better: 2.0 points of accuracy in favor of a (simultaneous 95 % "
            "interval \N{MINUS SIGN}1.0 to 5.0). "
            f"With 3 seeds, the difference is not significant {FIXED} (corrected p = 0.090).",
        ),
        (
            compared(0.93, 0.93, SHARE, {**OPEN, "mean": 0.0004}),
            "It is not decided whether a or b is better: less than 0.1 points of accuracy in favor of b (simultaneous "
            "95 % interval \N{MINUS SIGN}5.0 to 1.0). "
            f"With 3 seeds, the difference is not significant {FIXED} (corrected p = 0.090).",
        ),
        (
            compared(0.32, 0.30, LOSS, FOUND),
            "b is ahead of a by 0.020 in NLL (simultaneous 95 % interval 0.005 to 0.035). "
            f"With 3 seeds, the difference is significant {FIXED} (corrected p = 0.030).",
        ),
        (
            compared(0.30, 0.32, LOSS, FOUND),
            "a has the better mean, but is behind b by 0.020 in NLL on their common seeds. "
            f"With 3 seeds, the difference is significant {FIXED} (corrected p = 0.030).",
        ),
        (
            compared(0.95, 0.93, SHARE, {**FOUND, "p": None, "p_adjusted": None}),
            "a is ahead of b by 2.0 points of accuracy (simultaneous 95 % interval 0.5 to 3.5). "
            "The difference was not tested.",
        ),
        (
            compared(0.95, 0.93, SHARE),
            "a has the best mean, accuracy 95.0 % (95 % interval 95.0 to 95.0), followed by b with "
            "93.0 % (95 % interval 93.0 to 93.0); the difference was not tested.",
        ),
        (
            compared(0.2, 0.3, Measure(name="entropy")),
            "Entropy ranges from 0.200 (95 % interval 0.200 to 0.200) with a to "
            "0.300 (95 % interval 0.300 to 0.300) with b.",
        ),
    ],
)
def test_the_sentence_claims_what_the_tests_allow(found: Comparison, sentence: str) -> None:
    assert verdict(found, found.columns[0]).replace("\N{NO-BREAK SPACE}", " ") == sentence


def test_an_interval_that_spans_everything_stays_beside_its_mean(tmp_path: Path) -> None:
    """A mean without an interval would look more certain than those with one."""
    content = fake_comparison()
    content["tables"][0]["rows"][0]["domains"]["rotate(120)"] = {"mean": 0.471, "low": 0.0, "high": 1.0}
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    text = Page(render(read_comparison(tmp_path / "comparison.json"))).text
    assert "47.1 0.0 to 100.0" in " ".join(text.split())
    few = interval({seed: {"a": value} for seed, value in enumerate((0.1, 0.84))})
    assert (ends_of(few, SHARE).low, ends_of(few, SHARE).high) == (0.0, 1.0)


def test_one_seed_is_no_test() -> None:
    found = record(seeds=1)
    assert "One seed allows no test. The others: " in verdict(found, found.columns[0])


def test_methods_behind_the_two_best_are_in_the_sentence_too() -> None:
    found = fake_comparison(methods=("a", "b", "c", "d"))
    table = found["tables"][0]
    for row, mean in zip(table["rows"], (0.9, 0.8, 0.7, 0.6), strict=True):
        row |= {"mean": mean}
    tested = {"p": 0.01, "p_adjusted": 0.03, "mean": 0.2}

    def told(*p_of_c_and_d: float | None) -> str:
        for pair in table["pairs"]:
            pair |= tested if pair["a"] == "a" else {}
            if pair["a"] == "a" and pair["b"] in "cd":
                pair["p_adjusted"] = p_of_c_and_d["cd".index(pair["b"])]
        whole = Comparison.model_validate(found)
        return verdict(whole, whole.columns[0]).replace("\N{NO-BREAK SPACE}", " ")

    part = "a is significantly ahead of d (60.0 %) and is not significantly ahead of c (70.0 %)."
    assert told(0.2, 0.01).endswith(part)
    assert told(0.01, 0.01).endswith(" a is significantly ahead of c (70.0 %), d (60.0 %).")
    assert told(0.2, 0.2).endswith(" a is not significantly ahead of c (70.0 %), d (60.0 %).")
    assert told(None, None).endswith(" The others: c (70.0 %), d (60.0 %).")


def next_steps(found: Comparison) -> list[str]:
    return [step.step for step in advice.next_steps(found, found.columns[0])]


def again(found: Comparison) -> str:
    return advice.command(found, advice.next_steps(found, found.columns[0]))


THREE = ("ditto", "fedavg", "local")


def with_majority(most: float, **accuracies: float) -> Comparison:
    """A comparison of methods with these accuracies, each within 0.02, where the most frequent class has `most`, on
    1,000 inputs."""
    found = fake_comparison(methods=tuple(accuracies))
    for cell in found["cells"]:
        more = round(1000 * (accuracies[cell["row"]] - most))
        cell["majority"] = {"accuracy": most, "gained": 10 + max(more, 0), "lost": 10 + max(-more, 0)}
    for row in found["tables"][0]["rows"]:
        mean = accuracies[row["row"]]
        row |= {"mean": mean, "low": mean - 0.02, "high": mean + 0.02}
    return Comparison.model_validate(found)


def test_nobody_is_ahead_where_nothing_was_learned() -> None:
    found = with_majority(0.519, ditto=0.53, fedavg=0.52, local=0.50)
    said = verdict(found, found.columns[0])
    assert said.startswith(
        "No method is shown to be better than always predicting each silo's most frequent training class (51.9 %)"
    )
    assert "ahead" not in said
    assert "most frequent training class" in Page(render(found)).text.partition("methods")[0]
    assert next_steps(found)[0].startswith("Train for more rounds")


def test_the_methods_that_have_not_learned_are_named() -> None:
    found = with_majority(0.519, ditto=0.9, fedavg=0.8, local=0.53)
    said = verdict(found, found.columns[0])
    assert said.startswith("No difference in accuracy is shown between ditto, fedavg and local (all within ")
    assert said.endswith("Not shown to be better than always predicting the most frequent class (51.9 %): local.")
    assert "Accuracy" in render(found)
    assert render(found).count("<title>always predicting the most frequent class: 51.9 %") <= 1


@pytest.mark.parametrize(
    ("noise", "how"),
    [(0.001, ", which differ beyond chance"), (0.2, "; whether it depends on the domain is not decided")],
)
def test_a_difference_with_both_signs_over_domains_is_said(noise: float, how: str) -> None:
    content = with_majority(0.519, ditto=0.9, fedavg=0.8, local=0.53).model_dump(by_alias=True)
    first = content["cells"][0]["silos"][0]["domain"]
    for cell in content["cells"]:
        by = {"ditto": 0.05, "fedavg": -0.05, "local": 0.0}[cell["row"]]
        for silo in cell["silos"]:
            own = by if silo["domain"] == first else -by
            differs = noise * (cell["seed"] - 1) * (cell["row"] == "ditto") * (silo["domain"] == first)
            silo["figures"]["accuracy"] = 0.7 + own + differs
    pair = {"a": "fedavg", "b": "local", "mean": -0.1, "low": -0.2, "high": -0.01, "p": 0.001, "p_adjusted": 0.01}
    for table in content["tables"]:
        table["pairs"] = [pair] if table["measure"] == "NLL" else table["pairs"] * (table["measure"] == "accuracy")
    record = Comparison.model_validate(content)
    said = verdict(record, record.columns[0])
    assert f" By domain, ditto {MINUS} fedavg ranges from {MINUS}10.0 points at " in said
    assert f" to +10.0 points at {first}{how} (p" in said
    other = f" In the other {len(record.measures) - 1} metrics, after a correction for all {len(record.measures)}, "
    for_all = f"{other}no difference is shown (smallest p of metrics with a better direction, "
    for_all += "corrected for pairs only: 0.010, NLL)."
    said = said.replace("\N{NO-BREAK SPACE}", " ")
    assert for_all in said
    for table in content["tables"]:
        table["pairs"] = [{**each, "p_adjusted": 0.001} for each in table["pairs"] if table["measure"] == "NLL"]
    record = Comparison.model_validate(content)
    clear = _elsewhere(record, record.columns[0]).replace("\N{NO-BREAK SPACE}", " ")
    assert clear == f"{other}fedavg has a lower NLL than local (p = 0.001)."
    undirected, directed = {**pair, "p_adjusted": 0.012}, {**pair, "p_adjusted": 0.02}
    only = f"{other}no difference is shown (smallest p, corrected for pairs only: 0.012, entropy)."
    for nll, told in ((True, for_all.replace("0.010", "0.020")), (False, only)):
        for table in content["tables"]:
            known = {"entropy": [undirected], "NLL": [directed] * nll}
            table["pairs"] = known.get(table["measure"], [])
        record = Comparison.model_validate(content)
        assert _elsewhere(record, record.columns[0]).replace("\N{NO-BREAK SPACE}", " ") == told


def test_a_difference_in_every_domain_is_not_one_between_domains() -> None:
    """The differences are far from 0 at both domains, and their swing is within the variation over seeds."""
    first, last = {seed: 0.05 + 0.0001 * seed for seed in range(3)}, {seed: 0.06 + 0.05 * seed for seed in range(3)}
    assert _p(dict.fromkeys(range(3), 0.0), first) < 0.01
    assert _p(first, last) > 0.05
    assert _p(first, {7: 0.1}) == 1


def test_methods_that_are_all_barely_trained_are_not_chosen_between() -> None:
    found = with_majority(0.1, ditto=0.19, fedavg=0.15, local=0.13)  # every interval is above 10 %
    said = verdict(found, found.columns[0])
    assert said.startswith(
        "No method is more than barely better than always predicting the most frequent class (10.0 %)."
    )
    (step,) = next_steps(found)
    assert step.endswith(
        "no method is more than barely better than always predicting the most frequent class (the best accuracy is "
        "19.0 %)."
    )


def test_methods_that_have_learned_are_not_called_untrained_for_few_seeds() -> None:
    """Wide intervals of two seeds say how much seeds differ; a sign test of inputs says whether a model has learned."""
    found = with_majority(0.5, ditto=0.85, fedavg=0.84)
    content = found.model_dump(by_alias=True)
    for row in content["tables"][0]["rows"]:
        row |= {"low": row["mean"] - 0.63, "high": row["mean"] + 0.63}
    found = Comparison.model_validate(content)
    assert "most frequent class" not in verdict(found, found.columns[0])
    assert not any("most frequent class" in step for step in next_steps(found))


def test_a_method_that_few_inputs_tell_from_the_most_frequent_class_needs_inputs() -> None:
    found = with_majority(0.5, ditto=0.85, fedavg=0.84)
    content = found.model_dump(by_alias=True)
    for cell in content["cells"]:
        cell["majority"] = {"accuracy": 0.5, "gained": 5, "lost": 1}
    found = Comparison.model_validate(content)
    assert verdict(found, found.columns[0]).startswith("No method is shown to be better than always predicting")
    (step,) = next_steps(found)
    assert step == "ditto is not shown to be better than always predicting the most frequent class: add test inputs."


def test_the_most_frequent_class_is_on_the_axis_unless_this_more_than_doubles_it() -> None:
    found = with_majority(0.75, ditto=0.9, fedavg=0.8)
    (chart,), about = headline(found, found.measures[0])
    assert "most frequent class: 75.0 %" in chart.drawing
    assert "A dashed line is the accuracy of always predicting" in about
    found = with_majority(0.1, ditto=0.9, fedavg=0.8)
    (chart,), about = headline(found, found.measures[0])
    assert "most frequent class: " not in chart.drawing
    assert "dashed" not in about
    assert "Baseline (always predicting the most frequent class): 10.0 %" in Page(render(found)).text


def test_of_methods_that_no_number_of_seeds_separates_the_smallest_difference_shown_is_named() -> None:
    found = compared(0.95, 0.95, SHARE, {**OPEN, "mean": 0.0006}).model_copy(update={"seeds": (0, 1, 2)})
    step = next_steps(found)[-1]
    assert step.startswith(
        "Choose between a and b by other metrics or by cost: 3 seeds show only differences above 3.0"
    )


def test_bytes_have_a_fitting_unit() -> None:
    found = fake_comparison()
    found["cells"][0] |= {"bytes_up": 0, "bytes_down": 288}
    assert "0 B 288 B" in Page(render(Comparison.model_validate(found))).text


def test_methods_that_still_learn_are_trained_for_more_rounds_first() -> None:
    found = compared(0.95, 0.95, SHARE, {**OPEN, "mean": 0.0006}).model_dump(by_alias=True) | {"seeds": (0, 1, 2)}
    runs = [{"row": "a", "seed": 0, "status": "done", "curve": [(i, 0.1 * i, None) for i in range(1, 7)]}]
    found["cells"] = [*runs, {**runs[0], "row": "b", "curve": [(i, 0.5, None) for i in range(1, 7)]}]
    record = Comparison.model_validate(found)
    step = next_steps(record)[-1]
    assert step.startswith("Train for more rounds before you choose: ")
    timed = [{**cell, "rounds": 6, "seconds": 60.0} for cell in found["cells"]]
    slow = next_steps(Comparison.model_validate(found | {"cells": timed}))[-1]
    assert slow.startswith("Train for more rounds before you choose (twice as many: about 10 min): ")
    uneven = [{**cell, "seed": seed, "seconds": 600.0 if seed == 2 else 60.0} for cell in timed for seed in range(3)]
    vary = next_steps(Comparison.model_validate(found | {"cells": uneven}))[-1]
    assert "(twice as many: about 10 min at the usual speed, 2 h at the slowest seen here): " in vary
    free = [{**cell, "row": {"a": "a", "b": "local"}[cell["row"]], "bytes_up": 0} for cell in found["cells"]]
    pairs = [{**OPEN, "mean": 0.0006, "a": "a", "b": "local"}]
    rows = [{**row, "row": {"a": "a", "b": "local"}[row["row"]]} for row in found["tables"][0]["rows"]]
    tables = [{**found["tables"][0], "rows": rows, "pairs": pairs}]
    local = found | {"cells": free, "tables": tables, "rows": [{"name": "a"}, {"name": "local"}]}
    until = next_steps(Comparison.model_validate(local))[-1]
    assert until.endswith(
        " Until then, local, with which silos send nothing, is not shown to be worse in accuracy; it may be up to "
        f"{100 * OPEN['high']:.1f} points of accuracy behind a."
    )
    nll = {"name": "NLL", "title": "NLL", "higher": False, "percent": False}
    entropy = {**nll, "name": "entropy", "title": "entropy", "higher": None}
    for sign, p, worse in ((1, 0.014, True), (1, 0.06, False), (-1, 0.014, False)):
        pair = {**OPEN, "a": "local", "b": "a", "mean": 0.1 * sign, "low": 0.02, "high": 0.2, "p_adjusted": p}
        more = [{**tables[0], "measure": name, "pairs": [pair]} for name in ("NLL", "entropy")]
        also = {"measures": [*found["measures"], nll, entropy], "tables": [*tables, *more]}
        told = next_steps(Comparison.model_validate(local | also))[-1].replace("\N{NO-BREAK SPACE}", " ")
        told = told.removeprefix(until)
        assert told == (
            " It may be worse in other metrics: 0.100 in NLL behind a (p = 0.014); p is corrected for pairs only."
            * worse
        )
    assert step.endswith("validation accuracy rose for a by 20.0 points.")


def test_names_of_differences_stay_in_the_drawing_beside_zero() -> None:
    found = compared(0.95, 0.5, SHARE, {**FOUND, "mean": 0.45, "low": 0.4, "high": 0.5})
    chart = differences(found, found.columns[0], SHARE)
    assert chart is not None
    (end,) = re.findall(r'<text x="([\d.]+)"[^>]*>a worse', str(chart.drawing))
    assert float(end) > 70


def test_what_to_do_next_is_how_many_seeds_would_decide_and_the_control() -> None:
    found = compared(0.95, 0.93, SHARE, OPEN)
    found = found.model_copy(update={"seeds": (0, 1, 2)})
    control, seeds = next_steps(found)
    assert control.startswith("Add the method local")
    assert re.match(r"Repeat with about \d+ seeds, which separate a and b with a chance of 80 %", seeds)
    assert next_steps(found.model_copy(update={"seeds": (0,)}))[1] == "Repeat with 5 seeds: one seed allows no test."
    # An interval of half-width 0.03 of 3 seeds: a deviation of 0.03 / 4.303 * sqrt(3) = 0.01207. With 6 seeds,
    # quantiles of 97.5 % and 80 %, (2.571 + 0.920) * 0.01207 / sqrt(6) = 0.0172, are below 0.02; with 5, 0.0201 is not.
    assert seeds_needed(0.02, 0.03, 3) == 6
    assert seeds_needed(0.0001, 0.03, 3) is None
    assert half_width(0.03, 3, 4) == pytest.approx(0.0192, abs=1e-4)


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("caveat compare digits", "caveat compare digits --methods a,b,local --seeds 0,1,2,3,4,5"),
        ("caveat compare --seeds=0,1,2 --methods a,b", "caveat compare --seeds 0,1,2,3,4,5 --methods a,b,local"),
        ("caveat compare c.toml --variant 'a: rounds=3'",
         "caveat compare c.toml --variant 'a: rounds=3' --variant 'local: method.name=local' --seeds 0,1,2,3,4,5"),
        ("caveat.compare in Python", ""), ("caveat reproduce x", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_command_of_the_steps_does_what_all_of_them_ask(command: str, changed: str) -> None:
    found = compared(0.95, 0.93, SHARE, OPEN).model_copy(update={"seeds": (0, 1, 2), "command": command})
    assert again(found) == changed
    assert changed in " ".join(Page(render(found)).text.split())


@pytest.mark.parametrize(
    ("command", "rounds"),
    [("caveat compare digits --set rounds=7 --out my", "--set rounds=14 --out my-longer"),
     ("caveat compare digits --out my", "--out my-longer --set rounds=32"),
     ("caveat compare digits", "--set rounds=32 --out runs/compare-digits-longer")],
)  # fmt: skip
def test_more_rounds_are_twice_as_many_in_another_folder(command: str, rounds: str) -> None:
    found = with_majority(0.1, ditto=0.19, fedavg=0.15, local=0.13)
    assert again(found.model_copy(update={"command": command})) == f"caveat compare digits {rounds}"
    own = found.rows[0].model_copy(update={"sets": ("method.name=ditto", "rounds=3")})
    assert again(found.model_copy(update={"command": command, "rows": (own, *found.rows[1:])})) == ""


def test_the_table_has_each_method_s_difference_to_the_best() -> None:
    found = record()
    table = main_table(found, found.columns[0])
    assert table is not None
    of = {column.header: [cell.text for cell in column.cells] for column in table.columns}
    best = ranked(found.tables[0].rows, found.measures[0])[0].row
    behind = of[f"behind {best}, points"]
    assert [bool(cell) for cell in behind] == [row.name != best for row in found.rows]
    assert all("bounds" in cell for cell in behind if cell)
    chart = differences(found, found.columns[0], found.measures[0])
    assert chart is not None
    shown = re.findall(r'class="(?:open|found)"><title>(\S+) . (\S+): (\S+)', str(chart.drawing))
    assert {name for name, *_ in shown} == {best}
    assert {
        of["method"][i].rpartition(" ")[2]: re.findall(">([^<]+)<", cell)[0] for i, cell in enumerate(behind) if cell
    } == {name: gap for _, name, gap in shown}


def test_no_metric_is_lost_between_the_two_tables() -> None:
    found = record()
    setting = found.columns[0]
    tables = [main_table(found, setting), metric_table(found, setting)]
    heads = [column.header for table in tables if table for column in table.columns]
    for measure in found.measures:
        assert sum(head.startswith(header(measure)) for head in heads) == 1
    assert f"worst silo, {found.measures[-1].name}" in heads


def test_the_cost_is_one_plane_with_names() -> None:
    found = record()
    chart = cost_plane(found, found.columns[0])
    assert chart is not None
    assert chart.title == "Accuracy against MB per run, up and down"
    assert all(f">{name}</text>" in chart.drawing for name in METHODS)


@pytest.mark.parametrize(("higher", "names"), [(True, "bca"), (False, "acb"), (None, "bca")])
def test_the_best_comes_first(higher: bool | None, names: str) -> None:
    rows = [{"row": name, "mean": mean} for name, mean in (("a", 0.1), ("b", 0.3), ("none", None), ("c", 0.2))]
    table = Comparison.model_validate(
        {"schema": 1, "rows": [], "measures": [vars(SHARE)], "tables": [{"measure": "accuracy", "rows": rows}]}
    ).tables[0]
    measure = Measure(name="accuracy", higher=higher)
    assert "".join(row.row for row in ranked(table.rows, measure)) == names


def test_a_mark_stands_where_its_figure_is() -> None:
    found = compared(0.90, 0.80, SHARE)
    dots = str(headline(found, SHARE)[0][0].drawing)
    edges = re.search(r'<line x1="([\d.]+)"[^>]*x2="([\d.]+)"[^>]*class="axis"', dots)
    assert edges is not None
    left, right = map(float, edges.groups())
    # A disc's path starts at its left, a square's at a corner, both 4.6 left of the middle.
    centers = [float(x) + 4.6 for x in re.findall(r'd="M([\d.]+),[^"]*" class="fill"', dots)]
    # The range is 6 % wider than the figures on either side.
    assert centers == pytest.approx([left + (right - left) * share / 1.12 for share in (1.06, 0.06)], abs=0.1)


def test_the_papers_figures_are_hollow_marks_in_the_picture_and_a_table() -> None:
    found = record()
    assert str(headline(found, found.measures[0])[0][0].drawing).count('class="hollow"') == 2
    assert str(headline(found, found.measures[1])[0][0].drawing).count('class="hollow"') == 0
    assert "thresholds set on validation data" in Page(render(found)).text


def test_a_choice_at_the_edge_of_what_was_tried_is_marked() -> None:
    found = fake_comparison()
    # As text, which a configuration's key is set by.
    found["cells"][0]["tuned"] = {"training.lr": "0.01"}
    found["cells"][3]["tuning"][0] |= {"score": None, "error": "diverged"}
    table = tuning_table(Comparison.model_validate(found))
    assert table is not None
    chosen = next(column for column in table.columns if column.header == "chosen")
    assert [bool(cell.flag) for cell in chosen.cells] == [True, False, False, False]
    tried = next(column for column in table.columns if column.header == "tried")
    assert re.findall("<b>(.*?)</b>", tried.cells[0].text) == ["0.01"]
    assert re.findall("<small.*?</small>", tried.cells[1].text)[0] == '<small title="diverged">failed</small>'


def test_settings_share_a_scale_unless_it_would_hide_their_differences() -> None:
    found = fake_comparison(settings=("near", "far"), paper=False, seeds=5)
    assert "scale of its own" not in headline(Comparison.model_validate(found), SHARE)[1]
    for row in found["tables"][len(found["measures"])]["rows"]:
        row |= {name: row[name] / 3 for name in ("mean", "low", "high")}
    assert "Every setting has its own scale." in headline(Comparison.model_validate(found), SHARE)[1]


def test_silos_at_which_methods_differ_most_come_first_and_captions_begin_with_a_capital() -> None:
    found = record(seeds=5, silos=3)
    measure, setting = found.measures[0], found.columns[0]
    figures = [{"silo-0": 0.5, "silo-1": 0.6, "silo-2": 0.7}, {"silo-0": 0.6, "silo-1": 0.2, "silo-2": 0.7}]
    rows = [{"row": row.name, "silos": {silo: {"mean": mean} for silo, mean in of.items()}}
            for row, of in zip(found.rows[:2], figures, strict=True)]  # fmt: skip
    known = fake_comparison(seeds=5, silos=3) | {"tables": [{"column": "", "measure": measure.name, "rows": rows}]}
    table = place_table(Comparison.model_validate(known), setting, measure, "silos", "silo")
    assert table is not None
    assert [cell.text for cell in table.columns[0].cells] == ["silo-1", "silo-0", "silo-2"]
    assert "; silos with the largest difference between methods come first." in table.caption
    assert table.caption.endswith(" Differences are not tested: do not choose a method by silo.")
    domains = place_table(found, setting, measure, "domains", "domain")
    assert domains is not None
    assert domains.caption.startswith("Accuracy in % by domain, with")
    assert "Not tested" not in domains.caption


@pytest.mark.parametrize(("silos", "open_"), [(20, True), (21, False)])
def test_the_table_of_few_silos_is_open(silos: int, open_: bool) -> None:
    text = render(record(methods=("fedavg", "local"), seeds=5, silos=silos))
    assert ("<summary>Silos</summary>" in text) == (not open_)


def test_methods_with_other_numbers_of_rounds_have_hollow_marks() -> None:
    found = budgeted({"uefl": 16, "fedavg": 6, "fedbn": 6})
    (chart,), about = headline(found, found.measures[0])
    told = "Methods with hollow marks have another number of rounds than those with filled marks: compare only methods "
    assert f"{told}with equal numbers of rounds." in about
    drawn = str(chart.drawing)
    assert others(found, found.columns[0]) == ["uefl"]
    assert drawn.count('class="hollow"') == 1
    (chart,), about = headline(same := record(seeds=5, paper=False), same.measures[0])
    assert others(same, same.columns[0]) == []
    assert "hollow" not in chart.drawing + about
    assert others(budgeted({"uefl": 16, "fedavg": 6}), found.columns[0]) == ["uefl"]


def test_times_that_vary_much_are_ranges() -> None:
    content = fake_comparison(seeds=3, paper=False)
    for cell in content["cells"]:
        cell |= {"status": "done", "rounds": 6, "seconds": 10.0 * (1 + cell["seed"])}

    def told(content: Any) -> tuple[str, str]:
        table = main_table(known := Comparison.model_validate(content), known.columns[0])
        assert table is not None
        (times,) = ([cell.text for cell in column.cells] for column in table.columns if column.header == "time")
        return times[0], table.caption

    usual, caption = told(content)
    assert (usual, "times are from" in caption) == ("20 s", False)
    content["cells"][0]["seconds"] = 1.0
    assert content["cells"][0]["seed"] == 0
    varied, caption = told(content)
    assert varied == "1.0 s to 30 s"
    ratio = "but times are from the shortest to the longest run: they varied up to 30-fold"
    assert ratio in caption
    content["cells"][0]["rounds"] = 1  # the table has times per run, not per round
    assert ratio in told(content)[1]


def test_notes_and_equal_rounds_are_told() -> None:
    found = fake_comparison()
    found["rows"][0]["note"] = "the paper's behaviour"
    found["match_rounds"] = "uefl"
    written = Page(render(Comparison.model_validate(found))).text
    assert "the paper's behaviour" in written
    assert "Every method was trained for as many rounds as uefl." in written


def test_a_curve_is_of_the_rounds_that_all_seeds_have() -> None:
    curves = [[(1, 0.1, 2.0), (2, 0.3, None), (3, 0.5, 1.0)], [(1, 0.3, 1.0), (2, 0.5, 1.0)], []]
    runs = [ComparedRun(row="a", seed=i, status="done", curve=tuple(curve)) for i, curve in enumerate(curves)]
    accuracy = course("a", 0, runs)
    assert accuracy is not None
    assert (accuracy.low, accuracy.high) == ([(1, 0.1), (2, 0.3)], [(1, 0.3), (2, 0.5)])
    assert [value for _, value in accuracy.mean] == pytest.approx([0.2, 0.4])
    assert course("a", 0, runs[2:]) is None


def test_a_long_curve_is_thinned_but_keeps_its_end() -> None:
    runs = [ComparedRun(row="a", seed=0, status="done", curve=tuple((i, i / 1000, None) for i in range(1, 1000)))]
    found = course("a", 0, runs)
    assert found is not None
    rounds = [at for at, _ in found.mean]
    assert len(rounds) <= 150
    assert rounds[-1] == 999
    assert len({b - a for a, b in pairwise(rounds)}) == 1


def test_ranges_hold_their_values_and_shares_stay_shares() -> None:
    assert limits([]) is None
    low, high = limits([0.5, 0.999], share=True) or (0, 0)
    assert low < 0.5
    assert high == 1
    low, high = limits([-0.5, 0.5]) or (0, 0)
    assert low < -0.5
    assert high > 0.5
    low, high = limits([0.3]) or (0, 0)
    assert low < 0.3 < high


def test_how_figures_are_written() -> None:
    assert bracketed(SHARE, IntervalRecord(mean=0.951, low=0.94, high=0.962)) == "95.1 [94.0, 96.2]"
    assert bracketed(SHARE, IntervalRecord(mean=0.951)) == "95.1"
    assert bracketed(SHARE, IntervalRecord()) == ""
    assert [figure(LOSS, value) for value in (-0.12345, -0.0001, 0.0)] == ["\N{MINUS SIGN}0.123", "0.000", "0.000"]
    assert [signed(SHARE, value) for value in (0.01, 0.0001, -0.01)] == ["+1.0", "0.0", "\N{MINUS SIGN}1.0"]
    assert [probability(p) for p in (0.0001, 0.0421, 0.25, None)] == ["<\N{NO-BREAK SPACE}0.001", "0.042", "0.25", ""]
    assert probability(1.0) == ">\N{NO-BREAK SPACE}0.99"
    assert [duration(s) for s in (3.21, 63.4, 123.4, 9000)] == ["3.2 s", "63 s", "2.1 min", "2.5 h"]
    assert [megabytes(n) for n in (0, 12_345, 1_234_567, 12_345_678, 1.2e10)] == ["0", "0.012", "1.2", "12", "12,000"]


def shown(found: Comparison, width: int = 250) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(comparison_table(found))
    return captured.get()


def test_the_terminal_shows_intervals_costs_and_failures() -> None:
    lines = shown(record(failed=[("fedbn", "", 1)])).splitlines()
    first = next(line for line in lines if "uefl" in line)
    assert re.search(
        r"uefl +\d\d\.\d \[\d\d\.\d, \d\d\.\d\] +0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] +\d\d\.\d +1\.0 +63 s +1\.2 +1\.3",
        first,
    )
    assert [line.split()[0] for line in lines if "1 failed" in line] == ["fedbn"]


def test_page_and_terminal_say_whom_the_statistics_are_about(page: Page) -> None:
    assert "Seeds share some or all test inputs" in page.text
    for found in (record(), record(settings=("MNIST", "Fashion-MNIST"))):
        for measures in (found.measures, found.measures[:1]):
            written = " ".join(shown(found.model_copy(update={"measures": measures}), 100).split())
            assert "on these silos. Seeds share some or all test inputs" in written


def test_a_figure_that_rests_on_two_errors_says_so_in_place_of_an_interval() -> None:
    auroc, found = Measure(name="AUROC", higher=True), record()
    silos = {"a": {"mean": 0.34, "low": 0.1, "high": 0.9, "rests_on": 2}, "b": {"mean": 0.8, "low": 0.7, "high": 0.9}}
    table = {"column": "", "measure": "AUROC", "rows": [{"row": found.rows[0].name, "silos": silos}]}
    found = Comparison.model_validate(
        fake_comparison(seeds=5) | {"measures": [vars(auroc)], "tables": [table], "tuning": None, "paper": None}
    )
    text = Page(render(found)).text
    assert "based on 2 errors" in text
    assert "0.100 to 0.900" not in text
    assert "0.700 to 0.900" in text
    three = Page(render(found.model_copy(update={"seeds": (0, 1, 2)}))).text
    assert "based on 2 errors" in three
    assert "0.700 to 0.900" not in three


def test_seeds_that_tie_allow_no_test() -> None:
    found = compared(0.95, 0.93, SHARE, {**FOUND, "low": None, "high": None, "p": None, "p_adjusted": None})
    assert "all seeds have the same difference, or a silo has a single test input" in verdict(found, found.columns[0])


def test_a_narrow_terminal_loses_nothing() -> None:
    found = record(failed=[("fedbn", "", 1)])
    wide, narrow = shown(found), shown(found, 80)
    assert max(map(len, narrow.splitlines())) <= 80
    for words in (wide, narrow):
        assert all(word in words for word in ("uefl", "fedavg", "fedbn", "local", "2.3 min", "1 failed", "88.3"))
    assert set(re.findall(r"\d+\.\d+", wide)) == set(re.findall(r"\d+\.\d+", narrow))


def test_settings_become_columns_of_a_single_measure_and_rows_of_several() -> None:
    found = record(settings=("MNIST", "Fashion-MNIST"))
    assert shown(found).count("uefl") == 2
    single = found.model_copy(update={"measures": found.measures[:1]})
    written = shown(single)
    assert written.count("uefl") == 1
    assert "Fashion-MNIST" in written
    assert "mean and 95 % interval" in written


def test_reading(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps({**fake_comparison(), "later": {"schema": 2}}))
    assert read_comparison(tmp_path) == read_comparison(path)
    assert dict(read_comparison(path)) == {**dict(record()), "later": {"schema": 2}}
    with pytest.raises(DataError, match=r"nothing\.json does not exist"):
        read_comparison(tmp_path / "nothing.json")
    path.write_text(json.dumps({**fake_comparison(), "schema": 2}))
    with pytest.raises(DataError, match="schema"):
        read_comparison(tmp_path)


def test_links_are_relative_and_quoted() -> None:
    found = fake_comparison(seeds=1)
    for cell, folder in zip(found["cells"], ("a b/ü#", "/etc", "", "x?y"), strict=True):
        cell["folder"] = folder
    table = run_table(Comparison.model_validate(found))
    assert table is not None
    links = [
        re.findall('href="([^"]*)"', cell.text) for cell in table.columns[0].cells if isinstance(cell.text, Markup)
    ]
    assert links == [["a%20b/%C3%BC%23/report.html"], ["x%3Fy/report.html"]]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here, which opens the page")
def test_a_browser_opens_it_without_errors_and_shows_one_measure(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(record(settings=("MNIST", "Fashion-MNIST"))), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command = [str(BROWSER), *options, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    opened = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in opened.stderr
    found = re.findall(r'<div data-column="([^"]+)" data-measure="([^"]+)"([^>]*)>', opened.stdout)
    visible = [(column, measure) for column, measure, rest in found if "hidden" not in rest]
    assert set(visible) == {("MNIST", "accuracy")}
    assert len(found) == 20


def test_names_that_begin_alike_stay_different_when_they_are_cut() -> None:
    assert cut("UEFL", 22) == "UEFL"
    assert cut("As published, 128 codewords", 22) == "As published\N{HORIZONTAL ELLIPSIS}codewords"
    assert cut("As published, 128 codewords, new ones from N(0, 1)", 22).endswith("\N{HORIZONTAL ELLIPSIS}N(0, 1)")
    assert cut("a" * 30, 22) == "a" * 10 + "\N{HORIZONTAL ELLIPSIS}" + "a" * 11


def budgeted(rounds: dict[str, int]) -> Comparison:
    """Methods that stopped after so many rounds; the first is ahead in the end, and behind before."""
    found = record(methods=tuple(rounds), seeds=2, paper=False, tuned=False)
    cells = []
    for run in found.cells:
        level = 0.8 if run.row == next(iter(rounds)) else 0.76
        curve = tuple((at, level - 0.6 / at - 0.02 * (level > 0.78) * (10 - at), 0.2) for at in range(1, 20))
        cells.append(run.model_copy(update={"rounds": rounds[run.row], "curve": curve[: rounds[run.row]]}))
    return found.model_copy(update={"cells": tuple(cells)})


def test_unequal_budgets_are_said_first_with_who_leads_where_all_have_figures() -> None:
    found = budgeted({"uefl": 16, "fedavg": 6, "fedbn": 6})
    told = unequal_budgets(found, found.columns[0])
    assert told == "uefl 16 rounds; fedavg and fedbn 6 rounds"
    assert verdict(found, found.columns[0]).startswith(
        f"Rounds differ ({told}), so methods are not ranked. At round 6, the last common one, fedavg and fedbn have "
        "the same accuracy on validation data (66.0 %, "
    )
    found = budgeted({"uefl": 16, "fedavg": 6})
    assert unequal_budgets(found, found.columns[0]) == "uefl 16 rounds; fedavg 6 rounds"
    said = verdict(found, found.columns[0])
    assert said.partition(" At ")[2] == (
        "round 6, the last common one, fedavg leads on validation data by 4.0 points (66.0 %, uefl 62.0 %; "
        "mean of 2 seeds, difference not tested). In the last third of these rounds, validation accuracy rose for uefl "
        "by 9.0, fedavg by 5.0 points: the order may change."
    )
    flat = [run.model_copy(update={"curve": tuple((at, 0.7, 0.2) for at, *_ in run.curve)}) for run in found.cells]
    assert "rose for" not in verdict(found.model_copy(update={"cells": tuple(flat)}), found.columns[0])
    asked = found.rows[0].model_copy(update={"sets": ("method.name=uefl", "rounds=6")})
    told = verdict(found.model_copy(update={"rows": (asked, *found.rows[1:])}), found.columns[0])
    assert " uefl adds rounds by itself (6 asked for, 16 trained). At round 6, " in told
    assert "adds rounds" not in said
    text = " ".join(Page(render(found)).text.split())
    assert "▲ Rounds differ (uefl 16 rounds; fedavg 6 rounds), so methods are not ranked." in text
    assert text.count("Rounds differ (") == 1
    command = "caveat compare digits --out 'my runs'"
    found = found.model_copy(update={"command": command})
    equal = "caveat compare digits --out 'my runs-equal' --match-rounds uefl --seeds 0,1,2,3,4"
    equal += " --methods uefl,fedavg,local"
    page = Page(render(found)).text
    assert command in page
    give = "Give every method 16 rounds, like uefl, and 5 seeds"
    assert "against every other method" not in page
    assert "All pairs" not in page
    assert "against MB" not in page
    assert page.index("Accuracy on validation data") < page.index("Rounds differ, so this is not a ranking.")
    assert page.index(give) < page.index(again(found))
    assert page.index(again(found)) < page.index("2 methods")
    assert "uefl, 16 rounds" in page
    assert "behind uefl" not in page
    assert "corrected p" not in page
    assert "the rank by each metric" not in page
    assert "rank, " not in page
    default = again(found.model_copy(update={"command": "caveat compare digits"}))
    assert default.endswith("--out runs/compare-digits-equal")
    assert sorted(again(found).split()) == sorted(equal.split())


def test_a_contrast_of_unequal_budgets_says_so() -> None:
    contrast = ContrastRecord(claim="x", a="uefl", b="fedavg", margin=0.01, verdict="better")
    assert contrast_verdict(budgeted({"uefl": 6, "fedavg": 6}), contrast) == "uefl is better"
    assert contrast_verdict(budgeted({"uefl": 16, "fedavg": 6}), contrast) == "uefl is better; rounds differ"


def test_equal_budgets_are_not_mentioned() -> None:
    found = budgeted({"uefl": 6, "fedavg": 6})
    assert unequal_budgets(found, found.columns[0]) == ""
    assert "After" not in verdict(found, found.columns[0])
    assert "Rounds differ" not in render(found)
    (pair,) = found.tables[0].pairs
    surely = pair.model_copy(update={"mean": 0.1 if pair.a == "uefl" else -0.1, "p_adjusted": 0.01})
    table = found.tables[0].model_copy(update={"pairs": (surely,)})
    assert pair.p_adjusted is not None
    assert pair.p_adjusted > 0.05
    assert winner(found, found.columns[0], found.measures[0]) == ""
    assert "bold" not in Page(render(found)).text
    assert winner(found.model_copy(update={"tables": (table, *found.tables[1:])}), found.columns[0], found.measures[0])


def test_what_seeds_show_at_equal_rounds_is_said_beside_their_number() -> None:
    found = budgeted({"uefl": 16, "fedavg": 6})
    pair = found.tables[0].pairs[0].model_copy(update={"mean": 0.1, "low": -0.2, "high": 0.4})
    tables = (found.tables[0].model_copy(update={"pairs": (pair,)}), *found.tables[1:])
    step, more = next_steps(found.model_copy(update={"tables": tables}))[0], half_width(0.3, 2, 5)
    told = f"With 2 seeds, only differences between {pair.a} and {pair.b} above about 30 points can "
    told += "be detected; with 5, differences above "
    shown = f"{float(f'{100 * more:.1g}'):g}"
    assert step.partition(" (")[0].startswith("Give every method 16 rounds, like uefl, and 5 seeds")
    assert step.endswith(f"{told}roughly {shown} points, if seeds vary as they do here.")
    rows = [row.model_copy(update={"seeds": 5}) for row in tables[0].rows]
    many = (tables[0].model_copy(update={"rows": tuple(rows)}), *tables[1:])
    step = next_steps(found.model_copy(update={"tables": many}))[0]
    assert step.endswith(
        f"With 5 seeds, only differences between {pair.a} and {pair.b} above about 30 points can be detected."
    )
    assert step.startswith("Give every method 16 rounds, like uefl")
    assert "like uefl," not in step
    bare = (found.tables[0].model_copy(update={"pairs": ()}), *found.tables[1:])
    step = next_steps(found.model_copy(update={"tables": bare}))[0]
    assert step.startswith("Give every method 16 rounds, like uefl, before you compare them")


@pytest.mark.parametrize("gain", [0.0, 0.1])
def test_that_local_models_send_nothing_is_said_in_one_place(gain: float) -> None:
    content = with_majority(0.519, ditto=0.9, fedavg=0.8, local=0.53).model_dump(by_alias=True)
    for cell in content["cells"]:
        cell |= {"bytes_up": 0, "curve": [(at, 0.5 + gain * at, None) for at in range(1, 7)]}
    record = Comparison.model_validate(content)
    (setting,) = record.columns
    assert ("; with local, silos send nothing." in verdict(record, setting)) == (gain == 0)
    assert any("with which silos send nothing" in step for step in next_steps(record)) == (gain > 0)


def test_methods_of_equal_budgets_are_compared_beside_those_that_are_not() -> None:
    found = budgeted({"uefl": 16, "fedavg": 6})
    pair = (
        found.tables[0]
        .pairs[0]
        .model_copy(
            update={"a": "fedavg", "b": "ditto", "mean": -0.33, "low": -0.53, "high": -0.13, "p_adjusted": 0.019}
        )
    )
    cells = (*found.cells, *(run.model_copy(update={"row": "ditto"}) for run in found.cells if run.row == "fedavg"))
    table = found.tables[0].model_copy(update={"pairs": (pair,)})
    known = found.model_copy(
        update={
            "cells": cells,
            "tables": (table,),
            "rows": (*found.rows, found.rows[0].model_copy(update={"name": "ditto"})),
        }
    )
    said = verdict(known, known.columns[0])
    told = "On test data, at 6 rounds each, ditto is ahead of fedavg by 33.0 points of accuracy (simultaneous 95 % "
    assert said.endswith(f"{told}interval 13.0 to 53.0).")
    other = table.model_copy(update={"pairs": (pair.model_copy(update={"b": "uefl"}),)})
    assert "On test data" not in verdict(known.model_copy(update={"tables": (other,)}), known.columns[0])


def test_without_a_common_round_nobody_leads_there() -> None:
    found = budgeted({"uefl": 16, "fedavg": 6})
    bare = tuple(run.model_copy(update={"curve": ()}) if run.row == "fedavg" else run for run in found.cells)
    told = verdict(found.model_copy(update={"cells": bare}), found.columns[0])
    assert "No round has validation metrics of all methods." in told


@pytest.mark.parametrize(("seeds", "shown"), [(2, True), (4, True), (5, False)])
def test_fewer_than_five_seeds_are_dots_of_their_own(seeds: int, shown: bool) -> None:
    found = record(seeds=seeds, paper=False)
    charts, about = headline(found, found.measures[0])
    assert charts[0].drawing.count('class="seed"') == (len(METHODS) * seeds if shown else 0)
    assert ("A small dot is one seed" in about) is shown
    if shown:
        runs = found.runs(found.rows[0], found.columns[0])
        mean = sum(silo.figures["accuracy"] or 0.0 for silo in runs[1].silos) / len(runs[1].silos)
        assert f"uefl, seed 1: {100 * mean:.1f} %" in charts[0].drawing


def test_the_terminal_has_the_verdict_and_what_to_do() -> None:
    found = budgeted({"uefl": 16, "fedavg": 6})
    first, match, control, command = conclusion(found)
    assert first == verdict(found, found.columns[0]).replace("\N{NO-BREAK SPACE}", " ")
    assert match.startswith("→ Give every method 16 rounds, like uefl, ")
    assert control.startswith("→ Add the method local")
    assert command == f"  {again(found)}"
    several = conclusion(record(settings=("mnist", "svhn")))
    assert [line.partition(":")[0] for line in several[:3]] == ["mnist", "svhn", "→ mnist"]


@pytest.mark.parametrize("p", [0.01, 0.2])
def test_metrics_in_which_the_best_method_is_shown_to_be_worse_are_said(p: float) -> None:
    found = budgeted({"uefl": 6, "fedavg": 6})
    tables = []
    for measure, table in zip(found.measures, found.tables, strict=True):
        (pair,) = table.pairs
        sign = 1 if pair.a == "uefl" else -1
        wins = measure.name == "accuracy" or measure.higher is None
        gap = 0.1 * sign * (1 if wins == (measure.higher is not False) else -1)
        known = pair.model_copy(update={"mean": gap, "low": gap - 0.01, "high": gap + 0.01, "p_adjusted": p})
        surely = known.model_copy(update={"p_adjusted": 0.001}) if measure.name == "accuracy" else known
        tables.append(table.model_copy(update={"pairs": (surely,)}))
    said = verdict(found.model_copy(update={"tables": tuple(tables)}), found.columns[0])
    worse = [measure.title for measure in found.measures[1:] if measure.higher is not None]
    assert worse
    told = f" uefl has a worse {worse[0]} than fedavg"
    assert (told in said) == (p == 0.01)
    assert ("(at p < 0.05, corrected for pairs, not for metrics)." in said) == (p == 0.01)
