"""Methods of a plugin on the command line: runs are as others are, and only what the user names is imported."""

from __future__ import annotations

import json
import os
import py_compile
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, caveat, files, one_error, sets
from html_page import Page
from own_methods import forget_own, put_package

import caveat as package
from caveat.core import ConfigurationError
from caveat.methods import METHODS, plugins

pytestmark = pytest.mark.usefixtures("nowhere", "registry")
OWN = '''
import os
import signal
from pathlib import Path

from caveat import FedAvg, frozen_settings, register
import torch


@register
@frozen_settings
class Mine(FedAvg):
    """FedAvg that says more of itself."""

    strength: float = 0.5
    """How much of it."""

    def describe(self, down, state, context, x):
        return {"seen": torch.tensor(float(len(x)))}

    def summarize(self, sums):
        return {"SEEN": int(sums["seen"])}

    def milestone(self, server):
        return {"tensors": float(len(server["model"]))}

    def outcome(self, server):
        return {"OUTCOME": {"parameters": sum(each.numel() for each in server["model"].values())}}
'''
MINE = [*sets(*(each for each in TINY if "method.name" not in each)), *sets("method.name=mine")]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(package.__file__).parent.parent)}
NAME_IT = "name its file: --plugin my.py (in Python, import it)"


def write(text: str = OWN) -> Path:
    Path("mine.py").write_text(f"{text}\nopen('imported', 'w').close()\n")
    return Path("mine.py")


def forget() -> None:
    forget_own()
    Path("imported").unlink(missing_ok=True)


@pytest.fixture
def mine() -> Path:
    """A finished run of a method of one's own."""
    done = caveat("run", *MINE, "--plugin", write(), "--out", "run")
    assert done.exit_code == 0, done.stderr
    forget()
    return Path("run")


def test_a_run_has_what_the_method_says_of_it(mine: Path) -> None:
    summary = json.loads((mine / "summary.json").read_text())
    assert summary["method"] == "mine"
    assert [silo["SEEN"] > 0 for silo in summary["silos"]] == [True] * 3
    assert summary["OUTCOME"]["parameters"] > 100
    assert summary["milestones"] == [{"round": 1, "tensors": 8.0}]
    rows = [json.loads(line) for line in (mine / "rounds.jsonl").read_text().splitlines()]
    assert all(row["SEEN"] > 0 for row in rows if row["split"] == "validation")
    assert tomllib.loads((mine / "config.toml").read_text())["method"] == {"name": "mine", "strength": 0.5}


def test_a_report_needs_no_plugin_and_imports_none(mine: Path) -> None:
    (mine / "report.html").unlink()
    done = caveat("report", mine)
    assert done.exit_code == 0, done.stderr
    assert "mine" in (mine / "report.html").read_text()
    assert not Path("imported").exists()


def test_a_finished_run_resumes_to_itself_without_the_plugin_if_it_is_named(mine: Path) -> None:
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file() and path.name != "report.html"}
    refused = caveat("resume", mine)
    assert refused.exit_code == 2
    assert NAME_IT in refused.stderr
    assert not Path("imported").exists()
    done = caveat("resume", mine, "--plugin", "mine.py")
    assert done.exit_code == 0, done.stderr
    assert before == {path: path.read_bytes() for path in before}


def test_predicting_asks_for_the_plugin(mine: Path) -> None:
    np.savez("x.npz", x=np.zeros((2, 8, 8), dtype=np.uint8))
    error = one_error(caveat("predict", mine, "x.npz", "--silo", "silo-0"), 2)
    assert "run is a run of the method 'Mine'" in error
    assert NAME_IT in error
    with pytest.raises(ConfigurationError, match=re.escape(NAME_IT)):
        package.load(mine)
    assert not Path("imported").exists()
    done = caveat("predict", mine, "x.npz", "--silo", "silo-0", "--plugin", "mine.py")
    assert len(done.stdout.splitlines()) == 3, done.stderr
    assert package.load(mine).summary["method"] == "mine"


