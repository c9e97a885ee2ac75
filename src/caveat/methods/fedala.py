"""FedALA: before training, every silo mixes its model with the global model, with learned element-wise weights.

Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023, Algorithm 1. A silo
uses the lower layers of the global model w. For the upper layers, it uses v + (w - v) * W, element-wise, where v is the
silo's model after its last round. W starts at 1, which is FedAvg. It is learned by gradient descent on the loss of the
mixture over a fraction of the training data, is clipped to [0, 1] after every step, and stays at the silo with v. The
first time, W is learned until the loss has converged, and later in a single pass. Then the silo trains the mixture,
keeps it and sends it.

Where the paper and the released code differ or are silent: a silo predicts with the trained model (paper; the code
evaluates the mixture before it is trained); the fraction of the data is drawn at random in every round (paper; the code
takes neighbors in a file); upper layers are counted in layers (paper; the code: in tensors). Our choices: W is learned
in evaluation mode, so the silo uses the BatchNorm statistics of the global model until it trains; the loss of a pass is
the mean over its batches (code: the last batch); the minimum is ten passes (code: eleven); and after 100 passes W
counts as converged.
"""

from collections import deque
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Decision, Payload, SiloContext, State, Tensors, Update
from ..core.devices import brought
from ..core.settings import LARGE, frozen_settings
from ..training.modules import learning, load, path_of_part, snapshot
from .fedavg import FedAvg

RECENT = 10
"""Number of passes whose losses decide whether W has converged."""
SETTLED = 0.1
"""Standard deviation of the last `RECENT` losses, in nats, below which W has converged."""
MOST = 100
"""Maximum number of passes."""


@frozen_settings
class FedALA(FedAvg):
    """FedAvg with an element-wise mixture of local and global model before training (Zhang et al., 2023)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    upper: Literal["last", "head", "all"] = "last"
    """The mixed layers: last (the last linear layer; paper), head (all layers after the encoder), or all."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """s: fraction of the training data on which the mixture is learned, drawn again in every round."""
    eta: Annotated[float, Field(ge=0, le=LARGE)] = 1.0
    """Learning rate of the mixture weights; 0 is FedAvg."""

    def init_server(self, context: SiloContext) -> State:
        self.mixed(context.module)  # raises if a custom module lacks a part
        return super().init_server(context)

    def init_silo(self, context: SiloContext) -> State:
        return {}

    def mixed(self, module: nn.Module) -> list[str]:
        """Return the names of the parameters of the upper layers, which are mixed."""
        if self.upper == "all":
            return list(learning(module))
        path = path_of_part(module, self.upper, self.name, "upper")
        return [name for name in learning(module) if name.startswith(f"{path}." if path else "")]

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        load(context.module, down["model"])
        kept = {"weights": self.mix(down["model"], state, context)} if "own" in state else {}
        self.training.fit(context, self.objective(context.module, down))
        model = snapshot(context.module)
        return Update({"model": model}, context.examples), state | kept | {"own": model}

    def mix(self, w: Tensors, state: State, context: SiloContext) -> Tensors:
        """Learn W and load the mixture into the workspace, which contains w; return W."""
        names, v = self.mixed(context.module), state["own"]
        weights = state.get("weights") or {name: torch.ones_like(w[name]) for name in names}
        part = torch.randperm(context.examples)[: max(1, round(self.share * context.examples))]
        part = brought(part, context.train.counted_on)
        losses = deque[float](maxlen=RECENT)
        for _ in range(1 if "weights" in state else MOST):
            weights, loss = self.one_pass(w, v, weights, context, part)
            losses.append(loss)
            if len(losses) == RECENT and torch.tensor(losses).std(correction=0) < SETTLED:
                break
        put(context.module, mixture(w, v, weights))
        return weights

    def one_pass(
        self, w: Tensors, v: Tensors, weights: Tensors, context: SiloContext, part: Tensor
    ) -> tuple[Tensors, float]:
        """Update W once per batch of the training examples at the positions `part`; return W and the mean loss."""
        module = context.module.eval()
        parameters = {name: p for name, p in learning(module).items() if name in weights}
        losses = []
        for batch in torch.split(part, self.training.batch_size):
            put(module, mixture(w, v, weights))
            x, y = context.train.batch(batch)
            loss = self.training.cross_entropy(module(x), y)
            found = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
            gradients = dict(zip(parameters, found, strict=True))
            weights = {
                name: (each - self.eta * gradients[name] * (w[name] - v[name])).clamp(0, 1)
                for name, each in weights.items()
            }
            losses.append(loss.detach())
        return weights, float(torch.stack(losses).mean())

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        yield Decision.GLOBAL, load(context.module, down["model"])
        if "own" in state:
            yield Decision.LOCAL, load(context.module, state["own"])


def mixture(w: Tensors, v: Tensors, weights: Tensors) -> Tensors:
    """Return v + (w - v) * W for the tensors in W."""
    return {name: v[name] + (w[name] - v[name]) * each for name, each in weights.items()}


@torch.no_grad()
def put(module: nn.Module, tensors: Tensors) -> None:
    """Overwrite some of a module's parameters in place."""
    parameters = learning(module)
    for name, tensor in tensors.items():
        parameters[name].copy_(tensor)
