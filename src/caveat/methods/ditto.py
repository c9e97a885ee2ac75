"""Ditto: every silo trains a personalized model that stays close to the global model of FedAvg.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1 with FedAvg as the
solver of the global model. A silo's personalized model v minimizes F_k(v) + lambda / 2 ||v - w||^2, where w is the
broadcast model, and never leaves the silo.

Where the paper and the released code differ or are silent: lambda is fixed (paper; the code can also choose it per step
on held-out data); the two models are trained one after the other, each on its own batches (paper; the code takes a step
of each model per batch), so the global model is bit-identical to FedAvg's. Our choices: the mean is weighted by n_k
(both: uniform); the personalized model starts from the global model of the silo's first round, trains for as many steps
as the global model, and has its own BatchNorm statistics. By default a silo answers with a mean of both models (policy
`blend`; paper: the personalized model, `always`).
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Decision, Payload, SiloContext, State, Update
from ..core.settings import LARGE, frozen_settings
from ..training.fit import Loss
from ..training.modules import learning, load, snapshot
from .fedavg import FedAvg


@frozen_settings
class Ditto(FedAvg):
    """FedAvg with a personalized model at every silo that stays close to the global model (Li et al., 2021)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)
    policy: ClassVar[str] = "blend"

    lam: Annotated[float, Field(ge=0, le=LARGE)] = 0.1
    """Lambda, the weight of half the squared distance to the global model; 0 is local training. Paper: 0.05 to 2."""

    def __post_init__(self) -> None:
        self.training.leave("ditto", "a silo trains two models, one after the other", "optimizer_state")

    def init_silo(self, context: SiloContext) -> State:
        return {}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        load(context.module, down["model"])
        self.training.fit(context, self.objective(context.module, down))
        update = Update({"model": snapshot(context.module)}, context.examples)
        own = load(context.module, state.get("own", down["model"]))
        self.training.fit(context, self.near(own, down))
        return update, state | {"own": snapshot(own)}

    def near(self, own: nn.Module, down: Payload) -> Loss:
        """Return h_k(v; w) = F_k(v) + lambda / 2 ||v - w||^2, where the distance is over parameters, not buffers."""
        loss = self.objective(own, down)

        def with_distance(x: Tensor, y: Tensor) -> Tensor:
            apart = [(v - down["model"][name]).square().sum() for name, v in learning(own).items()]
            return loss(x, y) + self.lam / 2 * torch.stack(apart).sum()

        return with_distance
