"""Runs whose silos are trained side by side: what their folders keep of it, and that they go on as they began."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import caveat as command

import caveat
from caveat.runs.stacking import STACKED, keep_mode


def tables(count: int = 6) -> caveat.data.Silos:
    generator = np.random.default_rng(0)
    found = {}
    for k in range(count):
        x = generator.normal(size=(40 + 4 * k, 3)).astype("float32")
        found[f"clinic-{k}"] = (x, (x[:, 0] > 0).astype("int64"))
    return caveat.data.from_arrays(found)


def test_a_run_says_which_works_were_stacked_and_why_others_were_not(tmp_path: Path) -> None:
    training = caveat.Training(batch_size=8, optimizer="sgd", lr=0.05)
    uncertainty = caveat.Uncertainty(temperature=False, familiarity=False)
    found = caveat.run(
        tables(),
        caveat.MOON(),
        rounds=2,
        training=training,
        uncertainty=uncertainty,
        stacked="on",
        out=tmp_path / "run",
    )
    stacked = found.summary["stacked"]
    assert stacked["train"]["stacked"]
    assert stacked["train (previous)"] == {
        "stacked": False, "why": "it reads site.train, which stacked silos do not show",
    }  # fmt: skip
    kept = json.loads((tmp_path / "run" / STACKED).read_text())
    assert kept["mode"] == "on"
    assert len(kept["works"]) == 2


def test_a_run_goes_on_as_it_began(tmp_path: Path) -> None:
    keep_mode(tmp_path, "auto")
    keep_mode(tmp_path, "auto")
    with pytest.raises(caveat.ConfigurationError, match=r"engine\.stacked = 'off', but the run began with 'auto'"):
        keep_mode(tmp_path, "off")
    begun = tmp_path / "begun" / "state"
    begun.mkdir(parents=True)
    (begun / "checkpoint.json").touch()
    keep_mode(begun.parent, "off")
    with pytest.raises(caveat.ConfigurationError, match=r"engine\.stacked = 'on', but the run began with 'off'"):
        keep_mode(begun.parent, "on")


def test_without_it_a_folder_says_nothing_of_it(finished: tuple[Path, object]) -> None:
    folder, _ = finished
    assert not (folder / STACKED).exists()
    assert "stacked" not in json.loads((folder / "summary.json").read_text())


def test_another_mode_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(caveat.ConfigurationError, match="stacked"):
        caveat.run(tables(2), caveat.FedAvg(), stacked="always", out=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
    said = command("run", "digits", "--stacked", "always", "--out", tmp_path / "other")
    assert said.exit_code != 0
    assert "engine.stacked" in said.output
