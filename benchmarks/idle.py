"""Measure the parts of a round in which silos train nothing and send 11 million parameters, per silo.

python benchmarks/idle.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from jobs import LENET, Job, one_thread, rounds
from torch import nn

from caveat.core import Payload, SiloContext, State, Update
from caveat.core.aggregation import RunningSums, all_finite
from caveat.engines.allocator import keep_freed_memory, use_huge_pages
from caveat.engines.executor import channels_last
from caveat.engines.worker_process import SharedBuffer
from caveat.methods import FedAvg
from caveat.nn.models import ModelSettings
from caveat.training.modules import load, snapshot

SILOS, TIMES = 40, 9


class Idle(FedAvg):
    """FedAvg whose silos send back what they were sent, through their module."""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        load(context.module, down["model"])
        return Update({"model": snapshot(context.module)}, 1), state


class Large(Job):
    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return channels_last(nn.Linear(1000, 11_000))


def least(task: Callable[[], object]) -> float:
    """Milliseconds of the fastest of a few times."""
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        task()
        found.append(time.perf_counter() - began)
    return 1000 * min(found)


def main() -> None:
    use_huge_pages()
    keep_freed_memory()
    job = Large(SILOS, 1, LENET.shape, ModelSettings(name="lenet5"))
    module = job.module()
    sent = snapshot(module)
    large, buffer = sent["weight"], SharedBuffer()
    sums = RunningSums(8 * TIMES)

    def write() -> None:
        buffer.restart()
        buffer.write({"model": sent})

    found = {
        "read once (the yardstick)": least(large.sum),
        "put into the module": least(lambda: load(module, sent)),
        "copied out of it": least(lambda: snapshot(module)),
        "looked at for what is not finite": least(lambda: all_finite(large)),
        "written where the server reads it": least(write),
        "added up in float64, per silo of eight": least(lambda: sums.add([Update({"model": sent}, 1)] * 8)) / 8,
    }
    with one_thread(), rounds(job, Idle(rounds=10**6, training=job.training), job.data(), 2) as round:
        of_silo = least(round) / SILOS
    print(f"{large.numel():,} parameters, ms per silo, one thread:")
    for name, milliseconds in found.items():
        print(f"  {name:42} {milliseconds:6.1f}")
    print(f"  {'a round with two workers, per silo':42} {of_silo:6.1f}")


if __name__ == "__main__":
    with one_thread():
        main()
