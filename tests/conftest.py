"""Fixtures of several test files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Flower reads these when it is imported, and by default asks the network and writes to the home folder.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
# Every process of pytest-xdist has a folder of its own.
os.environ["FLWR_HOME"] = str(Path(tempfile.gettempdir(), "caveat-tests-flower", os.getenv("PYTEST_XDIST_WORKER", "")))
# No test writes to the cache of whoever runs it.
os.environ["CAVEAT_CACHE"] = str(
    Path(tempfile.gettempdir(), "caveat-tests-cache", os.getenv("PYTEST_XDIST_WORKER", ""))
)

import pytest
from commands import TINY, caveat, sets
from own_methods import forget_own
from typer.testing import Result

from caveat.methods import METHODS, plugins


@pytest.fixture
def nowhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and no data folder."""
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CAVEAT_DATA", raising=False)
    monkeypatch.delenv("CAVEAT_DEBUG", raising=False)
    return folder


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(METHODS, "_added", {})
    monkeypatch.setattr(plugins, "_NAMED", [])
    yield
    forget_own()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder and output of a tiny run that went well."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return folder, caveat("run", *sets(*TINY), "--out", folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says in one line, instead of one per test, that a machine has no hashes to compare results with."""
    skipped = (each for each in terminalreporter.stats.get("skipped", []) if "test_bits.py" in each.nodeid)
    for reason in {each.longrepr[2].removeprefix("Skipped: ") for each in skipped if isinstance(each.longrepr, tuple)}:
        terminalreporter.write_line(reason)
