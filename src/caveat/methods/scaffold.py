"""SCAFFOLD: local steps corrected by control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
Algorithm 1 with option II.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..core import ConfigurationError, Payload, Replies, Site, State, Update
from ..core.settings import LARGE, frozen_settings
from ..training.fit import Training
from ..training.modules import load, snapshot, zeros
from .fedavg import FedAvg


@frozen_settings
class SCAFFOLD(FedAvg):
    """FedAvg whose local steps are corrected by control variates (Karimireddy et al., 2020)."""

    training: Training = Training(optimizer="sgd", lr=0.05)
    """How a silo trains in one round: plain sgd, since a control variate is the mean gradient of its steps."""
    server_lr: Annotated[float, Field(gt=0, le=LARGE)] = 1.0
    """Step of the server along the mean change of the silos' models."""

    def __post_init__(self) -> None:
        training = self.training
        if training.optimizer != "sgd" or training.momentum or training.weight_decay:
            raise ConfigurationError(
                "scaffold needs training.optimizer = 'sgd' without momentum and weight_decay: with "
                f"optimizer = {training.optimizer!r}, momentum = {training.momentum}, weight_decay = "
                f"{training.weight_decay} a silo's change is not the sum of its gradients",
                "training.optimizer",
            )

        training.leave("scaffold", "a silo's change would not be the sum of its gradients", "clip")

    def init_server(self, site: Site) -> State:
        return super().init_server(site) | {"control": zeros(site.module)}

    def init_silo(self, site: Site) -> State:
        return super().init_silo(site) | {"control": zeros(site.module)}

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"], "control": server["control"]}

    def train(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        x, c, c_k = down["model"], down["control"], state["control"]
        load(site.module, x)
        steps = self.training.fit(
            site, self.objective(site.module, down), correct=lambda name, grad: grad - c_k[name] + c[name]
        )
        y = snapshot(site.module)
        new = {name: c_k[name] - c[name] + (x[name] - y[name]) / (steps * self.training.rate(site)) for name in c}
        change = {name: new[name] - c_k[name] for name in c}
        return Update({"model": y, "control": change}, site.examples), state | {"control": new}

    def average(self, server: State, replies: Replies, site: Site) -> State:
        mean = replies.mean("model")
        # Buffers have no gradient to step along: they are averaged as in FedAvg.
        model = {n: x + self.server_lr * (mean[n] - x) if n in server["control"] else mean[n] for n, x in
                 server["model"].items()}  # fmt: skip
        # Not replies.mean: c is the mean of c_k over every silo of the federation, each counted once.
        control = {
            name: c + replies.stack("control", name).double().sum(0).to(c.dtype) / replies.population
            for name, c in server["control"].items()
        }
        return server | {"model": model, "control": control}
