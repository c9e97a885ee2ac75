"""APFL: every silo predicts with a learned mixture of its local model and the global model.

Deng et al., Adaptive Personalized Federated Learning, arXiv 2003.13461, 2020, Algorithm 1: parameters are mixed, not
logits.

Our choices: alpha is updated with every batch (authors' code: once per round, with a term that pulls it to 0), by the
same optimizer but without weight decay, which would also pull it to 0; a silo's local model starts from the global
model of its first round; and the BatchNorm statistics of the mixture are measured on the mixture during training,
because the statistics of two models cannot be mixed. By default a silo answers with a mean of the probabilities of
mixture and global model (policy `blend`; paper: the mixture, `always`).
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from ..core import Decision, Payload, SiloContext, State, Tensors, Update
from ..core.settings import frozen_settings
from ..training.fit import Loss
from ..training.modules import learning, load, snapshot
from .fedavg import FedAvg


class Mixture(nn.Module):
    """Mixture alpha v + (1 - alpha) w of a silo's local model v and the global model w."""

    def __init__(self, own: nn.Module, shared: nn.Module, alpha: Tensor) -> None:
        super().__init__()
        self.own, self.shared = own, shared
        self.alpha = nn.Parameter(alpha.clone())

    def parts(self) -> Tensors:
        """Return the mixed parameters, through which w gets no gradient."""
        w = learning(self.shared)
        return {name: self.alpha * v + (1 - self.alpha) * w[name].detach() for name, v in learning(self.own).items()}

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.own, self.parts(), (x,))
        return logits


@frozen_settings
class APFL(FedAvg):
    """FedAvg with a mixture of the local and the global model at every silo (Deng et al., 2020)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)
    policy: ClassVar[str] = "blend"

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of the local model in the mixture, or its initial weight if adaptive. Fixed at 0, this is FedAvg."""
    adaptive: bool = True
    """Whether each silo learns its weight; otherwise `alpha` is fixed."""

    def __post_init__(self) -> None:
        if self.training.optimizer_state == "average":
            self.training.leave(
                "apfl", "a silo trains two models at once; 'keep' keeps the state of both", "optimizer_state"
            )

    def init_silo(self, context: SiloContext) -> State:
        return {}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        mixture = self.mixture(down, state, context)
        frozen = frozenset[str]() if self.adaptive else frozenset({"alpha"})
        both = replace(context, module=mixture)
        self.training.fit(both, self.both(mixture, down), frozen=frozen, undecayed=frozenset({"alpha"}))
        clip(mixture.alpha)
        kept = {"own": snapshot(mixture.own), "mixture": {"alpha": mixture.alpha.detach().clone()}}
        return Update({"model": snapshot(mixture.shared)}, context.examples), state | kept

    def both(self, mixture: Mixture, down: Payload) -> Loss:
        """Return the loss of the global model, with gradients for w, plus that of the mixture, for v and alpha."""
        shared, mixed = self.objective(mixture.shared, down), self.objective(mixture, down)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            clip(mixture.alpha)  # clip after the previous step
            return shared(x, y) + mixed(x, y)

        return loss

    def mixture(self, down: Payload, state: State, context: SiloContext) -> Mixture:
        """Return the mixture: the local model in a copy of the workspace, and the broadcast model in the workspace."""
        own = load(deepcopy(context.module), state.get("own", down["model"]))
        alpha = state["mixture"]["alpha"] if "mixture" in state else torch.full((), self.alpha, device=context.device)
        return Mixture(own, load(context.module, down["model"]), alpha)

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        yield Decision.GLOBAL, load(context.module, down["model"])
        if "own" in state:
            mixture = self.mixture(down, state, context)
            with torch.no_grad():
                mixed = snapshot(mixture.own) | mixture.parts()
            yield Decision.LOCAL, load(context.module, mixed)


@torch.no_grad()
def clip(alpha: Tensor) -> None:
    """Clip a weight to [0, 1] after an optimizer step."""
    alpha.clamp_(0, 1)
