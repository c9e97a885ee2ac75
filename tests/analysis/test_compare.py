"""Comparisons: what they run, what they make of it, and that neither failures nor interruptions lose anything."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from commands import caveat
from fake_run import write_json

from caveat.analysis.compare import runner
from caveat.analysis.compare.build_record import comparison_of
from caveat.analysis.compare.compared_run import FinishedRun, looked_up
from caveat.analysis.compare.expected_times import plan_table
from caveat.analysis.compare.folder import ComparisonFolder
from caveat.analysis.compare.grid import Grid, PlannedRun, asked, slug, swept
from caveat.analysis.compare.result_tables import markdown
from caveat.analysis.compare.runner import compare, grid_of, opened, write
from caveat.analysis.compare.tuning import KILLED
from caveat.config import load
from caveat.core import ConfigurationError, DataError, RunError
from caveat.files import read_payload
from caveat.files.schema import Measure, MethodVariant, Setting, TuningPlan, as_json
from caveat.runs.progress import Silent

FAST = (
    "model.name=mlp", "model.hidden=16", "rounds=2", "training.local_epochs=1", "uncertainty.mc_samples=2",
    "data.n_silos=3", "data.samples_per_silo=80",
)  # fmt: skip
TIMES = {"seconds"}


FINISHED = {"schema": 1, "method": "x", "rounds_run": 2, "complete": True, "silos": []}


def small(
    *rows: MethodVariant, seeds: tuple[int, ...] = (0, 1), tuning: TuningPlan | None = None, match_rounds: str = ""
) -> Grid:
    return Grid("small", rows, (Setting("", None, FAST),), seeds, tuning, match_rounds)


FEDAVG, LOCAL = MethodVariant("fedavg", ("method.name=fedavg",)), MethodVariant("alone", ("method.name=local",))
UEFL = MethodVariant("uefl", ("method.name=uefl", "method.codewords=4", "method.iterations=2", "method.extra_rounds=1",
                    "method.threshold=0", "method.margin=0"))  # fmt: skip


def without_times(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: without_times(value) for key, value in record.items() if key not in TIMES}
    return [without_times(each) for each in record] if isinstance(record, list) else record


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "grid"
    compare(small(FEDAVG, LOCAL), folder, 2, Silent())
    return folder


def test_a_report_of_a_comparison_without_one_of_its_runs_keeps_the_results(compared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    shutil.copytree(compared, folder)
    before = (folder / "comparison.json").read_bytes()
    removed = next(path.parent for path in sorted(folder.rglob("summary.json")))
    shutil.move(removed, tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"results of a run that was removed: \w+, seed 0; restore the run"):
        opened(folder)
    assert (folder / "comparison.json").read_bytes() == before
    shutil.move(tmp_path / "elsewhere", removed)
    write(opened(folder))
    assert (folder / "comparison.json").read_bytes() == before


def test_a_grid_that_was_changed_is_not_believed(compared: Path, tmp_path: Path) -> None:
    text = (compared / "grid.json").read_text()
    for changed in (text.replace('"seeds": [\n  0,', '"seeds": [\n  3,'), re.sub(r',\s+"sha256": ".*"', "", text)):
        assert changed != text
        (tmp_path / "grid.json").write_text(changed)
        with pytest.raises(DataError, match=r"grid\.json: its (content|checksum) .* damaged or was edited"):
            grid_of(tmp_path)


def test_tables_are_means_of_the_runs_summaries(compared: Path) -> None:
    record = json.loads((compared / "comparison.json").read_text())
    for row in ("fedavg", "alone"):
        means, worst = [], []
        for seed in (0, 1):
            summary = json.loads((compared / "runs" / row / f"seed-{seed}" / "summary.json").read_text())
            means.append(summary["mean"]["accuracy"])
            worst.append(summary["worst"]["accuracy"])
        shown = next(each for each in record["tables"][0]["rows"] if each["row"] == row)
        assert shown["mean"] == pytest.approx(sum(means) / 2)
        assert shown["worst"] == pytest.approx(sum(worst) / 2)
        assert shown["low"] < shown["mean"] < shown["high"]
    (pair,) = record["tables"][0]["pairs"]
    rows = {each["row"]: each["mean"] for each in record["tables"][0]["rows"]}
    assert pair["mean"] == pytest.approx(rows[pair["a"]] - rows[pair["b"]])
    assert pair["p_adjusted"] == pytest.approx(pair["p"])


def test_runs_keep_what_test_inputs_contribute(compared: Path) -> None:
    record = json.loads((compared / "comparison.json").read_text())
    assert record["tables"][0]["inputs_sampled"]
    for row, seed in itertools.product(("fedavg", "alone"), (0, 1)):
        summary = json.loads((compared / "runs" / row / f"seed-{seed}" / "summary.json").read_text())
        kept = read_payload(compared / "runs" / row / f"seed-{seed}.inputs.safetensors")
        ids = [each["input"] for each in kept.values()]
        assert len(torch.cat(ids).unique()) == sum(map(len, ids))  # one source: no input is at two silos
        for silo in summary["silos"]:
            for figure in ("accuracy", "nll", "ece", "entropy", "brier"):
                assert float(kept[silo["name"]][f"own/{figure}"].double().mean()) == pytest.approx(
                    silo["test"][figure], abs=1e-5
                )


def test_every_cell_tells_what_it_cost(compared: Path) -> None:
    cells = json.loads((compared / "comparison.json").read_text())["cells"]
    assert len(cells) == 4
    for cell in cells:
        assert cell["status"] == "done"
        assert cell["rounds"] == 2
        assert cell["seconds"] > 0
        assert (cell["bytes_up"] > 0) == (cell["row"] == "fedavg")
        assert [point[0] for point in cell["curve"]] == [1, 2]


def test_methods_are_compared_on_the_same_splits(compared: Path) -> None:
    splits = {
        seed: {(compared / "runs" / row / f"seed-{seed}" / "splits.json").read_text() for row in ("fedavg", "alone")}
        for seed in (0, 1)
    }
    assert [len(each) for each in splits.values()] == [1, 1]
    assert splits[0] != splits[1]


def test_each_run_is_a_run_like_any_other(compared: Path, tmp_path: Path) -> None:
    from caveat.config import load
    from caveat.runs.start import start

    config = load(None, [*FAST, "method.name=fedavg", "seed=1", "baselines=[]", "engine.workers=1"])
    single = start(config, tmp_path / "single")
    of_grid = compared / "runs" / "fedavg" / "seed-1"
    for file in ("rounds.jsonl", "splits.json", "model/model.safetensors", "config.toml"):
        assert (single / file).read_bytes() == (of_grid / file).read_bytes(), file


def test_the_same_again_runs_nothing_and_more_seeds_only_those(compared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (compared / "runs").rglob("summary.json")}
    page = compared / "runs" / "alone" / "seed-0" / "report.html"
    page.unlink()  # as if somebody had stopped the comparison just before it was written
    compare(small(FEDAVG, LOCAL, seeds=(0, 1, 2)), compared, 2, Silent())
    assert page.exists()
    after = {path: path.stat().st_mtime_ns for path in (compared / "runs").rglob("summary.json")}
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 2
    assert grid_of(compared).seeds == (0, 1, 2)
    (compared / "comparison.json").unlink()
    write(opened(compared))
    assert json.loads((compared / "comparison.json").read_text()) == json.loads(
        json.dumps(as_json(comparison_of(opened(compared))))
    )


def test_a_plan_counts_the_missing_runs_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    compare(small(FEDAVG, seeds=(0,)), folder, 1, Silent())
    before = sorted(folder.rglob("*"))
    table = plan_table(small(FEDAVG, LOCAL), folder, 2)
    rows, missing, times = ([str(cell) for cell in column.cells] for column in table.columns)
    assert (rows, missing) == (["fedavg", "alone", "all"], ["1", "2", "3"])
    assert all(float(each.split()[0]) > 0 for each in times)
    assert sorted(folder.rglob("*")) == before
    tuned = small(FEDAVG, tuning=TuningPlan("training.lr", (1e-9, 0.01)))
    assert ComparisonFolder(tuned, tmp_path / "new").missing(FEDAVG, tuned.columns[0]) == 2 + 1  # trials, other seed
    with pytest.raises(ConfigurationError, match="with other settings"):
        plan_table(small(replace(FEDAVG, sets=("method.name=fedavg", "rounds=3"))), folder, 2)
    with pytest.raises(ConfigurationError, match="is not a comparison"):
        plan_table(small(FEDAVG), tmp_path, 2)


def test_other_settings_do_not_mix_with_what_is_there(compared: Path) -> None:
    other = MethodVariant("fedavg", ("method.name=fedavg", "training.lr=0.5"))
    before = (compared / "comparison.json").read_bytes()
    with pytest.raises(ConfigurationError, match=r"seed-0 has a run of fedavg with other settings: training\.lr"):
        compare(small(other, LOCAL), compared, 1, Silent())
    assert (compared / "comparison.json").read_bytes() == before
    with pytest.raises(ConfigurationError, match="is not a comparison"):
        compare(small(FEDAVG), compared / "runs", 1, Silent())


def test_runs_of_a_grid_that_was_changed_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    compare(small(FEDAVG, seeds=(0,)), folder, 1, Silent())
    with pytest.raises(ConfigurationError, match=r"other settings: rounds = 2, now 3"):
        compare(small(FEDAVG, UEFL, seeds=(0,), match_rounds="uefl"), folder, 1, Silent())


def test_runs_on_other_data_are_not_compared(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "copy")
    splits = tmp_path / "copy" / "runs" / "alone" / "seed-0" / "splits.json"
    splits.write_text(splits.read_text().replace('"domain"', '"other"', 1))
    with pytest.raises(DataError, match=r"splits\.json differs from what was written"):
        comparison_of(ComparisonFolder(small(FEDAVG, LOCAL), tmp_path / "copy"))


@pytest.mark.parametrize("name", ["summary.json", "rounds.jsonl"])
def test_files_of_another_run_are_refused(compared: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(compared, tmp_path / "copy")
    mine, theirs = (tmp_path / "copy" / "runs" / "alone" / f"seed-{seed}" / name for seed in (0, 1))
    mine.write_bytes(theirs.read_bytes())
    with pytest.raises(DataError, match="differs from what was written"):
        comparison_of(ComparisonFolder(small(FEDAVG, LOCAL), tmp_path / "copy"))


def test_one_command_at_a_time_in_a_folder(compared: Path) -> None:
    hold = "import sys; from pathlib import Path; from caveat.files.locks import locked\n"
    hold += "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(compared / "runs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="is being run by another process"):
            compare(small(FEDAVG, LOCAL), compared, 1, Silent())
        other.communicate("")


def test_a_failed_run_is_shown_with_its_error_and_takes_no_other_along(tmp_path: Path) -> None:
    diverging = MethodVariant("diverging", ("method.name=fedavg", "training.lr=1e30"))
    compare(small(FEDAVG, diverging, seeds=(0,)), tmp_path / "grid", 2, Silent())
    record = json.loads((tmp_path / "grid" / "comparison.json").read_text())
    good, bad = record["cells"]
    assert good["status"] == "done"
    assert bad["status"] == "failed"
    assert "finite" in bad["error"]
    rows = {each["row"]: each for each in record["tables"][0]["rows"]}
    assert rows["diverging"]["failed"] == 1
    assert rows["diverging"].get("mean") is None
    assert rows["fedavg"]["failed"] == 0
    page = (tmp_path / "grid" / "report.html").read_text()
    assert "finite" in page
    assert "diverging" in page


def test_tuning_keeps_what_is_best_on_validation_data(tmp_path: Path) -> None:
    grid = small(
        FEDAVG,
        MethodVariant("slow", ("method.name=fedavg",), (1e-9, 1e-8)),
        tuning=TuningPlan("training.lr", (1e-9, 0.01)),
    )
    compare(grid, tmp_path / "grid", 2, Silent())
    results = ComparisonFolder(grid, tmp_path / "grid")
    assert results.chosen(grid.rows[0], grid.columns[0]) == ("training.lr=0.01",)
    record = json.loads((tmp_path / "grid" / "comparison.json").read_text())
    tried = [cell for cell in record["cells"] if cell["tuning"]]
    assert [len(cell["tuning"]) for cell in tried] == [2, 2]
    for cell in tried:
        scores = [each["score"] for each in cell["tuning"]]
        assert (
            max(scores) == scores[[each["value"] for each in cell["tuning"]].index(float(cell["tuned"]["training.lr"]))]
        )
    runs = list((tmp_path / "grid" / "runs").rglob("summary.json"))
    assert len(runs) == 2 * (2 + 1)  # two tried on the first seed, one on the other
    trial = grid.tried(grid.rows[0], grid.columns[0])[1]
    (results.place(trial) / "summary.json").unlink()
    for note, chosen in ((f"{KILLED} with status -9", None), ("the loss is not finite", ("training.lr=1e-09",))):
        results.note_of_failure(trial).write_text(note)
        assert ComparisonFolder(grid, tmp_path / "grid").chosen(grid.rows[0], grid.columns[0]) == chosen
    record = comparison_of(ComparisonFolder(grid, tmp_path / "grid"))
    assert "- fedavg, tuning, 0.01: failed: the loss is not finite" in markdown(record)


def test_tuning_on_several_seeds_takes_the_best_mean_over_them(tmp_path: Path) -> None:
    grid = small(FEDAVG, seeds=(0, 1, 2), tuning=TuningPlan("training.lr", (0.1, 0.01), seeds=2))
    accuracies = {"0.1": (0.9, 0.2, None), "0.01": (0.6, 0.7, 0.5)}
    results = ComparisonFolder(grid, tmp_path)
    for value, found in accuracies.items():
        for seed, accuracy in enumerate(found):
            place = results.place(PlannedRun(FEDAVG, grid.columns[0], seed, (f"training.lr={value}",)))
            if accuracy is not None:
                place.mkdir(parents=True)
                row = {"round": 2, "split": "validation", "silo": "a", "accuracy": accuracy, "nll": 1}
                (place / "rounds.jsonl").write_text(json.dumps(row) + "\n")
                write_json(place / "summary.json", FINISHED)
    assert results.total() == len(results.known()) == 5
    assert results.chosen(FEDAVG, grid.columns[0]) == ("training.lr=0.01",)
    trials = [results.tuning.score(cells) for _, cells in grid.trials(FEDAVG, grid.columns[0])]
    assert trials == [pytest.approx((0.55, -1)), pytest.approx((0.65, -1))]
    failing = results.place(grid.tried(FEDAVG, grid.columns[0])[2])
    (failing / "summary.json").unlink()
    failing.with_name("seed-0.failed").write_text("the loss is not finite")
    assert ComparisonFolder(grid, tmp_path).chosen(FEDAVG, grid.columns[0]) == ("training.lr=0.1",)


def test_tuning_looks_at_the_model_that_it_is_told_to(tmp_path: Path) -> None:
    rows = [
        {"round": 1, "split": "validation", "silo": "a", "model": "switch", "accuracy": 0.5, "nll": 1},
        {"round": 2, "split": "test", "silo": "a", "model": "global", "accuracy": 0.1, "nll": 1},
        {"round": 2, "split": "validation", "silo": "b", "left_out": "late"},
        *({"round": 2, "split": "validation", "silo": silo, "model": model, "accuracy": accuracy, "nll": 2 * accuracy}
          for silo, model, accuracy in (("a", "switch", 0.6), ("a", "global", 0.7), ("b", "switch", 0.8),
                                        ("b", "global", 0.1))),
    ]  # fmt: skip
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(tmp_path / "summary.json", FINISHED)
    assert FinishedRun(tmp_path).score() == pytest.approx((0.7, -1.4))
    assert FinishedRun(tmp_path).score("global") == pytest.approx((0.4, -0.8))
    assert FinishedRun(tmp_path).score("local") == FinishedRun(tmp_path).score()


def test_others_train_as_many_rounds_as_the_row_that_leads(tmp_path: Path) -> None:
    compare(small(FEDAVG, UEFL, seeds=(0,), match_rounds="uefl"), tmp_path / "grid", 2, Silent())
    rounds = {
        cell["row"]: cell["rounds"] for cell in json.loads((tmp_path / "grid" / "comparison.json").read_text())["cells"]
    }
    assert rounds == {"fedavg": 3, "uefl": 3}


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (small(FEDAVG, FEDAVG), "more than one row would use the folder 'fedavg'"),
        (small(MethodVariant("x", ("method.name=fedavg", "data.n_silos=9"))), r"row 'x' sets data\.n_silos=9"),
        (small(MethodVariant("x", ("method.name=fedavg", "method.gamma=1"))), r"x: .*method\.gamma"),
        (small(FEDAVG, seeds=(1, 1)), "all different"),
        (small(FEDAVG, seeds=(0, -1)), r"seed = -1"),
        (
            small(MethodVariant("x", ("method.name=fedavg", "evaluation.n_silos=2"))),
            r"row 'x' sets evaluation\.n_silos=2",
        ),
        (
            small(MethodVariant("x", (*FEDAVG.sets, "training.lr=1")), tuning=TuningPlan("training.lr", (1, 2))),
            "row 'x' sets it",
        ),
        (small(FEDAVG, tuning=TuningPlan("training.lr", (0.1, -5))), r"training\.lr = -5"),
        (small(FEDAVG, tuning=TuningPlan("data.n_silos", (2, 3))), r"data\.n_silos cannot be tuned"),
        (
            small(MethodVariant("x", (*FEDAVG.sets, "rounds=3")), UEFL, match_rounds="uefl"),
            "its rounds must equal those of uefl",
        ),
        (replace(small(FEDAVG), swept=("method.name",)), r"sets method\.name=fedavg, which is also swept"),
        (small(MethodVariant("x", (*FEDAVG.sets, "training.batch_size=5000"))), "batch"),
        (small(FEDAVG, match_rounds="uefl"), "match_rounds = 'uefl': no such row"),
        (
            small(FEDAVG, MethodVariant("x", LOCAL.sets, (1, 2, 3)), tuning=TuningPlan("training.lr", (1, 2))),
            "every row must try the same number",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    grid: Grid, message: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigurationError, DataError), match=message):
        compare(grid, tmp_path / "grid", 1, Silent())
    assert not (tmp_path / "grid").exists()


def test_columns_whose_data_cannot_be_made_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    columns = (Setting("three", None, FAST), Setting("too many", None, (*FAST, "data.n_silos=900")))
    with pytest.raises(DataError):
        compare(Grid("columns", (FEDAVG,), columns, (0,)), tmp_path / "grid", 1, Silent())
    assert not (tmp_path / "grid").exists()


def test_a_command_whose_runs_failed_says_so_and_shows_the_rest(tmp_path: Path) -> None:
    sets = [part for each in FAST for part in ("--set", each)]
    variants = ["--variant", "good: method.name=local", "--variant", "bad: method.name=fedavg training.lr=1e30"]
    done = caveat("compare", "digits", *variants, "--seeds", "0", *sets, "--out", str(tmp_path / "grid"), "--quiet")
    assert done.exit_code == 4
    assert "good" in done.stdout
    assert done.stderr == "error: 1 of 2 runs failed, 0 are missing; repeat the command to continue\n"


def test_a_run_that_was_killed_at_its_page_leaves_no_half_of_it(compared: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(compared, tmp_path / "grid")
    page = folder / "runs" / "alone" / "seed-1" / "report.html"
    half = page.with_name(f".report.html.{os.getppid()}.part")  # the number of a process that there is
    page.rename(half)
    compare(small(FEDAVG, LOCAL), folder, 2, Silent())
    assert page.exists()
    assert not half.exists()


def test_a_run_that_cannot_even_leave_a_note_ends_without_a_traceback(tmp_path: Path) -> None:
    full = RunError("cannot write: No space left on device")
    with (
        patch.object(runner, "end_with_parent"),
        patch.object(runner, "start", side_effect=full) as start,
        patch.object(runner.files, "write_bytes", side_effect=full) as write_bytes,
    ):
        runner._carry_out(load("digits"), Mock(), tmp_path / "seed-0", tmp_path / "seed-0.failed", os.getppid(), False)
    assert (start.call_count, write_bytes.call_count) == (1, 1)


def test_options_become_rows_and_columns() -> None:
    grid = asked(
        "digits", "fedavg,uefl", ["static: method.name=uefl 'method.iterations=1'"], "0,3", ["rounds=2"],
        ["data.partition.alpha=0.1,1", "uncertainty.score=a,b"], "training.lr=0.01,0.1", 2, "uefl",
    )  # fmt: skip
    assert [row.name for row in grid.rows] == ["fedavg", "uefl", "static"]
    assert grid.rows[2].sets == ("method.name=uefl", "method.iterations=1")
    assert [column.name for column in grid.columns][:2] == ['alpha=0.1, score="a"', 'alpha=0.1, score="b"']
    assert grid.columns[3].sets == ("rounds=2", "data.partition.alpha=1", 'uncertainty.score="b"')
    assert grid.seeds == (0, 3)
    assert grid.tuning == TuningPlan("training.lr", (0.01, 0.1), seeds=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "fedavg,nope"}, "no such method 'nope'"),
        ({"variants": ["static"]}, "expected NAME: KEY=VALUE"),
        ({"seeds": "0,x"}, "--seeds 0,x"),
        ({"sweeps": ["training.lr"]}, "--sweep training.lr: expected KEY=VALUE"),
        ({"tune": "=1"}, "--tune =1"),
        ({"tune_seeds": 2}, "--tune-seeds 2 has no effect without --tune"),
        ({"tune": "training.lr=1", "tune_seeds": 2}, "--tune-seeds 2: expected at most 1"),
        ({"methods": ""}, "--methods: expected comma-separated names"),
        ({"sets": ["seed=7"]}, "seed cannot be set or swept"),
        ({"sweeps": ["seed=1,2"]}, "seed cannot be set or swept in a comparison"),
        ({"sweeps": ["training.lr=1", "training.lr=2"]}, "a key is listed twice among training.lr, training.lr"),
    ],
)
def test_options_that_cannot_be_read_are_named(options: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"source": None, "methods": "fedavg", "variants": [], "seeds": "0", "sets": [],
                             "sweeps": [], "tune": None, "tune_seeds": 1, "match_rounds": None}  # fmt: skip
    with pytest.raises(ConfigurationError, match=message):
        asked(**usual | options)


def test_sweeps_of_keys_with_the_same_end_are_told_apart() -> None:
    columns = swept([Setting("", None)], {"a.lr": [1], "b.lr": [2]})
    assert [column.name for column in columns] == ["a.lr=1, b.lr=2"]


def test_figures_are_found_by_key_name_and_domain() -> None:
    summary = {
        "mean": {"accuracy": 0.5},
        "domains": [{"domain": "rotate(50)", "nll": 2}],
        "silos": [{"name": "a", "x": 1}],
    }
    assert looked_up(summary, "mean/accuracy") == 0.5
    assert looked_up(summary, "domains/rotate(50)/nll") == 2
    assert looked_up(summary, "silos/a/x") == 1
    assert looked_up(summary, "silos/*/x") is None  # a list has no first model
    assert looked_up({"models": {"switch": {"x": 1}, "local": {"x": 2}}}, "models/*/x") == 1
    assert looked_up(summary, "silos/b/x") is None
    assert looked_up(summary, "mean/x") is None
    assert slug("UEFL, as published (v2)") == "UEFL-as-published-v2"
    assert len({slug("x" * 300 + end) for end in "ab"}) == 2
    assert max(len(slug("\u00e9" * 300 + end).encode()) for end in "ab") < 120
    assert Measure("x", "nll").higher is None


@pytest.mark.long
def test_a_comparison_killed_at_any_moment_ends_with_the_same_tables(tmp_path: Path, compared: Path) -> None:
    """SIGKILL to the whole command several times, at moments that a fixed rule picks, then once to the end."""
    folder = tmp_path / "grid"
    command = [
        sys.executable, "-m", "caveat", "compare", "digits", "--methods", "fedavg,uefl", "--seeds", "0", "--quiet",
        *(part for each in FAST for part in ("--set", each)),
        "--tune", "training.lr=0.003,0.01", "--out",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for wanted in (1, 3):
        child = subprocess.Popen([*command, str(folder)], env=environment, stdout=subprocess.DEVNULL)
        while child.poll() is None and len(list(folder.rglob("summary.json"))) < wanted:
            time.sleep(0.02)
        assert child.poll() is None, "ended before it was killed"
        child.send_signal(signal.SIGKILL)
        child.wait()
    unfinished = json.loads((folder / "comparison.json").read_text())["cells"]
    assert "missing" in {cell["status"] for cell in unfinished}
    subprocess.run([*command, str(folder)], env=environment, check=True, stdout=subprocess.DEVNULL)
    whole = tmp_path / "whole"
    subprocess.run([*command, str(whole)], env=environment, check=True, stdout=subprocess.DEVNULL)
    found, expected = (json.loads((each / "comparison.json").read_text()) for each in (folder, whole))
    found["command"] = expected["command"]
    assert without_times(found) == without_times(expected)
    assert all(cell["status"] == "done" for cell in found["cells"])