@pytest.mark.long
def test_a_run_that_is_interrupted_goes_on_with_the_plugin_as_it_was() -> None:
    write(OWN + KILLING)
    assert caveat("run", *MINE, "--set", "rounds=3", "--plugin", "mine.py", "--out", "whole").exit_code == 0
    assert kill_after_a_round("cut") < 0
    forget()
    assert NAME_IT in one_error(caveat("resume", "cut"), 2)
    page = Path("cut", "report.html")
    assert caveat("report", "cut").exit_code == 0
    assert "<code>caveat resume cut --plugin mine.py</code> continues it" in page.read_text()
    forget()
    write(f"{OWN}{KILLING}".replace('"seen": torch.tensor(float(len(x)))', '"seen": torch.tensor(2.0 * len(x))'))
    assert "the code of the method mine has changed" in one_error(
        caveat("resume", "cut", "--plugin", "mine.py", "--quiet"), 4
    )
    forget()
    write(f"{OWN}{KILLING}".replace("    strength", "    # of the pull\n\n    strength"))
    done = caveat("resume", "cut", "--plugin", "mine.py")
    assert done.exit_code == 0, done.stderr
    model = "model/model.safetensors"
    assert (Path("cut") / model).read_bytes() == (Path("whole") / model).read_bytes()
    assert "caveat run cut/config.toml --plugin mine.py --out NEW" in Page(page.read_text()).text


def test_a_run_that_fails_says_how_it_goes_on_with_the_plugin() -> None:
    failing = """
    def aggregate(self, *args):
        raise ValueError("the server is out of order")
"""
    done = caveat("run", *MINE, "--plugin", write(OWN + failing), "--out", "run", "--quiet")
    assert done.exit_code == 4
    assert done.stderr.splitlines()[-1].endswith("; continue with `caveat resume run --plugin mine.py`")


KILLING = """
    def aggregate(self, *args):
        if Path("kill").exists() and Path("cut/rounds.jsonl").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().aggregate(*args)

    linear = "examples"
"""


def kill_after_a_round(out: str) -> int:
    """The status of a run that is killed in its second round."""
    Path("kill").touch()
    command = [sys.executable, "-m", "caveat", "run", *MINE, "--set", "rounds=3", "--plugin", "mine.py", "--out", out]
    status = subprocess.run(command, env=ENVIRONMENT, capture_output=True).returncode
    Path("kill").unlink()
    return status


def test_what_is_beside_a_run_may_be_of_a_plugin() -> None:
    done = caveat("run", *sets(*TINY, 'baselines=["mine"]'), "--plugin", write(), "--out", "run")
    assert done.exit_code == 0, done.stderr
    forget()
    assert caveat("report", "run").exit_code == 0


def test_a_comparison_is_reported_without_the_plugin_and_goes_on_with_it() -> None:
    tiny = sets(*(each for each in TINY if not each.startswith(("method", "baselines", "engine"))))
    command = ["compare", "digits", "--methods", "fedavg,mine", "--seeds", "0", *tiny, "--out", "both"]
    done = caveat(*command, "--plugin", write())
    assert done.exit_code == 0, done.stderr
    forget()
    record = (Path("both") / "comparison.json").read_bytes()
    assert caveat("report", "both").exit_code == 0
    assert (Path("both") / "comparison.json").read_bytes() == record
    assert not Path("imported").exists()
    assert NAME_IT in one_error(caveat(*command), 2)
    assert caveat(*command, "--plugin", "mine.py").exit_code == 0
    forget()
    write(OWN.replace("float(len(x))", "1.0"))
    command[command.index("0")] = "0,1"
    error = one_error(caveat(*command, "--plugin", "mine.py"), 4)
    assert "both/runs/mine/seed-0: the code of the method mine has changed since the run started" in error
    assert not Path("both/runs/mine/seed-1").exists()


