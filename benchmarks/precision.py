"""Measure speed and accuracy of training in bfloat16, compared with float32.

    python benchmarks/precision.py                             speed: seconds of float32 over those of bfloat16
    CAVEAT_DATA=DIR python benchmarks/precision.py accuracy    about 4 minutes on one idle core

Speed is that of `Training.fit` (batches of 64, Adam, channels-last, one thread), in turns. Accuracy is in percent of
all test images after a few rounds of FedAvg on MNIST, for three seeds. `chance` is the variation of float32 with other
initial weights and batches: smaller differences are not meaningful.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from statistics import mean, median

import torch
from mc_dropout import seconds

import caveat
from caveat.core import Data, SiloContext
from caveat.data.settings import DataSettings, Normalize
from caveat.engines.executor import channels_last
from caveat.engines.silos_on_device import one_thread
from caveat.nn.models import build_model

MODELS = {
    "residual, width 16, 32x32": (caveat.ModelSettings(name="residual", width=16), (3, 32, 32)),
    "residual, width 8, 28x28": (caveat.ModelSettings(name="residual", width=8), (1, 28, 28)),
    "lenet5, 32x32": (caveat.ModelSettings(name="lenet5"), (3, 32, 32)),
}
PAIRS, STEPS, WARM_UP = 11, 4, 2
PRECISIONS = {"float32": caveat.Training(), "bfloat16": caveat.Training(precision="bfloat16")}
SEEDS = (0, 1, 2)


def ratios(settings: caveat.ModelSettings, shape: tuple[int, ...]) -> list[float]:
    """Seconds of float32 over those of bfloat16, of pairs of a few steps each."""
    x, y = torch.randn(64 * STEPS, *shape), torch.randint(10, (64 * STEPS,))
    none = Data(x[:0], y[:0])

    def train(context: SiloContext, training: caveat.Training) -> object:
        return training.fit(context, caveat.FedAvg().objective(context.module, {}))

    sites = {
        name: SiloContext(name, Data(x, y), none, none, channels_last(build_model(settings, shape, 10, seed=0)))
        for name in PRECISIONS
    }
    pairs = [
        [seconds(lambda name=name: train(sites[name], PRECISIONS[name])) for name in PRECISIONS]  # type: ignore[misc]
        for _ in range(PAIRS + WARM_UP)
    ]
    return [plain / mixed for plain, mixed in pairs[WARM_UP:]]


def speed() -> None:
    print(
        f"float32's time over bfloat16's, batch 64, one thread, median of {PAIRS} pairs of {STEPS} steps (all pairs):"
    )
    with one_thread():
        for name, (settings, shape) in MODELS.items():
            found = sorted(ratios(settings, shape))
            print(f"  {name:28} {median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})", flush=True)


def percent_right(precision: str, seed: int, drawn: int) -> float:
    """Of the test images, with weights and batches that `drawn` decides; `seed` decides what the silos hold."""
    settings = DataSettings(
        source="npz:mnist.npz",
        n_silos=2,
        samples_per_silo=3000,
        test_per_silo="all",
        normalize=Normalize((0.1307,), (0.3081,)),
    )
    silos = caveat.data.load(settings, seed)
    method = caveat.FedAvg(rounds=8, training=replace(PRECISIONS[precision], lr=0.002, lr_decay=0.7), mc_samples=1)
    model = caveat.ModelSettings(name="residual", width=8)
    run = caveat.run(silos, method, model=model, seed=drawn, every=1000)
    right = [run.predictor(silo.name)(silo.test.x).label == silo.test.y for silo in silos]
    return 100 * torch.cat(right).double().mean().item()


def accuracy() -> None:
    print("accuracy in percent, FedAvg, residual encoder of width 8, MNIST:")
    print(f"  {'seed':6}{'float32':>10}{'bfloat16':>10}{'gain':>10}{'chance':>10}")
    gains, chances = [], []
    for seed in SEEDS:
        plain, mixed = (percent_right(name, seed, seed) for name in PRECISIONS)
        gains.append(mixed - plain)
        chances.append(percent_right("float32", seed, seed + len(SEEDS)) - plain)
        print(f"  {seed:<6}{plain:10.2f}{mixed:10.2f}{gains[-1]:+10.2f}{chances[-1]:+10.2f}", flush=True)
    print(f"  {'mean':26}{mean(gains):+10.2f}{mean(chances):+10.2f}")


def main() -> None:
    measures = {"speed": speed, "accuracy": accuracy}
    if (what := sys.argv[1] if len(sys.argv) > 1 else "speed") not in measures:
        sys.exit(f"no such measure {what!r}, expected one of {', '.join(measures)}")
    measures[what]()


if __name__ == "__main__":
    main()
