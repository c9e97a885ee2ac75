"""Local: every silo trains alone, for the same rounds and steps as in federated methods.

This is the baseline that a federation should beat. The only traffic of a round is the number of examples.
"""

from typing import ClassVar

from torch import nn

from ..core import Decision, Replies, SiloContext, State, Weights
from ..core.settings import frozen_settings
from .fedavg import FedAvg


@frozen_settings
class Local(FedAvg):
    """No federation: every silo trains alone, for the same number of steps."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)
    federated: ClassVar[bool] = False

    def private(self, module: nn.Module) -> frozenset[str]:
        return frozenset(module.state_dict())

    @property
    def linear(self) -> Weights | None:
        return "examples" if type(self).aggregate is Local.aggregate else None

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        return server
