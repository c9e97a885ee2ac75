"""Replies of linear rounds are added up as they come: the same bits, and few of them at a time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from federations import ADAM, Failing, Federation, assert_same, silos

from caveat.core import ConfigurationError, Method, Payload, Replies, Round, RunError, Silo, SiloContext, State, Update
from caveat.core.aggregation import RunningSums
from caveat.engines import sums_on_arrival
from caveat.engines.executor import SiloError
from caveat.engines.single_machine import SingleMachineEngine
from caveat.engines.sums_on_arrival import BUFFERS, StreamingMean
from caveat.methods import FML, FMLU, FedAvg, FedBABU, Local
from caveat.training.fit import Training
from caveat.wrappers.privacy import Private

COUNT = 9


@dataclass(frozen=True)
class KeptAll(FedAvg):
    """FedAvg that does not say that means are enough for it."""

    linear = None


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two silos in a group, or twice as many as there are workers."""
    monkeypatch.setattr(sums_on_arrival, "TOGETHER", 1)
    monkeypatch.setattr(sums_on_arrival, "FEWEST", 2)


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

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        (Path(os.environ["NOTES"]) / context.id).touch()
        if context.id == "silo-0":
            end = time.monotonic() + 30
            while len(list(Path(os.environ["NOTES"]).iterdir())) < 4 * BUFFERS and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.5)  # enough for one more, if it were asked
            begun = sorted(path.name for path in Path(os.environ["NOTES"]).iterdir())
            (Path(os.environ["NOTES"]) / "meanwhile").write_text(" ".join(begun))
        return super().train(down, state, context)


@pytest.mark.usefixtures("few")
def test_a_slow_silo_holds_up_those_that_memory_is_not_meant_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setenv("NOTES", str(notes))
    nine(Noting(rounds=1, training=ADAM), tmp_path / "run", 2)
    assert (notes / "meanwhile").read_text().split() == [f"silo-{k}" for k in range(4 * BUFFERS)]
    assert len(list(notes.iterdir())) == COUNT + 1


def test_silos_are_asked_in_groups_that_fit_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_on_arrival, "TOGETHER", 100)
    monkeypatch.setattr(sums_on_arrival, "FEWEST", 4)
    names = [f"silo-{k:02}" for k in reversed(range(23))]
    counts = dict.fromkeys(names, 1)

    def groups(size: int, workers: int) -> list[int]:
        return [len(group) for group in StreamingMean(counts, size, workers, None).groups]

    assert groups(size=10, workers=2) == [10, 10, 3]
    assert groups(size=10**9, workers=2) == [4] * 5 + [3]
    assert groups(size=10**9, workers=5) == [10, 10, 3]  # no worker waits for one that is slow
    assert groups(size=0, workers=2) == [23]
    assert StreamingMean(counts, 10, 2, None).groups[0][0] == "silo-00"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("backwards", [False, True])
def test_the_order_within_what_was_asked_is_free(backwards: bool) -> None:
    updates = {f"silo-{k}": Update({"model": {"w": torch.randn(50) * 10**k}}, 1 + k) for k in range(7)}
    added = StreamingMean({silo: update.examples for silo, update in updates.items()}, 1, 1, None)
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
        yield Round(self.broadcast, self.train, self.aggregate, linear="examples")

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, state = super().train(down, state, context)
        if context.id == "silo-3":
            update.payload["model"].pop("head.1.weight")
        return update, state


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("workers", [1, 2])
def test_what_fails_while_adding_up_is_raised(tmp_path: Path, workers: int) -> None:
    with pytest.raises(KeyError, match=r"head\.1\.weight"):
        nine(Odd(rounds=1, training=ADAM), tmp_path, workers)


def test_an_update_that_counts_for_something_else_is_refused() -> None:
    added = StreamingMean({"a": 3, "b": 4}, 1, 1, None)
    added.take("a", Update({"model": {}}, 3))
    with pytest.raises(RunError, match="silo 'b' sent an update of weight 5, expected 4"):
        added.take("b", Update({"model": {}}, 5))


def test_updates_of_one_layout_share_their_form() -> None:
    added = StreamingMean(dict.fromkeys("abc", 1), 1, 1, None)
    for name, width in (("a", 2), ("b", 2), ("c", 2)):
        added.take(name, Update({"model": {"w": torch.ones(width)}}, 1))
    forms = added.replies(3).updates
    assert forms["a"].payload is forms["b"].payload is forms["c"].payload


def test_updates_of_another_layout_have_a_form_of_their_own(few: None) -> None:
    added = StreamingMean(dict.fromkeys("abc", 1), 1, 1, None)
    added.take("a", Update({"model": {"w": torch.ones(2)}}, 1))
    added.take("c", Update({"model": {"w": torch.ones(3)}}, 1))  # of a later group, so that nothing is added up yet
    assert added.forms["c"].payload["model"]["w"].shape == (3,)
    assert added.forms["a"].payload["model"]["w"].shape == (2,)


