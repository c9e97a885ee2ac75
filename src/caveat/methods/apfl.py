"""APFL: every silo answers with a mixture of its own model and the federation's, and learns how much of each.

Deng et al., Adaptive Personalized Federated Learning, arXiv 2003.13461, 2020, Algorithm 1: parameters are mixed, not
logits.

Ours: alpha takes a step with every batch (the authors' code: one per round, with a term that draws it to 0), by the
training's optimiser but without its weight decay, which would draw it to 0 too; a silo's own model starts as the
federation's of its first round; and the mixture's BatchNorm has statistics of its own, measured on the mixture while it
trains, since those of two models do not mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from ..core import Decision, Payload, Site, State, Tensors, Update
from ..core.settings import frozen_settings
from ..training.fit import Loss
from ..training.modules import learning, load, snapshot
from .fedavg import FedAvg


class Mixture(nn.Module):
    """A silo's own model v and the shared one w of the same build, mixed as alpha v + (1 - alpha) w."""

    def __init__(self, own: nn.Module, shared: nn.Module, alpha: Tensor) -> None:
        super().__init__()
        self.own, self.shared = own, shared
        self.alpha = nn.Parameter(alpha.clone())

    def parts(self) -> Tensors:
        """The mixed parameters; the gradient of w is no concern of the mixture."""
        w = learning(self.shared)
        return {name: self.alpha * v + (1 - self.alpha) * w[name].detach() for name, v in learning(self.own).items()}

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.own, self.parts(), (x,))
        return logits


@frozen_settings
class APFL(FedAvg):
    """FedAvg, and at every silo a mixture of its own model and the federation's (Deng et al., 2020)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of the silo's own model in the mixture, at the start if it is adaptive: 0 is FedAvg, 1 is Local."""
    adaptive: bool = True
    """Learn a weight per silo, or keep the one given."""

    def __post_init__(self) -> None:
        if self.training.state == "shared":
            self.training.leave("apfl", "a silo trains two models at once; 'kept' keeps what is of both", "state")

    def init_silo(self, site: Site) -> State:
        return {}

    def train(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        mixture = self.mixture(down, state, site)
        frozen = frozenset[str]() if self.adaptive else frozenset({"alpha"})
        both = replace(site, module=mixture)
        self.training.fit(both, self.both(mixture, down), frozen=frozen, undecayed=frozenset({"alpha"}))
        clip(mixture.alpha)
        kept = {"own": snapshot(mixture.own), "mixture": {"alpha": mixture.alpha.detach().clone()}}
        return Update({"model": snapshot(mixture.shared)}, site.examples), state | kept

    def both(self, mixture: Mixture, down: Payload) -> Loss:
        """The shared model's loss, whose gradient is w's, and the mixture's, whose gradients are v's and alpha's."""
        shared, mixed = self.objective(mixture.shared, down), self.objective(mixture, down)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            clip(mixture.alpha)  # after the step before this one
            return shared(x, y) + mixed(x, y)

        return loss

    def mixture(self, down: Payload, state: State, site: Site) -> Mixture:
        """The mixture of the silo's own model, in a copy of the workspace, and the broadcast one, in the workspace."""
        own = load(deepcopy(site.module), state.get("own", down["model"]))
        alpha = state["mixture"]["alpha"] if "mixture" in state else torch.full((), self.alpha, device=site.device)
        return Mixture(own, load(site.module, down["model"]), alpha)

    def loaded(self, down: Payload, state: State, site: Site) -> Iterator[tuple[Decision, nn.Module]]:
        yield Decision.GLOBAL, load(site.module, down["model"])
        if "own" in state:
            mixture = self.mixture(down, state, site)
            with torch.no_grad():
                mixed = snapshot(mixture.own) | mixture.parts()
            yield Decision.LOCAL, load(site.module, mixed)


@torch.no_grad()
def clip(alpha: Tensor) -> None:
    """Put a weight that an optimiser has moved back between 0 and 1."""
    alpha.clamp_(0, 1)
