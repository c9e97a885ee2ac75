"""The site: pages made from the code are complete, and the check of built pages finds what it looks for."""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.main import get_command

import caveat
from caveat.cli.main import app
from caveat.config import dump, load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS))
import build_demo  # noqa: E402
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
    assert not long - outside


def test_the_glossary_defines_its_terms_in_alphabetical_order() -> None:
    (body,) = re.findall(r"^```\{glossary\}\n(.*?)^```$", (DOCS / "glossary.md").read_text(), re.MULTILINE | re.DOTALL)
    entries = [each.strip().splitlines() for each in body.split("\n\n")]
    terms = [lines[0].lower() for lines in entries]
    assert terms == sorted(set(terms))
    assert all(len(lines) > 1 and all(re.match(r"  \S", line) for line in lines[1:]) for lines in entries)


def test_tools_find_every_page_command_and_name() -> None:
    text = generated.llms(DOCS)
    assert max(map(len, text.splitlines())) < 500
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", text, re.MULTILINE)
    pages = {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")}
    unlisted = {page for page in pages if page.startswith(("results/tables/", "reference/api/", "gallery/"))}
    made = {"reference/cli.html", "reference/config.html", "reference/api/index.html"}
    made = {page for page in made if (DOCS / page).with_suffix(".md").exists()}  # written when the site is built
    assert pages - unlisted - {"index.html"} | made <= set(links)
    assert {link for link in links if "#" not in link and "/api/" not in link} - made <= pages
    assert text.count("](reference/cli.html#") == len(list(generated.commands(get_command(app), "caveat")))
    assert text.count("](reference/api/") == len(caveat.__all__) + ("reference/api/index.html" in made)


EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("*.py"))


def test_the_gallery_has_short_examples() -> None:
    assert len(EXAMPLES) >= 20
    assert all(len(file.read_text().splitlines()) <= 80 for file in EXAMPLES)


def cells_of(file: Path) -> list[str]:
    """The code of the notebook that the page of an example offers."""
    pytest.importorskip("sphinx_gallery")
    pytest.importorskip("nbformat")
    from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF
    from sphinx_gallery.notebook import jupyter_notebook
    from sphinx_gallery.py_source_parser import split_code_and_text_blocks

    notebook = jupyter_notebook(split_code_and_text_blocks(str(file))[1], DEFAULT_GALLERY_CONF, str(file.parent))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_of_the_gallery_runs_as_a_notebook(
    file: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")  # annotations of classes are looked up in it
    monkeypatch.setitem(sys.modules, "__main__", main)
    cells = cells_of(file)
    assert cells
    for cell in cells:
        exec(cell, vars(main))


PAGE = """<!doctype html><body><script src="{demo}/facts.js"></script><script src="{static}/demo.js"></script><script>
const demo = window.caveatDemo, drawn = demo.drawn([[[120, 20], [120, 220]]], 0);
const scribble = demo.drawn([[[20, 20], [220, 200], [30, 190]]], 45);
const images = [...demo.examples, demo.turned(demo.examples[0], 90), scribble, drawn];
(async () => {
  const answers = [];
  for (const image of images) answers.push(await demo.answer(image));
  return JSON.stringify({images, answers});
})().catch((error) => JSON.stringify({failed: String(error)})).then((body) => {
  fetch("http://127.0.0.1:{port}", {method: "POST", mode: "no-cors", body});
});
</script>"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_the_demo_answers_from_a_file_as_the_run_does(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    static, work, posted = tmp_path / "_static", tmp_path / "work", queue.Queue[str]()
    work.mkdir()
    if why := build_demo.build(static / "demo", work):
        pytest.skip(f"the demo was not built: {why}")
    shutil.copy(DOCS / "_static" / "demo.js", static)

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.put(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = tmp_path / "page.html"
        places = {"{demo}": static / "demo", "{static}": static, "{port}": server.server_port}
        page.write_text(re.sub(r"\{(demo|static|port)\}", lambda found: str(places[found[0]]), PAGE))
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        browser = subprocess.Popen([*command, "--remote-debugging-port=0", page.as_uri()], stderr=subprocess.DEVNULL)
        try:
            found = json.loads(posted.get(timeout=120))
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
    images = np.array(found["images"], np.uint8).reshape(-1, 8, 8)
    own = caveat.load(work / "run").predictor("silo-0")(images)
    for name in ("probs", "familiarity", "nearness"):
        values = np.array([each[name] for each in found["answers"]]).squeeze()
        np.testing.assert_allclose(values, getattr(own, name).numpy(), atol=1e-5)
    for name in ("label", "decision", "reason"):
        assert [each[name][0] for each in found["answers"]] == getattr(own, name).tolist()
    assert own.decision[-3] == caveat.Decision.ABSTAIN  # on its side
    assert (images[-1][:, 3:5] > 0).all()
    assert not images[-1][:, [0, 1, 6, 7]].any()


def test_the_demo_is_missing_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    why = build_demo.build(tmp_path / "out", tmp_path)
    assert "npm" in why
    facts = (tmp_path / "out" / "facts.js").read_text()
    assert json.loads(facts.removeprefix("window.caveatDemo = ").removesuffix(";\n")) == {"missing": why}
    assert (tmp_path / "out" / "report.html").exists()
    assert "resolved" not in (DOCS / "demo" / "package-lock.json").read_text()
