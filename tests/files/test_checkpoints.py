"""What is written is there whole or not at all, and comes back as it was."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from federations import assert_same

from caveat.core import RunError
from caveat.core.tensors import size
from caveat.files.atomic import write_json
from caveat.files.checkpoints import ServerStore, SiloStore
from caveat.files.payloads import from_bytes, read_payload, to_bytes
from caveat.files.schema.small_files import RunState

PAYLOAD = {
    "model": {"a.weight": torch.randn(3, 4), "n": torch.tensor(7), "on": torch.tensor(True)},
    "empty": {},
    "none": {"zero": torch.zeros(0, 5)},
}


def test_payload_survives_bytes_with_empty_groups_and_tensors() -> None:
    back = from_bytes(to_bytes(PAYLOAD))
    assert list(back) == list(PAYLOAD)
    assert_same(back, PAYLOAD)
    assert size(back) == 3 * 4 * 4 + 8 + 1


def test_tensors_in_another_memory_layout_survive() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert torch.equal(from_bytes(to_bytes({"g": {"t": tensor}}))["g"]["t"], tensor)


def test_silo_keeps_two_states_and_the_newest_counted_one_is_its_state(tmp_path: Path) -> None:
    store = SiloStore(tmp_path)
    for t in (2, 5, 9):
        store.save("a", t, {"s": {"t": torch.tensor(t)}})
    assert [path.stem for path in sorted((tmp_path / "a").iterdir())] == ["000005", "000009"]
    assert store.load("a", 9)["s"]["t"] == 9  # type: ignore[index]
    assert store.load("a", 8)["s"]["t"] == 5  # type: ignore[index]
    assert store.load("a", 4) is None
    assert store.load("b", 9) is None
    store.forget("a", after=5)
    assert store.load("a", 9)["s"]["t"] == 5  # type: ignore[index]


def test_server_checkpoint_is_the_last_one_saved(tmp_path: Path) -> None:
    store = ServerStore(tmp_path / "state")
    assert store.load() is None
    for t in (0, 1):
        store.save(t, {"model": {"w": torch.tensor(float(t))}}, RunState(rows=10 * t))
    saved = store.load()
    assert saved is not None
    assert (float(saved[0]["model"]["w"]), saved[1].t, saved[1].rows) == (1.0, 1, 10)
    assert len(list((tmp_path / "state").glob("server-*"))) == 1


@pytest.mark.parametrize("at", ["server", "checkpoint"])
def test_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    store = ServerStore(tmp_path)
    store.save(0, {"model": {"w": torch.tensor(1.0)}}, RunState())
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if at in path.name:
            write(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RunError, match="No space left on device; what was saved before is kept"):
        store.save(1, {"model": {"w": torch.tensor(2.0)}}, RunState())
    monkeypatch.undo()
    saved = store.load()
    assert saved is not None
    assert (float(saved[0]["model"]["w"]), saved[1].t) == (1.0, 0)
    assert not list(tmp_path.glob(".*.part"))


def test_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for damaged in (b"", b"\x08\0\0\0\0\0\0\0{}", to_bytes(PAYLOAD)[:-3]):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"cannot read .*x\.safetensors"):
            read_payload(path)


def test_json_refuses_what_json_has_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"nan": float("nan")})
    assert not (tmp_path / "x.json").exists()
