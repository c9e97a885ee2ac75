"""Pages in Markdown: their lines fit, their links lead somewhere, and the commands they name exist and can be given."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from commands import caveat
from fake_comparison import fake_comparison
from typer.main import get_command

from caveat.analysis import reproduced_tables
from caveat.analysis.compare.grid import Grid
from caveat.analysis.compare.result_tables import markdown
from caveat.cli.main import app
from caveat.core import ConfigurationError
from caveat.files import read_comparison

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import results  # noqa: E402
from wrapped import WIDTH, cells, wrapped  # noqa: E402

if shutil.which("git") is None or not (ROOT / ".git").exists():
    pytest.skip("which pages are tracked is known in a checkout only", allow_module_level=True)
PAGES = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()
BUILT = [
    ROOT / "docs" / page
    for page in ("gallery/index.rst", "reference/api/index.md", "reference/cli.md", "reference/config.md")
]
"""Pages that the build of the documentation writes."""
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
DEFINED = re.compile(r"^\[[^]]+\]: (?!https?:)([^\s#]*)(?:#(\S*))?$", re.MULTILINE)
FENCED = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMPARE = re.compile(r"^caveat compare (?!\[).*?[^\\]$", re.MULTILINE | re.DOTALL)
TABLE = """\
|  | 0 degrees | worst silo | 15 degrees | worst silo |
|---|---:|---:|---:|---:|
| A method with a name of some length | 91.2 (89.1 to 93.3) [97.0] | 88.0 | 93.4 (92.0 to 94.8) [98.1] | 90.0 |
| Another \\| one with such a name | 90.1 (88.8 to 91.4) [96.2] | 87.5 | **94.0** (93.1 to 94.9) [98.4] | 91.5 |"""


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def figures(page: str) -> list[str]:
    """What all tables hold below their headings and right of their first columns, sorted."""
    rows = [cells(line)[1:] for line in page.split("\n") if line.startswith("|")]
    return sorted(cell for row in rows for cell in row if re.search(r"\d[^a-z]*( to .*)?$", cell))


@pytest.mark.parametrize("page", PAGES)
def test_lines_end_at_120_characters(page: str) -> None:
    lines = enumerate((ROOT / page).read_text().splitlines(), 1)
    assert [
        number for number, line in lines if len(line) > WIDTH and not re.fullmatch(r"\s*<?https?://\S+", line)
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_line_begins_with_a_percent_sign(page: str) -> None:
    """MyST takes such a line for a comment, so the site would lack it."""
    assert re.findall(r"^\s*%.*", re.sub(FENCED, "", (ROOT / page).read_text()), re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    for path, anchor in [*LINK.findall(text), *DEFINED.findall(text)]:
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists() or found.resolve() in BUILT, path
        assert not anchor or anchor in anchors(found), anchor


@pytest.mark.parametrize("page", PAGES)
def test_scripts_and_folders_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for path in re.findall(r"\b(?:benchmarks|examples|src/caveat)/[a-z0-9_/]+(?:\.[a-z]+)?", text):
        assert (ROOT / path).exists(), path
    for table in re.findall(r"caveat reproduce ([a-z][\w-]+)", text):
        assert table in reproduced_tables.tables()


def shown_commands(text: str) -> list[str]:
    """The command lines of a page's blocks and inline code, without comments; lines that end in a backslash joined."""
    fenced = re.findall(FENCED, text)
    blocks = [code for language, code in fenced if language in ("", "console")]
    blocks += re.findall(r"\n\n((?:    .*\n)+)", re.sub(FENCED, "", text))
    lines = [line.strip().removeprefix("$ ") for each in blocks for line in each.replace("\\\n", " ").splitlines()]
    lines += [
        " ".join(each.split()) for each in re.findall(r"(?<!`)`((?:caveat|make) [^`]+)`(?!`)", re.sub(FENCED, "", text))
    ]
    return [line.partition(" #")[0] for line in lines if re.match(r"(caveat|make) [a-z]", line)]


def unknown(line: str) -> str:
    """What a command line names that does not exist: the command, an option or a target; "" if nothing."""
    first, *words = line.split()
    if first == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return next((word for word in words if re.fullmatch("[a-z-]+", word) and word not in targets), "")
    command: click.Command = get_command(app)
    while isinstance(command, click.Group):
        if not words or words[0] not in command.commands:
            return line
        command = command.commands[words.pop(0)]
    options = {option for each in command.params for option in each.opts} | {"--help"}
    return next((each for each in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line) if each not in options), "")


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_that_are_shown_exist(page: str) -> None:
    found = {line: unknown(line) for line in shown_commands((ROOT / page).read_text())}
    assert {line: what for line, what in found.items() if what} == {}


def test_an_option_that_does_not_exist_is_found() -> None:
    page = (
        "```console\n$ caveat predict RUN \\\n    --silos a  # --comment\n```\n`caveat lists methods`, `make nothing`"
    )
    assert [unknown(line) for line in shown_commands(page)] == ["--silos", "caveat lists methods", "nothing"]


