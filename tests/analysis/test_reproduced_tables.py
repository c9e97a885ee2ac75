"""The papers' tables: that each can be made at every scale, fairly, and that theirs stand beside ours."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from commands import caveat, one_error

from caveat import METHODS, FedPN
from caveat.analysis import reproduced_tables
from caveat.analysis.compare.grid import PlannedRun
from caveat.analysis.compare.runner import compare, opened, write
from caveat.analysis.reproduced_tables import Scale
from caveat.core import ConfigurationError
from caveat.files import read_comparison
from caveat.runs.progress import Silent

TINY = """
title = "A table"
source = "A paper, Table 7"
differs = "Everything is smaller."
claims = [{text = "fedavg > alone", not_tested = "one seed"}]
data = []
recipe = "digits"
minutes = {cpu = 1}
[tuning]
key = "training.lr"
values = [0.001, 0.01]
[cpu]
"rounds" = 1
"model.name" = "mlp"
"data.n_silos" = 3
"training.local_epochs" = 1
[paper]
"rounds" = 100
[[measures]]
name = "accuracy"
figure = "accuracy"
higher = true
percent = true
[[measures]]
name = "of the first model"
path = "models/*/mean/accuracy"
[[columns]]
name = "even"
[[columns]]
name = "skewed"
sets = {"data.partition.scheme" = "dirichlet"}
[[rows]]
name = "FedAvg"
sets = {"method.name" = "fedavg"}
cpu = {"rounds" = 2}
figures = {even = {accuracy = 0.9}}
[[rows]]
name = "alone"
sets = {"method.name" = "local"}
tuning = [0.002, 0.02]
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "tiny.toml").write_text(TINY)
    monkeypatch.setattr(reproduced_tables, "FOLDER", tmp_path / "tables")
    return "tiny"


def test_some_rows_of_a_table_keep_the_contrasts_between_them() -> None:
    whole = reproduced_tables.named("uefl-growth")
    some = reproduced_tables.with_rows(whole, 'Extended, "Static, 96 codewords"')
    assert [row.name for row in some.rows] == ["Extended", "Static, 96 codewords"]
    assert [(each.a, each.b) for each in some.contrasts] == [("Extended", "Static, 96 codewords")]
    for scale in Scale:
        grid = reproduced_tables.grid(some, scale, reproduced_tables.seeds_of(some, None))
        grid.check()
        assert grid.seeds == whole.seeds
    assert reproduced_tables.runs_of(some, None) < reproduced_tables.runs_of(whole, None)


def test_a_claim_whose_contrast_is_left_out_is_told_as_not_tested() -> None:
    whole = reproduced_tables.named("fmlu-weights")
    some = reproduced_tables.with_rows(whole, whole.contrasts[0].a)
    assert not some.contrasts
    assert all(claim.not_tested for claim in some.claims)


def test_a_row_whose_name_has_a_comma_needs_no_quotes_if_it_is_alone() -> None:
    some = reproduced_tables.with_rows(reproduced_tables.named("uefl-growth"), "Static, 96 codewords")
    assert [row.name for row in some.rows] == ["Static, 96 codewords"]
    with pytest.raises(ConfigurationError, match='"Static, 96 codewords"'):
        reproduced_tables.with_rows(reproduced_tables.named("uefl-growth"), "Static, 97 codewords")


