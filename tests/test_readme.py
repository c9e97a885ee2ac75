"""The README is true: its Python runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import caveat
from caveat.methods import METHODS

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_twenty_lines_of_python_run(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1 + 9 + 5
    assert names["result"].summary["mean"]["accuracy"] > 0.7  # type: ignore[attr-defined]


def test_every_method_is_in_the_table() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README.split("## Methods")[1].split("## ")[0], re.MULTILINE) == list(METHODS)


def test_what_the_readme_shows_is_there() -> None:
    for path in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (Path(__file__).parents[1] / path).exists(), path


def test_what_to_cite_is_this_version() -> None:
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {caveat.__version__}\n" in citation
