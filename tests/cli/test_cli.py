"""The command line: its names, its exit statuses, and that what fails leaves nothing behind."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, caveat, files, one_error, sets
from typer.testing import Result

import caveat as caveat_package
from caveat.config import dump, load

pytestmark = pytest.mark.usefixtures("nowhere")
COMMANDS = {
    "run": {"--target", "--silo-column", "--plugin", "--set", "--out", "--workers", "--device", "--vectorized",
            "--tracker", "--quiet"},
    "plan": {"--target", "--silo-column", "--plugin", "--set", "--workers", "--device", "--vectorized", "--json"},
    "resume": {
        "--model", "--plugin", "--reset", "--project", "--set", "--rounds", "--workers", "--device", "--tracker",
        "--quiet",
    },
    "rollback": {"--to"},
    "join": {"--out", "--silo", "--rounds", "--model", "--plugin", "--quiet"},
    "predict": {"--model", "--plugin", "--silo", "--device", "--out", "--report"},
    "evaluate": {"--model", "--plugin", "--silo", "--device", "--target"},
    "export": {"--silo", "--format", "--out", "--model", "--plugin", "--training-features"},
    "serve": {"--silo", "--host", "--port", "--allow-host", "--audit", "--watch", "--alarm", "--between", "--most-rows",
              "--most-bytes", "--model", "--device", "--plugin"},
    "watch": {"--silo", "--state", "--id", "--target", "--alarm", "--between", "--with", "--page", "--model",
              "--plugin"},
    "card": {"--silo", "--card", "--format", "--model", "--plugin"},
    "report": {"--out"},
    "audit": {"--plugin", "--set", "--seeds", "--fractions", "--out", "--workers", "--quiet"},
    "list": {"--json", "--plugin"},
    "config": {"--plugin", "--set"},
    "data": {
        "--target", "--silo-column", "--groups", "--time", "--categorical", "--numeric", "--decimal", "--thousands",
        "--missing", "--separator", "--set", "--dictionary", "--config", "--size", "--json", "--plugin",
    },
    "compare": {
        "--methods", "--variant", "--seeds", "--set", "--sweep", "--tune", "--tune-seeds", "--match-rounds", "--out",
        "--plugin", "--workers", "--device", "--quiet", "--metric", "--plan",
    },
    "reproduce": {"--list", "--scale", "--seeds", "--rows", "--out", "--plan", "--workers", "--device", "--quiet"},
    "ood": {"--out", "--plugin", "--model"},
    "bench": {
        "--out", "--rows", "--federations", "--lite", "--seeds", "--plan", "--settings", "--data", "--plugin",
        "--workers", "--quiet",
    },
    "flower": set(),
    "new": set(),
}  # fmt: skip
FLOWER = {"init": {"--set", "--plugin"}, "deliver": {"--silo", "--project", "--rounds"}, "ledger": set()}


# Names


def test_the_commands_are_those_of_the_interface() -> None:
    listed = re.findall(r"^  (\w+) ", caveat("--help").stdout.split("Commands:")[1], re.MULTILINE)
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_are_those_of_the_interface(command: str) -> None:
    shown = caveat(command, "--help").stdout
    assert set(re.findall(r"^  (--[\w-]+)", shown, re.MULTILINE)) == COMMANDS[command] | {"--help"}
    assert "\\" not in shown


@pytest.mark.parametrize("command", FLOWER)
def test_so_are_those_of_a_federation(command: str) -> None:
    options = set(re.findall(r"^  (--\w+)", caveat("flower", command, "--help").stdout, re.MULTILINE))
    assert options == FLOWER[command] | {"--help"}


def test_help_and_version_do_not_import_torch() -> None:
    code = (
        "import sys\nfrom caveat.cli import main\nsys.argv = ['caveat', '--version']\n"
        "try: main()\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert re.fullmatch(r"caveat \d+\.\d+\.\d+\S*\nFalse\n", done.stdout)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(caveat_package.__file__).parent.parent)}


# Runs


def test_a_run_prints_table_and_paths_to_stdout_and_progress_to_stderr(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    assert result.exit_code == 0, result.stderr
    assert all(name in result.stdout for name in ("silo-0", "silo-1", "silo-2", "accuracy", "entropy"))
    assert result.stdout.splitlines()[-2:] == [f"run:    {folder}", f"report: {folder / 'report.html'}"]
    assert re.search(r"^round 1/1  train  accuracy 0\.\d+  entropy \d", result.stderr, re.MULTILINE)
    assert json.loads((folder / "summary.json").read_text())["complete"] is True


def test_the_configuration_of_a_run_is_kept_in_full(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    assert load(str(folder / "config.toml")) == load(None, TINY)
    assert (folder / "config.toml").read_text() == dump(load(None, TINY))


def test_the_users_file_is_kept_with_its_comments(nowhere: Path) -> None:
    text = '# ours\n[method]\nname = "local"  # no federation\n'
    Path("mine.toml").write_text(text)
    tiny = [each for each in TINY if "method.name" not in each]
    assert caveat("run", "mine.toml", *sets(*tiny), "--quiet", "--out", "run").exit_code == 0
    assert Path("run", "given.toml").read_text() == text
    assert 'name = "local"' in Path("run", "config.toml").read_text()


def test_a_run_is_a_function_of_its_configuration(nowhere: Path) -> None:
    """Codebook, dropout and order of batches included; the second run finds torch's generator elsewhere."""
    own = ["method.name=uefl", "method.codewords=4", "method.iterations=2", "method.extra_rounds=1", "rounds=2"]
    for out in ("one", "two"):
        assert caveat("run", *sets(*TINY, *own), "--quiet", "--out", out).exit_code == 0
    assert (nowhere / "one" / "rounds.jsonl").read_bytes() == (nowhere / "two" / "rounds.jsonl").read_bytes()


