"""FedBN: FedAvg in which all batch normalization layers stay at the silo.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.
"""

from typing import ClassVar

from torch import nn

from ..core import Decision
from ..core.settings import frozen_settings
from ..training.modules import normalization
from .fedavg import FedAvg


@frozen_settings
class FedBN(FedAvg):
    """FedAvg with batch normalization (weights and statistics) kept at the silo (Li et al., 2021)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)

    def private(self, module: nn.Module) -> frozenset[str]:
        return normalization(module)

    def remark(self, module: nn.Module) -> str:
        return "" if self.private(module) else f"{self.name}: this model has no batch normalization; it equals fedavg"
