"""Progress: what suits where it goes."""

from __future__ import annotations

import sys
import threading

import pytest

from caveat.runs.progress import Live, Plain, Silent, on_terminal


def test_progress_suits_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(on_terminal(quiet=True), Silent)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert isinstance(on_terminal(), Plain)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(on_terminal(), Live)


def test_a_live_bar_starts_no_thread() -> None:
    before = threading.active_count()
    live = Live()
    live.begin("[uefl]", 3)
    live.round(1, "train", {"accuracy": 0.5})
    live.note("silo-3 [gets] 32 codewords")
    assert threading.active_count() == before
    live.end()
    live.begin("baselines", 2)
    live.end()


def test_notes_are_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (Plain(), Live()):
        progress.note("silo a\x1b[2J\u202eb has joined")
        assert capsys.readouterr().err == "silo a\\x1b[2J\\u202eb has joined\n"
