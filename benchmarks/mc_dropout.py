"""What 20 passes of MC dropout cost beside one deterministic pass, per model: median of side-by-side ratios.

python benchmarks/mc_dropout.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from caveat.engines.workplace import one_thread, workspace
from caveat.nn.dropout import mc_dropout
from caveat.nn.models import ModelSettings, build_model

MODELS = {
    "residual, width 8, 28x28": (ModelSettings(name="residual", width=8), (1, 28, 28)),
    "residual, width 16, 32x32": (ModelSettings(name="residual", width=16), (3, 32, 32)),
    "lenet5, 28x28": (ModelSettings(name="lenet5"), (1, 28, 28)),
    "mlp, 64 features": (ModelSettings(name="mlp"), (64,)),
}
PAIRS, BATCH, SAMPLES = 15, 500, 20


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(settings: ModelSettings, shape: tuple[int, ...]) -> float:
    model = workspace(build_model(settings, shape, 10, seed=0)).eval()
    x = torch.randn(BATCH, *shape)

    def once() -> object:
        with torch.no_grad():
            return model(x)

    pairs = [(seconds(once), seconds(lambda: mc_dropout(model, x, SAMPLES))) for _ in range(PAIRS + 2)]
    return median(many / one for one, many in pairs[2:])


def main() -> None:
    print(f"{SAMPLES} passes of MC dropout over one deterministic pass, batch {BATCH}, one thread, median of {PAIRS}:")
    with one_thread():
        for name, (settings, shape) in MODELS.items():
            print(f"  {name:28} {ratio(settings, shape):.2f}")


if __name__ == "__main__":
    main()
