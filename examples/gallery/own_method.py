"""
Your own method
===============

A method is one class. This example implements FedProx, which adds a term to the loss. The field ``mu`` becomes a
setting that caveat validates.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

import caveat


@caveat.frozen_settings
class MyProx(caveat.FedAvg):
    """FedAvg with a term that keeps silos near the global model (Li et al., 2020)."""

    mu: Annotated[float, Field(ge=0)] = 0.1
    """Weight of half the squared distance to the global model; 0 is FedAvg."""

    def objective(self, module: nn.Module, down: caveat.Payload):
        loss = super().objective(module, down)
        weights = dict(module.named_parameters())

        def with_distance(x: Tensor, y: Tensor) -> Tensor:
            far = [(weights[name] - down["model"][name]).square().sum() for name in weights]
            return loss(x, y) + self.mu / 2 * torch.stack(far).sum()

        return with_distance


silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 60, 120), silos_per_angle=1, seed=0)
for mu in (0.0, 1.0):
    run = caveat.run(
        silos,
        MyProx(mu=mu, rounds=5, training=caveat.Training(batch_size=32, lr=0.003)),
        model=caveat.ModelSettings(name="mlp"),
        every=5,
    )
    print(f"mu = {mu}: {run.summary['mean']['accuracy']:.3f}")

# %%
# An invalid setting is refused before anything runs.

try:
    MyProx(mu=-1)
except caveat.ConfigurationError as error:
    print(error)