def test_lists_and_configurations_show_it() -> None:
    assert re.search(
        "^mine +FedAvg that says more of itself.$", caveat("list", "methods", "--plugin", write()).stdout, re.M
    )
    shown = caveat("config", "digits", "--set", "method.name=mine", "--plugin", "mine.py").stdout
    assert "# How much of it.\nstrength = 0.5\n" in shown


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ('def outcome(self, server):\n        return {"mean": 3}', "mine: outcome() returns 'mean', a key that every"),
        ('def summarize(self, sums):\n        return {"test": 3}', "mine: summarize() returns 'test', a key"),
        ('def summarize(self, sums):\n        return {"accuracy": 3}', "mine: summarize() returns 'accuracy'"),
        (
            'def summarize(self, sums):\n        return {"it": {3}}',
            "mine: summarize() returns 'it' = {3}: expected numbers",
        ),
    ],
)
def test_entries_of_a_summary_that_are_taken_are_one_line(hook: str, told: str) -> None:
    name = hook.split("(")[0]
    text = re.sub(rf"    {name}\(.*?(?=\n    def|\Z)", f"    {hook}\n", OWN, flags=re.DOTALL)
    done = caveat("run", *MINE, "--plugin", write(text), "--out", "run", "--quiet")
    assert done.exit_code == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plugin_that_fails_is_one_line_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    error = one_error(caveat("run", *MINE, "--plugin", write("1 / 0"), "--out", "run"), 2)
    assert re.fullmatch(r"error: --plugin mine.py: .*mine.py:1: ZeroDivisionError: division by zero", error)
    assert files(Path()) == {"mine.py"}


def test_a_changed_plugin_of_the_same_second_and_size_is_run_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = Path("mine.py")
    file.write_text("VALUE = 1\n")
    py_compile.compile(str(file))
    before = file.stat().st_mtime_ns
    file.write_text("VALUE = 2\n")
    os.utime(file, ns=(before, before))
    assert plugins.import_file(file).VALUE == 2


