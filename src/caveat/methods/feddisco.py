"""FedDisco: in the mean of silos' models those count less whose classes are distributed further from uniform.

Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023. A silo's weight is
ReLU(n_k / n - a d_k + b), divided by the sum of all; n are the examples of all silos of the round, and d_k is the
discrepancy between the silo's distribution of training labels and the uniform one. A silo tells d_k, one number, and
not how many examples of which class it has.

As in the released code, Kullback-Leibler divergences are divided by their sum over the silos of a round, so that `a`
means as much whatever the number of classes; Euclidean distances are taken as they are.
Ours: where no silo has a weight above 0, they weigh n_k as in FedAvg (the code fails).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core import Payload, Replies, Site, State, Update, Weights
from ..core.settings import LARGE, frozen_settings
from ..training.modules import in_batches
from ..uncertainty import entropy
from .fedavg import FedAvg


@frozen_settings
class FedDisco(FedAvg):
    """FedAvg in which silos weigh the less, the further their classes are from balanced (Ye et al., 2023)."""

    discrepancy: Literal["kl", "l2"] = "kl"
    """How far a silo's distribution of classes is from uniform: the Kullback-Leibler divergence, as a share of those of
    all silos in a round, or the Euclidean distance."""
    a: Annotated[float, Field(ge=0, le=LARGE)] = 0.5
    """Weight of the discrepancy beside a silo's share of all examples; with b = 0 too, 0 is FedAvg."""
    b: Annotated[float, Field(ge=0, le=LARGE)] = 0.1
    """What is added to every silo's weight."""

    @property
    def linear(self) -> Weights | None:
        return None

    def train(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        update, after = super().train(down, state, site)
        classes = in_batches(site.module.eval(), site.train.x[:1]).shape[-1]
        update.payload["classes"] = {"discrepancy": self.from_uniform(site.train.y, classes)}
        return update, after

    def from_uniform(self, y: Tensor, classes: int) -> Tensor:
        """d_k, at least 0: how far the distribution of labels (N,) is from the uniform one of so many classes."""
        shares = torch.bincount(y.cpu(), minlength=classes).double() / len(y)
        if self.discrepancy == "l2":
            return (shares - 1 / classes).square().sum().sqrt()
        return (math.log(classes) - entropy(shares)).clamp_min(0)

    def average(self, server: State, replies: Replies, site: Site) -> State:
        n = torch.tensor([update.examples for update in replies.updates.values()]).double()
        d = replies.stack("classes", "discrepancy")
        return server | {"model": replies.mean("model", self.weights(n, d).tolist())}

    def weights(self, n: Tensor, d: Tensor) -> Tensor:
        """(S,) weights that add up to 1, from silos' examples (S,) and discrepancies (S,)."""
        if self.discrepancy == "kl" and d.sum() > 0:
            d = d / d.sum()
        found = torch.relu(n / n.sum() - self.a * d + self.b)
        return found / found.sum() if found.any() else n / n.sum()
