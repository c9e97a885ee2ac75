"""FedPer: FedAvg in which the head stays at its silo.

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818, 2019, Algorithms 1 and 2.

Ours: every silo's head starts as the same random one. The head is all behind the encoder's tokens, its hidden layer
included, and not the last layer alone: with a large hidden layer most parameters stay at the silo.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from ..core import Decision
from ..core.settings import frozen_settings
from .fedavg import FedAvg


@frozen_settings
class FedPer(FedAvg):
    """FedAvg of everything but the head, which stays at the silo (Arivazhagan et al., 2019)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)

    def private(self, module: nn.Module) -> frozenset[str]:
        return head_of(module)


def head_of(module: nn.Module) -> frozenset[str]:
    """Names of the tensors of a model's head. AttributeError if it has no part of that name."""
    return frozenset(f"head.{name}" for name in module.get_submodule("head").state_dict())