# Installed packages


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that has the method."""
    monkeypatch.syspath_prepend(str(put_package(tmp_path, f"{OWN}\nopen('imported', 'w').close()\n")))


@pytest.mark.usefixtures("installed")
def test_a_name_that_is_typed_is_imported_and_one_in_a_folder_is_not() -> None:
    listed = caveat("list", "methods").stdout
    assert re.search("^mine +from the installed package caveat-mine; --plugin mine imports it$", listed, re.M)
    assert not Path("imported").exists()
    done = caveat("run", *MINE, "--out", "run")
    assert done.exit_code == 0, done.stderr
    forget()
    np.savez("x.npz", x=np.zeros((2, 8, 8), dtype=np.uint8))
    predict = ["predict", "run", "x.npz", "--silo", "silo-0"]
    for command in (
        predict,
        ["resume", "run"],
        ["run", "run/config.toml", "--out", "again"],
        ["config", "run/config.toml"],
    ):
        told = caveat(*command)
        assert told.exit_code == 2
        assert "the installed package caveat-mine has this method: add --plugin mine" in told.stderr
    assert not Path("imported").exists()
    assert caveat(*predict, "--plugin", "mine").exit_code == 0
    forget()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "options",
    [
        ["--methods", "fedavg,mine"],
        pytest.param(["--variant", "own: method.name=mine method.strength=1"], marks=pytest.mark.long),
        pytest.param(["--set", "method.name='mine'"], marks=pytest.mark.long),
    ],
)
def test_a_comparison_takes_typed_names_too(options: list[str]) -> None:
    tiny = sets(*(each for each in TINY if not each.startswith(("method", "baselines", "engine"))))
    done = caveat("compare", "digits", *options, "--seeds", "0", *tiny, "--out", "both")
    assert done.exit_code == 0, done.stderr
    forget()
    assert caveat("report", "both").exit_code == 0
    assert "caveat_mine" not in sys.modules


# New methods


@pytest.mark.long
def test_a_new_method_runs_and_passes_ruff_and_its_own_test() -> None:
    told = caveat("new", "method", "pull")
    assert told.stdout.split() == ["pull.py", "pull.toml", "test_pull.py"]
    assert tomllib.loads(Path("pull.toml").read_text()) == {"Pull": {"model": ["*"]}}
    for check in (["check"], ["format", "--check"], ["format", "--check", "--line-length", "120"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *check, "--isolated", "."], text=True, capture_output=True)
        assert done.returncode == 0, done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."],
        env=ENVIRONMENT, text=True, capture_output=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith("2 passed"), done.stdout + done.stderr
    tiny = sets(*(each for each in TINY if "method.name" not in each))
    done = caveat("run", *tiny, *sets("method.name=pull"), "--plugin", "pull.py", "--out", "run")
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("base", ["fedprox", "fedbn", "fedper"])
def test_a_new_method_may_start_from_another(base: str) -> None:
    assert caveat("new", "method", "pull", "--from", base, "--out", "there").exit_code == 0
    kind = METHODS[base]
    plugins.use("there/pull.py")
    assert issubclass(METHODS["pull"], kind)
    sent = tomllib.loads(Path("there/pull.toml").read_text())["Pull"]["model"]
    assert not any("encoder.1" in name for name in sent) or base != "fedbn"
    assert not any("head" in name for name in sent) or base != "fedper"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["Pull"], "NAME = 'Pull': expected at most 40 lower-case letters and digits"),
        (["../pull"], "NAME = '../pull': expected"),
        (["fedavg"], "NAME = 'fedavg': a method with this name exists"),
        (["torch"], "NAME = 'torch': torch.py would hide the module torch"),
        (["pull", "--from", "nope"], "--from = 'nope': no such method"),
        (["pull", "--from", "scaffold"], "--from scaffold: a loss term cannot be added to it; expected one of fedavg"),
        (["pull", "--out", "file/below"], "cannot write file"),
        (["there"], "there.toml exists and is not overwritten"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_writes_nothing(arguments: list[str], told: str) -> None:
    Path("file").touch()
    Path("there.toml").touch()
    before = files(Path())
    assert told in one_error(caveat("new", "method", *arguments), 2)
    assert files(Path()) == before


# Federations


@pytest.mark.long
def test_a_federation_s_project_has_the_plugin_and_imports_it_visibly() -> None:
    done = caveat("flower", "init", "project", *sets("method.name=mine", "data.n_silos=3"), "--plugin", write())
    assert done.exit_code == 0, done.stderr
    assert Path("project/federation/mine.py").read_text() == Path("mine.py").read_text()
    assert "\nfrom . import mine  # noqa: F401\n" in Path("project/federation/__init__.py").read_text()
    code = "import federation.client_app, federation.server_app\nfrom caveat import METHODS\n"
    code += "print(METHODS['mine'].__module__)"
    path = os.pathsep.join(["project", str(Path(package.__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, text=True, capture_output=True
    )
    assert done.stdout == "federation.mine\n", done.stderr


@pytest.mark.usefixtures("installed")
def test_a_package_is_imported_by_name_and_has_to_be_installed_everywhere() -> None:
    pytest.importorskip("flwr")
    done = caveat("flower", "init", "project", *sets("method.name=mine", "data.n_silos=3"), "--plugin", "mine")
    assert done.exit_code == 0, done.stderr
    assert "\nimport caveat_mine  # noqa: F401\n" in Path("project/federation/__init__.py").read_text()
    assert files(Path("project/federation")) == {"__init__.py", "client_app.py", "server_app.py"}
    forget()


@pytest.mark.parametrize("name", ["server_app.py", "__init__.py", "my-own.py"])
def test_a_file_that_the_project_cannot_have_is_refused(name: str) -> None:
    pytest.importorskip("flwr")
    Path(name).write_text(OWN)
    error = one_error(
        caveat("flower", "init", "project", *sets("method.name=mine", "data.n_silos=3"), "--plugin", name), 2
    )
    assert f"--plugin {name}: {name} cannot be a module of the project; rename the file" in error
    assert not Path("project").exists()
