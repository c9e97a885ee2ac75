"""The page in a browser, as a reader has it: no errors, every figure has a size, the keyboard reaches everything."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import fake_comparison
from fake_run import fake_run, minimal_run, quadrant_run

from caveat.files.schema import Comparison
from caveat.html.comparison.page import render
from caveat.html.run.page import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the path")

FIGURES = """
[...document.querySelectorAll("svg, img")].filter((e) => !e.closest("details:not([open])")).map((e) => {
  const box = e.getBoundingClientRect();
  return [e.getAttribute("aria-label") || e.getAttribute("alt") || e.getAttribute("class"), box.width, box.height];
})"""
REACHABLE = """
(() => {
  const wanted = "a[href], button, select, input, summary, [tabindex='0']";
  const all = [...document.querySelectorAll(wanted)].filter((e) => e.checkVisibility());
  const groups = all.filter((e) => e.type !== "radio" || e.checked);
  groups.forEach((e, i) => { e.dataset.place = i; });
  return groups.length;
})()"""
"""Numbers what the keyboard has to reach, in the order of the page; of radio buttons the one that is chosen."""
FOCUS = """
(() => {
  const e = document.activeElement, box = e.getBoundingClientRect();
  const seen = box.width > 0 && box.left >= 0 && box.left < innerWidth && box.top < innerHeight && box.bottom > 0;
  return [Number(e.dataset.place ?? -1), seen, getComputedStyle(e).outlineStyle !== "none", e.outerHTML.slice(0, 80)];
})()"""


class Browser:
    """Headless Chromium, spoken to in its DevTools protocol over a pipe: JSON that ends in a zero byte."""

    def __init__(self, write: int, read: int, profile: Path) -> None:
        self.write, self.read, self.profile = write, read, profile
        self.numbers, self.buffer = itertools.count(1), b""
        self.session: str | None = None
        self.problems: list[str] = []

    def attach(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command's result; what is told in the meantime is listened to."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self.hear()).get("id") != number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def hear(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], 30)
            assert ready, "the browser does not answer"
            self.buffer += os.read(self.read, 1 << 20)
        line, self.buffer = self.buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.problems.append(json.dumps(message["params"]))
        return message

    def open(self, page: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self.problems.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=page.as_uri())
        while self.hear().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int, **more: Any) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser that reads its file descriptor 3 and writes to 4, and ends with the test."""
    assert CHROMIUM
    (their_read, write), (read, their_write) = os.pipe(), os.pipe()
    command = f'exec "$0" "$@" 3<&{their_read} 4>&{their_write}'
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    process = subprocess.Popen(
        ["bash", "-c", command, CHROMIUM, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        pass_fds=(their_read, their_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_read)
    os.close(their_write)
    browser = Browser(write, read, profile)
    try:
        browser.attach()
        yield browser
    finally:
        with suppress(BrokenPipeError):
            os.write(write, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        os.close(write)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        os.close(read)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(fake_run(tmp_path_factory.mktemp("runs") / "full"))


@pytest.mark.parametrize("make", [fake_run, minimal_run, quadrant_run])
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_the_page_opens_without_errors_and_every_figure_has_a_size(
    browser: Browser, tmp_path: Path, make: Callable[[Path], Path], width: int, dark: bool
) -> None:
    browser.open(write_report(make(tmp_path / "run")), width, dark=dark)
    figures = browser.run(FIGURES)
    assert browser.problems == []
    assert figures
    assert [found for found in figures if min(found[1:]) < 3] == []
    assert browser.run("document.documentElement.scrollWidth") <= width  # what is wider scrolls by itself
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 3 * 128) == dark


def test_the_theme_can_be_chosen(browser: Browser, full: Path) -> None:
    browser.open(full)
    before = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.run('document.getElementById("theme").click()')
    assert browser.run("getComputedStyle(document.body).backgroundColor") != before


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(browser: Browser, full: Path) -> None:
    browser.open(full)
    count = browser.run(REACHABLE)
    assert count > 12
    reached = []
    for _ in range(count):
        browser.press("Tab", 9)
        place, seen, outlined, what = browser.run(FOCUS)
        assert seen, f"{what} has the focus and is out of sight"
        assert outlined, f"{what} has the focus and does not show it"
        reached.append(place)
    assert reached == list(range(count))


def test_the_skip_link_and_the_contents_lead_into_the_page(browser: Browser, full: Path) -> None:
    browser.open(full)
    browser.press("Tab", 9)
    browser.press("Enter", 13, text="\r")
    assert browser.run("document.activeElement.id") == "main"
    sections = browser.run('[...document.querySelectorAll("section")].map((e) => "#" + e.id)')
    assert browser.run('[...document.querySelectorAll("nav a")].map((e) => e.getAttribute("href"))') == sections


def test_a_silo_is_highlighted_in_every_picture(browser: Browser, full: Path) -> None:
    browser.open(full)
    browser.run("""
        const choice = document.querySelector("#details select");
        choice.value = "silo-4";
        choice.dispatchEvent(new Event("change"));
    """)
    focused = "[...document.querySelectorAll('SECTION svg [data-name].focus')].map((e) => e.dataset.name)"
    assert browser.run(focused.replace("SECTION", "#details")) == ["silo-4"] * 2
    assert browser.run('document.querySelectorAll("#silos tr.focus").length') == 2
    faded = "getComputedStyle(document.querySelector(\"#details svg [data-name='silo-3']\")).opacity"
    assert float(browser.run(faded)) < 0.5


def test_examples_can_be_sorted_by_decision_and_back(browser: Browser, full: Path) -> None:
    browser.open(full)
    browser.run('document.querySelectorAll("#details details").forEach((each) => { each.open = true; })')
    cards = browser.run('document.querySelectorAll("#details details[open] .cards li").length')
    assert cards > 0
    browser.run('document.querySelector("input[value=decision]").click()')
    titles = browser.run('[...document.querySelector(".decided").querySelectorAll("h3")].map((e) => e.textContent)')
    assert titles == ["abstain", "global"]
    shown = "[...document.querySelectorAll('#details details[open] .cards li')].filter((e) => e.checkVisibility())"
    assert browser.run(f"{shown}.length") == cards
    browser.run('document.querySelector("input[value=uncertainty]").click()')
    assert browser.run('document.querySelectorAll(".decided").length') == 0
    assert browser.run(f"{shown}.length") == cards


def test_a_method_is_highlighted_in_pictures_and_tables_of_a_comparison(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(Comparison.model_validate(fake_comparison())), encoding="utf-8")
    browser.open(path)
    browser.run("""
        const choice = document.getElementById("row");
        choice.value = "fedbn";
        choice.dispatchEvent(new Event("change"));
    """)
    assert browser.problems == []
    focused = "[...new Set([...document.querySelectorAll('SECTION .focus')].map((e) => e.dataset.name))]"
    for section in ("#headline svg", "#table table", "#rounds svg", "#runs table"):
        assert browser.run(focused.replace("SECTION", section)) == ["fedbn"], section
    faded = "getComputedStyle(document.querySelector(\"#rounds svg [data-name='uefl']\")).opacity"
    assert float(browser.run(faded)) < 0.5
    browser.run("document.querySelector(\"#table tr[data-name='fedbn']\").click()")
    assert browser.run("document.querySelectorAll('.focus').length") == 0
