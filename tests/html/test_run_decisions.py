"""The report and the terminal say what was decided about which test inputs, and what came of a promise."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_run import decided_run, fake_run, write_json
from html_page import Page
from rich.console import Console

from caveat.core import DataError
from caveat.files import read_run
from caveat.html.run.guarantee import guarantee_lines, kept
from caveat.html.run.page import write_report
from caveat.terminal.results import model_table
from caveat.uncertainty.statistical_tests import score_interval, wilson


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decided_run(tmp_path_factory.mktemp("runs") / "decided")


@pytest.fixture(scope="module")
def page(decided: Path) -> str:
    return write_report(decided).read_text().replace("\N{NO-BREAK SPACE}", " ")


def change(run: Path, **changes: Any) -> Path:
    content = json.loads((run / "summary.json").read_text()) | changes
    write_json(run / "summary.json", content)
    return run


def rows_of(page: str, header: str) -> list[list[str]]:
    """The cells of the first table that has the header, without their markup."""
    table = next(
        t for t in re.findall(r"<table>.*?</table>", page, re.DOTALL) if re.search(f'scope="col"[^>]*>{header}</th>', t)
    )
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("</tr>")]
    return [
        [re.sub(r"<svg.*?</svg>|<[^>]*>", "", cell).replace("\u00a0", " ").strip() for cell in row]
        for row in rows
        if row
    ]


def test_streams_stand_by_who_predicts_them_on_one_denominator(page: str) -> None:
    header, *rows = rows_of(page, "kind of inputs")
    assert header == ["kind of inputs", "predicted by", "right", "wrong", "abstained", "shares", "inputs"]
    own, other, nobody = "silos' own", "known to other silos only", "known to no silo"
    assert [[each[0].replace("&#39;", "'"), *each[1:-1]] for each in rows] == [
        [own, "local", "90.0 %", "10.0 %", "0.0 %", ""],
        [own, "global", "50.0 %", "50.0 %", "0.0 %", ""],
        [own, "this run", "85.5 %", "4.5 %", "10.0 %", ""],
        [other, "local", "0.0 %", "100.0 %", "0.0 %", ""],
        [other, "global", "50.0 %", "50.0 %", "0.0 %", ""],
        [other, "this run", "42.0 %", "28.0 %", "30.0 %", ""],
        [nobody, "local", "0.0 %", "100.0 %", "0.0 %", ""],  # no answer is right
        [nobody, "global", "0.0 %", "100.0 %", "0.0 %", ""],
        [nobody, "this run", "0.0 %", "20.0 %", "80.0 %", ""],
    ]


def test_scores_are_shown_per_stream_and_ties_flagged(page: str) -> None:
    header, total, vacuity = rows_of(page, "score")
    assert header == ["score", "local AUROC", "switch AUROC", "local FPR95", "switch FPR95"]
    assert total == ["total", "0.875", "0.875", "43.2 %", "43.2 %"]
    assert vacuity == ["vacuity", "\N{BLACK UP-POINTING TRIANGLE} 0.500", "", "100.0 %", ""]
    assert "only known to within 0.250" in page
    for stream, known in (("ood_local", "only other silos know"), ("ood_global", "no silo knows")):
        assert f"How well each score separates inputs that {known} ({stream}) from the silo's own" in Page(page).text


def test_temperatures_are_told(page: str) -> None:
    told = "1.25 for the local model, 0.8 for the global model (those of silos are typically within a factor of 1.11 "
    assert f"{told}of this)" in page


@pytest.mark.parametrize(
    ("answered_accuracy", "verdict", "alarm"),
    [
        (0.95, "compatible with this", False),  # 9 of 180
        (0.88, "missed, by no more than chance explains", True),  # 22 of 180
        (0.86, "doubtful", True),  # 25 of 180
        (0.8, "broken", True),  # 36 of 180
    ],
)
def test_a_promise_stands_beside_what_test_inputs_show(
    tmp_path: Path, answered_accuracy: float, verdict: str, alarm: bool
) -> None:
    pooled = {"accuracy": 0.9, "coverage": 0.9, "answered_accuracy": answered_accuracy}
    run = change(decided_run(tmp_path / "run"), pooled=pooled, streams={})
    wrong = round(180 * (1 - answered_accuracy))
    text = write_report(run).read_text()
    box = text.split('<div class="promise')[1].split("</div>")[0].replace("\N{NO-BREAK SPACE}", " ")
    assert text.index('class="promise') < text.index("<figure>")
    share = f"{100 * wrong / 180:.1f} % ({wrong} of 180)"
    assert f"Promised: at most 10 % errors among answers, at 90 % confidence. Found: {share}." in box
    said = Page(text).text.replace("\N{NO-BREAK SPACE}", " ").partition("Promised:")[0]
    assert (f"Its guarantee of at most 10 % errors among answers is {verdict}." in said) == alarm
    assert box.startswith(" alarm") == alarm
    low, high = (f"{100 * end:.1f} %" for end in wilson(wrong, 180))
    assert f"This error rate (95 % interval {low} to {high}; on calibration inputs, " in box
    assert guarantee_lines(read_run(run)) == [
        "guarantee: answers 90 % of inputs with at most 10 % errors among them",
        f"on test:   90.0 % (180 of 200) answered, {share} wrong",
    ]


def test_that_nothing_can_be_promised_is_said_as_loud(tmp_path: Path) -> None:
    run = decided_run(tmp_path / "run", guaranteed=False)
    text = write_report(run).read_text()
    box = text.split('<div class="promise')[1].split("</div>")[0]
    assert box.startswith(" alarm")
    assert "No share of inputs can be answered." in box
    assert "<table" not in box
    assert guarantee_lines(read_run(run)) == ["guarantee: no share of inputs can be answered"]
    found = json.loads((run / "summary.json").read_text())["guarantee"]
    for share in (1.0, 0.3):  # of 10 %: the level of the test of 68 inputs without an error
        upper = 1 - (0.1 * share) ** (1 / 68)
        change(run, guarantee=found | {"answered": 68, "errors": 0, "needed": 1, "upper": upper})
        (line,) = guarantee_lines(read_run(run))
        level = "(several shares are tested, this one at 97.0 % confidence: at most 5.03 % errors)"
        assert line.removeprefix("guarantee: no share of inputs can be answered").strip() == level * (share < 1)


def test_a_promise_of_which_no_test_input_is_answered(tmp_path: Path) -> None:
    run = change(decided_run(tmp_path / "run"), pooled={"accuracy": 0.9, "coverage": 0.0}, streams={})
    assert "No test input was answered." in write_report(run).read_text()
    assert guarantee_lines(read_run(run))[1] == "on test:   0.0 % (0 of 200) answered, none wrong"


def test_foreign_inputs_that_are_answered_wrongly_stand_in_the_same_box(tmp_path: Path) -> None:
    """A promise that is kept is no green box where inputs that it is not about are answered, and wrong."""
    run = decided_run(tmp_path / "run")
    text = write_report(run).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert text.split('<div class="promise')[1].startswith(" alarm")
    first = "not covered: of those that only other silos know, 28.0 % are answered wrongly; "
    assert f"{first}of those that no silo knows, 20.0 % are answered wrongly" in text
    page = Page(text).text
    assert "of inputs that only other silos know, 28.0 % were answered wrongly" in page
    assert guarantee_lines(read_run(run))[2] == (
        "OOD:       ood_local 70.0 % answered, 28.0 % wrongly; ood_global 20.0 % answered, 20.0 % wrongly; no "
        "guarantee covers these"
    )
    few = json.loads((run / "summary.json").read_text())["streams"]
    for name, answered in (("ood_local", 0.8), ("ood_global", 0.0)):
        few[name]["models"]["switch"]["pooled"] |= {"coverage": 0.08, "answered_accuracy": answered}
    text = write_report(change(run, streams=few)).read_text()
    assert not text.split('<div class="promise')[1].startswith(" alarm")


def test_a_promise_is_judged_by_the_mixture_that_it_was_made_for(tmp_path: Path) -> None:
    """Silo b has 9 times as many calibration inputs as a, and as many test inputs."""
    run = decided_run(tmp_path / "run")
    silos = json.loads((run / "summary.json").read_text())["silos"]
    for silo, n, right in ((silos[0], 50, 0.60), (silos[1], 450, 0.98)):
        silo |= {"n_calibration": n, "test": {"accuracy": right, "coverage": 0.5, "answered_accuracy": right}}
    summary = read_run(change(run, silos=silos, streams={})).summary
    assert summary is not None
    found = kept(summary)
    assert found is not None
    assert (found.wrong, found.answered, found.inputs) == (21, 100, 200)
    assert found.risk == pytest.approx(0.1 * 0.40 + 0.9 * 0.02)
    assert found.effective == pytest.approx((50 * 0.5 + 450 * 0.5) ** 2 / (0.5**2 * 50 + 4.5**2 * 50))
    low, high = score_interval(0.058, found.effective)
    assert found.interval == pytest.approx((low, high))
    text = write_report(run).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "5.8 % (21 of 100, weighted)" in text  # 21 % of the test inputs as they come
    assert not text.split('<div class="promise')[1].startswith(" alarm")
    newcomer = silos[0] | {"name": "new", "newcomer": True}
    with_newcomer = read_run(change(run, silos=[*silos, newcomer])).summary
    assert with_newcomer is not None
    assert kept(with_newcomer) == found


def test_score_interval_of_whole_numbers_is_wilson_s() -> None:
    for hits, count in ((0, 10), (3, 10), (10, 10), (21, 100)):
        assert score_interval(hits / count, count) == pytest.approx(wilson(hits, count), abs=1e-12)


def test_every_silo_s_promise_has_a_row(tmp_path: Path) -> None:
    run = decided_run(tmp_path / "run")
    silos = json.loads((run / "summary.json").read_text())["silos"]
    own = {
        "limit": 0.5,
        "risk": 0.1,
        "confidence_level": 0.9,
        "answered": 90,
        "errors": 3,
        "total": 100,
        "guaranteed": True,
    }
    for silo, right in zip(silos, (0.96, 0.5), strict=True):
        silo |= {"n_calibration": 100, "test": {"accuracy": right, "coverage": 0.5, "answered_accuracy": right}}
        silo["promise"] = own | {
            "whose": "silo",
            "statement": "for this silo by itself",
            "enough": 900,
            "enough_share": 0.8,  # which no test input supports
        }
    change(run, silos=silos, streams={})
    text = write_report(run).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert text.split('<div class="promise')[1].startswith(" alarm")
    header, *rows = rows_of(text, "guarantee of")
    assert header[2:] == ["answered, calibration", "answered, test", "wrong among these"]
    assert "900" not in Page(text).text
    last = ["the silo", "90.0 % (90 of 100)", "50.0 % (50 of 100)"]
    triangle = "\N{BLACK UP-POINTING TRIANGLE} "
    assert rows == [
        ["a", *last, "4.0 % (2 of 50)"],
        ["b", *last, f"{triangle}50.0 % (25 of 50)"],
    ]
    assert guarantee_lines(read_run(run))[1] == (
        "on test:   2 silos have guarantees (2 of their own), and 2 answer under them; there are more errors than "
        "guaranteed, beyond chance over all silos, at b"
    )
    silos[1]["promise"] = own | {"whose": "federation", "statement": "for all silos together"}
    text = write_report(change(run, silos=silos)).read_text()  # which one silo is no test of
    assert not text.split('<div class="promise')[1].startswith(" alarm")
    assert rows_of(text, "guarantee of")[2][1] == "the federation"


def test_the_curve_of_errors_against_answers_ends_where_all_are_answered(page: str) -> None:
    figure = page.split('<p class="title">Errors by share answered</p>')[1].split("</figure>")[0]
    points = re.findall(r"[\d.]+,[\d.]+", figure.split('<polyline points="')[1].split('"')[0])
    assert len(points) == 3
    assert points[-1].startswith("464,")  # the frame's right end
    assert ">guaranteed</text>" in figure
    assert "90.0 % answered, 5.0 % of these wrong" in figure


def test_the_terminal_has_a_line_per_model(decided: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    table = model_table(read_run(decided))
    assert table is not None
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines() if line.strip()]
    assert lines[0][-4:] == ["ind", "ood_local", "mix", "ood_global"]
    assert lines[2:] == [
        ["local", "90.0", "%", "0.0", "%", "45.0", "%", "-"],
        ["global", "50.0", "%", "50.0", "%", "50.0", "%", "-"],
        ["answered", "92.0", "%", "45.0", "%", "68.5", "%", "-"],
        ["oracle", "95.0", "%", "50.0", "%", "72.5", "%", "-"],
        ["of", "those", "answered", "95.0", "%", "60.0", "%", "82.0", "%", "-"],
        ["abstained", "from", "10.0", "%", "30.0", "%", "20.0", "%", "80.0", "%"],
    ]


def test_a_curve_of_two_lengths_is_no_curve(tmp_path: Path) -> None:
    run = change(decided_run(tmp_path / "run"), risk_coverage={"coverage": [0.5, 1.0], "risk": [0.1]})
    with pytest.raises(DataError, match=r"risk_coverage: .*same number of points"):
        write_report(run)


def test_one_model_that_answers_everything_has_no_table_of_models(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", beside=False, method="fedavg")
    models = {"global": {"mean": {"accuracy": 0.9}}}
    change(run, models=models, decisions={"global": 1.0, "local": 0.0, "abstain": 0.0})
    assert model_table(read_run(run)) is None
    assert guarantee_lines(read_run(run)) == []
    text = write_report(run).read_text()
    assert 'id="outcomes"' not in text
    assert 'class="promise' not in text
    change(run, decisions={"global": 0.75, "abstain": 0.25})  # to abstain is told with the guarantee
    assert 'id="outcomes"' not in write_report(run).read_text()


def test_a_run_with_one_stream_shows_it_without_explaining_streams(tmp_path: Path) -> None:
    run = decided_run(tmp_path / "run")
    tested = json.loads((run / "summary.json").read_text())["streams"]
    text = write_report(change(run, streams={"ind": tested["ind"]})).read_text()
    assert {row[0] for row in rows_of(text, "kind of inputs")[1:]} == {"silos&#39; own"}
