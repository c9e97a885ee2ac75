"""Measure the time of predictions with their uncertainties relative to bare forward passes: medians, in turns.

A prediction is `Method.answer` for one batch: loading the models, passes, densities, and measures in float64. FedAvg's
MC dropout is compared with one pass of the model. FedPN's predictions of the global and the local model are compared
with the encoder and both heads, and with these and both densities; the silo has 3 of 10 classes, like most in the
paper. Densities of many classes at once are compared with a loop over classes with one flow each.

python benchmarks/answers.py
python benchmarks/answers.py parts     the parts of FedPN's predictions with a perceptron
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from mc_dropout import BATCH, PAIRS, ratio
from torch import Tensor

from caveat.core import Data, Decision, Payload, Prediction, SiloContext, State
from caveat.engines.executor import channels_last
from caveat.engines.silos_on_device import one_thread
from caveat.methods import FedAvg, FedPN
from caveat.nn.models import ModelSettings, build_model
from caveat.nn.posterior_network import PosteriorNetwork, RadialFlows, embedding
from caveat.training.modules import snapshot

MODELS = {
    "lenet5, features 16, 28x28": (ModelSettings(name="lenet5", features=16, hidden=48), (1, 28, 28), 10),
    "residual, width 8, 28x28": (ModelSettings(name="residual", width=8), (1, 28, 28), 10),
    "residual, width 16, 100 classes": (ModelSettings(name="residual", width=16), (3, 32, 32), 100),
    "mlp, 64 features": (ModelSettings(name="mlp"), (64,), 10),
}
FLOWS = ((10, 16), (10, 64), (100, 64))
"""Classes and dimensions."""
LAYERS = 30


def silo(module: torch.nn.Module) -> SiloContext:
    none = Data(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    return SiloContext("silo", none, none, none, module)


def fedavg(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> float:
    method, module = FedAvg(), channels_last(build_model(settings, shape, classes, seed=0)).eval()
    down, x = {"model": snapshot(module)}, torch.randn(BATCH, *shape)
    return ratio(torch.no_grad()(lambda: module(x)), lambda: method.answer(down, {}, silo(module), x))


def fedpn(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> tuple[float, float]:
    method = FedPN(layers=LAYERS)
    network = channels_last(method.build(build_model(settings, shape, classes, seed=0))).eval()
    assert isinstance(network, PosteriorNetwork)
    down: Payload = {"model": snapshot(network)}
    shares = (torch.arange(classes) < 0.3 * classes).double()
    state: State = {
        "own": snapshot(network.posterior),
        "classes": {"shares": shares / shares.sum()},
    }
    x = torch.randn(BATCH, *shape)

    @torch.no_grad()
    def bare() -> list[Tensor]:
        tokens = network.encoder(x)
        return [network.posterior.head(tokens) for _ in range(2)]

    @torch.no_grad()
    def with_densities() -> list[tuple[Tensor, Tensor]]:
        tokens = network.encoder(x)
        z = embedding(tokens)
        flows = network.posterior.flows
        return [(network.posterior.head(tokens), flows.log_prob(z, wanted)) for wanted in (None, shares > 0)]

    def answer() -> object:
        return method.answer(down, state, silo(network), x)

    return ratio(bare, answer), ratio(with_densities, answer)


def flows(classes: int, features: int) -> float:
    """A loop over classes beside all at once: how many times as long it takes."""
    together = RadialFlows(classes, features, LAYERS)
    apart = [RadialFlows(1, features, LAYERS) for _ in range(classes)]
    z = torch.randn(BATCH, features)
    return ratio(lambda: together.log_prob(z), lambda: [one.log_prob(z) for one in apart])


def least(task: Callable[[], object]) -> float:
    """Milliseconds of the fastest of many times."""
    found = []
    for _ in range(300):
        began = time.perf_counter()
        task()
        found.append(time.perf_counter() - began)
    return 1000 * min(found)


def parts() -> None:
    settings, shape, classes = MODELS["mlp, 64 features"]
    network = FedPN(layers=LAYERS).build(build_model(settings, shape, classes, seed=0)).eval()
    assert isinstance(network, PosteriorNetwork)
    known, x = torch.arange(classes) < 0.3 * classes, torch.randn(BATCH, *shape)
    flows, head = network.posterior.flows, network.posterior.head
    tokens = network.encoder(x)
    z, own = embedding(tokens), int(known.sum())
    distances = torch.rand(LAYERS, classes + own, BATCH, dtype=torch.float64)
    log_alpha, evidence = torch.randn(BATCH, classes).double().exp(), torch.randn(BATCH).double()
    found = {
        "encoder, and both heads (the yardstick)": least(lambda: [network.encoder(x), head(tokens), head(tokens)]),
        f"densities of {classes} and {own} classes": least(lambda: [flows.log_prob(z), flows.log_prob(z, known)]),
        "  the square roots of their distances alone": least(distances.sqrt),
        "measures of both answers": least(
            lambda: [Prediction.from_dirichlet(log_alpha, Decision.LOCAL, evidence) for _ in range(2)]
        ),
    }
    print(f"FedPN's answers of a perceptron, batch {BATCH}, one thread, ms:")
    for name, milliseconds in found.items():
        print(f"  {name:44} {milliseconds:6.2f}")


def main() -> None:
    if sys.argv[1:] == ["parts"]:
        with one_thread(), torch.no_grad():
            parts()
        return
    print(f"time of predictions over bare forward passes, batch {BATCH}, one thread, median of {PAIRS}:")
    print(f"  {'':34} FedAvg  FedPN  FedPN, over passes and densities")
    with one_thread():
        for name, model in MODELS.items():
            heads, densities = fedpn(*model)
            print(f"  {name:34} {fedavg(*model):6.2f} {heads:6.2f} {densities:6.2f}")
        print("time of densities in a loop over classes over time of all densities at once:")
        for classes, features in FLOWS:
            print(f"  {classes:3} classes, {features} dimensions {flows(classes, features):17.2f}")


if __name__ == "__main__":
    main()
