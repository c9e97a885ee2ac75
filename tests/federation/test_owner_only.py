"""What servers and silos write is for their owners' eyes, whatever this process would let others see."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hospitals import NAMES, Federation

from caveat.config import load
from caveat.files import close_to_others, owner_only


@pytest.fixture
def generous() -> Iterator[None]:
    """A process whose files anybody may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def readable(folder: Path) -> list[Path]:
    """Everything in a folder, at any depth, that somebody else than its owner may do anything with."""
    return [path for path in (folder, *folder.rglob("*")) if stat.S_IMODE(path.lstat().st_mode) & 0o077]


@pytest.mark.long
def test_nobody_else_may_read_what_a_federation_writes(tmp_path: Path, generous: None) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    sets = ("uncertainty.temperature_scaling=false", "privacy.clip_norm=1")
    old = federation.homes["hill"] / "state"
    old.mkdir()  # a folder that was there before, in which other things may be
    run = federation.serve(load(str(tmp_path / "config.toml"), list(sets)))
    assert readable(run) == []
    for name in NAMES:
        state = federation.homes[name] / "state"
        assert readable(state) == ([state] if state == old else [])
        found = {path.name for path in state.rglob("*")}
        assert {"secret", "preparation.json", "ledger.jsonl", "silo.json", "kept.json", "model.safetensors"} <= found
        assert any(each.startswith("data-") and each.endswith(".safetensors") for each in found)
    assert {"federation.json", "splits.json", "checkpoint.json"} <= {path.name for path in run.rglob("*")}
    (tmp_path / "after").touch()
    assert stat.S_IMODE((tmp_path / "after").stat().st_mode) == 0o666, "the process is as it was"


def test_what_an_earlier_version_left_open_is_closed(tmp_path: Path, generous: None) -> None:
    (tmp_path / "folder").mkdir()
    close_to_others(tmp_path / "folder")
    assert readable(tmp_path / "folder") == []
    os.umask(0o300)
    with owner_only():
        (tmp_path / "file").touch()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o400, "no more than was allowed before"
