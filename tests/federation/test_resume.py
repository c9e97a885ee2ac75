"""Continuing a federation's run from its folder: only what the user names is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import TINY, caveat, one_error, sets
from hospitals import CONFIG

from caveat.config import Config, load
from caveat.files import write_record
from caveat.files.schema import SCHEMA, RunFile
from caveat.runs.spec import spec_of
from caveat.runs.spec_file import described

LISTENING = """#!/bin/sh
# --deliver
printf '%s\\n' "$@" > "$(dirname "$0")/said"
exit ${STATUS-0}
"""


class Begun:
    """The folder of a federation's run that was interrupted, and the project that started it."""

    def __init__(self, folder: Path, given: tuple[str, ...] = ("rounds=2", "seed = 5")) -> None:
        self.folder, self.project, self.run = folder, folder / "project", folder / "run"
        self.project.mkdir()
        self.run.mkdir()
        (self.project / "config.toml").write_text(
            CONFIG.format(method="fedavg", rounds=3, quorum=2, start_timeout=3, silos=3)
        )
        self.describe(load(str(self.project / "config.toml"), list(given)))
        (self.project / "run.sh").write_text(LISTENING)
        (self.project / "run.sh").chmod(0o755)
        self.started(project=str(self.project), set=list(given))

    def describe(self, config: Config) -> None:
        record = RunFile(schema=SCHEMA, spec=described(spec_of(config)), engine=vars(config.engine))
        write_record(self.run / "run.json", record)

    def started(self, **fields: Any) -> None:
        (self.run / "started.json").write_text(json.dumps({"schema": 1, **fields}))

    @property
    def said(self) -> list[str] | None:
        """What the project's script was started with."""
        found = self.project / "said"
        return found.read_text().splitlines() if found.exists() else None


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begun:
    monkeypatch.setenv("STATUS", "1")  # there is no result that could be shown
    return Begun(tmp_path)


def test_a_project_that_only_the_folder_names_is_not_started(begun: Begun) -> None:
    said = one_error(caveat("resume", begun.run), 2)
    assert begun.said is None
    assert f"started.json names the project '{begun.project}'" in said
    assert "overrides 'rounds=2 seed = 5'" in said
    assert f"`caveat resume {begun.run} --project DIR`" in said


def test_what_a_folder_names_is_printed_so_that_no_terminal_obeys_it(begun: Begun) -> None:
    begun.started(project="/home/\x1b[2J\u202egpj\n`rm`" + "x" * 9999, set=["\x1b]0;a\x07"])
    said = one_error(caveat("resume", begun.run), 2)
    assert len(said.splitlines()) == 1
    assert said.isprintable()
    assert len(said) < 1000
    assert "/home/\\x1b[2J\\u202egpj\\n`rm`" in said


def test_the_project_that_is_named_continues_the_run_with_the_overrides_it_began_with(begun: Begun) -> None:
    begun.started(project="/elsewhere", set=["rounds=2", "seed = 5"])
    result = caveat("resume", begun.run, "--project", begun.project)
    assert result.exit_code == 4
    assert f"{begun.project / 'run.sh'} did not complete {begun.run}" in result.stderr
    assert begun.said == [str(begun.run), "rounds=2", "seed = 5"]


