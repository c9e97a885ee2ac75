"""The card of a run says what was measured and promised, and marks what nobody has stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import caveat, one_error, sets
from typer.testing import Result

BLANKS = 12
"""The keys of card.toml that a test leaves blank."""


def test_the_card_has_figures_promises_and_what_people_state(finished: tuple[Path, Result], nowhere: Path) -> None:
    (nowhere / "card.toml").write_text('license = "apache-2.0"\nfunding = ""\n')
    done = caveat("card", finished[0], "--silo", "silo-1", "--card", "card.toml")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("---\nlibrary_name: caveat\npipeline_tag: image-classification\n")
    assert 'license: "apache-2.0"' in done.stdout
    assert done.stdout.count(": not stated") == BLANKS
    assert "| accuracy | " in done.stdout
    found = json.loads(caveat("card", finished[0], "--silo", "silo-1", "--json").stdout)
    summary = json.loads((finished[0] / "summary.json").read_text())
    record = next(each for each in summary["silos"] if each["name"] == "silo-1")
    assert found["figures"]["accuracy"]["value"] == pytest.approx(record["test"]["accuracy"])
    assert found["figures"]["accuracy"]["interval_95"][0] <= record["test"]["accuracy"]
    assert found["figures"]["majority class"]["of"] == found["data"]["rows"]["test"] == record["n_test"]
    assert any(each.startswith("All p-values") for each in found["promises"])
    assert found["stated"]["license"] == "not stated"


def test_training_alone_is_beside_it(nowhere: Path) -> None:
    tiny = ["method.name=fedavg", "model.name=mlp", "model.hidden=8", "rounds=1", "training.local_epochs=1"]
    tiny += ["data.n_silos=3", "uncertainty.mc_samples=2", 'baselines=["local"]']
    assert caveat("run", *sets(*tiny), "--out", "run").exit_code == 0
    found = json.loads(caveat("card", "run", "--silo", "silo-0", "--json").stdout)
    assert found["figures"]["training alone"]["of"] == found["figures"]["accuracy"]["of"]


@pytest.mark.parametrize(("text", "told"), [
    ('licence = "mit"', "'licence': no such key; did you mean license?"),
    ("risk = 3", "risk = 3, expected a text"), ("risk =", "Invalid value"),
])  # fmt: skip
def test_mistakes_are_one_line(text: str, told: str, finished: tuple[Path, Result], nowhere: Path) -> None:
    (nowhere / "card.toml").write_text(text)
    assert told in one_error(caveat("card", finished[0], "--silo", "silo-1", "--card", "card.toml"), 2)
