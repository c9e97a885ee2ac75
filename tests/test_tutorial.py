"""The tutorial is true: its blocks run in order, and print what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from commands import caveat

pd = pytest.importorskip("pandas")

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "tutorial" / "three-hospitals.md").read_text()
BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::caveat.data.checks.DataWarning")
def test_every_block_of_the_tutorial_runs_and_prints_what_it_shows(nowhere: Path) -> None:
    names: dict[str, object] = {}
    printed, kinds = "", []
    for kind, block in BLOCK.findall(PAGE):
        kinds.append(kind)
        if kind == "python":
            exec(block, names)
        elif kind == "text":
            assert " ".join(block.split()) in " ".join(printed.split())  # the page wraps long lines
        else:
            for line in block.replace("\\\n", " ").splitlines():
                result = caveat(*shlex.split(line.removeprefix("$ caveat ")))
                assert result.exit_code in (0, 3), result.stderr
                printed = result.stdout + result.stderr
    assert kinds.count("console") == 4
    answers = pd.read_csv("answers.csv", keep_default_na=False)
    rows = re.findall(r"^\| \d \|.*\| `(\w+)` \| (?:`(\w+)` )?\|$", PAGE, re.MULTILINE)
    assert rows == list(zip(answers.decision, answers.reason, strict=True))
    assert answers.p_died[2] == pytest.approx(1)
    assert answers.familiarity.tolist()[2:] == pytest.approx([1 / 22, 1 / 22])
    answer = names["answer"]
    assert answer.decision.tolist()[2:] == [2, 2]  # type: ignore[attr-defined]


def test_the_page_for_clinicians_explains_every_reason() -> None:
    from caveat import Reason

    page = (DOCS / "clinicians.md").read_text()
    explained = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(explained) == sorted(each.name.lower() for each in Reason if each.name != "NONE")