def test_paths_that_begin_here_are_neither_options_nor_looked_for_elsewhere(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = begun.folder / "other"
    other.mkdir()
    (other / "run.sh").write_text("#!/bin/sh\ntouch started\n")
    (other / "run.sh").chmod(0o755)
    begun.run.rename(begun.project / "--simulation")
    monkeypatch.setenv("PATH", str(other), prepend=os.pathsep)
    monkeypatch.chdir(begun.project)
    assert caveat("resume", "--project", ".", "--", "--simulation").exit_code == 4
    assert begun.said == [str(begun.project / "--simulation"), "rounds=2", "seed = 5"]
    assert not list(begun.folder.rglob("started"))


@pytest.mark.parametrize(
    "item",
    [
        "seed=6", "rounds=3", "engine.name=single_machine", "data.source=csv:/etc/passwd", "--run-config=x", "-x",
        "rounds",
        'data.target="outcome;seed=6"', "seed=5\nseed=6", "seed=5;seed=6", "privacy.noise_multiplier=0.0",
        "seed\u202e=5",
    ],
)  # fmt: skip
def test_overrides_that_the_run_s_configuration_does_not_have_are_refused(begun: Begun, item: str) -> None:
    begun.started(project=str(begun.project), set=["rounds=2", "seed = 5", item])
    said = one_error(caveat("resume", begun.run, "--project", begun.project), 2)
    assert begun.said is None
    assert said.startswith(f"error: {begun.run / 'started.json'}: ")
    assert len(said.splitlines()) == 1
    assert said.isprintable()


def test_a_project_with_another_configuration_does_not_begin_it(begun: Begun) -> None:
    file = begun.project / "config.toml"
    file.write_text(file.read_text().replace('"fedavg"', '"fedprox"'))
    said = one_error(caveat("resume", begun.run, "--project", begun.project), 2)
    assert begun.said is None
    assert f"--project {begun.project}: {file} with rounds=2 seed = 5 differs from" in said
    assert said.endswith(': method.name = "fedprox", was "fedavg"')


def test_a_folder_without_a_project_is_told_so(begun: Begun) -> None:
    empty = begun.folder / "empty"
    empty.mkdir()
    for there in (empty, begun.folder / "nothing"):
        said = one_error(caveat("resume", begun.run, "--project", there), 2)
        assert f"--project {there}: {there / 'run.sh'} is not an executable script" in said
    (empty / "run.sh").write_text(LISTENING)
    assert "is not an executable script" in one_error(caveat("resume", begun.run, "--project", empty), 2)
    (empty / "run.sh").chmod(0o755)
    assert f"--project {empty}: no config.toml in this folder" in one_error(
        caveat("resume", begun.run, "--project", empty), 2
    )


def test_a_run_of_this_machine_has_no_project(tmp_path: Path, begun: Begun) -> None:
    run = tmp_path / "own"
    assert caveat("run", "--out", run, "--quiet", *sets(*TINY)).exit_code == 0
    said = one_error(caveat("resume", run, "--project", begun.project), 2)
    assert f"--project {begun.project}: {run} is not a federated run; continue it with `caveat resume {run}`" in said
    assert begun.said is None


def test_a_run_whose_baselines_are_missing_is_not_called_finished(begun: Begun) -> None:
    begun.describe(load(str(begun.project / "config.toml"), ['baselines=["local"]']))
    (begun.run / "summary.json").write_text("{}")
    said = one_error(caveat("resume", begun.run), 2)
    assert f"`caveat resume {begun.run} --project DIR`" in said


def test_what_else_names_the_command_names_the_project_too(begun: Begun) -> None:
    said = one_error(caveat("predict", begun.run, "x.npz", "--silo", "hill"), 2)
    assert f"continue with `caveat resume {begun.run} --project DIR`" in said
    assert caveat("report", begun.run).exit_code == 0
    assert "<code>caveat resume run --project DIR</code> continues it" in (begun.run / "report.html").read_text()


def test_a_silo_that_nobody_knows_is_refused_before_anything_is_waited_for(begun: Begun) -> None:
    """A name that is written wrongly had the server wait for it for minutes."""
    (begun.run / "summary.json").write_text("{}")
    words = ("flower", "deliver", begun.run, "--project", begun.project, "--silo")
    one_error(caveat(*words, "tyop"), 4)  # without keys of silos anybody may still come
    assert begun.said is not None
    (begun.project / "said").unlink()
    (begun.project / "silos").mkdir()
    for name in ("hill", "coast"):
        (begun.project / "silos" / f"{name}.pub").touch()
    said = one_error(caveat(*words, "hill", "--silo", "tyop"), 2)
    assert said.startswith(
        "error: --silo tyop: unknown silo, expected one that took part or is registered (coast, hill);"
    )
    assert begun.said is None
    assert "did not deliver" in one_error(caveat(*words, "hill"), 4)
