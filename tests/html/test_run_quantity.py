"""The page of a quantity flags a coverage only beyond the chance of its calibration and its test inputs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_run import describe, write_json
from html_page import Page
from scipy.stats import chi2, chisquare, ncx2, spearmanr, ttest_1samp

from caveat.files import read_run
from caveat.files.schema import RoundRow, SiloRecord
from caveat.html.run.page import render
from caveat.html.run.quantity import _distributions
from caveat.html.run.quantity_silos import _missed, _skew, judged, ranked, uneven


@pytest.mark.parametrize("silos", [1, 10])
def test_a_valid_interval_is_rarely_flagged(silos: int) -> None:
    """Coverage at one silo, given its 50 calibration inputs, is beta distributed around 90 %."""
    random, flagged, runs = np.random.default_rng(0), 0, 400
    for _ in range(runs):
        shares = random.binomial(500, random.beta(46, 5, silos)) / 500
        flagged += any(flag(share, silos) for share in shares)
    assert flagged / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_a_low_coverage_is_flagged() -> None:
    assert flag(0.7, 10)
    assert not flag(0.88, 1)


def flag(coverage: float, silos: int) -> bool:
    test = {"interval_coverage": coverage}
    silo = SiloRecord.model_validate({"name": "a", "n_test": 500, "n_calibration": 50, "test": test})
    return _missed(silo, 0.9, silos)


def quantity_run(folder: Path, errors: list[float], alone: list[float], **more: Any) -> str:
    """The page of a run with these errors by silo, beside training alone and errors of 10 without inputs."""
    for path, method, found in ((folder, "fedavg", errors), (folder / "baselines" / "local", "local", alone)):
        path.mkdir(parents=True)
        describe(path, method)
        tests = [{"mae": mae, "reference_mae": 10.0, "interval_coverage": 0.95, **more} for mae in found]
        silos = [{"name": f"silo {i}", "n_test": 50, "n_calibration": 50, "test": test, "pit": [5.0] * 10}
                 for i, test in enumerate(tests)]  # fmt: skip
        mean = {name: float(np.mean([test[name] for test in tests])) for name in tests[0]}
        target = {"edges": [0.0, 10.0, 20.0], "means": [5.0, 15.0], "shares": [0.5, 0.5], "targets": 100}
        content = {"schema": 1, "method": method, "rounds_run": 1, "complete": True, "silos": silos, "mean": mean}
        write_json(path / "summary.json", content | {"target": target, "intervals": {"coverage": 0.9, "least": 9}})
    observed = [
        {"silo": "silo 0", "observed": [2.0, 3.0], "value": [2.0, 3.0], "low": [None, 1.0], "high": [9.0, None]}
    ]
    write_json(folder / "gallery.json", {"classes": [], "silos": [], "observed": observed})
    return render(read_run(folder))


@pytest.mark.parametrize(
    ("errors", "alone", "said", "unsaid"),
    [
        ([5, 6, 7], [8, 9, 10], "run FILE --silo SILO", "Compare it"),
        ([5, 6, 7], [2.0, 3.1, 3.9], "Use training alone instead", "Predict new"),
        ([5, 6, 7], [1, 6, 9], "training alone has the lower error", "Use training alone"),
        ([5, 6, 11], [8, 9, 12], "Test it on more inputs of silo 2", "Use training alone"),
        ([12, 12, 12], [8, 9, 10], "Do not use this model", "Predict new"),
    ],
)
def test_the_first_screen_says_what_to_do(
    tmp_path: Path, errors: list[float], alone: list[float], said: str, unsaid: str
) -> None:
    first = Page(quantity_run(tmp_path / "run", errors, alone)).text.partition("Silos on their own")[0]
    assert said in first
    assert unsaid not in first


def test_errors_over_rounds_are_drawn(tmp_path: Path) -> None:
    quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10])
    rows = [RoundRow(round=at, phase="train", split="validation", silo="silo 0", mae=60 / at) for at in (1, 2)]
    page = render(replace(read_run(tmp_path / "run"), rows=rows))
    assert "Mean absolute error per round of 1 silos, from 60 to 30 in the mean" in page
    assert "mean: 30 at the end" in page


def test_two_silos_do_not_show_what_chance_explains(tmp_path: Path) -> None:
    text = Page(quantity_run(tmp_path / "run", [5, 6], [8, 9])).text
    assert "absolute error is 3.00 lower than with training alone." in text
    assert "Better than without inputs : mean absolute error is 5.50, without inputs 10.0 (means over silos)." in text
    text = Page(quantity_run(tmp_path / "three", [5, 6, 7], [8, 9, 10])).text
    ends = ttest_1samp([-5, -4, -3], 0).confidence_interval(0.95)
    interval = f"(mean over silos, 95 % interval {ends.low:.2f} to {ends.high:.2f})".replace("-", "\N{MINUS SIGN}")
    better = "Better than without inputs : mean absolute error differs by \N{MINUS SIGN}4.00"
    assert f"{better} {interval}." in text
    alone = "Mean absolute error minus that of training alone is \N{MINUS SIGN}3.00 (95 % interval over silos"
    assert f"{alone} \N{MINUS SIGN}3.00 to \N{MINUS SIGN}3.00), more than chance over silos explains." in text


def test_unbounded_intervals_have_a_line_to_the_edge_and_an_infinite_width(tmp_path: Path) -> None:
    text = quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10])
    assert "48 of 50" in Page(text).text
    assert "95.0 % infinite" in Page(text).text
    (lines,) = re.findall(r'<path d="([^"]*)" class="whisker thin"', text)
    ends = [float(end.split(",")[1]) for end in re.split("[ML]", lines)[1:]]
    assert (ends[0], ends[3]) == (220, 24)  # the lower and the upper edge
    assert all(24 < end < 220 for end in ends[1:3])  # what has an end is not clipped
    assert text.count('<polygon points="') == 2  # an arrow for each interval without an end


@pytest.mark.parametrize("seed", range(30))
def test_verdicts_of_silos_follow_from_their_test_inputs(tmp_path: Path, seed: int) -> None:
    """Only what the interval of the gain, and the coverage beyond chance, show is called better, worse or short."""
    random = np.random.default_rng(seed)
    quantity_run(tmp_path / "run", [5.0, 5.0], [5.0, 5.0])
    content = json.loads((tmp_path / "run/summary.json").read_text())
    observed = []
    for each in content["silos"]:
        y = random.uniform(0, 20, 50)
        value = y + random.normal(0, random.choice([1.0, 6.0, 12.0]), 50)
        each["test"] |= {"mae": float(np.abs(y - value).mean()), "reference_mae": float(np.abs(y - 10).mean())}
        each["test"]["interval_coverage"] = float(random.choice([0.4, 0.86, 0.96]))
        observed.append({"silo": each["name"], "observed": y.tolist(), "value": value.tolist()})
    write_json(tmp_path / "run/summary.json", content)
    write_json(tmp_path / "run/gallery.json", {"classes": [], "silos": [], "observed": observed})
    run = read_run(tmp_path / "run")
    for found, shown in zip(judged(run), observed, strict=True):
        y, value = np.array(shown["observed"]), np.array(shown["value"])
        ends = ttest_1samp(np.abs(y - value) - np.abs(y - 10), 0).confidence_interval(0.95)
        assert found.gain is not None
        assert (found.gain.low, found.gain.high) == (pytest.approx(ends.low), pytest.approx(ends.high))
        said = str(found.verdict.text)
        assert ("better than without" in said and "not shown" not in said) == (ends.high < 0)
        assert ("worse than without" in said) == (ends.low > 0)
        share = found.silo.test.interval_coverage or 0.0
        assert ("short, beyond chance" in said) == (share == 0.4)
        assert ("4.0 points short" in said) == (share == 0.86)
    assert render(run).count("points short)") <= 2


def test_wide_intervals_and_skewed_predictions_are_told(tmp_path: Path) -> None:
    page = Page(quantity_run(tmp_path / "a", [5, 6, 7], [8, 9, 10], interval_width=17.0)).text
    assert (
        "They are hardly narrower than an interval without inputs: 17.0 on average, compared with 18.0 for the central"
        in page
    )
    assert "Do not act on a single prediction" not in page
    assert "Predictions are too" not in page
    page = Page(quantity_run(tmp_path / "c", [5, 6, 7], [8, 9, 10], interval_width=19.0)).text
    assert (
        "They are no narrower than an interval without inputs: 19.0 on average, compared with 18.0 for the central 90"
        in page
    )
    assert "Do not act on a single prediction: intervals are no narrower than those without inputs (below)." in page
    assert "caveat predict" not in page  # nothing shows what its predictions are of use for
    assert re.search(r"Try more rounds with caveat run \S+/c/config.toml --set rounds=2 ", page)
    assert "They are too wide" not in page
    page = Page(quantity_run(tmp_path / "narrow", [5, 6, 7], [8, 9, 10], interval_width=9.0)).text
    assert "Do not act on a single" not in page
    assert "Only to rank" not in page
    assert "ry more rounds" not in page
    assert "Predict new inputs with caveat predict" in page
    page = Page(quantity_run(tmp_path / "chance", [1, 9, 9.5], [8, 9, 10], interval_width=19.0)).text
    assert "Not shown to be better over silos than without inputs" in page
    assert "caveat predict" not in page  # neither single predictions nor means are shown to be of use


@pytest.mark.parametrize(("coverage", "share"), [(1.0, 1.0), (0.96, 1.0), (0.92, 0.9)])
def test_intervals_with_too_many_inputs_beyond_chance_are_too_wide(
    tmp_path: Path, coverage: float, share: float
) -> None:
    """Chance has calibration inputs in it: of 50, five are outside, so a share of about beta(5, 46) of inputs is."""
    page = Page(quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10], interval_coverage=coverage)).text
    random = np.random.default_rng(0)
    missed = random.binomial(50, random.beta(5, 46, (200_000, 3))).sum(1)
    p = float((missed <= round(150 * (1 - coverage))).mean())
    assert ("They are too wide" in page) == (p < 0.05)
    found = re.search(
        r"too wide: they contain (\d+) of 150 inputs, more than chance explains \(p (?:=|<) ([\d.]+), one", page
    )
    if p < 0.05:
        assert found is not None
        assert int(found[1]) == round(150 * coverage)
        assert float(found[2]) == pytest.approx(p, abs=0.003)
        assert ", one-sided; 50 calibration inputs per silo)." in page
    wide = Page(quantity_run(tmp_path / "wide", [5, 6, 7], [8, 9, 10], interval_coverage=coverage, interval_width=19.0))
    more = (
        "They rest on 50 calibration inputs per silo and contain more test inputs than requested: try more calibration "
    )
    assert "Do not act on a single prediction" in wide.text
    assert (f"(below). {more}" in wide.text) == (p < 0.05)


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((9, 6, 7, 8), "was lowest after round 2 (6.00; after the last round, 8.00"),
        ((9, 8, 7, 6), ""),
        ((9, 6, 6.1, 6.2), ""),
    ],
)
def test_a_validation_error_that_has_risen_calls_for_fewer_rounds(
    tmp_path: Path, errors: tuple[float, ...], said: str
) -> None:
    quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10])
    rows = [
        RoundRow(round=at, phase="train", split="validation", silo=f"silo {i}", mae=mae)
        for at, mae in enumerate(errors, 1) for i in range(3)
    ]  # fmt: skip
    page = Page(render(replace(read_run(tmp_path / "run"), rows=rows))).text
    assert ("--set rounds=2 " in page) == bool(said)
    assert ("Train for fewer" in page) == bool(said)
    assert said in page
    steps = page.partition("Silos on their own")[0]
    assert ("Train for fewer rounds with" in steps) == bool(said)
    chance = [
        RoundRow(round=at, phase="train", split="validation", silo=f"silo {i}", mae=mae)
        for at, of in enumerate([(9, 9, 9), (6, 6, 6), (6.1, 7, 9)], 1) for i, mae in enumerate(of)
    ]  # fmt: skip
    page = Page(render(replace(read_run(tmp_path / "run"), rows=chance))).text
    first, _, rest = page.partition("Silos on their own")
    assert "ewer rounds" not in first  # chance explains it: a note below the table, and no step
    assert "Fewer rounds may be as good: try them with" in rest
    assert "no more than chance explains)" in rest
    quantity_run(tmp_path / "wide", [5, 6, 7], [8, 9, 10], interval_width=19.0)
    page = Page(render(replace(read_run(tmp_path / "wide"), rows=chance))).text
    first, _, rest = page.partition("Silos on their own")
    assert "Fewer rounds may be as good: try them with" in first  # no other step says what to try
    assert "ewer rounds" not in rest
    assert "ry more rounds" not in page
    quantity_run(tmp_path / "b", [5, 6, 7], [8, 9, 10], interval_width=9.0)
    content = json.loads((tmp_path / "b/summary.json").read_text())
    content["silos"][1]["pit"] = [1, 1, 1, 1, 2, 4, 8, 10, 10, 12]
    write_json(tmp_path / "b/summary.json", content)
    page = Page(render(read_run(tmp_path / "b"))).text
    assert "They are narrower than an interval without inputs" in page
    told = "Predictions are too low at silo 'silo 1' (on average, its 50 observed values are at the 73 % quantile of "
    assert f"{told}their predicted distributions instead of 50 %, p < 0.001, corrected for 3 silos)." in page
    assert "Expect higher values than predicted at silo 'silo 1'." in page
    for value, said in ((3.0, " (by 2.00 on average over 2 test inputs: observed 5.00, predicted 3.00)"), (6.0, "")):
        observed = [{"silo": "silo 1", "observed": [4.0, 6.0], "value": [value, value]}]
        write_json(tmp_path / "b/gallery.json", {"classes": [], "silos": [], "observed": observed})
        page = Page(render(read_run(tmp_path / "b"))).text
        assert f"Expect higher values than predicted at silo 'silo 1'{said}." in page
    assert "train there alone" not in page


@pytest.mark.parametrize(
    ("errors", "alone"), [([9, 10, 11], [8, 9, 10]), ([5, 6, 7], [2.0, 3.1, 3.9])], ids=["useless", "worse"]
)
@pytest.mark.parametrize("last", [(6, 6, 6), (6.1, 7, 9), (8, 8.01, 7.99)], ids=["least", "chance", "clear"])
def test_no_two_places_of_a_page_ask_for_more_and_for_fewer_rounds(
    tmp_path: Path, errors: list[float], alone: list[float], last: tuple[float, ...]
) -> None:
    quantity_run(tmp_path / "run", errors, alone)
    rows = [
        RoundRow(round=at, phase="train", split="validation", silo=f"silo {i}", mae=mae)
        for at, of in enumerate([(9, 9, 9), (6, 6, 6), last], 1) for i, mae in enumerate(of)
    ]  # fmt: skip
    text = Page(render(replace(read_run(tmp_path / "run"), rows=rows))).text
    first, _, rest = text.partition("Silos on their own")
    useless = "Do not use this model: it is no better than predictions without inputs." in first
    assert useless == (errors[0] == 9)
    assert ("Train for more rounds" in text) == (useless and last[2] == 6)
    assert ("Train for fewer rounds with" in first) == (last[2] == 7.99)
    assert ("Fewer rounds may be as good" in rest) == (last[2] == 9)
    assert "ewer rounds" not in (rest if last[2] == 7.99 else first)


@pytest.mark.parametrize("above", [17, 20, 21, 22, 31])
def test_predictions_are_too_low_where_mean_quantiles_show_it(above: int) -> None:
    """The p-value is about that of 31 uniform quantiles, of a sign test or of bars that lean to one side."""
    spread = np.random.default_rng(0).integers(0, 10, (100_000, 31)) / 10 + 0.05
    pit = [(31 - above) / 5] * 5 + [above / 5] * 5
    mean = sum((i / 10 + 0.05) * count for i, count in enumerate(pit)) / 31
    gaps, gap = abs(spread.mean(1) - 0.5), abs(mean - 0.5)  # in steps of 1 / 310: half of equal ones count
    chance = float(((gaps > gap + 1e-9).mean() + (gaps > gap - 1e-9).mean()) / 2)
    for bars, skew in ((pit, "low"), (pit[::-1], "high")):
        silo = SiloRecord.model_validate({"name": "a", "n_test": 31, "pit": bars})
        for silos in (1, 3):
            shown, p = _skew(silo, silos)
            assert p == pytest.approx(min(1.0, silos * chance), abs=0.02 * silos)
            assert shown == (skew if p < 0.05 else "")
    assert _skew(SiloRecord.model_validate({"name": "a"}), 1) == ("", 1.0)


def test_bars_that_lean_to_one_side_leave_no_verdict_of_no_error(tmp_path: Path) -> None:
    """Their chi-squared test alone has p = 0.058, or is significant, too, and then said."""
    quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10])
    bars = [[5, 3, 1, 1, 1, 1, 2, 3, 2, 4], [5, 8, 4, 1, 2, 4, 1, 4, 3, 2], [1, 2, 1, 4, 4, 2, 0, 3, 5, 9]]
    for last, sign, said in ((bars[2], "low", ""), (sorted(bars[2], reverse=True), "high", ""),
                             ([4, 3, 3, 3, 3, 3, 3, 3, 3, 3], "", "No error of the predicted distributions is shown"),
                             ([0, 0, 0, 0, 0, 0, 2, 4, 9, 16], "low", "distributions are not calibrated")):  # fmt: skip
        content = json.loads((tmp_path / "run/summary.json").read_text())
        for silo, pit in zip(content["silos"], [*bars[:2], last], strict=True):
            silo["pit"] = pit
        write_json(tmp_path / "run/summary.json", content)
        page = Page(render(read_run(tmp_path / "run"))).text
        assert (f"Predictions are too {sign} at silo 'silo 2'" in page) == bool(sign)
        assert ("Expect" in page) == bool(sign)
        assert said in page
        assert ("Intervals are calibrated separately." in page) == bool(said)


@pytest.mark.parametrize(("noise", "shift"), [(2.0, 0.0), (2.0, 8.0), (200.0, 0.0)])
def test_a_use_of_predictions_is_advised_only_if_it_is_shown(tmp_path: Path, noise: float, shift: float) -> None:
    """Intervals as wide as without inputs leave ranks; means are closer than the median only without a shift."""
    random = np.random.default_rng(0)
    quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10], interval_width=19.0)
    observed = []
    for i in range(3):
        y = random.uniform(2 * i, 6 + 2 * i, 30)
        observed.append({"silo": f"silo {i}", "observed": [*y], "value": [*(y + random.normal(0, noise, 30) + shift)]})
    write_json(tmp_path / "run/gallery.json", {"classes": [], "silos": [], "observed": observed})
    found = ranked(read_run(tmp_path / "run"))
    page = Page(render(read_run(tmp_path / "run"))).text
    for each in observed:
        rho = spearmanr(each["observed"], each["value"]).statistic
        assert found.get(each["silo"], rho) == pytest.approx(rho)
        assert (each["silo"] in found) == (noise == 2.0)
    low, high = (f"{end(found.values()):.2f}" if found else "" for end in (min, max))
    assert ("Only to rank a silo's inputs, predict new inputs with caveat predict" in page) == (noise == 2.0)
    assert (f": the rank correlation with observed values is {low} to {high}" in page) == (noise == 2.0)
    worse = ". Do not use the mean of predictions to forecast a silo's mean: it is off by "
    means = [(np.mean(each["observed"]), np.mean(each["value"])) for each in observed]
    own, median = (np.mean([abs(y - other) for y, other in pairs]) for pairs in (means, [(y, 10) for y, _ in means]))
    assert (own >= median) == (shift == 8.0 or noise == 200.0)
    assert (f"{worse}{own:#.3g}, the median of training targets by {median:#.3g} (means" in page) == (shift == 8.0)
    assert (worse in page) == (shift == 8.0)
    content = json.loads((tmp_path / "run/summary.json").read_text())
    write_json(tmp_path / "run/summary.json", content | {"target": None})  # nothing is said of an unknown median
    assert worse not in Page(render(read_run(tmp_path / "run"))).text


def test_the_headline_has_the_interval_and_the_unit_of_its_error(tmp_path: Path) -> None:
    quantity_run(tmp_path / "run", [5, 6], [8, 9])
    assert "95 % interval" not in Page(render(read_run(tmp_path / "run"))).text.partition("on average")[2][:30]
    y, errors = np.zeros(50), np.random.default_rng(0).exponential(5, (2, 50))
    observed = [{"silo": f"silo {i}", "observed": [*y], "value": [*each]} for i, each in enumerate(errors)]
    write_json(tmp_path / "run/gallery.json", {"classes": [], "silos": [], "observed": observed})
    half = 1.96 * (errors.var(1, ddof=1) / 50).sum() ** 0.5 / 2
    page = Page(render(read_run(tmp_path / "run"))).text
    assert (
        f"is off by 5.50 on average (mean absolute error, mean over 2 silos with 100 test inputs; 95 % interval over "
        f"inputs {5.5 - half:.3g} to {5.5 + half:.3g}); the median of all training targets is off by 10.0" in page
    )
    assert "Of training values of the target, 80 % are 2.00 to 18.0 (median 10.0)." in page
    about = json.loads((tmp_path / "run/run.json").read_text())
    about["spec"]["data"]["target"] = "days"
    for folder in (tmp_path / "run", tmp_path / "run/baselines/local"):
        write_json(folder / "run.json", about | {"spec": about["spec"] | {"method": spec_method(folder)}})
    assert (
        "Of training values of days, 80 % are 2.00 to 18.0 (median 10.0)."
        in Page(render(read_run(tmp_path / "run"))).text
    )
    content = json.loads((tmp_path / "run/summary.json").read_text())
    for key, said in (("declared", "The declared range of days is 0.00 to 20.0."),
                      ("standardized", "Errors are in the unit of days.")):  # fmt: skip
        write_json(tmp_path / "run/summary.json", content | {"target": content["target"] | {key: True}})
        page = Page(render(read_run(tmp_path / "run"))).text
        assert said in page
        assert "Of training values" not in page


def spec_method(folder: Path) -> Any:
    return json.loads((folder / "run.json").read_text())["spec"]["method"]


@pytest.mark.parametrize("seed", range(8))
def test_distributions_are_tested_by_all_bars_of_calibration(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    wide = seed % 4 == 0
    counts = [random.multinomial(n, [0.02, 0.18] * 5 if wide else [0.1] * 10) for n in (40, 60, 19)]
    silos = [SiloRecord.model_validate({"name": f"s{i}", "pit": each.tolist()}) for i, each in enumerate(counts)]
    tests = [chisquare(each) for each in counts[:2]]  # the last has fewer than two inputs per bar
    p, most, inputs, freedom = uneven(silos) or (0.0, "", 0, 0)
    assert (inputs, freedom) == (100, 18)
    assert p == pytest.approx(chi2.sf(sum(each.statistic for each in tests), 18))
    assert most == f"s{int(np.argmin([each.pvalue for each in tests]))}"
    quantity_run(tmp_path / "run", [5, 6, 7], [8, 9, 10])
    content = json.loads((tmp_path / "run/summary.json").read_text())
    for silo, each in zip(content["silos"], counts, strict=True):
        silo["pit"] = each.tolist()
    write_json(tmp_path / "run/summary.json", content)
    page = Page(render(read_run(tmp_path / "run"))).text
    off = "Predicted distributions are not calibrated"
    head = off if p < 0.05 else "No error of the predicted distributions is shown"
    told = f"{head} (chi-squared test of the bars of calibration below, p (=|<) [0-9.]+; most uneven at silo 'silo "
    assert re.search(re.escape(told).replace(re.escape("(=|<) [0-9.]+"), "(=|<) [0-9.]+") + f"{most[1]}'", page)
    assert "Intervals are calibrated separately." in page
    assert (off in page) == (p < 0.05)
    assert uneven(silos[2:]) is None


@pytest.mark.parametrize(("bars", "kind"), [([40] * 10, "good"), ([39] * 10, "unknown"), ([28, 52] * 5, "open"),
                                            ([32, 47] * 5, "unknown"), ([35, 45] * 5, "good")])  # fmt: skip
def test_calibrated_distributions_are_found_only_with_enough_inputs(bars: list[int], kind: str) -> None:
    """From 393 inputs on, the test detects deviations of a fifth; counts of 32 and 47 have p = 0.11."""
    p = float(chisquare(bars).pvalue)
    assert (p < 0.05) == (kind == "open")
    found = _distributions(*(uneven([SiloRecord.model_validate({"name": "a", "pit": bars})]) or (0.0, "", 0.0, 0)))
    assert found.kind == kind
    head = {"good": "was found", "unknown": "is shown", "open": "are not calibrated"}[kind]
    assert head in found.text


@pytest.mark.parametrize(("each", "kind"), [(8, "unknown"), (14, "unknown"), (15, "good")])
def test_the_test_of_distributions_of_several_silos_has_less_power(each: int, kind: str) -> None:
    """With 45 degrees of freedom it detects deviations of a fifth from 723 inputs on, with a probability of 80 %."""
    silos = [SiloRecord.model_validate({"name": name, "pit": [each, each] * 5}) for name in "abcde"]
    p, most, inputs, freedom = uneven(silos) or (0.0, "", 0.0, 0)
    assert (inputs, freedom) == (50 * each, 45)
    assert _distributions(p, most, inputs, freedom).kind == kind
    power = ncx2.sf(chi2.isf(0.05, freedom), freedom, inputs * 0.2**2)
    assert (power >= 0.8) == (kind == "good")
