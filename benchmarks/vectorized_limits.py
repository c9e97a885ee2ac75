"""Measure the parts of a vectorized round of 100 silos, compared with the machine's memory bandwidth and one core.

python benchmarks/vectorized_limits.py       one worker, one thread, the round "hundred" of benchmarks/vectorized.py

Operations are counted per step: a step of a linear layer multiplies matrices three times (forward, and backward by
inputs and weights), and Adam reads parameter, gradient and two moments and writes three of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import torch
from jobs import one_thread, rounds, seconds
from torch import nn
from torch.profiler import ProfilerActivity, profile
from vectorized import JOBS

from caveat.engines.vectorization import Vectorization
from caveat.methods import FedAvg
from caveat.training.fit import Training

KINDS = {
    "products of matrices": ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul"),
    "the optimiser": ("_fused_adam_", "_fused_adamw_", "_fused_sgd_"),
    "dropout masks": ("bernoulli_",),
}
OTHER = "other operations"
ROUNDS = 9


def kind_of(name: str) -> str:
    operation = name.removeprefix("aten::")
    return next((kind for kind, names in KINDS.items() if operation in names), OTHER)


def fastest(task: Callable[[], object], times: int = 7) -> float:
    return min(seconds(task) for _ in range(times))


def profiled(task: Callable[[], object]) -> tuple[float, profile]:
    """The seconds of some work, and where they went."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        took = seconds(task)
    return took, found


def machine() -> tuple[float, float]:
    """Bytes per second of adding two tensors far larger than any cache, and operations per second of a product."""
    one, other = torch.ones(1 << 26), torch.ones(1 << 26)
    a = torch.randn(1024, 1024)
    return 3 * one.nbytes / fastest(lambda: one.add_(other)), 2 * 1024**3 / fastest(lambda: a @ a)


def main() -> None:
    torch.manual_seed(0)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    job, case = JOBS["hundred"].job, JOBS["hundred"]
    silos, training = case.data(job), Training(batch_size=job.batch, **case.training)  # type: ignore[arg-type]
    method = FedAvg(rounds=10**5, training=training)
    with one_thread(), rounds(job, method, silos, 1, Vectorization("on")) as round:
        for _ in range(3):
            round()
        whole = fastest(round, ROUNDS)
        watched, found = min((profiled(round) for _ in range(ROUNDS)), key=lambda each: each[0])
        bandwidth, rate = machine()
    spent, calls = Counter[str](), Counter[str]()
    for event in found.key_averages():
        if event.key.startswith("aten::"):
            spent[kind_of(event.key)] += event.self_cpu_time_total * 1e-6
            calls[kind_of(event.key)] += event.count
    module = job.module()
    weights = sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))
    numbers = sum(parameter.numel() for parameter in module.parameters())
    steps = job.silos * (training.local_epochs or 1) * (job.examples // job.batch)
    operations, moved = 6 * steps * job.batch * weights, 7 * 4 * steps * numbers
    print(
        f"a round: {1e3 * whole:.0f} ms, {steps:,.0f} steps of {numbers:,} parameters; profiled {1e3 * watched:.0f} ms:"
    )
    for kind, took in spent.most_common():
        print(f"  {kind}: {1e3 * took:.1f} ms in {calls[kind]:,} calls ({100 * took / watched:.0f} %)")
    others = [event for event in found.key_averages() if kind_of(event.key) == OTHER and event.key.startswith("aten::")]
    for event in sorted(others, key=lambda event: -event.self_cpu_time_total)[:5]:
        print(f"    {event.key}: {event.self_cpu_time_total / 1e3:.1f} ms in {event.count:,} calls")
    rest = watched - sum(spent.values())
    print(f"  Python, vmap, autograd and the profiler: {1e3 * rest:.1f} ms ({100 * rest / watched:.0f} %)")
    print(f"one core: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} Gflop/s")
    print(f"matrices: {operations / 1e9:.3f} Gflop, {1e3 * operations / rate:.1f} ms at that rate")
    print(f"Adam: {moved / 1e6:.0f} MB, {1e3 * moved / bandwidth:.1f} ms at that rate, where no cache helps")


if __name__ == "__main__":
    main()
