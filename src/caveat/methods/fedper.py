"""FedPer: FedAvg in which the head stays at its silo.

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818, 2019, Algorithms 1 and 2.

Our choices: all silos start with the same random head. The head is everything after the encoder, including the hidden
layer: with a large hidden layer most parameters stay at the silo. With `stays` = "last" it is the last linear layer
only.
"""

from typing import ClassVar, Literal

from torch import nn

from ..core import Decision
from ..core.settings import frozen_settings
from ..training.modules import names_at_silo
from .fedavg import FedAvg


@frozen_settings
class FedPer(FedAvg):
    """FedAvg of all layers except the head, which stays at the silo (Arivazhagan et al., 2019)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)

    stays: Literal["head", "last"] = "head"
    """The part that stays at the silo: head (everything after the encoder), or last (the last linear layer only)."""

    def private(self, module: nn.Module) -> frozenset[str]:
        return names_at_silo(module, self.stays, self.name)
