"""Rows of a frozen encoder on a disk: found again by content, never believed when they are damaged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from caveat.core import RunError
from caveat.core.devices import cache_folder
from caveat.files import FeatureCache, Rows, hashes

RNG = np.random.default_rng(0)
INPUTS, ROWS = RNG.normal(size=(6, 2, 3)).astype(np.float32), RNG.normal(size=(6, 4)).astype(np.float32)


def taken(cache: FeatureCache, ids: list[bytes]) -> tuple[Rows, list[int]]:
    into = np.full((len(ids), 4), np.nan, dtype=np.float32)
    return into, cache.take(ids, into)


def test_rows_are_found_by_the_content_of_inputs_by_other_processes_too(tmp_path: Path) -> None:
    ids = hashes(INPUTS)
    assert len(set(ids)) == 6
    assert hashes(INPUTS[::-1].copy()) == ids[::-1]
    cache = FeatureCache(tmp_path / "rows", 4)
    assert taken(cache, ids)[1] == [0, 1, 2, 3, 4, 5]
    cache.add(ids[:2], ROWS[:2])
    cache.add(ids[4:], ROWS[4:])
    for each in (cache, FeatureCache(tmp_path / "rows", 4)):
        into, missing = taken(each, [ids[5], ids[2], ids[0], ids[5]])
        assert missing == [1]
        assert np.array_equal(into[[0, 2, 3]], ROWS[[5, 0, 5]])
    assert (tmp_path / "rows").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "no ids", "other ids", "link", "pickle"])
def test_what_is_damaged_counts_as_not_there(damage: str, tmp_path: Path) -> None:
    ids, folder = hashes(INPUTS), tmp_path / "rows"
    FeatureCache(folder, 4).add(ids, ROWS)
    (of_ids,) = folder.glob("*.ids.npy")
    block = folder / of_ids.name.replace(".ids", "")
    data = block.read_bytes()
    if damage == "flip":
        block.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "cut":
        block.write_bytes(data[:-4])
    elif damage == "gone":
        block.unlink()
    elif damage == "no ids":
        of_ids.write_bytes(b"")
    elif damage == "other ids":
        np.save(of_ids, np.zeros((6, 16), np.uint8))
    elif damage == "link":
        block.rename(tmp_path / "elsewhere")
        block.symlink_to(tmp_path / "elsewhere")
    else:
        np.save(block, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    cache = FeatureCache(folder, 4)
    assert taken(cache, ids)[1] == [0, 1, 2, 3, 4, 5]
    if damage != "link":
        cache.add(ids, ROWS)
        assert np.array_equal(taken(FeatureCache(folder, 4), ids)[0], ROWS)


def test_rows_that_are_deleted_while_a_process_knows_them_are_missing(tmp_path: Path) -> None:
    ids, cache = hashes(INPUTS), FeatureCache(tmp_path, 4)
    cache.add(ids, ROWS)
    for file in tmp_path.iterdir():
        file.unlink()
    assert taken(cache, ids)[1] == [0, 1, 2, 3, 4, 5]


def test_another_width_is_another_encoder_s(tmp_path: Path) -> None:
    ids = hashes(INPUTS)
    FeatureCache(tmp_path, 4).add(ids, ROWS)
    into = np.zeros((6, 5), dtype=np.float32)
    assert FeatureCache(tmp_path, 5).take(ids, into) == [0, 1, 2, 3, 4, 5]


def test_the_folder_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "caveat-tests-cache" in os.environ["CAVEAT_CACHE"], "tests must leave the user's own cache alone"
    monkeypatch.setenv("CAVEAT_CACHE", "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else")
    monkeypatch.delenv("CAVEAT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/caveat")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "caveat"


@pytest.mark.parametrize("link", ["features", "features/rows"])
def test_nothing_is_written_through_a_link(link: str, tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "features" / "rows"
    elsewhere.mkdir()
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(elsewhere)
    with pytest.raises(RunError, match="is a link to"):
        FeatureCache(folder, 4).add(hashes(INPUTS), ROWS)
    assert not list(elsewhere.iterdir())
