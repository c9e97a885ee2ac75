"""A custom method: Ditto, in which every silo keeps a local model near the global model, which FedAvg trains.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1 with FedAvg for the
global model. Difference: a silo's local model starts from the global model of its first round, and trains for the same
number of steps.

The name is `myditto`, because caveat already has a method `ditto`.

    caveat compare digits --methods fedavg,myditto --plugin examples/ditto.py --out runs/myditto
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from caveat import Decision, FedAvg, Payload, SiloContext, State, Update, frozen_settings, register
from caveat.methods.tools import LARGE, Loss, learning, load, snapshot


@register
@frozen_settings
class MyDitto(FedAvg):
    """FedAvg, and at every silo a model of its own that stays near it (Li et al., ICML 2021)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    lam: Annotated[float, Field(ge=0, le=LARGE)] = 0.1
    """Lambda, the weight of half the squared distance to the federation's model; 0 is training alone."""

    def __post_init__(self) -> None:
        self.training.leave(self.name, "a silo trains two models, one after the other", "optimizer_state")

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, kept = super().train(down, state, context)
        own = load(context.module, state.get("own", down["model"]))
        self.training.fit(context, self.near(own, down))
        return update, kept | {"own": snapshot(own)}

    def near(self, own: nn.Module, down: Payload) -> Loss:
        """h_k(v; w) = F_k(v) + lambda / 2 ||v - w||^2, of parameters; statistics of BatchNorm are the model's own."""
        loss = self.objective(own, down)

        def with_distance(x: Tensor, y: Tensor) -> Tensor:
            apart = [(v - down["model"][name]).square().sum() for name, v in learning(own).items()]
            return loss(x, y) + self.lam / 2 * torch.stack(apart).sum()

        return with_distance
