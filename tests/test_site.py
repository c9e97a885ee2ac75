"""The site: pages made from the code are complete, and the check of built pages finds what it looks for."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import caveat
from caveat.cli.main import app
from caveat.config import dump, load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS))
import check_site  # noqa: E402
import generated  # noqa: E402


def test_every_public_name_has_a_page() -> None:
    names = [name for group in generated.GROUPS.values() for name in group]
    assert sorted(names) == sorted(caveat.__all__)


def test_every_command_has_its_help() -> None:
    page = generated.cli()
    names = [name for name, _ in generated.commands(get_command(app), "caveat")]
    assert {"caveat run", "caveat flower init", "caveat list"} <= set(names)
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == names
    assert all(f"Usage: {name} " in page for name in names)


@pytest.mark.parametrize("method", ["fedavg", "uefl"])
def test_every_key_of_a_configuration_is_listed_in_its_section(method: str) -> None:
    listed, section = set(), ""
    for line in generated.config().splitlines():
        if line.startswith("#"):
            section = line.strip("# ")
        elif found := re.match(r"\| `(\w+)` \|", line):
            listed.add((section, found[1]))
    section = "Top level"
    for line in dump(load("digits", [f"method.name={method}"])).splitlines():
        if found := re.fullmatch(r"\[([\w.]+)\]", line):
            section = found[1].replace("method", method)
        elif (found := re.match(r"(?:# )?(\w+) =", line)) and not (section == method and found[1] == "name"):
            assert (section, found[1]) in listed, (section, found[1])


def test_the_check_of_the_site_finds_dead_links_and_loaded_files(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        "<h1 id='top'></h1><a href='#top'></a><a href='b.html#part'></a><a href='c.html'></a><a href='#none'></a>"
        "<a href='https://example.org'></a><script src='https://example.org/x.js'></script>"
    )
    (tmp_path / "b.html").write_text("<h1 id='part'></h1>")
    (tmp_path / "s.css").write_text("@import url('https://example.org/font.css');")
    assert check_site.problems(tmp_path) == [
        "a.html: no file for c.html",
        "a.html: no anchor for #none",
        "a.html: loads https://example.org/x.js",
        "s.css: loads https://example.org/font.css",
    ]


def test_no_page_is_longer_than_a_reader_reads() -> None:
    """Reference, and pages of results, may be longer."""
    long = {path.name for path in DOCS.rglob("*.md") if len(path.read_text().splitlines()) > 250}
    outside = {path.name for folder in ("reference", "results") for path in (DOCS / folder).rglob("*.md")}
    assert long - outside <= {"data.md", "familiarity.md", "uncertainty.md", "hardware.md"}


def test_tools_find_every_page_command_and_name() -> None:
    text = generated.llms(DOCS)
    assert max(map(len, text.splitlines())) < 500
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", text, re.MULTILINE)
    pages = {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")}
    unlisted = {page for page in pages if page.startswith(("results/tables/", "reference/api/", "gallery/"))}
    made = {"reference/cli.html", "reference/config.html", "reference/api/index.html"}
    assert pages - unlisted - {"index.html"} | made <= set(links)
    assert {link for link in links if "#" not in link and "/api/" not in link} - made <= pages
    assert text.count("](reference/cli.html#") == len(list(generated.commands(get_command(app), "caveat")))
    assert text.count("](reference/api/") == len(caveat.__all__) + 1


EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("*.py"))


def test_the_gallery_has_short_examples() -> None:
    assert len(EXAMPLES) >= 15
    assert all(len(file.read_text().splitlines()) <= 80 for file in EXAMPLES)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_of_the_gallery_runs(file: Path, nowhere: Path) -> None:
    runpy.run_path(str(file), run_name="__main__")
