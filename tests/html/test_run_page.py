"""The report says what the run's files say: no more, no less, and without the network."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import caveat
from fake_run import EXTENSION, SILOS, describe, fake_run, interrupted_run, minimal_run, rewrite, write_json, write_rows
from html_page import Page
from rich.console import Console

from caveat.core import DataError
from caveat.files import natural, read_run
from caveat.files.schema import Codewords, Reliability, RoundRow
from caveat.html.run.page import write_report
from caveat.html.run.rounds import growth, mean_line
from caveat.html.svg import ticks
from caveat.terminal.results import result_table
from caveat.uncertainty.statistical_tests import wilson

SECTIONS = ["overview", "silos", "errors", "training", "details"]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "full")


@pytest.fixture(scope="module")
def full_page(full: Path) -> str:
    return write_report(full).read_text().replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(scope="module")
def minimal_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(minimal_run(tmp_path_factory.mktemp("runs") / "minimal")).read_text()


def sections(page: str) -> list[str | None]:
    return Page(page).sections


def test_the_report_lies_in_the_run_unless_told_otherwise(full: Path, tmp_path: Path) -> None:
    assert write_report(full) == full / "report.html"
    assert write_report(full, tmp_path / "new" / "page.html").read_text() == (full / "report.html").read_text()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]


def test_every_section_of_a_full_run_is_there_in_order(full_page: str) -> None:
    assert sections(full_page) == [name for name in SECTIONS if name != "errors"]


def test_a_section_without_data_is_absent_rather_than_empty(minimal_page: str) -> None:
    assert sections(minimal_page) == ["overview", "silos", "training", "details"]
    words = re.sub(r"<(style|script)>.*?</\1>", "", minimal_page, flags=re.DOTALL)
    for absent in ("None", "nan", "NLL", "ECE", "codeword", "perplexity", "mean entropy", "domain<", "0.000"):
        assert absent not in words


def test_the_page_asks_the_network_for_nothing(full_page: str) -> None:
    assert not re.search(r"https?://|url\(|@import", full_page)
    page = Page(full_page)
    assert not [a for _, a in page.elements if "srcset" in a or not (a.get("href") or "#").startswith("#")]
    assert all((a["src"] or "").startswith("data:image/png;base64,") for a in page.all("img"))
    assert all("src" not in a for a in page.all("script"))
    assert len(full_page.encode()) < 8_000_000


def test_every_figure_has_a_name_and_a_caption(full_page: str) -> None:
    page = Page(full_page)
    drawings = [a for a in page.all("svg") if a.get("aria-hidden") != "true"]
    assert len(drawings) > SILOS
    assert all(a["role"] == "img" and a["aria-label"] for a in drawings)
    assert len(page.all("figure")) == len(page.all("figcaption")) == 6
    assert all(a["alt"] for a in page.all("img"))


def test_the_figures_of_the_summary_stand_in_the_page(full: Path, full_page: str) -> None:
    content = json.loads((full / "summary.json").read_text())
    assert f"{100 * content['mean']['accuracy']:.1f} %" in full_page
    for silo in content["silos"]:
        parts = full_page.split(f'<tr data-name="{silo["name"]}">')[1:]
        row = " ".join(part.split("</tr>")[0] for part in parts)
        assert f">{100 * silo['test']['accuracy']:.1f} %<" in row
        assert f">{silo['test']['entropy']:.3f}<" in row
        assert f">{silo['codewords']['shared']} + {silo['codewords']['private']}<" in row
    for written in ("123 MB", "4.94 MB", "71.2 s", "87.1 %", "539 tokens", "ECE 0.022"):
        assert written in full_page


def test_an_ece_is_flagged_only_above_its_null_band(full_page: str) -> None:
    table = full_page.split('id="silos"')[1].split("</section>")[0]
    flagged = [name for name in re.findall(r'<tr data-name="(.*?)">(.*?)</tr>', table, re.DOTALL) if "flag" in name[1]]
    assert [name for name, _ in flagged] == ["silo-7"]  # chance over nine silos explains the errors of silo-6


def test_growth_of_private_codewords_is_marked_at_its_round(full: Path, full_page: str) -> None:
    assert growth(read_run(full).curve_rows) == {EXTENSION: {"silo-6": 32, "silo-7": 32, "silo-8": 32}}
    assert "Round 20: silo-6 (+32), silo-7 (+32) and silo-8 (+32) received" in full_page
    assert full_page.count(">silo-6, silo-7, silo-8</text>") == 1


def test_codewords_held_from_the_first_row_on_have_not_grown() -> None:
    held = [RoundRow(round=i, split="validation", silo="a", codewords=Codewords(shared=4, private=2)) for i in (1, 2)]
    assert growth(held) == {}


def test_the_boundary_of_shared_and_own_codewords_is_where_the_shared_ones_end(full_page: str) -> None:
    heat = full_page.split('class="heat"')[1].split("</svg>")[0]
    boundary = re.search(r'<line x1="([\d.]+)"[^>]*class="boundary"', heat)
    tracks = {float(x) + float(w) for x, w in re.findall(r'x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*track', heat)}
    assert boundary is not None
    assert float(boundary[1]) == pytest.approx(min(tracks), abs=0.02)  # silos without own words end there
    assert len(tracks) == 2


def test_what_users_name_is_text_and_never_markup(tmp_path: Path) -> None:
    run, attack = fake_run(tmp_path / "run"), "<script>alert(1)</script>\"'&"
    for name in ("summary.json", "gallery.json"):
        rewrite(run / name, (run / name).read_text().replace('"silo-6"', json.dumps(attack)))
    rows = (run / "rounds.jsonl").read_text().replace('"silo-6"', json.dumps(attack))
    rewrite(run / "rounds.jsonl", rows.replace("rotate(0)", "<b>rotate</b>"))
    (run / "config.toml").write_text((run / "config.toml").read_text() + "# </pre><script>alert(2)</script>\n")
    text = write_report(run).read_text()
    assert text.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in text
    assert "# &lt;/pre&gt;&lt;script&gt;alert(2)" in text
    assert "<b>rotate" not in text
    assert {a["data-name"] for a in Page(text).all("tr") if "data-name" in a} >= {attack, "silo-0"}


def test_the_configuration_is_on_the_page_to_the_letter(full: Path, full_page: str) -> None:
    shown = full_page.split('<pre class="config"')[1].split(">", 1)[1].split("</pre>")[0]
    assert shown.replace("&#34;", '"') == (full / "config.toml").read_text()
    assert f" caveat run {full}/config.toml --out NEW " in Page(full_page).text


def test_an_interrupted_run_reports_what_is_there_and_says_so(tmp_path: Path) -> None:
    folder = interrupted_run(tmp_path / "half")
    run, text = read_run(folder), write_report(folder).read_text()
    assert not run.complete
    assert (run.rounds_run, run.rounds_planned, run.split) == (14, 25, "validation")
    assert len(run.rows) == 14 * SILOS  # the torn last line is no row
    assert "stopped after round 14 of 25" in text
    assert "caveat resume half" in text
    assert "Complete" not in text
    assert sections(text) == ["overview", "silos", "training", "details"]


def test_validation_figures_are_never_put_beside_test_figures(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", beside=False)
    interrupted_run(run / "baselines" / "scaffold")
    assert list(read_run(run).baselines) == ["scaffold"]
    assert read_run(run).comparable == {}
    assert "scaffold is not compared" in write_report(run).read_text()


def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not the folder of a run: it contains none of run\.json"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="missing is not a folder"):
        write_report(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("summary.json", lambda text: text.replace('"schema": 1', '"schema": 9'), r"summary\.json: .*schema 9"),
        ("summary.json", lambda text: text[:-5], r"summary\.json: not valid JSON"),
        ("summary.json", lambda text: text.replace('"complete"', '"done"'), r"complete: Field required"),
        ("rounds.jsonl", lambda text: text.replace('{"round": 1,', "{", 1), r"rounds\.jsonl, line 1: round"),
        ("rounds.jsonl", lambda text: "{\n" + text, r"rounds\.jsonl, line 1: not valid JSON"),
        ("run.json", lambda text: text.replace('"spec"', '"settings"', 1), r"run\.json: spec: Field required"),
        ("gallery.json", lambda text: text.replace('"image": "', '"image": "x\\" onload=', 1), r"silos\.0\.certain\.0"),
    ],
)
def test_a_damaged_file_is_named_with_its_place(tmp_path: Path, name: str, change: Any, message: str) -> None:
    run = fake_run(tmp_path / "run", beside=False)
    rewrite(run / name, change((run / name).read_text()))
    with pytest.raises(DataError, match=message):
        write_report(run)
    assert not (run / "report.html").exists()


def test_a_method_beside_that_is_gone_is_missed(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    describe(run, "uefl", spec={"baselines": {"fedavg": {}}})
    assert "without" not in caveat("report", run).stderr
    assert "this comparison was configured" not in (run / "report.html").read_text()
    for gone in ("baselines/fedavg/summary.json", "baselines"):  # its result alone, then all of it
        if (run / gone).is_dir():
            shutil.rmtree(run / gone)
        else:
            (run / gone).unlink()
        done = caveat("report", run)
        assert done.exit_code == 0
        assert f"{run}: baselines missing: fedavg; run them with `caveat resume`\n" in done.stderr
        assert "<strong>Without fedavg</strong>: this comparison was configured" in (run / "report.html").read_text()
    (run / "summary.json").unlink()  # an unfinished one has not come to that yet
    assert "without fedavg" not in caveat("report", run).stderr


def test_what_offers_no_choice_is_no_decision(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", beside=False)
    content = json.loads((run / "summary.json").read_text())
    content |= {"decisions": {"global": 1.0, "abstain": 0.0}, "models": {"global": content["models"]["global"]}}
    for silo in content["silos"]:
        silo["decisions"] = {"global": 1.0, "abstain": 0.0}
    write_json(run / "summary.json", content)
    assert 'id="outcomes"' not in write_report(run).read_text()


def test_figures_that_a_run_does_not_have_are_absent(tmp_path: Path) -> None:
    run = minimal_run(tmp_path / "run")
    content = json.loads((run / "summary.json").read_text())
    content["silos"][0]["test"] |= {"auroc_error": None, "nll": None}
    write_json(run / "summary.json", content)
    text = write_report(run).read_text()
    assert "AUROC" not in text
    assert "NLL" not in text


def test_rows_that_have_left_a_silo_are_counted_on_the_page(tmp_path: Path, full_page: str) -> None:
    run = fake_run(tmp_path / "run", beside=False)
    content = json.loads((run / "summary.json").read_text())
    content["silos"][1] |= {"dropped": {"train": 5, "test": 2}}
    write_json(run / "summary.json", content)
    text = write_report(run).read_text()
    assert "does not unlearn" in text
    assert f"no longer has them: {content['silos'][1]['name']} (train 5, test 2)." in text
    assert "Rows were removed" not in full_page


def cells(run: Path, width: int) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=width)
    console.print(result_table(read_run(run)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return [line.split() for line in lines if line.strip()]


def test_the_terminal_table_has_a_row_per_silo_then_mean_and_worst(full: Path) -> None:
    table = cells(full, 80)
    rows = table[-SILOS - 2 :]
    last = ["silo-8", "rotate(120)", "92.6", "%", "0.180", "85.6", "%"]
    assert rows[SILOS - 1] == last
    assert rows[SILOS] == ["mean", "94.7", "%", "0.150", "87.7", "%"]
    assert rows[SILOS + 1] == ["worst", "silo-8", "92.6", "%", "0.180", "85.6", "%"]
    assert table[1] == ["uefl", "uefl", "fedavg"]


def test_the_terminal_table_leaves_out_what_no_silo_has(tmp_path: Path) -> None:
    run = minimal_run(tmp_path / "run")
    rewrite(run / "summary.json", (run / "summary.json").read_text().replace('"a"', '"[red]a"'))
    table = cells(run, 80)
    assert table[1] == ["silo", "accuracy"]
    assert ["[red]a", "75.0", "%"] in table  # brackets are a name, not markup


def test_curves_show_one_model_and_the_newest_row_of_a_round(tmp_path: Path) -> None:
    run = minimal_run(tmp_path / "run")
    base = {"split": "validation", "silo": "a", "accuracy": 0.5}
    rows = [{**base, "round": i, "model": "global"} for i in (1, 2)]
    rows += [{**base, "round": 2, "model": "local"}, {**base, "round": 2, "model": "global", "accuracy": 0.9}]
    rows += [{**base, "round": 3, "model": "global", "split": "test"}]
    write_rows(run, rows)
    assert [(row.round, row.model, row.accuracy) for row in read_run(run).curve_rows] == [
        (1, "global", 0.5),
        (2, "global", 0.9),
    ]


def test_a_mean_over_silos_is_drawn_only_where_all_silos_are() -> None:
    assert mean_line({"a": [(1, 0.2), (2, 0.4)], "b": [(2, 0.8)]}) == [(2, (0.4 + 0.8) / 2)]


def test_pooled_reliability_is_the_sum_of_the_bins() -> None:
    a = Reliability(count=[2, 0], confidence=[0.5, 0.0], correct=[1, 0])
    b = Reliability(count=[1, 3], confidence=[0.25, 2.5], correct=[0, 3])
    assert a + b == Reliability(count=[3, 3], confidence=[0.75, 2.5], correct=[1, 3])


def test_wilson_interval_has_its_reference_value() -> None:
    # Agresti and Coull 1998: 0 of 10 has the score interval [0, z^2 / (10 + z^2)].
    z = 1.959963984540054
    assert wilson(0, 10) == pytest.approx((0.0, z**2 / (10 + z**2)))
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=2e-4)


def test_ticks_are_round_and_enclose_the_range() -> None:
    assert ticks(0.23, 1.0) == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0, 1.7) == [0, 0.5, 1.0, 1.5, 2.0]
    assert len(ticks(1, 1)) >= 1


def test_names_sort_by_their_numbers() -> None:
    assert sorted(["silo-10", "silo-2", "a-1"], key=natural) == ["a-1", "silo-2", "silo-10"]
