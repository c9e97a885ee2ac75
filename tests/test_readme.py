"""The README is true: its Python runs as it stands there, and so does that of the page on the library."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.main import get_command

import caveat
from caveat.cli.main import app
from caveat.methods import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def python_of(text: str) -> dict[str, object]:
    """The names that the only Python of a page leaves."""
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    return names


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 600


def test_the_model_is_sure_and_caveat_abstains_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    names = python_of(README)
    model, rows = names["model"], names["rows"]
    assert model.run_.summary["mean"]["accuracy"] > 0.9  # type: ignore[attr-defined]
    assert "'abstain', 'unfamiliar'" in capsys.readouterr().out
    table = model.decide(rows, groups=["hospital-0"] * 2)  # type: ignore[attr-defined]
    sure = model.predict_proba(rows, groups=["hospital-0"] * 2).max(1)  # type: ignore[attr-defined]
    shown = re.findall(r"^\| \d[\d.]* \| ([\d.]+) % \| (\.\d+) \| (.*) \|$", README, re.MULTILINE)
    found = [(f"{each:.1%}", f"{p:.2f}"[1:]) for each, p in zip(sure, table["familiarity"], strict=True)]
    assert found == [(f"{probability}%", p) for probability, p, _ in shown]
    assert list(table["decision"]) == ["global", "abstain"]


@pytest.mark.long
def test_twenty_lines_of_python_run(capsys: pytest.CaptureFixture[str]) -> None:
    names = python_of((ROOT / "docs" / "how-to" / "python.md").read_text())
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1 + 9 + 5
    assert names["result"].summary["mean"]["accuracy"] > 0.7  # type: ignore[attr-defined]


def test_the_picture_shows_what_its_command_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["unfamiliar.py", str(tmp_path / "drawn.png")])
    names = runpy.run_path(str(ROOT / "examples" / "unfamiliar.py"))
    assert names["answer"].is_unfamiliar.tolist() == [False, False, True, True]
    assert [caveat.Decision(each).name for each in names["answer"].decision.tolist()] == ["GLOBAL"] + ["ABSTAIN"] * 3
    with Image.open(tmp_path / "drawn.png") as drawn, Image.open(ROOT / "docs" / "unfamiliar.png") as kept:
        assert drawn.size == kept.size


def test_every_command_that_is_named_is_there() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    shown = [*re.findall(r"`([^`\n]+)`", README), *re.findall(r"^caveat .*$", README, re.MULTILINE)]
    named = [name for each in shown for name in re.findall(r"^caveat ([a-z]+)", each)]
    assert {"run", "reproduce", "flower"} <= set(named) <= set(commands)
    extras = re.search(r"'\.\[([a-z,]+)\]'", README)
    assert extras is not None
    declared = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("optional-dep")[1], re.MULTILINE)
    assert set(extras[1].split(",")) <= set(declared)


def test_every_method_is_in_the_table() -> None:
    table = (ROOT / "docs" / "reference" / "methods.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(METHODS)


def test_what_the_readme_shows_is_there() -> None:
    for path in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / path.partition("#")[0]).exists(), path


def test_what_to_cite_is_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {caveat.__version__}\n" in citation
    assert re.search(rf"^## {re.escape(caveat.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_only_a_person_publishes() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert re.search(r"^on:\n  workflow_dispatch:\n\n", workflow, re.MULTILINE)
    assert re.search(r"^    environment: release", workflow, re.MULTILINE)
