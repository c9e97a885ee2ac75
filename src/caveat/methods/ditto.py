"""Ditto: every silo keeps a model of its own near the federation's, which FedAvg trains.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1 with FedAvg as the
solver of the global model. A silo's own model v takes steps on F_k(v) + lambda / 2 ||v - w||^2, w being the model that
was broadcast, and never leaves the silo.

Where paper and released code differ or are silent: lambda is given (paper; the code can also choose one per step on
held-out data); the two models train one after the other on batches of their own (paper; the code takes a step of each
per batch), so that the federation's model is that of FedAvg to the bit.
Ours: the mean is weighted by n_k (both: uniform); a silo's own model starts as the federation's of its first round, and
trains as long as that does; and the statistics of its BatchNorm are its own.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Decision, Payload, Site, State, Update
from ..core.settings import LARGE, frozen_settings
from ..training.fit import Loss
from ..training.modules import learning, load, snapshot
from .fedavg import FedAvg


@frozen_settings
class Ditto(FedAvg):
    """FedAvg, and at every silo a model of its own that stays near it (Li et al., 2021)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    lam: Annotated[float, Field(ge=0, le=LARGE)] = 0.1
    """Lambda, the weight of half the squared distance to the federation's model; 0 is training alone. Paper: 0.05 to
    2."""

    def __post_init__(self) -> None:
        self.training.leave("ditto", "a silo trains two models, one after the other", "state")

    def init_silo(self, site: Site) -> State:
        return {}

    def train(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        load(site.module, down["model"])
        self.training.fit(site, self.objective(site.module, down))
        update = Update({"model": snapshot(site.module)}, site.examples)
        own = load(site.module, state.get("own", down["model"]))
        self.training.fit(site, self.near(own, down))
        return update, state | {"own": snapshot(own)}

    def near(self, own: nn.Module, down: Payload) -> Loss:
        """h_k(v; w) = F_k(v) + lambda / 2 ||v - w||^2, of parameters alone."""
        loss = self.objective(own, down)

        def with_distance(x: Tensor, y: Tensor) -> Tensor:
            apart = [(v - down["model"][name]).square().sum() for name, v in learning(own).items()]
            return loss(x, y) + self.lam / 2 * torch.stack(apart).sum()

        return with_distance
