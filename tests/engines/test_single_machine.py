"""The single-machine engine: errors name their silo, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import ADAM, FAST, METHODS, Failing, Federation, assert_same, is_level, levels_over_rounds
from sampled import different

from caveat.core import Payload, Replies, RunError, SiloContext, State, Update
from caveat.core.aggregation import all_finite
from caveat.engines.executor import SiloError
from caveat.engines.rounds import FinishedRound
from caveat.engines.single_machine import SingleMachineEngine
from caveat.engines.worker_process import SharedBuffer
from caveat.methods import SCAFFOLD, FedAvg, FedBN, Local
from caveat.training.fit import Training


@dataclass(frozen=True)
class Dying(FedAvg):
    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        if context.id == "silo-1":
            os._exit(9)
        return super().train(down, state, context)


@dataclass(frozen=True)
class TakesTheFirst(FedAvg):
    """Its server's state lies in the memory of a reply."""

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        return {"model": next(iter(replies.updates.values())).payload["model"]}


@pytest.mark.parametrize("kind", [FedBN, Local])  # what is sent, and what is kept
@pytest.mark.parametrize("workers", [1, 2])
def test_training_that_diverges_is_an_error_and_nothing_of_it_is_kept(
    tmp_path: Path, workers: int, kind: type[FedAvg]
) -> None:
    training = Training(batch_size=16, optimizer="sgd", lr=1e30)
    federation = Federation(kind(rounds=2, training=training), tmp_path, workers)
    with pytest.raises(
        SiloError, match=r"silo-\d' failed in round 1 of the schedule.*is not finite: training diverged"
    ):
        federation.run()
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("workers", [1, 2])
def test_error_names_silo_round_work_and_shapes(tmp_path: Path, workers: int) -> None:
    with pytest.raises(SiloError) as caught:
        Federation(Failing(rounds=2, training=ADAM), tmp_path, workers).run()
    for part in (
        "'silo-1'",
        "round 1 of the schedule",
        "'base.train'",
        "ValueError: the scanner is broken",
        "model (",
        "(60, 2)",
    ):
        assert part in str(caught.value), part


def test_worker_that_dies_is_an_error_not_a_hang(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="died at silo 'silo-1' in round 1 of the schedule"):
        Federation(Dying(rounds=2, training=ADAM), tmp_path, workers=2).run()


def test_worker_that_was_killed_while_idle_is_an_error(tmp_path: Path) -> None:
    federation = Federation(FedAvg(rounds=1, training=ADAM), tmp_path, workers=2)
    with SingleMachineEngine(federation.place, 2) as engine:
        for worker in engine.workers:
            os.kill(worker.process, signal.SIGKILL)
            os.waitpid(worker.process, 0)
        with pytest.raises(RunError, match="a worker process died"):
            federation.run(engine=nullcontext(engine))  # type: ignore[arg-type]


def test_workers_begin_with_the_engine(tmp_path: Path) -> None:
    engine = SingleMachineEngine(Federation(FedAvg(rounds=1, training=ADAM), tmp_path).place, 2)
    assert engine.workers == []
    with engine:
        assert len(engine.workers) == 2


def test_workers_end_with_the_engine(tmp_path: Path) -> None:
    federation = Federation(FedAvg(rounds=1, training=ADAM), tmp_path, workers=2)
    with SingleMachineEngine(federation.place, 2) as engine:
        processes = [worker.process for worker in engine.workers]
        assert all(Path(f"/proc/{process}").exists() for process in processes)
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_number_of_threads_is_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Federation(FedAvg(rounds=1, training=ADAM), tmp_path).run()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_finite_is_told_from_what_is_not_whatever_it_adds_up_to(bad: float) -> None:
    assert all_finite(torch.full((4,), 3e38))  # of which the sum is not
    assert all_finite(torch.zeros(0))
    assert not all_finite(torch.tensor([1.0, bad, 2.0]))
    assert not all_finite(torch.tensor([float("inf"), float("-inf")]))


def test_a_buffer_takes_larger_and_smaller_payloads_and_has_no_name() -> None:
    before = set(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else set()
    buffer = SharedBuffer()
    for n in (10, 100_000, 3, 0):
        buffer.restart()
        payload = {"g": {"t": torch.arange(n), "u": torch.rand(3, n).T}, "empty": {}}
        there = buffer.read(buffer.write(payload))
        assert list(there) == ["g", "empty"]
        assert torch.equal(there["g"]["t"], torch.arange(n))
        assert torch.equal(there["g"]["u"], payload["g"]["u"])
    assert (set(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else set()) == before
    buffer.close()


def test_a_buffer_knows_whether_anything_of_it_is_still_in_use() -> None:
    buffer = SharedBuffer()
    assert buffer.unread
    first = buffer.read(buffer.write({"g": {"t": torch.arange(10)}}))
    part = first["g"]["t"][3:5]
    del first
    assert not buffer.unread
    second = buffer.read(buffer.write({"g": {"t": torch.zeros(10**6)}}))  # in a new mapping, beside the old one
    assert part.tolist() == [3, 4]
    del second
    assert not buffer.unread
    del part
    assert buffer.unread
    buffer.close()


@pytest.mark.parametrize("method", different(METHODS), ids=lambda method: type(method).__name__)
@pytest.mark.long
def test_shared_memory_descriptors_and_processes_stay_level_over_rounds(tmp_path: Path, method: Any) -> None:
    """Replies of the round before are given up before the next exchange, so that their memory is used again."""
    levels = levels_over_rounds(replace(method, rounds=24), tmp_path)
    assert len(levels) >= 16
    assert is_level(levels[3], levels[-1]), levels


def test_a_server_state_that_is_part_of_a_reply_is_copied(tmp_path: Path) -> None:
    levels = levels_over_rounds(TakesTheFirst(rounds=20, training=FAST), tmp_path)
    assert is_level(levels[3], levels[-1]), levels


def test_replies_that_are_kept_stay_what_they_were(tmp_path: Path) -> None:
    """They lie in the memory of workers, which is used again once nobody has them any more."""
    federation = Federation(SCAFFOLD(rounds=4, training=FAST), tmp_path, workers=2)
    copies = []

    def remember(done: FinishedRound, server: State) -> None:
        copies.append({silo: deepcopy(update.payload) for silo, update in done.replies.updates.items()})

    federation.run(after=remember)
    for done, payloads in zip(federation.done, copies, strict=True):
        for silo, update in done.replies.updates.items():
            assert_same(update.payload, payloads[silo])


SCRIPT = """
import signal, sys
# Where tests run in the background, Ctrl-C is ignored from the start.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {paths!r}
from copy import deepcopy
from pathlib import Path
from federations import Federation, ADAM
from test_single_machine import Slow
federation = Federation(Slow(rounds=50, training=ADAM), Path({folder!r}), workers=2)
federation.run()
"""


@dataclass(frozen=True)
class Slow(FedAvg):
    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        Path(os.environ["PIDS"], str(os.getpid())).touch()
        time.sleep(0.2)
        return super().train(down, state, context)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.long
def test_no_worker_outlives_its_parent(tmp_path: Path, sign: signal.Signals) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    script = SCRIPT.format(paths=sys.path, folder=str(tmp_path / "run"))
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | {"PIDS": str(pids)}, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: len(list(pids.iterdir())) >= 2)
    parent.send_signal(sign)
    assert parent.wait(30) != 0
    wait_for(lambda: not any(Path("/proc", pid.name).exists() for pid in pids.iterdir()))


def wait_for(condition, seconds: float = 60) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
