"""Local: every silo trains by itself, with the rounds and steps of the federated methods.

The lower bound that any federation has to beat; a round's only traffic is the number of examples.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from ..core import Decision, Replies, Site, State, Weights
from ..core.settings import frozen_settings
from .fedavg import FedAvg


@frozen_settings
class Local(FedAvg):
    """No federation: every silo trains by itself, for as many steps."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)
    federated: ClassVar[bool] = False

    def private(self, module: nn.Module) -> frozenset[str]:
        return frozenset(module.state_dict())

    @property
    def linear(self) -> Weights | None:
        return "examples" if type(self).average is Local.average else None

    def average(self, server: State, replies: Replies, site: Site) -> State:
        return server