@pytest.mark.long
def test_workers_do_not_wait_for_threads_of_their_parent(nowhere: Path) -> None:
    """A forked worker has no OpenMP threads: weights large enough to be copied by several must not stop it."""
    settings = sets("method.name=fedavg", "model.width=16", "rounds=1", "training.local_steps=1", "baselines=[]")
    free = {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "caveat", "run", *settings, "--workers", "2", "--quiet", "--out", "out"]
    done = subprocess.run(command, capture_output=True, text=True, env=free, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_finished_run_resumes_to_itself(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    before = (folder / "summary.json").read_bytes()
    again = caveat("resume", folder)
    assert (again.exit_code, again.stdout) == (0, result.stdout)
    assert (folder / "summary.json").read_bytes() == before


def test_quiet_says_nothing_but_warnings_on_stderr_and_out_has_a_default(nowhere: Path) -> None:
    result = caveat("run", *sets(*TINY, "seed=5"), "--quiet", "--workers", 1)
    assert result.exit_code == 0
    assert all(line.startswith("warning: fedavg: ") for line in result.stderr.splitlines())  # about the result
    assert (nowhere / "runs" / "digits-fedavg-seed5" / "summary.json").exists()


def test_predictions_are_rows_that_add_up(finished: tuple[Path, Result], nowhere: Path) -> None:
    folder, _ = finished
    np.savez(nowhere / "new.npz", x=np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8))
    result = caveat("predict", folder, "new.npz", "--silo", "silo-1")
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert [row["row"] for row in rows] == list("01234")
    for row in rows:
        probabilities = {name[2:]: float(value) for name, value in row.items() if name.startswith("p_")}
        assert sum(probabilities.values()) == pytest.approx(1)
        assert row["label"] == max(probabilities, key=probabilities.__getitem__)
        total, aleatoric, epistemic = (float(row[name]) for name in ("total_uncertainty", "aleatoric", "epistemic"))
        assert aleatoric <= total <= aleatoric + epistemic + 1e-8
        assert row["decision"] == "global"
    assert caveat("predict", folder, "new.npz", "--silo", "silo-1", "--out", "new.csv").stdout == ""
    assert (nowhere / "new.csv").read_text() == result.stdout


def test_a_page_of_predictions_is_written_on_request(finished: tuple[Path, Result], nowhere: Path) -> None:
    np.savez(nowhere / "new.npz", x=np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8))
    arguments = ("predict", finished[0], "new.npz", "--silo", "silo-1", "--out", "new.csv")
    result = caveat(*arguments, "--report", "new.html")
    assert result.exit_code == 0, result.stderr
    page = (nowhere / "new.html").read_text()
    assert "Predictions at silo-1" in page
    assert "A person decides 5 inputs." in page  # the model has hardly been trained
    assert page.count('src="data:image/png;base64,') > 0
    failed = caveat(*arguments, "--report", "gone/new.html")
    assert failed.exit_code == 2
    assert "--report gone/new.html: No such file or directory" in failed.stderr


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A tiny run that chooses between two models under a guarantee, on four streams."""
    folder = tmp_path_factory.mktemp("runs") / "decided"
    own = [
        "method.name=fedpn",
        "method.layers=4",
        "method.personal_epochs=1",
        "method.personal_steps=5",
        "method.normalize=true",
        "model.features=4",
        "model.dropout=0",
    ]
    own += ["data.partition.scheme=draws", "data.ood.local=classes", 'data.ood.held_out_classes=["9"]']
    own += ["uncertainty.policy=guaranteed", "uncertainty.risk=0.5", "uncertainty.temperature_scaling=true"]
    return folder, caveat("run", *sets(*TINY, *own), "--quiet", "--out", folder)


def test_a_run_that_decides_prints_a_line_per_model_and_its_guarantee(decided: tuple[Path, Result]) -> None:
    folder, result = decided
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    summary = json.loads((folder / "summary.json").read_text())
    heads = [line.split()[-4:] for line in lines if line.startswith("accuracy on test inputs")]
    assert heads == [["ind", "ood_local", "mix", "ood_global"]]
    for model in ("local", "global", "switch", "oracle"):
        accuracy = f"{100 * summary['models'][model]['mean']['accuracy']:.1f}"
        assert [line.split()[1] for line in lines if line.startswith(f"{model} ")] == [accuracy]
    assert any(line.startswith(f"guarantee: {summary['guarantee']['statement']}") for line in lines)
    assert "to answer " not in result.stdout  # test inputs do not show how many calibration inputs answer more


def test_the_report_holds_what_a_run_decided(decided: tuple[Path, Result]) -> None:
    """The summary of a real run is read, key by key: what is missing would be left out without a word."""
    page = (decided[0] / "report.html").read_text()
    shown = 'id="outcomes"', 'class="promise', ">abstained</th>", "Errors by share answered", "dirichlet_entropy"
    for there in shown:
        assert there in page
    for there in (
        "by temperature scaling",
        "Uncertainty of right, wrong and foreign",
        "separates inputs that only other silos know (ood_local) from",
        "separates inputs that no silo knows (ood_global)",
    ):
        assert there in page


def test_predictions_are_those_of_the_model_that_was_chosen(decided: tuple[Path, Result], nowhere: Path) -> None:
    np.savez(nowhere / "new.npz", x=np.random.default_rng(0).integers(0, 16, (40, 8, 8)).astype(np.uint8))
    result = caveat("predict", decided[0], "new.npz", "--silo", "silo-1")
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(result.stdout.splitlines()))
    names = [name for name in rows[0] if not name.startswith("p_")]
    scores = [
        "total_uncertainty",
        "aleatoric",
        "epistemic",
        "dirichlet_entropy",
        "vacuity",
        "unfamiliar",
        "novel",
        "log_evidence",
    ]
    p_values = ["familiarity", "nearness", "sureness", "typicality"]
    assert names == ["row", "label", *scores, *p_values, "decision", "reason", "decides"]
    assert all(0 < float(row[p]) <= 1 for row in rows for p in p_values)
    assert {row["decision"] for row in rows} <= {"local", "global", "abstain"}
    reasons = [row["reason"] for row in rows if row["decision"] == "abstain"]
    assert set(reasons) <= {"unfamiliar", "novel", "unsure", "ambiguous", "uncertain"}
    assert not any(row["reason"] for row in rows if row["decision"] != "abstain")  # a switch answers no alarms
    said = result.stderr.splitlines()[-1]
    assert said.startswith(
        "Do not use this model: it is no more accurate than always predicting the most frequent class. "
    )
    assert {row["decides"] for row in rows} == {"person"}
    for row in rows:  # where nobody is trusted, too
        assert row["label"] == max((n[2:] for n in row if n.startswith("p_")), key=lambda n: float(row[f"p_{n}"]))


def test_predict_and_report_tell_what_is_wrong(finished: tuple[Path, Result], nowhere: Path) -> None:
    folder, _ = finished
    assert "did you mean silo-1?" in one_error(caveat("predict", folder, "x.npz", "--silo", "silo1"), 2)
    assert "x.npz" in one_error(caveat("predict", folder, "x.npz", "--silo", "silo-1"), 2)
    assert "not a run" in one_error(caveat("predict", nowhere, "x.npz", "--silo", "silo-1"), 2)
    assert str(nowhere) in one_error(caveat("report", nowhere), 2)
    assert files(nowhere) == set()


def test_report_writes_where_it_is_told(finished: tuple[Path, Result], nowhere: Path) -> None:
    result = caveat("report", finished[0], "--out", "page.html")
    assert result.stdout.strip() == "page.html"
    assert "<html" in (nowhere / "page.html").read_text()


# What is printed


@pytest.mark.parametrize(
    ("kind", "some"),
    [
        ("methods", ["local", "fedavg", "fedprox", "fedbn", "scaffold", "uefl"]),
        ("models", ["lenet5", "residual", "mlp"]),
        ("recipes", ["digits", "uefl-mnist", "uefl-mnist-unbalanced", "uefl-fmnist", "uefl-cifar10"]),
        ("datasets", ["digits", "npz:PATH[,PATH...]", "images:DIR", "csv:PATH[,PATH...]", "hub:NAME"]),
    ],
)
def test_lists_have_a_name_and_a_line_about_it(kind: str, some: list[str]) -> None:
    rows = [line.split(maxsplit=1) for line in caveat("list", kind).stdout.splitlines()]
    assert {name for name, _ in rows} >= set(some)
    named = json.loads(caveat("list", kind, "--json").stdout)
    assert [name.split()[0] for name in named] == [name for name, _ in rows]
    assert all(named.values())


def test_the_data_folder_is_listed(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "mine.npz").write_bytes(b"")
    monkeypatch.setenv("CAVEAT_DATA", str(nowhere))
    assert "npz:mine.npz" in caveat("list", "datasets").stdout


def test_config_prints_what_loads_back(nowhere: Path) -> None:
    printed = caveat("config", "uefl-mnist", *sets("seed=3")).stdout
    (nowhere / "mine.toml").write_text(printed)
    assert load("mine.toml") == load("uefl-mnist", ["seed=3"])


def test_data_shows_samples_per_class() -> None:
    shown = caveat("data", "digits").stdout
    assert all(figure in shown for figure in ("1797", "178", "174"))


def test_data_that_is_missing_is_wrong_usage() -> None:
    assert "nothing.npz" in one_error(caveat("data", "nothing.npz"), 2)
