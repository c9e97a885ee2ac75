"""pFedBayes: every silo has a Gaussian over the weights of its model, with the federation's Gaussian as its prior.

Zhang et al., Personalized Federated Learning via Variational Bayesian Inference, ICML 2022. All weights are
independent Gaussians. A silo minimizes E_q[-log p(D_k | w)] + zeta KL(q || p) over its Gaussian q, with one draw of
all weights per batch. The federation's Gaussian p minimizes the silos' mean divergence KL(q_k || p).

We follow the paper's objective; its settings and released code were not compared. Differences from the paper: p is the
exact minimum, by moments that silos send once a round (paper: silos take gradient steps on a copy of p, and the server
averages the copies). A standard deviation is exp(rho) (paper: log(1 + exp(rho))). Our choices: the loss is per example,
so the weight of the divergence is zeta / n_k; BatchNorm statistics are measured in training at the silo, and averaged
for p; q starts at p in a silo's first round. Predictions are means over the same draws for every input, without
dropout, and are made with p before a silo's first round.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from ..core import Decision, Payload, SiloContext, State, Tensors, Update
from ..core.settings import LARGE, frozen_settings
from ..training.fit import Loss
from ..training.modules import learning, load, snapshot
from .fedbe import FedBE, Gaussian

LEAST = 1e-12
"""Smallest variance of a weight."""


class DrawnNetwork(nn.Module):
    """A network whose weights are drawn in every pass; `rho` has the logarithms of their standard deviations."""

    def __init__(self, mean: nn.Module, rho: nn.Module) -> None:
        super().__init__()
        self.mean, self.rho = mean, rho

    def forward(self, x: Tensor) -> Tensor:
        mean, rho = learning(self.mean), learning(self.rho)
        drawn = {name: each + rho[name].exp() * torch.randn_like(each) for name, each in mean.items()}
        logits: Tensor = functional_call(self.mean, drawn, (x,))
        return logits

    def divergence(self, mean: Tensors, variance: Tensors) -> Tensor:
        """Return the KL divergence of the weights, in nats, from Gaussians with these means and variances."""
        rho = learning(self.rho)
        parts = [
            divergence(each, rho[name], mean[name], variance[name].clamp_min(LEAST))
            for name, each in learning(self.mean).items()
        ]
        return torch.stack(parts).sum()


@frozen_settings
class PFedBayes(FedBE):
    """Gaussians over the weights of every silo's model, with a common prior (Zhang et al., 2022)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    zeta: Annotated[float, Field(ge=0, le=LARGE)] = 0.003
    """Weight of the divergence from the federation's Gaussian. 1 is the evidence lower bound, with which silos hardly
    learn if there are many more weights than examples. The default was chosen on validation data."""
    deviation: Annotated[float, Field(gt=0, le=LARGE)] = 0.02
    """Initial standard deviation of all weights."""

    def __post_init__(self) -> None:
        if self.training.optimizer_state == "average":
            self.training.leave("pfedbayes", "silos send no trained model, but moments", "optimizer_state")

    def init_server(self, context: SiloContext) -> State:
        server = super().init_server(context)
        known = {name: torch.full_like(each, self.deviation**2) for name, each in server["variance"].items()}
        return server | {"variance": known}

    def init_silo(self, context: SiloContext) -> State:
        return {}

    def start(self, server: State) -> Payload:
        return self.broadcast(server)

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        mean, copy = state.get("own", down["model"]), deepcopy(context.module)
        rho = load(copy, mean | (state.get("rho") or logarithms(down["variance"])))
        own = load(context.module, mean)
        drawn = DrawnNetwork(own, rho)
        undecayed = frozenset(f"rho.{name}" for name in learning(own))
        self.training.fit(replace(context, module=drawn), self.bound(drawn, down, context), undecayed=undecayed)
        mean, logs = snapshot(own), {name: each.detach().clone() for name, each in learning(rho).items()}
        squares = {name: (mean[name] - down["model"][name]).square() + (2 * each).exp() for name, each in logs.items()}
        return Update({"model": mean, "squares": squares}, context.examples), state | {"own": mean, "rho": logs}

    def bound(self, drawn: DrawnNetwork, down: Payload, context: SiloContext) -> Loss:
        """Return the loss of a draw of the weights plus zeta / n_k times the divergence, per example."""
        loss = self.objective(drawn, down)

        def with_divergence(x: Tensor, y: Tensor) -> Tensor:
            apart = drawn.divergence(down["model"], down["variance"])
            return loss(x, y) + self.zeta / context.examples * apart

        return with_divergence

    def gaussians(self, down: Payload, state: State) -> dict[Decision, Gaussian]:
        found = super().gaussians(down, state)
        if "own" in state:
            found[Decision.LOCAL] = state["own"], {name: each.exp() for name, each in state["rho"].items()}
        return found


def divergence(mean: Tensor, rho: Tensor, prior: Tensor, variance: Tensor) -> Tensor:
    """Return KL(N(mean, exp(2 rho)) || N(prior, variance)) in nats, summed over independent numbers."""
    ratio = ((2 * rho).exp() + (mean - prior).square()) / variance
    return (ratio - 1 + variance.log() - 2 * rho).sum() / 2


def logarithms(variance: Mapping[str, Tensor]) -> Tensors:
    """Return the logarithms of standard deviations, from variances."""
    return {name: each.clamp_min(LEAST).log() / 2 for name, each in variance.items()}
