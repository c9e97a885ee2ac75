"""FedBE: a prediction is a mean over models drawn from a Gaussian that is fitted to the silos' models.

Chen & Chao, FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning, ICLR 2021. The Gaussian has the
n_k-weighted mean of the silos' models and, for each weight, their n_k-weighted variance. The mean and models drawn from
the Gaussian form an ensemble (Bayesian model ensemble).

We implement the part that needs no data at the server: the ensemble itself predicts. In the paper, it labels unlabeled
data at the server, from which a single model is distilled in every round; without distillation, training is
bit-identical to FedAvg's. The ensemble also lacks the silos' models, which the paper adds to it, because the server
needs only sums over silos: of models, and of squared changes of weights. Where the paper and the released code differ:
the Gaussian is over the weights, weighted by n_k (paper; the code divides each tensor's change by its norm, weights
silos equally, and draws with a tenth of the standard deviation). Our choices: only parameters are drawn, so all models
have the mean's BatchNorm statistics; the same models are drawn for every prediction, without dropout.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, SiloContext, State, Tensors, Update, Weights
from ..core.devices import brought
from ..core.random import seeded
from ..core.settings import frozen_settings
from ..training.modules import in_batches, learning, load, zeros
from .fedavg import FedAvg

Gaussian = tuple[Tensors, Tensors]
"""A model's tensors, with the means of the weights, and the standard deviations of the weights that are drawn."""


@frozen_settings
class FedBE(FedAvg):
    """FedAvg, with predictions by models drawn from a Gaussian over the silos' models (Chen & Chao, 2021)."""

    mc_samples: Annotated[int, Field(gt=0, le=10_000)] = 20
    """Number of models per prediction: the mean, and models that are drawn. Paper: 10 drawn models."""

    def init_server(self, context: SiloContext) -> State:
        return super().init_server(context) | {"variance": zeros(context.module)}

    def schedule(self) -> Iterable[Round]:
        return (replace(step, broadcast=self.start, origin=with_squares) for step in super().schedule())

    @property
    def linear(self) -> Weights | None:
        return "examples" if type(self).aggregate is FedBE.aggregate else None

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"], "variance": server["variance"]}

    def start(self, server: State) -> Payload:
        """Return what the server sends to a silo for training."""
        return super().broadcast(server)

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, after = super().train(down, state, context)
        sent = update.payload["model"]
        squares = {name: (sent[name] - down["model"][name]).square() for name in learning(context.module)}
        return Update(update.payload | {"squares": squares}, update.examples), after

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        mean = replies.mean("model")
        variance = {  # from changes, because squares of weights would lose the digits in which silos differ
            name: (squares - (mean[name] - server["model"][name]).square()).clamp_min(0)
            for name, squares in replies.mean("squares").items()
        }
        return server | {"model": mean, "variance": variance}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        drawn = {whose: draws(*each, self.mc_samples) for whose, each in self.gaussians(down, state).items()}
        return averaged(context.module, drawn, x)

    def gaussians(self, down: Payload, state: State) -> dict[Decision, Gaussian]:
        """Return the Gaussian of each available model's weights."""
        return {Decision.GLOBAL: (down["model"], {name: each.sqrt() for name, each in down["variance"].items()})}


def with_squares(sent: Payload, reply: Payload) -> Payload:
    """Return the origin of a reply with squares of changes, which start at 0 (`Round.origin`)."""
    return sent | {"squares": {name: torch.zeros_like(each) for name, each in reply.get("squares", {}).items()}}


def draws(mean: Tensors, deviation: Tensors, count: int) -> Iterator[Tensors]:
    """Yield the tensors of `count` models: draws, which are the same in every call, and finally the mean.

    The mean is last because familiarity is measured on the last pass of an answer.
    """
    for number in range(count - 1):
        with seeded("weights", number):  # on the CPU in the order of names, so neither devices nor files matter
            noise = {name: torch.randn(deviation[name].shape) for name in sorted(deviation)}
        yield mean | {name: mean[name] + each * brought(noise[name], each.device) for name, each in deviation.items()}
    yield mean


def averaged(module: nn.Module, drawn: Mapping[Decision, Iterator[Tensors]], x: Tensor) -> Answers:
    """Return the predictions for inputs (N, ...): means over equally many models, each in a pass without dropout."""
    logits: dict[Decision, list[Tensor]] = {whose: [] for whose in drawn}
    for models in zip(*drawn.values(), strict=True):
        for whose, tensors in zip(drawn, models, strict=True):
            logits[whose].append(in_batches(load(module, tensors).eval(), x))
    return {whose: Prediction.from_logits(torch.stack(each), whose) for whose, each in logits.items()}
