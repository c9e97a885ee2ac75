"""FedDC: every silo tracks its drift from the global model, and corrects for it in training and in aggregation.

Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction, CVPR 2022,
Algorithm 1. A silo minimizes L_k(theta) + alpha/2 ||theta + h_k - w||^2 + <theta, g_k - g> / (eta K), with K steps of
rate eta per round, and then adds its update theta_k - w to its drift h_k; the new w is the mean of theta_k + h_k.

Where the paper and the released code differ, we follow the code: g_k, the silo's last update, excludes the contribution
of g_k - g, so c_k = -g_k / (eta K) is SCAFFOLD's control variate with option II (paper: the whole update, with which
the term cancels itself in every second round). As in the code, silos outside the cohort enter the means of h and g with
their last values. Our choices: all silos have the same weight (code: alpha is divided by a silo's fraction of the
examples); eta and K are the silo's values in the round of g_k (code: one K for all, eta before its decay); gradients
are not clipped (code: at 10); the terms are added to the gradient instead of the loss, which is equivalent; and buffers
(BatchNorm statistics) have no gradient and are averaged as in FedAvg. Without its last term, FedDC is FedDyn with g_k =
-alpha h_k.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from ..core import ConfigurationError, Payload, Replies, Round, SiloContext, State, Update
from ..core.settings import LARGE, frozen_settings
from ..training.fit import Training
from ..training.modules import current, load, snapshot, zeros
from .fedavg import FedAvg
from .scaffold import with_changes


@frozen_settings
class FedDC(FedAvg):
    """FedAvg with local drift that is tracked, penalized and corrected for in aggregation (Gao et al., 2022)."""

    training: Training = Training(optimizer="sgd", lr=0.05)
    """Local training of a silo in one round: sgd without momentum, because updates must be sums of gradients."""
    alpha: Annotated[float, Field(ge=0, le=LARGE)] = 0.01
    """Weight of half the squared distance to the global model minus the silo's drift."""

    def __post_init__(self) -> None:
        if self.training.optimizer != "sgd" or self.training.momentum:
            raise ConfigurationError(
                "feddc needs training.optimizer = 'sgd' without momentum: with "
                f"optimizer = {self.training.optimizer!r} and momentum = {self.training.momentum}, "
                "a silo's change is not the sum of its gradients",
                "training.optimizer",
            )

    def init_server(self, context: SiloContext) -> State:
        return super().init_server(context) | {"drift": zeros(context.module), "control": zeros(context.module)}

    def init_silo(self, context: SiloContext) -> State:
        return super().init_silo(context) | {"drift": zeros(context.module), "control": zeros(context.module)}

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"], "control": server["control"]}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        w, c, h_k, c_k = down["model"], down["control"], state["drift"], state["control"]
        module = load(context.module, w)
        theta = current(module)

        def corrected(name: str, grad: Tensor) -> Tensor:
            return grad + self.alpha * (theta(name) + h_k[name] - w[name]) - c_k[name] + c[name]

        steps = self.training.fit(context, self.objective(module, down), correct=corrected)
        model = snapshot(module)
        update = {name: model[name] - w[name] for name in h_k}
        change = {name: -c[name] - g / (steps * self.training.rate(context)) for name, g in update.items()}
        drift = {name: h_k[name] + g for name, g in update.items()}
        control = {name: c_k[name] + change[name] for name in change}
        return Update({"model": model, "control": change}, context.examples), state | {
            "drift": drift,
            "control": control,
        }

    def schedule(self) -> Iterable[Round]:
        return (replace(step, origin=with_changes) for step in super().schedule())

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        model, drift, control = replies.mean("model"), {}, {}
        for name, h in server["drift"].items():
            silos, w = replies.stack("model", name).double(), server["model"][name].double()
            change = replies.stack("control", name).double()
            moved = h.double() + (silos - w).sum(0) / replies.population
            model[name] = (silos.mean(0) + moved).to(h.dtype)
            drift[name] = moved.to(h.dtype)
            control[name] = (server["control"][name].double() + change.sum(0) / replies.population).to(h.dtype)
        return server | {"model": model, "drift": drift, "control": control}
