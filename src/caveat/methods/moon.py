"""MOON: a contrastive loss keeps a silo's representations close to the representations by the global model.

Li, He & Song, Model-Contrastive Federated Learning, CVPR 2021, Algorithm 1 with the contrast of eq. 3:
l = -log exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)), where sim is the cosine
and z, z_glob and z_prev are the representations by the model in training, by the broadcast model and by the silo's
model at the end of its last round. z_glob and z_prev are computed in evaluation mode, without gradient.

Our choices: z is the first hidden layer of the head, before its dropout (paper: a separate projection head); the silo's
last round may be many rounds ago; and a silo's first round, which has no previous model, has no contrastive loss (with
the broadcast model in its place the loss would be log 2 for any z).
"""

from dataclasses import replace
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ..core import Payload, SiloContext, State, Update
from ..core.settings import LARGE, frozen_settings
from ..nn.encoders import Head, Model, parts
from ..training.fit import Loss
from ..training.modules import expect, in_batches, load, snapshot
from .fedavg import FedAvg


@frozen_settings
class MOON(FedAvg):
    """FedAvg with a model-contrastive loss (Li et al., 2021)."""

    mu: Annotated[float, Field(ge=0, le=LARGE)] = 1.0
    """Weight of the contrastive loss; 0 is FedAvg. Paper: 0.1, 1, 5 or 10."""
    temperature: Annotated[float, Field(gt=0, le=LARGE)] = 0.5
    """tau, the temperature of the contrastive loss."""

    def build(self, model: nn.Module) -> nn.Module:
        return parts(model, self.name)

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        if "previous" not in state:
            update, after = super().train(down, state, context)
            return update, after | {"previous": update.payload["model"]}
        z_prev = representations(load(context.module, state["previous"]), context.train.x)
        z_glob = representations(load(context.module, down["model"]), context.train.x)
        # Positions replace labels: a batch looks up its representations, which are computed once for all epochs.
        positions = context.train.labeled(torch.arange(context.examples, device=context.device))
        self.training.fit(
            replace(context, train=positions), self.contrasted(context.module, context.train.y, z_glob, z_prev)
        )
        model = snapshot(context.module)
        return Update({"model": model}, context.examples), state | {"previous": model}

    def contrasted(self, module: nn.Module, y: Tensor, z_glob: Tensor, z_prev: Tensor) -> Loss:
        """Return the loss of a batch of inputs and their positions among the labels and representations."""
        encoder, head = halves(module)

        def loss(x: Tensor, at: Tensor) -> Tensor:
            z = head.hidden(encoder(x))
            return self.training.cross_entropy(head.output(z), y[at]) + self.mu * self.contrast(
                z, z_glob[at], z_prev[at]
            )

        return loss

    def contrast(self, z: Tensor, z_glob: Tensor, z_prev: Tensor) -> Tensor:
        """Return the mean of eq. 3 in nats over representations (N, H), as a function of the difference of cosines."""
        nearer = F.cosine_similarity(z, z_prev) - F.cosine_similarity(z, z_glob)
        return F.softplus(nearer / self.temperature).mean()


def halves(module: nn.Module) -> tuple[nn.Module, Head]:
    """Return the encoder and head of a model."""
    model = expect(Model, module)
    return model.encoder, model.head


def representations(module: nn.Module, x: Tensor) -> Tensor:
    """Map inputs (N, ...) to units (N, H) of the first hidden layer of the head, in evaluation mode."""
    encoder, head = halves(module.eval())
    return in_batches(lambda part: head.hidden(encoder(part)), x)
