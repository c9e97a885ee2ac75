"""What left the silos and who was left out: on the page, on the terminal, and small however long the ledger is."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from fake_ledger import FORMS, SUMS_BYTES, UPDATE_BYTES, federated_run, message, silo_folder, write_lines
from fake_run import minimal_run, rebook, rewrite, write_json
from html_page import Page
from rich.console import Console
from test_run_page import cells, sections

from caveat.core import DataError
from caveat.core.text import plain, ranges
from caveat.files import read_run, read_sent
from caveat.html.run.page import write_report
from caveat.terminal.results import ledger_tables


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federated_run(tmp_path_factory.mktemp("runs") / "federated")


@pytest.fixture(scope="module")
def page(federated: Path) -> str:
    return write_report(federated).read_text()


def rows_of(page: str, section: str, table: int = 0) -> list[list[str]]:
    """The cells of a table of a section, row by row."""
    inside = page.split(f' id="{section}">')[1].split("</section>")[0]
    text = re.findall(r"<table.*?</table>", inside, re.DOTALL)[table]
    return [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        for row in re.findall(r"<tr.*?</tr>", text.replace("\u00a0", " "), re.DOTALL)
    ]


def printed(folder: Path) -> str:
    console = Console(file=io.StringIO(), width=100)
    for table in ledger_tables(folder):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_who_was_left_out_is_kept_apart_from_the_figures(federated: Path) -> None:
    run = read_run(federated)
    assert [row.silo for row in run.rows] == ["a", "b"]
    assert [(row.round, row.split, row.silo) for row in run.left_out] == [
        (2, None, "hill"),
        (3, None, "hill"),
        (4, "test", "hill"),
    ]
    assert run.absent == ["hill"]


def test_a_half_written_run_keeps_who_was_left_out(federated: Path, tmp_path: Path) -> None:
    half = minimal_run(tmp_path / "half")
    (half / "summary.json").unlink()
    lines = (federated / "rounds.jsonl").read_text().splitlines(keepends=True)
    (half / "rounds.jsonl").write_text("".join(lines[:-1]) + lines[-1][:30])
    run = read_run(half)
    assert [row.round for row in run.left_out] == [2, 3]
    assert run.absent == []
    assert 'id="left-out"' in write_report(half).read_text()


def test_a_row_that_is_neither_is_named(tmp_path: Path) -> None:
    run = minimal_run(tmp_path / "run")
    rows = (run / "rounds.jsonl").read_text()
    rewrite(run / "rounds.jsonl", rows + '{"round": 1, "left_out": "no reply in time"}\n')
    with pytest.raises(DataError, match=r"rounds\.jsonl, line 3: silo"):
        read_run(run)


def test_the_page_says_who_was_left_out_when_and_why(page: str) -> None:
    assert sections(page) == ["overview", "silos", "training", "details"]
    assert rows_of(page, "left-out")[1:] == [
        ["hill", "2 to 3", "train", "no reply in time"],
        ["hill", "4", "measure test", "sums/nll is not finite"],
    ]


def test_the_page_and_the_terminal_say_whom_the_figures_are_without(federated: Path, page: str) -> None:
    head = page.split('<section id="silos">')[0]
    assert "<strong>Without hill</strong>" in head
    assert "2 silos of 3 · " in head
    assert "every silo that was present was tested" in head
    title = [word for line in cells(federated, 80)[:2] for word in line]
    assert " ".join(title) == "fedavg, 2 silos, without hill"


def test_a_complete_run_is_without_nobody(tmp_path: Path) -> None:
    text = write_report(minimal_run(tmp_path / "run")).read_text()
    assert "Without" not in text
    assert "every silo was tested" in text


def test_too_many_reasons_are_cut_and_the_frequent_ones_stay(tmp_path: Path) -> None:
    run = minimal_run(tmp_path / "run")
    with (run / "rounds.jsonl").open("a") as file:
        for i in range(1, 2000):
            why = "not connected" if i % 2 else f"model/w has an entry of {i}e9" + "x" * 5000
            file.write(json.dumps({"round": i, "phase": "train", "silo": "b", "left_out": why}) + "\n")
    rebook(run)
    text = write_report(run).read_text()
    rows = rows_of(text, "left-out")[1:]
    assert len(rows) == 60
    assert rows[0] == ["b", "1, 3, 5, 7, 9, 11, 13, 15 and 992 more", "train", "not connected"]
    assert "940 are not" in text  # 999 reasons of their own and the common one, less 60
    assert len(text) < 100_000


def test_the_page_adds_up_what_each_silo_sent(page: str) -> None:
    assert (UPDATE_BYTES, SUMS_BYTES) == (48, 8)
    assert rows_of(page, "ledger") == [
        ["silo", "messages", "rounds", "training", "measuring", "in total"],
        ["a", "9", "4", "192 B", "40 B", "232 B"],
        ["b", "9", "4", "192 B", "40 B", "232 B"],
        ["hill", "4", "2", "96 B", "16 B", "112 B"],
        ["all", "22", "4", "480 B", "96 B", "576 B"],
    ]


def test_the_page_says_what_messages_hold_and_what_they_were_for(page: str) -> None:
    update, validation, test = rows_of(page, "ledger", 1)[1:]
    assert update == ["aaaaaaaaaaaa", "train", "model (3)", "10", "48", "480 B"]
    assert validation == ["bbbbbbbbbbbb", "measure validation", "sums (1)", "10", "8", "80 B"]
    assert test == ["bbbbbbbbbbbb", "measure test", "sums (1)", "2", "8", "16 B"]
    assert rows_of(page, "ledger", 2)[1:] == [
        ["model/0.bias", "2", "float32", "8"],
        ["model/0.weight", "2 x 4", "float32", "32"],
        ["model/steps", "scalar", "int64", "8"],
    ]


def test_the_greeting_is_told_in_a_sentence(page: str) -> None:
    assert "each of 3 silos sent its name, its labels (ill, well); the names of its columns (age, smoker)" in page
    assert "smoker: 3 in total" in page  # no, yes and unknown: each silo has two of them at most
    assert "for each split its size, samples per class and a hash" in page


def test_methods_beside_have_ledgers_of_their_own(federated: Path, tmp_path: Path) -> None:
    run = minimal_run(tmp_path / "run")
    beside = minimal_run(run / "baselines" / "scaffold")
    write_json(beside / "summary.json", json.loads((beside / "summary.json").read_text()) | {"method": "scaffold"})
    for place in (run, beside):
        rewrite(place / "ledger.jsonl", (federated / "ledger.jsonl").read_text())
    text = write_report(run).read_text()
    assert "<summary>scaffold <span>22 messages of 3 silos, 576 B in total</span></summary>" in text
    assert rows_of(text, "ledger") == rows_of(text, "ledger", 4)
    assert "baselines/scaffold: what left 3 silos, in bytes" in printed(run)


def test_what_silos_name_is_text_and_never_markup_or_a_terminal_sequence(tmp_path: Path) -> None:
    run, attack = federated_run(tmp_path / "run"), "\x1b[2J<script>alert(1)</script>\n"
    for name in ("ledger.jsonl", "rounds.jsonl", "federation.json"):
        text = (run / name).read_text()
        for mine in ('"hill"', '"ill"', "model/0.bias", "no reply in time"):
            quotes = '"' * mine.startswith('"')
            text = text.replace(mine, quotes + json.dumps(attack)[1:-1] + quotes)
        rewrite(run / name, text)
    page, shown = write_report(run).read_text(), printed(run)
    assert page.count("<script>") == 1
    assert "\x1b" not in page + shown
    assert r"\x1b[2J&lt;script&gt;alert(1)&lt;/script&gt;\n" in page
    assert r"\x1b[2J<script>alert(1)</script>\n" in shown
    assert Page(page).elements


def test_a_long_ledger_with_many_forms_makes_no_long_page(tmp_path: Path) -> None:
    run = minimal_run(tmp_path / "run")
    tensors = {f"model/{i}": {"shape": [i], "dtype": "float32", "bytes": 4 * i} for i in range(450)}
    lines = [{"form": f"form{i}", "tensors": tensors} for i in range(30)]
    for number in range(1, 101):
        for silo in range(250):
            one = message(f"silo-{silo}", number) | {"form": f"form{silo % 30}", "bytes": 7 * number}
            lines.append(one)
    write_lines(run / "ledger.jsonl", lines)
    text = write_report(run).read_text()
    assert len(text) < 2_000_000
    for said in (
        "25,000 messages of 250 silos",
        "50 more silos are not shown",
        "10 more forms are not shown",
        "50 more tensors are not shown",
    ):
        assert said in text


def test_a_damaged_ledger_is_named_with_its_place_and_half_a_line_is_none(federated: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    lines = (federated / "ledger.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:25])
    sent = read_sent(path)
    assert sent is not None
    assert (sent.total.messages, list(sent.forms)) == (2, list(FORMS))
    path.write_text(lines[0] + lines[2].replace('"bytes": 48', '"bytes": -1'))
    with pytest.raises(DataError, match=r"ledger\.jsonl, line 2: bytes"):
        read_sent(path)
    path.write_text(lines[0])
    assert read_sent(path) is None


def test_the_terminal_lists_every_tensor_then_the_silos(federated: Path) -> None:
    text = printed(federated)
    lines = [line.split() for line in text.splitlines()]
    assert "form aaaaaaaaaaaa, 48 bytes: 10 to train" in text
    assert "form bbbbbbbbbbbb, 8 bytes: 10 to measure validation, 2 to measure test" in text
    assert ["model/0.weight", "2", "x", "4", "float32", "32"] in lines
    assert lines[-4:] == [
        ["a", "9", "4", "192", "40"],
        ["b", "9", "4", "192", "40"],
        ["hill", "4", "2", "96", "16"],
        ["all", "22", "4", "480", "96"],
    ]


def test_a_silo_sees_what_it_has_sent_itself(tmp_path: Path) -> None:
    text = printed(silo_folder(tmp_path / "state" / "0123" / "fedavg"))
    assert "form aaaaaaaaaaaa, 48 bytes: 2 to train" in text
    assert "form bbbbbbbbbbbb, 8 bytes: 1 to measure validation, 1 to measure test" in text
    assert [line.split() for line in text.splitlines()][-1] == ["hill", "4", "96", "16"]
    assert "rounds" not in text


def test_a_folder_without_a_ledger_is_refused_and_those_with_one_are_named(tmp_path: Path) -> None:
    kept = silo_folder(tmp_path / "state" / "0123" / "fedavg")
    with pytest.raises(DataError, match=re.escape(f"these folders have one: {kept}")):
        printed(tmp_path / "state")
    with pytest.raises(DataError, match="expected the folder of a run, or"):
        printed(tmp_path / "missing")
    (tmp_path / "ledger.jsonl").touch()
    with pytest.raises(DataError, match="has no messages yet"):
        printed(tmp_path)


def test_a_page_of_a_run_without_these_files_has_no_such_sections(tmp_path: Path) -> None:
    run = minimal_run(tmp_path / "run")
    write_json(run / "federation.json", {"schema": 1, "sketches": {}, "silos": {}})
    assert sections(write_report(run).read_text()) == ["overview", "silos", "training", "details"]
    assert read_run(run).sent is None


def test_ranges_join_neighbours_and_count_what_is_cut() -> None:
    assert ranges([3, 1, 2, 2, 7, 9, 10], 8) == "1 to 3, 7, 9 to 10"
    assert ranges([1, 2, 4, 6, 7, 8], 1) == "1 to 2 and 4 more"
    assert ranges([], 3) == ""


def test_plain_text_is_on_one_line_and_cut() -> None:
    assert plain("Düsseldorf 7") == "Düsseldorf 7"
    assert plain("a\nb\ud800") == r"a\nb\ud800"
    assert len(plain("x" * 10_000)) == 200
