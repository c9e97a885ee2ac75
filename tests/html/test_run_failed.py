"""A run that failed says of what, where and what to do, and never to go on with what would fail again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_run import describe, fake_run, interrupted_run
from html_page import Page

from caveat.files import read_run, write_record
from caveat.files.schema import Failure
from caveat.html.run.page import render
from caveat.training.fit import Training


def failed(folder: Path, kind: str = "failed", **known: Any) -> str:
    (folder).mkdir(exist_ok=True)
    error = "silo 'silo-3' failed in round 14, work 'train': FloatingPointError: model/head is not finite"
    write_record(folder / "failure.json", Failure.model_validate({"schema": 1, "error": error, "round": 15} | known))
    page = render(read_run(folder if folder.parent.name != "baselines" else folder.parent.parent))
    assert f'class="state {kind}"' in page
    return " ".join(Page(page).text.split())


def test_what_would_fail_again_is_not_to_be_resumed(tmp_path: Path) -> None:
    text = failed(interrupted_run(tmp_path / "run"), diverged=True, silo="silo-3")
    assert (
        "Failed in round 15: training diverged, first seen in the model of silo-3. The run has no model. → Lower"
        in text
    )
    assert "FloatingPointError: model/head is not finite" in text
    assert "caveat resume" not in text
    assert "Unfinished" not in text
    assert text.count("/config.toml --set training.lr=0.001 --out ") == 1
    assert "A Python program" not in text
    assert "run-lower-lr" in text


@pytest.mark.parametrize(
    ("rate", "optimizer", "said", "lower"),
    [
        (1e6, "sgd", "Lower training.lr from 1,000,000 to 0.01 (a usual start for sgd) and start", 0.01),
        (1e6, "adam", "Lower training.lr from 1,000,000 to 0.001 (the default of training.lr) and start", 0.001),
        (0.05, "sgd", "Lower training.lr from 0.05 to 0.005 and start", 0.005),
        (0.05, "adamw", "Lower training.lr from 0.05 to 0.001 (the default of training.lr) and start", 0.001),
        (0.005, "adam", "Lower training.lr from 0.005 to 0.0005 and start", 0.0005),
        (None, "", "Lower training.lr to 0.001 (the default of training.lr) and start", 0.001),
    ],
)
def test_the_lower_rate_is_said_with_its_source_which_depends_on_the_optimizer(
    tmp_path: Path, rate: float | None, optimizer: str, said: str, lower: float
) -> None:
    folder = interrupted_run(tmp_path / "run")
    spec = json.loads((folder / "run.json").read_text())["spec"]
    spec["method"] |= {"training": {"lr": rate, "optimizer": optimizer}} if rate else {}
    describe(folder, "uefl", spec=spec)
    text = failed(folder, diverged=True, silo="silo-3")
    assert said in text
    assert f"--set training.lr={lower:g} " in text
    assert (Training().lr, Training().optimizer) == (0.001, "adam")


def test_a_silo_s_name_is_said_as_it_is(tmp_path: Path) -> None:
    text = failed(interrupted_run(tmp_path / "run"), lost=True, silo="clinic at sea")
    assert "Failed in round 15 at clinic at sea: its private state is lost." in text


def test_what_can_be_mended_goes_on(tmp_path: Path) -> None:
    text = failed(interrupted_run(tmp_path / "run"), error="a worker process died at silo 'silo-1'")
    assert "Failed in round 15. → After fixing the cause below, continue the run with: caveat resume run" in text


def test_a_lost_state_is_put_back_or_reset(tmp_path: Path) -> None:
    text = failed(interrupted_run(tmp_path / "run"), lost=True, silo="silo-3")
    assert "its private state is lost" in text
    assert "caveat resume run --reset silo-3" in text


def test_what_failed_beside_is_said_too(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    text = failed(folder / "baselines" / "local", "unfinished", diverged=True, silo="silo-0")
    what = "▲ Local failed in round 15: training diverged, first seen in the model of silo-0. The run is not affected; "
    assert what in text
    assert "has no model" not in text
    assert "Complete" in text


@pytest.mark.parametrize("damage", [b"{", b'{"schema": 1, "error": "x", "round": 1, "sha256": "0"}'])
def test_a_damaged_failure_is_refused_by_its_name(tmp_path: Path, damage: bytes) -> None:
    folder = interrupted_run(tmp_path / "run")
    (folder / "failure.json").write_bytes(damage)
    with pytest.raises(Exception, match=r"failure\.json"):
        read_run(folder)


def test_a_finished_run_has_not_failed(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", beside=False)
    write_record(folder / "failure.json", Failure.model_validate({"schema": 1, "error": "x", "round": 1}))
    assert read_run(folder).failure is None
