"""The silos of a run: one table of all or of the worst, whom the federation helps, and the same page for a thousand."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from statistics import pstdev

import pytest
from fake_run import decided_run, fake_run, minimal_run, write_json
from html_page import Page

from caveat.core.text import tick
from caveat.files import RunFolder, read_run
from caveat.html.diagrams import histogram
from caveat.html.run.page import render, write_report
from caveat.html.run.rounds import spread
from caveat.html.run.silo_baselines import differences_to_alone, rows_of
from caveat.html.run.silos import SiloSection, silo_section
from caveat.html.templates import Table
from caveat.terminal.results import result_table, run_conclusion
from caveat.terminal.tables import written
from caveat.uncertainty.statistical_tests import wilson


def section(run: RunFolder) -> SiloSection:
    found = silo_section(run)
    assert found is not None
    return found


def cells(table: Table | None, header: str) -> list[str]:
    assert table is not None
    return next([cell.text for cell in each.cells] for each in table.columns if each.header == header)


def many(folder: Path, count: int, inputs: int = 9) -> Path:
    """Silos of few inputs, whose accuracies differ by chance."""
    fake_run(folder, beside=False, silos=9)
    content = json.loads((folder / "summary.json").read_text())
    first = content["silos"][0]
    del first["codeword_use"]
    content["silos"] = [
        first | {"name": f"silo-{i}", "n_test": inputs, "test": first["test"] | {"accuracy": (6 + i % 4) / 9}}
        for i in range(count)
    ]
    write_json(folder / "summary.json", content)
    return folder


def test_the_worst_silos_come_first_with_mean_and_all_inputs_at_the_end(tmp_path: Path) -> None:
    run = read_run(fake_run(tmp_path / "run"))
    found = section(run)
    names = cells(found.worst, "silo")
    assert names[-2:] == ["mean over silos", "all inputs"]
    accuracies = {silo.name: silo.test.accuracy or 0.0 for silo in run.silos}
    assert [accuracies[name] for name in names[:-2]] == sorted(accuracies.values())
    assert cells(found.worst, "accuracy")[-2] == "94.7 %"
    assert found.rest is None


def test_few_inputs_alone_make_no_silo_one_of_the_worst(tmp_path: Path) -> None:
    folder = many(tmp_path / "run", 3)
    content = json.loads((folder / "summary.json").read_text())
    content["silos"][1] |= {"n_test": 900}
    write_json(folder / "summary.json", content)
    order = [row.silo.name for row in rows_of(read_run(folder))]
    assert order[0] == "silo-1"  # 77.8 % of 900, before 66.7 % of 9


def test_an_interval_is_drawn_where_it_is(tmp_path: Path) -> None:
    run = read_run(fake_run(tmp_path / "run", beside=False))
    bars = cells(section(run).worst, "95 % interval, 80 % to 100 %")
    for row, bar in zip(rows_of(run), bars, strict=False):
        low, high = wilson(round((row.silo.test.accuracy or 0) * 200), 200)
        found = re.search(r'd="M([\d.]+),7L([\d.]+),7" class="whisker"', bar)
        assert found is not None
        ends = [0.8 + 0.2 * (float(x) - 4) / 102 for x in found.groups()]
        assert ends == pytest.approx((low, high), abs=1e-3)


def test_of_forty_silos_ten_are_open_and_of_a_thousand_columns_are_histograms(tmp_path: Path) -> None:
    forty = section(read_run(many(tmp_path / "forty", 40, inputs=90)))
    assert len(cells(forty.worst, "silo")) == 10 + 2
    assert len(cells(forty.rest, "silo")) == 30
    assert forty.histograms == ()
    assert forty.note == ""
    folder = many(tmp_path / "thousand", 1000, inputs=90)
    thousand = section(read_run(folder))
    assert len(cells(thousand.worst, "silo")) == 10 + 2
    assert thousand.rest is thousand.metrics is thousand.helped is None
    rows = list(csv.DictReader(thousand.csv.splitlines()))
    assert len(rows) == 1000
    assert float(rows[0]["accuracy"]) == pytest.approx(6 / 9, abs=1e-3)
    titles = [chart.title for chart in thousand.histograms]
    assert titles[:2] == ["Accuracy", "Confidence less accuracy"]
    assert "Median" in thousand.histograms[0].caption
    bars = re.findall(r"<title>(\d+) silos?</title>", thousand.histograms[0].drawing)
    assert sum(map(int, bars)) == 1000


@pytest.mark.parametrize("silos", [40, 1000])
def test_silos_that_cannot_be_judged_have_no_ranking_but_their_distribution_beside_chance(
    tmp_path: Path, silos: int
) -> None:
    run = read_run(many(tmp_path / "run", silos))
    found = section(run)
    assert found.worst is found.helped is None
    assert found.note.startswith("Single silos cannot be judged, because each has at most 9 test inputs. ")
    names = [f"silo-{i}" for i in range(silos)]
    if silos == 40:
        assert cells(found.rest, "silo") == [*names, "mean over silos", "all inputs"]
    else:
        assert [row["silo"] for row in csv.DictReader(found.csv.splitlines())] == names
    shares = [(6 + i % 4) / 9 for i in range(silos)]
    p = sum(shares) / silos
    spread, chance = 100 * pstdev(shares), 100 * (p * (1 - p) / 9) ** 0.5
    caption = found.histograms[0].caption
    assert all(">silos</text>" in chart.drawing for chart in found.histograms)
    told = f"Standard deviation {spread:.1f} points; if silos differ only by chance (line), it is {chance:.1f}"
    assert told in caption
    page = render(run)
    opened, _, folded = page.partition("Other distributions over silos")
    assert ">Confidence less accuracy</p>" not in opened
    assert ">Confidence less accuracy</p>" in folded
    assert "worst" not in Page(page).text.partition("Silos")[2].partition("Errors")[0].replace("the worst silo", "")


def test_bins_of_silos_with_few_inputs_are_ten_points_wide_or_wider() -> None:
    values = [-0.3, -0.21, 0.0, 0.05, 0.3, 0.37]

    def bars(least: float) -> list[tuple[float, str]]:
        drawn = histogram(values, tick, "x", "points", least=least)
        found = re.findall(r'width="([\d.]+)"[^>]*class="bar"[^>]*><title>(\d+ silos?)</title>', drawn)
        return [(float(width), title) for width, title in found]

    coarse, fine = bars(0.1), bars(0.0)
    assert [width for width, _ in coarse] == pytest.approx([418 / 8 - 1] * len(coarse), abs=0.01)  # from -0.4 to 0.4
    assert [title for _, title in coarse] == ["2 silos", "2 silos", "2 silos"]
    assert len(fine) == 6
    assert {title for _, title in fine} == {"1 silo"}


def test_the_terminal_shows_the_worst_of_many_silos_and_what_to_do(tmp_path: Path) -> None:
    run = read_run(many(tmp_path / "run", 40))
    lines = written(result_table(run), 80).splitlines()
    assert sum(line.startswith("silo-") for line in lines) == 10
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line or len(line) > 80 for line in lines)
    marks = [line[0] for line in run_conclusion(run)]
    assert marks == sorted(marks, key="✗▲✓→".index)
    assert marks[-1] == "→"


def test_pages_are_light(tmp_path: Path) -> None:
    assert len(render(read_run(fake_run(tmp_path / "nine"))).encode()) < 350_000
    page = write_report(many(tmp_path / "thousand", 1000))
    assert page.stat().st_size < 1_500_000


def test_whom_the_federation_helps_has_the_intervals_of_newcombe(tmp_path: Path) -> None:
    """Newcombe (1998), table II, example a: 56 of 70 less 48 of 80 is 0.2, from 0.0524 to 0.3339."""
    folder = minimal_run(tmp_path / "run")
    content, silo_alone = json.loads((folder / "summary.json").read_text()), {}
    for silo, n, mine, theirs in zip(content["silos"], (70, 200), (0.8, 0.9), (0.6, 0.9), strict=True):
        silo |= {"n_test": n, "test": {"accuracy": mine}, "models": {"local": {"accuracy": 0.1}, "global": {}}}
        silo_alone[silo["name"]] = theirs
    write_json(folder / "summary.json", content)
    assert not differences_to_alone(read_run(folder))  # a local model of a federation has not trained alone
    beside = minimal_run(folder / "baselines" / "local")
    content = json.loads((beside / "summary.json").read_text()) | {"method": "local"}
    for silo in content["silos"]:
        silo["test"] = {"accuracy": silo_alone[silo["name"]]}
    write_json(beside / "summary.json", content)
    run = read_run(folder)
    found = differences_to_alone(run)
    (l1, u1), (l2, u2) = wilson(56, 70), wilson(42, 70)
    assert found["a"].low == pytest.approx(0.2 - math.hypot(0.8 - l1, u2 - 0.6))
    assert found["a"].high == pytest.approx(0.2 + math.hypot(u1 - 0.8, 0.6 - l2))
    figure = section(run).helped
    assert figure is not None
    assert "The interval is above 0 at 1 and below 0 at 0 of 2 silos" in figure.caption
    assert figure.drawing.index('data-name="a"') < figure.drawing.index('data-name="b"')
    assert cells(section(run).worst, "gain over training alone")[-2] == "+10.0"


def test_abstentions_are_in_the_table_once(tmp_path: Path) -> None:
    folder = decided_run(tmp_path / "run")
    assert cells(section(read_run(folder)).worst, "abstains")[:2] == ["10.0 %", "10.0 %"]
    content = json.loads((folder / "summary.json").read_text())
    for each in content["silos"]:
        each["test"] |= {"unfamiliar": 0.1, "novel": None, "unsure": None}
    write_json(folder / "summary.json", content)
    worst = section(read_run(folder)).worst
    assert cells(worst, "abstains, with a false alarm")[:2] == ["10.0 %", "10.0 %"]
    assert worst is not None
    assert "abstains" not in [each.header for each in worst.columns]


def test_the_confusion_is_a_map_with_blank_zeros(tmp_path: Path) -> None:
    folder = minimal_run(tmp_path / "run")
    content = json.loads((folder / "summary.json").read_text())
    content |= {"classes": ["ill", "well"], "classification": {"confusion": [[8, 2], [0, 10]]}}
    write_json(folder / "summary.json", content)
    text = render(read_run(folder))
    drawing = text.split('class="matrix"')[1].split("</svg>")[0]
    assert re.findall(r'fill-opacity="([\d.]+)" class="cell (\w+)"', drawing) == [
        ("0.82", "right"), ("0.3", "wrong"), ("1", "right"),
    ]  # fmt: skip
    assert "2 of class ill predicted as well" in drawing
    assert "Most frequent errors: 2 of class ill predicted as well." in Page(text).text
    assert Page(text).sections == ["overview", "silos", "errors", "training", "details"]


def test_a_band_over_rounds_spans_all_of_few_silos_and_80_percent_of_many() -> None:
    few = {str(i): [(1, i / 10)] for i in range(10)}
    assert spread(few) == ([(1, 0.0)], [(1, 0.9)])
    many_silos = {str(i): [(1, i / 100)] for i in range(101)}
    assert spread(many_silos) == ([(1, 0.1)], [(1, 0.9)])
