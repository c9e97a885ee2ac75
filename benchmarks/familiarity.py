"""Measure the cost of familiarity in predictions: the ratio of times with and without it, and the added time per input.

Inputs are random images of 28 and 8 pixels and rows of a table, with 200 calibration inputs, in batches of 1,000 on one
thread. Both sides are timed in turns in CPU time; results are medians.

python benchmarks/familiarity.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

import caveat
from caveat.data.user_data import from_arrays
from caveat.wrappers.alarms import Familiar
from caveat.wrappers.base import find

TURNS, INPUTS, ROWS = 41, 1000, 2500  # of which 200 calibrate
PERCEPTRON = "perceptron, 20 columns"
CASES = {
    "lenet5, 28 px": ((28, 28, 1), caveat.ModelSettings(name="lenet5")),
    "cnn, 28 px": ((28, 28, 1), caveat.ModelSettings(name="cnn")),
    "residual, width 16, 28 px": ((28, 28, 1), caveat.ModelSettings(name="residual")),
    "residual, width 16, 32 px in colour": ((32, 32, 3), caveat.ModelSettings(name="residual")),
    "residual, width 16, 8 px": ((8, 8, 1), caveat.ModelSettings(name="residual")),
    PERCEPTRON: ((20,), caveat.ModelSettings(name="mlp")),
}


def silos(shape: tuple[int, ...]) -> caveat.data.Silos:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (ROWS, *shape)).astype(np.uint8) if len(shape) > 1 else rng.normal(0, 1, (ROWS, *shape))
    return from_arrays({name: (raw, rng.integers(0, 10, ROWS)) for name in "ab"})


def measure(shape: tuple[int, ...], model: caveat.ModelSettings, batch: int = INPUTS) -> tuple[float, float]:
    """The ratio of times, and microseconds that are added per input."""
    run = caveat.run(silos(shape), caveat.FedAvg(), rounds=1, model=model, every=10)
    whole = run.experiment.complete_method
    familiar = find(whole, Familiar)
    assert familiar is not None
    assert len(run.silos.named("a").calibration) == 200
    x = run.silos.named("a").train.x[:INPUTS].repeat(batch // INPUTS, *[1] * len(shape))
    at = run.experiment.at("a")
    ask = [partial(method.predict, *at) for method in (familiar, familiar.base)]

    def seconds(predict: Callable[[Tensor], object]) -> float:
        began = time.process_time()
        predict(x)
        return time.process_time() - began

    turns = [[seconds(predict) for predict in ask] for _ in range(TURNS)]
    ratio = median(whole / base for whole, base in turns)
    return ratio, 1e6 * median(whole - base for whole, base in turns) / batch


def main() -> None:
    torch.set_num_threads(1)
    print("| model | time with over without | added, µs an input |\n|---|---:|---:|")
    for name, (shape, model) in CASES.items():
        ratio, added = measure(shape, model)
        print(f"| {name} | {ratio:.2f} | {added:.1f} |", flush=True)
    ratio, added = measure(*CASES[PERCEPTRON], 10 * INPUTS)
    print(f"| {PERCEPTRON}, in batches of {10 * INPUTS:,} | {ratio:.2f} | {added:.1f} |")


if __name__ == "__main__":
    main()