@pytest.mark.usefixtures("few")
def test_memory_is_not_used_again_while_it_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = nine(KeptAll(rounds=2, training=ADAM), tmp_path / "kept", 1)
    add = RunningSums.add

    def slowly(self: RunningSums, updates: list[Update]) -> None:
        time.sleep(0.1)
        add(self, updates)

    monkeypatch.setattr(RunningSums, "add", slowly)
    assert_same(kept.server, nine(FedAvg(rounds=2, training=ADAM), tmp_path / "added", 2).server)


@pytest.mark.usefixtures("few")
def test_clipped_updates_are_added_up_with_every_silo_counted_once(tmp_path: Path) -> None:
    method = Private(FedAvg(rounds=2, training=ADAM), clip_norm=1.0, noise_multiplier=0.3, silos=COUNT)
    one, other = nine(method, tmp_path / "one", 1), nine(method, tmp_path / "two", 2)
    assert_same(one.server, other.server)
    assert one.done[0].replies.means is not None
    assert [update.examples for update in one.done[0].replies.updates.values()] == [1] * COUNT


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_continues_to_the_same_bits(tmp_path: Path, workers: int) -> None:
    whole = nine(FedAvg(rounds=3, training=ADAM), tmp_path / "whole", workers)
    parts = Federation(FedAvg(rounds=3, training=ADAM), tmp_path / "parts", workers, data=silos(COUNT))
    parts.run(stop=2)
    parts.run(start=2)
    assert_same(whole.server, parts.server)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_silo_that_fails_when_others_are_added_up_already_is_named(tmp_path: Path, workers: int) -> None:
    with pytest.raises(SiloError, match="silo 'silo-6' failed in round 1 of the schedule"):
        nine(Failing(rounds=1, training=ADAM, at="silo-6"), tmp_path, workers)


def test_silos_that_are_made_on_demand_are_not_made_to_be_counted(tmp_path: Path) -> None:
    """Their n_k is not known before they work, so that their replies are kept."""
    made: list[str] = []

    class Lazily(Mapping[str, Silo]):
        def __getitem__(self, name: str) -> Silo:
            made.append(name)
            return data[name]

        def __iter__(self) -> Iterator[str]:
            return iter(data)

        def __len__(self) -> int:
            return len(data)

    data = silos(COUNT)
    federation = Federation(FedAvg(rounds=1, training=ADAM), tmp_path, data=data)
    federation.place.silos = Lazily()
    federation.run(engine=SingleMachineEngine(federation.place, 2))
    assert not made  # in this process
    assert federation.done[0].replies.means is None


@pytest.mark.parametrize("linear", [True, False, "mean"])
def test_a_round_that_is_linear_by_another_word_is_refused(linear: object) -> None:
    with pytest.raises(ConfigurationError, match=f"Round.linear = {linear!r}: expected 'examples', 'silos' or None"):
        Round(FedAvg().broadcast, FedAvg().train, linear=linear)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [FedAvg, FedBABU, FML, FMLU, Local])
def test_an_average_of_a_subclass_says_itself_that_means_are_enough(kind: type[FedAvg]) -> None:
    class Own(kind):  # type: ignore[misc,valid-type]
        def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
            return server

    options = {"weights": "examples"} if issubclass(kind, FML) else {}
    options |= {"weigh_mean": False} if kind is FMLU else {}
    assert next(iter(kind(**options).schedule())).linear == "examples"
    assert next(iter(Own(**options).schedule())).linear is None


@dataclass(frozen=True)
class Heavy(FedAvg):
    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, state = super().train(down, state, context)
        return Update(update.payload | {"ballast": {"b": torch.ones(100_000)}}, update.examples), state


@pytest.mark.skipif(sys.platform != "linux", reason="memory of a file without a name is counted as Linux does")
@pytest.mark.usefixtures("few")
def test_memory_of_replies_is_used_again_in_the_same_round(tmp_path: Path) -> None:
    federation = Federation(Heavy(rounds=1, training=Training(local_steps=1)), tmp_path, 2, data=silos(64))
    with SingleMachineEngine(federation.place, 2) as engine:
        replies = engine.exchange(0, "base.train", federation.method.broadcast(federation.server),
                                  engine.silos, linear="examples")  # fmt: skip
        buffers = [buffer for worker in engine.workers for buffer in worker.buffers]
        taken = sum(os.fstat(buffer.descriptor).st_blocks * 512 for buffer in buffers)
    assert torch.equal(replies.mean("ballast")["b"], torch.ones(100_000))
    assert taken < 20 * 400_000  # of 64 replies, two groups of four are there at a time, each perhaps at one worker