@pytest.mark.parametrize("names", ["", "Extended,Extendet"])
def test_an_unknown_row_is_refused_by_name(names: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--rows: uefl-growth has no row '{names.partition(',')[2]}'"):
        reproduced_tables.with_rows(reproduced_tables.named("uefl-growth"), names)


@pytest.mark.parametrize("name", reproduced_tables.tables())
@pytest.mark.parametrize(
    "scale", [pytest.param(each, marks=() if each is Scale.cpu else pytest.mark.long) for each in Scale]
)
def test_every_table_can_be_asked_for_at_every_scale(name: str, scale: Scale) -> None:
    found = reproduced_tables.named(name)
    grid = reproduced_tables.grid(found, scale, reproduced_tables.seeds_of(found, None))
    grid.check()
    assert scale in found.minutes
    assert found.differs
    assert found.claims or found.contrasts or "no verdict" in found.differs
    assert grid.published is not None
    assert any(row.figures for row in found.rows) or not found.claims


@pytest.mark.parametrize("name", reproduced_tables.tables())
def test_every_row_of_a_table_is_tuned_alike_over_three_values_at_least(name: str) -> None:
    grid = reproduced_tables.grid(reproduced_tables.named(name), Scale.cpu, (0,))
    assert {len(grid.values(row)) for row in grid.rows} == {len(grid.values(grid.rows[0]))}
    # The best of two is the first or the last: a third is tried wherever values may be extended.
    extended = grid.tuning is not None and grid.tuning.extensions > 0
    # One value, or the published settings (none), is that of all rows, of which none is chosen.
    assert len(grid.values(grid.rows[0])) + extended >= 3 or len(grid.values(grid.rows[0])) <= 1


def test_tables_answer_as_the_papers_of_their_methods_do() -> None:
    """In the papers of Ditto and APFL, the local model answers, without blending; and only FedPN's models are switched,
    whatever the policy of the table's recipe."""
    policies = {}
    for name in reproduced_tables.tables():
        grid = reproduced_tables.grid(reproduced_tables.named(name), Scale.cpu, (0,))
        for row, column in product(grid.rows, grid.columns):
            config = PlannedRun(row, column, 0, ()).config()
            method = METHODS[config.method.name]
            if method is not FedPN and len(method.models) > 1:
                policies[name, row.name, column.name] = config.uncertainty.policy or method.policy
    assert {("fedpn-paper", name, "MNIST") for name in ("APFL", "FedBABU", "Per-FedAvg")} <= policies.keys()
    assert {place: policy for place, policy in policies.items() if policy != "always"} == {}


def test_a_claim_says_why_it_is_not_tested_or_has_a_contrast(tiny: str) -> None:
    grid = reproduced_tables.grid(reproduced_tables.named(tiny), Scale.cpu, (0,))
    assert grid.published is not None
    assert grid.published.claims == ("fedavg > alone (not tested: one seed)",)
    contrast = '[[contrasts]]\nclaim = "fedavg > alone"\na = "FedAvg"\nb = "alone"\ncolumn = "even"\n'
    for text in (TINY.replace(', not_tested = "one seed"', ""), TINY + contrast):
        (reproduced_tables.FOLDER / "tiny.toml").write_text(text)
        with pytest.raises(
            ValueError, match="claim 'fedavg > alone': expected either a contrast with this claim or not_tested"
        ):
            reproduced_tables.named(tiny)
    (reproduced_tables.FOLDER / "tiny.toml").write_text(TINY.replace(', not_tested = "one seed"', "") + contrast)
    assert reproduced_tables.named(tiny).claims[0].told == "fedavg > alone"


def test_a_table_has_theirs_and_ours_side_by_side(tiny: str, tmp_path: Path) -> None:
    found = reproduced_tables.named(tiny)
    compare(reproduced_tables.grid(found, Scale.cpu, (0,)), tmp_path / "out", 2, Silent())
    record = json.loads((tmp_path / "out" / "comparison.json").read_text())
    (beside,) = record["paper"]["figures"]
    ours = next(row["mean"] for row in record["tables"][0]["rows"] if row["row"] == "FedAvg")
    assert (beside["row"], beside["column"], beside["paper"], beside["ours"]) == ("FedAvg", "even", 0.9, ours)
    assert beside["difference"] == pytest.approx(ours - 0.9)
    assert {cell["rounds"] for cell in record["cells"] if cell["row"] == "FedAvg"} == {2}
    assert {cell["rounds"] for cell in record["cells"] if cell["row"] == "alone"} == {1}
    tried = {cell["row"]: [each["value"] for each in cell["tuning"]] for cell in record["cells"]}
    assert tried == {"FedAvg": [0.001, 0.01], "alone": [0.002, 0.02]}
    first = next(cell for cell in record["cells"] if cell["column"] == "even" and cell["row"] == "FedAvg")
    mean = sum(silo["figures"]["accuracy"] for silo in first["silos"]) / 3
    assert first["figures"]["of the first model"] == pytest.approx(mean)
    assert "[90.0]" in (tmp_path / "out" / "tables.md").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "A paper, Table 7" in page
    assert "Everything is smaller." in page


CONTRASTS = """
seeds = [5, 6, 7]
[[contrasts]]
claim = "FedAvg > alone"
a = "FedAvg"
b = "alone"
column = "even"
margin = 0.02
[[contrasts]]
claim = "in all inputs together"
a = "alone"
b = "FedAvg"
column = "even"
model = "own"
pooled = true
"""


def deciding(tiny: str, monkeypatch: pytest.MonkeyPatch) -> reproduced_tables.PaperTable:
    """The tiny table with contrasts, tuned on a seed that is none of its own."""
    text = TINY.replace("values = [0.001, 0.01]", "values = [0.001, 0.01]\non = [9]\nextensions = 1")
    head, rest = text.split("[tuning]", 1)
    said, parts = CONTRASTS.split("[[contrasts]]", 1)
    then = "[rows.then]\nkey = 'training.weight_decay'\n"
    (reproduced_tables.FOLDER / "tiny.toml").write_text(f"{head}{said}[tuning]{rest}\n{then}"
                                            f"values = [0.0, 0.5]\n[[contrasts]]{parts}")  # fmt: skip
    return reproduced_tables.named(tiny)


@pytest.mark.long
def test_a_table_decides_contrasts_once_all_of_its_seeds_are_there(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = deciding(tiny, monkeypatch)
    assert reproduced_tables.seeds_of(found, None) == (5, 6, 7)
    with pytest.raises(ConfigurationError, match="--seeds 4: tiny tests contrasts with 3 fixed seeds"):
        reproduced_tables.seeds_of(found, 4)
    grid = reproduced_tables.grid(found, Scale.cpu, (5, 6, 7))
    compare(grid, tmp_path / "out", 2, Silent())
    record = read_comparison(tmp_path / "out")
    one, other = record.contrasts
    assert (one.seeds, one.margin, other.model, other.pooled) == (3, 0.02, "own", True)
    # The mean over silos that the table has as well, of other figures.
    means = {row.row: row.mean for row in record.tables[0].rows}
    assert one.mean == pytest.approx((means["FedAvg"] or 0) - (means["alone"] or 0))
    assert one.verdict in ("better", "worse", "equal", "not decided")
    assert one.low is not None
    assert one.high is not None
    assert one.low < (one.mean or 0) < one.high
    # Values are tried on a seed that no place of the table has, and a further one where the best is an end.
    tried = {run.row: [trial.value for trial in run.tuning] for run in record.cells if run.tuning}
    assert [value for value in tried["FedAvg"] if value not in (0.001, 0.01)] in ([0.0003], [0.00033], [0.03])
    assert tried["alone"][-2:] == ["training.weight_decay=0.0", "training.weight_decay=0.5"]
    tuned = next(run.tuned for run in record.cells if run.row == "alone")
    assert set(tuned) == {"training.lr", "training.weight_decay"}
    assert not list((tmp_path / "out").rglob("seed-9.inputs*"))  # tuning has no business with test inputs
    for text in ((tmp_path / "out" / "report.html").read_text(), (tmp_path / "out" / "tables.md").read_text()):
        assert "FedAvg \N{MINUS SIGN} alone (even)" in text
    next((tmp_path / "out" / "runs" / "even").rglob("seed-5.inputs.safetensors")).unlink()
    missing = write(opened(tmp_path / "out"))
    assert "open: 2 seeds done" in missing.read_text()


def test_a_contrast_by_input_and_by_share_of_known_inputs_is_refused() -> None:
    """One of both would have no effect."""
    with pytest.raises(ValueError, match="pooled and known cannot be combined"):
        reproduced_tables.TableContrast(claim="a > b", a="a", b="b", pooled=True, known=0.5)


def test_figures_without_a_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduced_tables, "FOLDER", tmp_path)
    for wrong in (TINY.replace("even = {acc", "odd = {acc"), TINY.replace("even = {accuracy", "even = {speed")):
        (tmp_path / "wrong.toml").write_text(wrong)
        with pytest.raises(ValueError, match="row FedAvg: figures"):
            reproduced_tables.named("wrong")


def test_the_list_says_what_each_table_takes() -> None:
    shown = caveat("reproduce", "--list").stdout
    for name in reproduced_tables.tables():
        assert name in shown


def test_unknown_tables_and_missing_data_are_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAVEAT_DATA", raising=False)
    assert "unknown table; did you mean uefl-main?" in one_error(caveat("reproduce", "uefl-maim"), 2)
    assert "Missing TABLE" in one_error(caveat("reproduce"), 2)
    assert "mnist.npz" in one_error(caveat("reproduce", "uefl-main", "--out", "new"), 3)
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigurationError):
        reproduced_tables.named("nope")
