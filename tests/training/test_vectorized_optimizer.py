"""Optimisers of vectorized silos against one optimiser per silo."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from caveat.training.fit import Training
from caveat.training.optimizers import Moments
from caveat.training.vectorized_optimizer import VectorizedOptimizer

SHAPES = {"weight": (4, 3), "bias": (4,), "unused": (2,)}
SILOS = 5
GROUPS = [[0, 1, 2, 3, 4], [1, 3], [4, 0, 1, 2, 3], [2], [0, 1, 2, 3, 4]]
"""Silos that take a step together: soon they are at different ones."""


@pytest.mark.parametrize(
    "training",
    [
        Training(optimizer="sgd", lr=0.1),
        Training(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.01),
        Training(optimizer="adam", lr=0.1, weight_decay=0.01),
        Training(optimizer="adamw", lr=0.1, weight_decay=0.01),
    ],
    ids=["sgd", "momentum", "adam", "adamw"],
)
@pytest.mark.parametrize("carried", [False, True])
def test_silos_at_different_steps_move_as_each_by_itself(training: Training, carried: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    start = {name: torch.randn(SILOS, *shape, generator=generator) for name, shape in SHAPES.items()}
    alone = [{name: nn.Parameter(tensor[k].clone()) for name, tensor in start.items()} for k in range(SILOS)]
    optimizers = [training.make_optimizer(parameters, training.lr) for parameters in alone]
    begun: dict[str, torch.Tensor] = {}
    if carried and training.remembered != ("momentum_buffer",):
        begun = {f"{part}.weight": torch.rand(SILOS, 4, 3, generator=generator) for part in ("exp_avg", "exp_avg_sq")}
        begun["step.weight"] = torch.arange(3.0, 3.0 + SILOS)
        for k, optimizer in enumerate(optimizers):
            Moments({name: tensor[k] for name, tensor in begun.items()}).give(optimizer)
    vectorized = {name: tensor.clone() for name, tensor in start.items()}
    together = VectorizedOptimizer(training.make_optimizer({}, training.lr), list(SHAPES), vectorized, begun)
    for silos in GROUPS:
        gradients = {name: torch.randn(SILOS, *SHAPES[name], generator=generator) for name in ("weight", "bias")}
        # As autograd gives those of a linear layer's weights.
        gradients["weight"] = gradients["weight"].mT.contiguous().mT
        for k in silos:
            optimizers[k].zero_grad()
            for name, gradient in gradients.items():
                alone[k][name].grad = gradient[k].contiguous()  # which autograd sees to for a parameter
            optimizers[k].step()
        order = together.order(silos)
        index = None if order == list(range(SILOS)) else torch.tensor(order)
        here = {name: tensor if index is None else tensor[index] for name, tensor in vectorized.items()}
        of_these = {name: gradient if index is None else gradient[index] for name, gradient in gradients.items()}
        together.step(order, index, here, of_these | {"unused": None})
        if index is not None:
            for name, tensor in here.items():
                vectorized[name][index] = tensor
    for name, tensor in vectorized.items():
        for k in range(SILOS):
            assert torch.allclose(tensor[k], alone[k][name].detach(), rtol=0, atol=1e-6), (name, k)
    remembered = together.remembered()
    assert not any(name.endswith("unused") for name in remembered)
    for place, tensor in remembered.items():
        part, _, name = place.partition(".")
        for k in range(SILOS):
            assert torch.allclose(tensor[k], optimizers[k].state[name][part], rtol=0, atol=1e-6), place
