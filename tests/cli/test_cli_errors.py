"""What the command line cannot do: a clear error, an exit status, and nothing written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, caveat, files, one_error, sets
from rich.table import Table
from rich.text import Text
from typer.testing import Result

from caveat.cli.console import show
from caveat.core import RunError
from caveat.runs import start as starting

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (sets("training.learning_rate=1"), 2, "unknown key training.learning_rate"),
        (sets("method.name=fedavg", "method.codewords=3"), 2, "method.codewords is not used by method 'fedavg'"),
        (sets("training.lr=-0.1"), 2, "training.lr = -0.1: must be greater than 0"),
        (sets("federation.min_silos=10"), 2, "federation.min_silos = 10"),
        (["nothing.toml"], 2, "nothing.toml: no such file"),
        (["--out", "/dev/null/run"], 2, "/dev/null/run"),
        (sets("data.source=npz:nothing.npz"), 3, "nothing.npz"),
        (["--device", "cuda:99"], 2, "engine.device = 'cuda:99'"),
        (["--device", "gpu"], 2, "engine.device = 'gpu'"),
        (sets("data.n_silos=3000"), 3, "3000"),
        (sets("training.batch_size=1000"), 3, "1000"),
    ],
)
def test_what_cannot_run_writes_nothing(arguments: list[str], status: int, told: str, nowhere: Path) -> None:
    assert told in one_error(caveat("run", *arguments), status)
    assert files(nowhere) == set()


def test_a_comparison_where_no_such_device_is_writes_nothing(nowhere: Path) -> None:
    command = ["compare", "digits", "--methods", "fedavg,local", "--seeds", "1"]
    told = one_error(caveat(*command, "--device", "cuda:99", "--out", "made"), 2)
    assert "engine.device = 'cuda:99'" in told
    assert files(nowhere) == set()


def archive(**changes: np.ndarray) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(90, 4)), np.arange(90) % 3
    return {"x": x, "y": y, **changes}


def with_nan() -> np.ndarray:
    x = archive()["x"].copy()
    x[3, 2] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        (archive(x=with_nan()), "NaN"),
        (archive(y=archive()["y"] - 1), "-1"),
        (archive(y=archive()["y"] + 0.5), "label"),
        (archive(y=np.zeros(90, dtype=int)), "class"),
        (archive(y=archive()["y"][:-1]), "89"),
    ],
)
def test_bad_arrays_are_bad_data(arrays: dict[str, np.ndarray], told: str, nowhere: Path) -> None:
    np.savez(nowhere / "bad.npz", **arrays)
    told_sets = sets(*TINY, "data.source=npz:bad.npz", "data.shift.angles=[]", "training.batch_size=8")
    assert told in one_error(caveat("run", *told_sets), 3)
    assert files(nowhere) == {"bad.npz"}


def test_a_truncated_archive_is_bad_data(nowhere: Path) -> None:
    np.savez(nowhere / "whole.npz", **archive())
    (nowhere / "cut.npz").write_bytes((nowhere / "whole.npz").read_bytes()[:500])
    assert "cut.npz" in one_error(caveat("run", *sets("data.source=npz:cut.npz")), 3)
    assert files(nowhere) == {"whole.npz", "cut.npz"}


def test_a_folder_that_is_no_run_is_left_alone(nowhere: Path) -> None:
    (nowhere / "thesis").mkdir()
    (nowhere / "thesis" / "chapter.txt").write_text("irreplaceable")
    assert "not a run" in one_error(caveat("run", *sets(*TINY), "--out", "thesis"), 2)
    assert "not a run" in one_error(caveat("resume", "thesis"), 2)
    assert files(nowhere) == {"thesis", "thesis/chapter.txt"}


def test_a_run_is_not_overwritten(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    before = files(folder)
    assert f"caveat resume {folder}" in one_error(caveat("run", *sets(*TINY), "--out", folder), 2)
    assert files(folder) == before


@pytest.mark.parametrize(
    "arguments",
    [["walk"], ["run", "--sets", "seed=1"], ["list", "cats"], ["predict"], ["resume", "a", "--rounds", "0"]],
)
def test_wrong_usage_is_status_2(arguments: list[str], nowhere: Path) -> None:
    result = caveat(*arguments)
    assert result.exit_code == 2
    assert "env var" not in result.stderr
    assert files(nowhere) == set()


@pytest.mark.parametrize(
    ("error", "status"),
    [(RunError("silo-3, round 2: no"), 4), (OSError(28, "No space"), 4), (KeyboardInterrupt(), 130)],
)
def test_a_run_that_stops_says_how_to_continue(
    error: BaseException, status: int, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(config: object, out: Path, progress: object, given: object) -> Path:
        out.mkdir()
        (out / "run.json").write_text("")
        raise error

    monkeypatch.setattr(starting, "start", start)
    assert "continue with `caveat resume half`" in one_error(caveat("run", "--out", "half"), status)


def test_a_traceback_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(config: object, out: Path, progress: object, given: object) -> Path:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(starting, "start", start)
    assert "ZeroDivisionError: by zero" in one_error(caveat("run"), 4)
    monkeypatch.setenv("CAVEAT_DEBUG", "1")
    assert "Traceback" in caveat("run").stderr


# What others have named, on a terminal


HOSTILE = "a\x1b[2J\u202eb\x9b31m"


def test_names_in_errors_and_tables_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = one_error(caveat("report", tmp_path / HOSTILE), 2)
    assert said.isprintable()
    assert "a\\x1b[2J\\u202eb\\x9b31m is not a folder" in said
    table = Table(title=Text(HOSTILE))
    table.add_column(Text(HOSTILE))
    table.add_row(Text(f"{HOSTILE} with\N{NO-BREAK SPACE}space"))
    show(table)
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").replace("\N{NO-BREAK SPACE}", "").isprintable()
    assert shown.count("a\\x1b[2J\\u202eb\\x9b31m") == 3


@pytest.mark.parametrize("text", ["[]", "{}", '"x"', "3", "[" * 3000, "1" * 5000, '{"a": '])
def test_a_damaged_record_of_splits_is_named(finished: tuple[Path, Result], tmp_path: Path, text: str) -> None:
    run = shutil.copytree(finished[0], tmp_path / "run")
    (run / "splits.json").write_text(text)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    told = one_error(caveat("predict", run, tmp_path / "x.npz", "--silo", "silo-0"), 3)
    assert told.startswith(f"error: {run / 'splits.json'}")


# What is named on the command line and is not there, or is something else


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "gone.toml"], ["resume", "gone"], ["report", "gone"], ["predict", "gone", "in.npz", "--silo", "a"],
        ["data", "gone.npz"], ["data", "npz:gone.npz"], ["flower", "ledger", "gone"],
    ],
)  # fmt: skip
def test_a_path_that_is_not_there_is_wrong_usage(arguments: list[str], nowhere: Path) -> None:
    assert "gone" in one_error(caveat(*arguments), 2)
    assert files(nowhere) == set()


def test_so_is_an_input_to_predict(finished: tuple[Path, Result], nowhere: Path) -> None:
    told = one_error(caveat("predict", finished[0], "gone.npz", "--silo", "silo-0"), 2)
    assert told == "error: gone.npz: no such file or folder (CAVEAT_DATA is not set)"


@pytest.mark.parametrize("command", [["report"], ["resume"], ["predict", "in.npz", "--silo", "a"]])
def test_the_folder_of_an_audit_is_called_one(command: list[str], nowhere: Path) -> None:
    (nowhere / "audit").mkdir()
    (nowhere / "audit" / "plan.json").write_text("{}")
    assert "audit is an audit: repeat the command that started it" in one_error(
        caveat(command[0], "audit", *command[1:]), 2
    )


@pytest.mark.parametrize("command", [["resume"], ["predict", "in.npz", "--silo", "a"]])
def test_the_folder_of_a_comparison_is_called_one(command: list[str], nowhere: Path) -> None:
    (nowhere / "many").mkdir()
    (nowhere / "many" / "grid.json").write_text("{}")
    assert "many is a comparison: repeat the command" in one_error(caveat(command[0], "many", *command[1:]), 2)


@pytest.mark.parametrize(
    "command", [["run"], ["compare", "--seeds", "0", "--methods", "fedavg"], ["audit"], ["reproduce", "fedpn-3"]]
)
def test_a_folder_s_name_that_is_too_long_is_wrong_usage(command: list[str], nowhere: Path) -> None:
    small = sets(*TINY) if command[0] != "reproduce" else []
    told = one_error(caveat(*command, *small, "--out", "x" * 300), 2)
    assert "x" * 250 not in told
    assert files(nowhere) == set()


def test_a_source_of_no_file_system_is_bad_data(nowhere: Path) -> None:
    assert "unknown user" in one_error(caveat("run", *sets("data.source=npz:~nobody-at-all/x")), 3)
    assert len(one_error(caveat("run", *sets(f"data.source=npz:{'x' * 5000}")), 3)) < 500
    os.mkfifo(nowhere / "pipe.npz")
    assert "neither a file nor a folder" in one_error(caveat("run", *sets("data.source=npz:pipe.npz")), 3)


# Lists of a comparison


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--sweep", "foo=1,2"], "--sweep unknown key foo; available: seed, rounds,"),
        (["--tune", "foo=1,2"], "--tune unknown key foo; available: seed, rounds,"),
        (["--sweep", "training.lr=nan,1"], "--sweep training.lr = nan: must be a finite number"),
        (["--tune", "training.lr=inf"], "--tune training.lr = inf: must be a finite number"),
        (["--tune", "training.lr=0.1,0.1"], "--tune training.lr: the value 0.1 is listed twice"),
        (["--sweep", "training.lr=" + "9" * 5000], "number too long"),
        (["--tune", "training.lr=" + "[" * 2000], "list nested too deeply"),
        (["--tune", "rounds=" + ",".join(map(str, range(1, 12000)))], "11,999 values, expected at most 10,000"),
        (
            ["--sweep", f"rounds={','.join(map(str, range(1, 400)))}", "--seeds", ",".join(map(str, range(100)))],
            "runs, ",
        ),
        (["--seeds", "1" * 30], "must be a whole number, at least 0 and below 2^63"),
        (["--seeds", "1" * 5000], "expected whole numbers, such as 0,1,2"),
        (["--methods", "x" * 5000], "no such method"),
        (["--variant", "x" * 5000], "expected NAME: KEY=VALUE"),
    ],
)
def test_a_list_that_makes_no_comparison_is_one_line(arguments: list[str], told: str, nowhere: Path) -> None:
    line = one_error(caveat("compare", *arguments), 2)
    assert told in line
    assert "\n" not in line
    assert len(line) < 600
    assert files(nowhere) == set()


def test_a_model_that_no_memory_holds_is_never_allocated(nowhere: Path) -> None:
    for key in ("width", "hidden"):
        told = one_error(caveat("run", *sets("model.name=cnn", f"model.{key}=1000000", "model.second=1000000")), 2)
        assert "parameters takes" in told
    assert "data.size = 10000: 1,797 images" in one_error(caveat("run", *sets("data.size=10000")), 2)
    assert "more than 1,000,000 rounds" in one_error(
        caveat("run", *sets("method.iterations=1000", "rounds=1000000")), 2
    )
    assert files(nowhere) == set()
