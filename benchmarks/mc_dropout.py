"""Measure the time of 20 passes of MC dropout relative to one deterministic pass, per model: medians, in turns.

python benchmarks/mc_dropout.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from caveat.engines.executor import channels_last
from caveat.engines.silos_on_device import one_thread
from caveat.nn.dropout import mc_dropout
from caveat.nn.models import ModelSettings, build_model

MODELS = {
    "residual, width 8, 28x28": (ModelSettings(name="residual", width=8), (1, 28, 28)),
    "residual, width 8, hidden 512": (ModelSettings(name="residual", width=8, hidden=512), (1, 28, 28)),
    "residual, width 16, 32x32": (ModelSettings(name="residual", width=16), (3, 32, 32)),
    "lenet5, 28x28": (ModelSettings(name="lenet5"), (1, 28, 28)),
    "lenet5, features 16, hidden 48": (ModelSettings(name="lenet5", features=16, hidden=48), (1, 28, 28)),
    "cnn, 32x32": (ModelSettings(name="cnn"), (3, 32, 32)),
    "cnn, hidden 64": (ModelSettings(name="cnn", hidden=64), (3, 32, 32)),
    "normed, normed head, 28x28": (ModelSettings(name="normed", norm=True), (1, 28, 28)),
    "mlp, 64 features": (ModelSettings(name="mlp"), (64,)),
    "mlp, hidden 48": (ModelSettings(name="mlp", hidden=48), (64,)),
}
PAIRS, BATCH, SAMPLES = 15, 500, 20
BURST = 0.1
"""Seconds of deterministic passes in a measurement, so that models of a millisecond are measured too."""


def seconds(task: Callable[[], object], times: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(times):
        task()
    return (time.perf_counter() - start) / times


def ratio(one: Callable[[], object], other: Callable[[], object]) -> float:
    """How many times as long the other takes: the median over pairs, the first two not counted."""
    times = max(1, int(BURST / seconds(one)))
    pairs = [(seconds(one, times), seconds(other, times)) for _ in range(PAIRS + 2)]
    return median(second / first for first, second in pairs[2:])


def passes(settings: ModelSettings, shape: tuple[int, ...]) -> float:
    """MC dropout over one deterministic pass."""
    model = channels_last(build_model(settings, shape, 10, seed=0)).eval()
    x = torch.randn(BATCH, *shape)
    return ratio(torch.no_grad()(lambda: model(x)), lambda: mc_dropout(model, x, SAMPLES))


def main() -> None:
    print(f"{SAMPLES} passes of MC dropout over one deterministic pass, batch {BATCH}, one thread, median of {PAIRS}:")
    with one_thread():
        for name, (settings, shape) in MODELS.items():
            print(f"  {name:32} {passes(settings, shape):.2f}")


if __name__ == "__main__":
    main()
