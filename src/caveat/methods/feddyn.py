"""FedDyn: a linear term from each silo's last gradient makes local optima consistent with the global optimum.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1. A silo minimizes
f_k(theta) - <g_k, theta> + alpha/2 ||theta - w||^2, at whose minimum f_k has the gradient g_k - alpha (theta_k - w),
the next g_k; the server's h is the mean of the g_k of all silos. As in the paper, all silos have the same weight,
whatever their n_k.

Our choices: the two terms are added to the gradient instead of the loss, which is equivalent for any optimizer; and
buffers (BatchNorm statistics) have no gradient and are averaged as in FedAvg.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from ..core import Payload, Replies, SiloContext, State, Update
from ..core.settings import LARGE, frozen_settings
from ..training.modules import current, load, snapshot, zeros
from .fedavg import FedAvg


@frozen_settings
class FedDyn(FedAvg):
    """FedAvg with a linear and a proximal term in the local loss (dynamic regularization; Acar et al., 2021)."""

    alpha: Annotated[float, Field(gt=0, le=LARGE)] = 0.01
    """Weight of half the squared distance to the global model; its inverse is the server's step along the silos'
    gradients. Paper: 0.1, 0.01 or 0.001."""

    def init_server(self, context: SiloContext) -> State:
        return super().init_server(context) | {"gradient": zeros(context.module)}

    def init_silo(self, context: SiloContext) -> State:
        return super().init_silo(context) | {"gradient": zeros(context.module)}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        w, g_k = down["model"], state["gradient"]
        module = load(context.module, w)
        theta = current(module)

        def regularized(name: str, grad: Tensor) -> Tensor:
            return grad - g_k[name] + self.alpha * (theta(name) - w[name])

        self.training.fit(context, self.objective(module, down), correct=regularized)
        model = snapshot(module)
        new = {name: g - self.alpha * (model[name] - w[name]) for name, g in g_k.items()}
        return Update({"model": model}, context.examples), state | {"gradient": new}

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        model, gradient = replies.mean("model"), {}
        for name, h in server["gradient"].items():
            silos, w = replies.stack("model", name).double(), server["model"][name].double()
            moved = h.double() - self.alpha / replies.population * (silos - w).sum(0)
            model[name] = (silos.mean(0) - moved / self.alpha).to(h.dtype)
            gradient[name] = moved.to(h.dtype)
        return server | {"model": model, "gradient": gradient}