@pytest.mark.usefixtures("registry")
def test_comparisons_that_are_shown_can_be_made(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be checked of them before anything runs; each has the rows and columns that it asks for."""
    (nowhere / "examples").symlink_to(ROOT / "examples")
    (nowhere / "RUN").mkdir()
    (nowhere / "RUN" / "config.toml").write_text('[method]\nname = "fedavg"\n')
    assert caveat("new", "method", "mymethod").exit_code == 0  # which pages go on with
    made = []

    def compare(grid: Grid, *others: object) -> Path:
        grid.check()
        made.append(grid)
        raise ConfigurationError("enough")

    monkeypatch.setattr("caveat.analysis.compare.runner.compare", compare)
    commands = [found for page in PAGES for found in COMPARE.findall((ROOT / page).read_text())]
    for command in commands:
        result = caveat(*shlex.split(command.replace("\\\n", " "))[1:])
        assert result.stderr == "error: enough\n", command
    assert len(made) == len(commands) >= 4
    sizes = {grid.title.split(":")[0]: (len(grid.rows), len(grid.columns)) for grid in made}
    assert sizes["trfeddis-digits"] == (13, 1)
    assert sizes["fmlu-mnist"] == (6, 2)


def test_a_table_that_is_too_wide_becomes_several_with_all_its_cells() -> None:
    whole = TABLE.replace("degrees", "degrees, where the silos' pictures stand upright")
    first, second = (part.split("\n") for part in wrapped(whole).split("\n\n"))
    for row, one, other in zip(whole.split("\n"), first, second, strict=True):
        assert cells(one) + cells(other)[1:] == cells(row)
    assert cells(first[0])[2] == cells(second[0])[2] == "worst silo"
    assert wrapped(TABLE) == TABLE


def test_costs_that_are_too_wide_are_shown_by_setting() -> None:
    heads = [f"{what}, {where}" for where in ("MNIST", "a=1, b=2") for what in ("tuned training.lr", "rounds", "MB up")]
    rows = [f"|  | {' | '.join(heads)} |", f"|---|{'---:|' * 6}", f"| {'FedAvg ' * 10}| 0.1 | 2 | 3 | 0.4 | 5 | 6 |"]
    expected = [["MNIST:", "0.1", "2", "3"], ["a=1, b=2:", "0.4", "5", "6"]]
    parts = wrapped("\n".join(rows)).split("\n\n")
    assert [
        [caption, *cells(table.split("\n")[2])[1:]] for caption, table in zip(parts[::2], parts[1::2], strict=True)
    ] == expected
    assert {table.split("\n")[0] for table in parts[1::2]} == {"|  | tuned training.lr | rounds | MB up |"}


def test_prose_is_wrapped_and_still_says_the_same() -> None:
    item = "- " + "UEFL > FedAvg, `a command with spaces` - and 12. what follows 5 % of it; " * 6
    text = f"{'word ' * 40}\n\n{item.strip()}\n  goes on\n\n```\n{'code ' * 40}\n```\n\n# {'a heading ' * 20}"
    found = wrapped(text)
    assert found.split() == text.split()
    assert wrapped(found) == found
    prose = found.split("```")[0].split("\n")
    assert max(map(len, prose)) <= WIDTH
    assert not [line for line in prose if re.match(r"\s*%|\s+([->+*]|\d+\.) ", line)]
    assert found.split("```")[1] == text.split("```")[1]


def test_the_tables_of_a_comparison_are_written_with_every_figure(tmp_path: Path) -> None:
    record = fake_comparison(settings=[f"{angle} degrees" for angle in range(0, 90, 15)])
    record["tuning"]["seeds"] = [0]
    for cell in record["cells"]:
        cell |= {"tuned": {key: str(value) for key, value in cell["tuned"].items()}, "tuning": []}
    (tmp_path / "uefl-domains").mkdir()
    (tmp_path / "uefl-domains" / "comparison.json").write_text(json.dumps(record))
    pages = tmp_path / "pages"
    (pages / "tables").mkdir(parents=True)
    (pages / "other.md").write_text("nothing of it\n")
    with pytest.raises(SystemExit, match=r"no page of .* has a link to tables/uefl-domains\.md"):
        results.main(tmp_path, pages)
    (pages / "uefl.md").write_text("verdict, and [uefl-domains](tables/uefl-domains.md)\n")
    results.main(tmp_path, pages)
    text = (pages / "tables" / "uefl-domains.md").read_text()
    assert max(map(len, text.split("\n"))) <= WIDTH
    assert text.startswith("# uefl-domains\n")
    assert "[uefl](../uefl.md)" in text
    assert figures(text) == figures(markdown(read_comparison(tmp_path / "uefl-domains")))
    assert sorted(path.name for path in pages.rglob("*.md")) == ["other.md", "uefl-domains.md", "uefl.md"]


@pytest.mark.parametrize("page", [page for page in PAGES if re.fullmatch(r"docs/results/[\w-]+\.md", page)])
def test_a_page_of_results_has_at_most_200_lines(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= 200


@pytest.mark.parametrize("table", sorted(path.stem for path in (ROOT / "docs" / "results" / "tables").glob("*.md")))
def test_the_page_of_a_table_names_its_command_and_has_a_page_with_its_verdict(table: str) -> None:
    text = (ROOT / "docs" / "results" / "tables" / f"{table}.md").read_text()
    assert ("`caveat bench --" if table == "leaderboard" else f"`caveat reproduce {table} --scale") in text
    assert f"](../{results.page_of(table).name})" in text


def test_a_table_says_which_rows_tried_a_key_of_their_own() -> None:
    assert results.refined(reproduced_tables.named("uefl-main")) == ""
    assert results.refined(reproduced_tables.named("fmlu-both")) == (
        ' The row "FML, both weights tuned" then tried 4 values of `method.beta`.'
    )
