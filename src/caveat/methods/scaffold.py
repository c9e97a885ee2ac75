"""SCAFFOLD: local steps corrected by control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
Algorithm 1 with option II.

Our choices: models and control variates have the same weights, n_k as in FedAvg, so local steps are corrected towards
the gradient of the objective that the mean of models minimizes; the paper weights silos equally in both, as with
`weights` = "silos". With different weights in models and control variates, silos converge to a point where neither
gradient is 0. The server does not know n_k of silos that have not taken part yet: until then, these silos have the mean
of the known weights, with a control variate of 0 (the initial value in the paper, too).
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ..core import ConfigurationError, Payload, Replies, Round, SiloContext, State, Tensors, Update, Weights
from ..core.settings import LARGE, frozen_settings
from ..training.fit import Training
from ..training.modules import load, snapshot, zeros
from .fedavg import FedAvg


@frozen_settings
class SCAFFOLD(FedAvg):
    """FedAvg whose local steps are corrected by control variates (Karimireddy et al., 2020)."""

    training: Training = Training(optimizer="sgd", lr=0.05)
    """Local training of a silo in one round: plain SGD, because a control variate is the mean gradient of its steps."""
    server_lr: Annotated[float, Field(gt=0, le=LARGE)] = 1.0
    """Server learning rate: the step along the mean update of the silos' models."""
    weights: Weights = "examples"
    """Weights of silos in the means of models and control variates: numbers of training examples as in fedavg, or equal
    (silos; paper)."""

    def __post_init__(self) -> None:
        training = self.training
        if training.optimizer != "sgd" or training.momentum or training.weight_decay:
            raise ConfigurationError(
                "scaffold needs training.optimizer = 'sgd' without momentum or weight_decay: with "
                f"optimizer = {training.optimizer!r}, momentum = {training.momentum}, weight_decay = "
                f"{training.weight_decay}, a silo's change is not the sum of its gradients",
                "training.optimizer",
            )

        training.leave("scaffold", "a silo's change would not be the sum of its gradients", "clip_norm")

    def init_server(self, context: SiloContext) -> State:
        none = torch.zeros((), dtype=torch.float64)
        seen = {"silos": none, "weight": none.clone(), "total": none.clone()}
        return super().init_server(context) | {"control": zeros(context.module), "seen": seen}

    def init_silo(self, context: SiloContext) -> State:
        return super().init_silo(context) | {"control": zeros(context.module)}

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"], "control": server["control"]}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        x, c, c_k = down["model"], down["control"], state["control"]
        load(context.module, x)
        steps = self.training.fit(
            context, self.objective(context.module, down), correct=lambda name, grad: grad - c_k[name] + c[name]
        )
        y = snapshot(context.module)
        new = {name: c_k[name] - c[name] + (x[name] - y[name]) / (steps * self.training.rate(context)) for name in c}
        change = {name: new[name] - c_k[name] for name in c}
        first = torch.stack([each.any() for each in c_k.values()]).any().logical_not()
        payload = {"model": y, "control": change, "seen": {"first": first.float()}}
        return Update(payload, context.examples), state | {"control": new}

    def schedule(self) -> Iterable[Round]:
        return (replace(step, origin=with_changes) for step in super().schedule())

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        weights = [1.0 if self.weights == "silos" else float(u.examples) for u in replies.updates.values()]
        mean = replies.mean("model", weights)
        # Buffers have no gradient: they are averaged as in FedAvg.
        model = {n: x + self.server_lr * (mean[n] - x) if n in server["control"] else mean[n] for n, x in
                 server["model"].items()}  # fmt: skip
        w = torch.tensor(weights, dtype=torch.float64)
        seen = self.count(server["seen"], w, replies)
        # Not a mean over the cohort: c is the mean of c_k over all silos of the federation.
        control = {}
        for name, c in server["control"].items():
            change = torch.tensordot(w, replies.stack("control", name).double(), 1)
            control[name] = ((server["seen"]["total"] * c.double() + change) / seen["total"]).to(c.dtype)
        return server | {"model": model, "control": control, "seen": seen}

    def count(self, before: Tensors, w: Tensor, replies: Replies) -> Tensors:
        """Return how many silos have taken part, their weight, and the weight of all silos of the federation, from the
        weights (S,) of a round. Silos that have not taken part yet have the mean weight of those that have.
        """
        first = replies.stack("seen", "first")
        silos, weight = before["silos"] + first.sum(), before["weight"] + (w * first).sum()
        return {"silos": silos, "weight": weight, "total": replies.population * weight / silos}


def with_changes(sent: Payload, reply: Payload) -> Payload:
    """Return the origin of a reply with changes of control variates, which start at 0 (`Round.origin`)."""
    return sent | {"control": {name: torch.zeros_like(tensor) for name, tensor in reply.get("control", {}).items()}}
