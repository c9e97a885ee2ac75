"""FedProx: FedAvg with a proximal term in the local loss.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, eq. 2.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Payload
from ..core.settings import LARGE, frozen_settings
from ..training.fit import Loss
from ..training.modules import learning
from .fedavg import FedAvg


@frozen_settings
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps silos close to the global model (Li et al., 2020)."""

    mu: Annotated[float, Field(ge=0, le=LARGE)] = 0.01
    """Weight of half the squared distance to the global model; 0 is FedAvg."""

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        loss = super().objective(module, down)

        def proximal(x: Tensor, y: Tensor) -> Tensor:
            drift = torch.stack([(p - down["model"][name]).square().sum() for name, p in learning(module).items()])
            return loss(x, y) + self.mu / 2 * drift.sum()

        return proximal
