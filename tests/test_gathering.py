"""Replies of linear rounds are added up as they come: the same bits, and few of them at a time."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from federations import ADAM, Federation, assert_same, silos

from caveat.core import Method, Payload, Replies, Round, RunError, Site, State, Update
from caveat.engines import gathering
from caveat.engines.embedded import Embedded
from caveat.engines.gathering import AHEAD, AddedUp
from caveat.methods import FedAvg

COUNT = 9


@dataclass(frozen=True)
class KeptAll(FedAvg):
    """FedAvg that does not say that means are enough for it."""

    linear = False  # type: ignore[assignment]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two silos in a group."""
    monkeypatch.setattr(gathering, "TOGETHER", 1)
    monkeypatch.setattr(gathering, "FEWEST", 2)


def nine(method: Method, folder: Path, workers: int) -> Federation:
    federation = Federation(method, folder, workers, data=silos(COUNT))
    federation.run()
    return federation


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_adding_up_gives_the_bits_of_keeping_all(tmp_path: Path, workers: int) -> None:
    kept = nine(KeptAll(rounds=3, training=ADAM), tmp_path / "kept", 1)
    added = nine(FedAvg(rounds=3, training=ADAM), tmp_path / "added", workers)
    assert_same(kept.server, added.server)
    for one, other in zip(kept.done, added.done, strict=True):
        assert list(one.replies.updates) == list(other.replies.updates)
        for silo, update in other.replies.updates.items():
            there = one.replies.updates[silo]
            assert update.examples == there.examples
            for name, tensor in update.payload["model"].items():
                assert tensor.is_meta
                assert (tensor.shape, tensor.dtype) == (
                    there.payload["model"][name].shape,
                    there.payload["model"][name].dtype,
                )


@dataclass(frozen=True)
class Noting(FedAvg):
    """Notes when silos begin; the first by name is slow."""

    def train(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        (Path(os.environ["NOTES"]) / site.id).touch()
        if site.id == "silo-0":
            time.sleep(1.0)
            begun = sorted(path.name for path in Path(os.environ["NOTES"]).iterdir())
            (Path(os.environ["NOTES"]) / "meanwhile").write_text(" ".join(begun))
        return super().train(down, state, site)


@pytest.mark.usefixtures("few")
def test_a_slow_silo_holds_up_those_that_memory_is_not_meant_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setenv("NOTES", str(notes))
    nine(Noting(rounds=1, training=ADAM), tmp_path / "run", 2)
    assert (notes / "meanwhile").read_text().split() == [f"silo-{k}" for k in range(2 * AHEAD)]
    assert len(list(notes.iterdir())) == COUNT + 1


def test_silos_are_asked_in_groups_that_fit_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "TOGETHER", 100)
    monkeypatch.setattr(gathering, "FEWEST", 4)
    names = [f"silo-{k:02}" for k in reversed(range(23))]
    assert [len(group) for group in AddedUp(dict.fromkeys(names, 1), 10, None).groups] == [10, 10, 3]
    assert [len(group) for group in AddedUp(dict.fromkeys(names, 1), 10**9, None).groups] == [4] * 5 + [3]
    assert [len(group) for group in AddedUp(dict.fromkeys(names, 1), 0, None).groups] == [23]
    assert AddedUp(dict.fromkeys(names, 1), 10, None).groups[0][0] == "silo-00"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("backwards", [False, True])
def test_the_order_within_what_was_asked_is_free(backwards: bool) -> None:
    updates = {f"silo-{k}": Update({"model": {"w": torch.randn(50) * 10**k}}, 1 + k) for k in range(7)}
    added = AddedUp({silo: update.examples for silo, update in updates.items()}, 1, None)
    for group, names in enumerate(added.groups):
        assert added.ready(group)
        for name in reversed(names) if backwards else names:
            added.take(name, updates[name])
    replies = added.replies(7)
    assert torch.equal(replies.mean("model")["w"], Replies(updates, 7).mean("model")["w"])
    assert not added.waiting


@dataclass(frozen=True)
class Odd(FedAvg):
    """One silo sends a tensor less than the others."""

    def schedule(self):  # type: ignore[no-untyped-def]
        yield Round(self.broadcast, self.train, self.average, linear="examples")

    def train(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        update, state = super().train(down, state, site)
        if site.id == "silo-3":
            update.payload["model"].pop("head.1.weight")
        return update, state


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("workers", [1, 2])
def test_what_fails_while_adding_up_is_raised(tmp_path: Path, workers: int) -> None:
    with pytest.raises(KeyError, match=r"head\.1\.weight"):
        nine(Odd(rounds=1, training=ADAM), tmp_path, workers)


def test_an_update_that_counts_for_something_else_is_refused() -> None:
    added = AddedUp({"a": 3, "b": 4}, 1, None)
    added.take("a", Update({}, 99))  # nothing to add
    with pytest.raises(RunError, match="silo 'b' says that its update is of 5 examples, expected 4"):
        added.take("b", Update({"model": {}}, 5))


@dataclass(frozen=True)
class Heavy(FedAvg):
    def train(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        update, state = super().train(down, state, site)
        return Update(update.payload | {"ballast": {"b": torch.ones(100_000)}}, update.examples), state


@pytest.mark.skipif(sys.platform != "linux", reason="memory of a file without a name is counted as Linux does")
@pytest.mark.usefixtures("few")
def test_memory_of_replies_is_used_again_in_the_same_round(tmp_path: Path) -> None:
    federation = Federation(Heavy(rounds=1, training=ADAM), tmp_path, 2, data=silos(24))
    with Embedded(federation.place, 2) as engine:
        replies = engine.exchange(0, federation.method.train, federation.method.broadcast(federation.server),
                                  engine.silos, linear="examples")  # fmt: skip
        slabs = [slab for worker in engine.workers for slab in worker.slabs]
        taken = sum(os.fstat(slab.descriptor).st_blocks * 512 for slab in slabs)
    assert torch.equal(replies.mean("ballast")["b"], torch.ones(100_000))
    assert taken < 10 * 400_000  # of 24 replies, two groups of two are there at a time, each perhaps at one worker
