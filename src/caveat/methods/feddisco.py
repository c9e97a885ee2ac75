"""FedDisco: silos whose class distribution is further from uniform get a lower weight in the mean of models.

Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023. A silo's weight is
ReLU(n_k / n - a d_k + b), divided by the sum over silos; n is the number of examples of all silos in the round, and d_k
is the discrepancy between the silo's distribution of training labels and the uniform one. A silo sends d_k, a single
number, but not its class counts.

As in the released code, Kullback-Leibler divergences are divided by their sum over the silos of a round, so the
effect of `a` does not depend on the number of classes; Euclidean distances are not normalized.
Our choice: if no silo has a positive weight, silos are weighted by n_k as in FedAvg (the code fails).
"""

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core import Payload, Replies, SiloContext, State, Update, Weights
from ..core.settings import LARGE, frozen_settings
from ..training.modules import in_batches
from ..uncertainty import entropy
from .fedavg import FedAvg


@frozen_settings
class FedDisco(FedAvg):
    """FedAvg with lower weights for silos with imbalanced classes (Ye et al., 2023)."""

    counts_classes: ClassVar[bool] = True

    discrepancy: Literal["kl", "l2"] = "kl"
    """Discrepancy of a silo's classes from a uniform distribution: Kullback-Leibler divergence (kl), divided by the sum
    over the silos of a round, or Euclidean distance (l2)."""
    a: Annotated[float, Field(ge=0, le=LARGE)] = 0.5
    """Weight of the discrepancy relative to a silo's fraction of all examples; a = b = 0 is FedAvg."""
    b: Annotated[float, Field(ge=0, le=LARGE)] = 0.1
    """Constant that is added to every silo's weight."""

    @property
    def linear(self) -> Weights | None:
        return None

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, after = super().train(down, state, context)
        classes = in_batches(context.module.eval(), context.train.x[:1]).shape[-1]
        update.payload["classes"] = {"discrepancy": self.from_uniform(context.train.y, classes)}
        return update, after

    def from_uniform(self, y: Tensor, classes: int) -> Tensor:
        """Return d_k >= 0, the discrepancy of labels (N,) from a uniform distribution over classes."""
        shares = torch.bincount(y.cpu(), minlength=classes).double() / len(y)
        if self.discrepancy == "l2":
            return (shares - 1 / classes).square().sum().sqrt()
        return (math.log(classes) - entropy(shares)).clamp_min(0)

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        n = torch.tensor([update.examples for update in replies.updates.values()]).double()
        d = replies.stack("classes", "discrepancy")
        return server | {"model": replies.mean("model", self.weights(n, d).tolist())}

    def weights(self, n: Tensor, d: Tensor) -> Tensor:
        """Return weights (S,) that sum to 1, from numbers of examples (S,) and discrepancies (S,)."""
        if self.discrepancy == "kl" and d.sum() > 0:
            d = d / d.sum()
        found = torch.relu(n / n.sum() - self.a * d + self.b)
        return found / found.sum() if found.any() else n / n.sum()
