"""FedIIR: silos align the gradient of their classifier with the mean gradient of all silos.

Guo et al., Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships, ICML 2023,
Algorithm 1. Before a training round, silos send the mean gradient of the classifier at the global model, and the server
keeps a moving average of it over rounds. In training, the squared distance from a batch's gradient to this average is
added to the loss and is differentiated, too, through second derivatives.

Where the paper and the released code differ or are silent: the average starts at 0 without bias correction (code). A
silo's gradient is the gradient of the mean loss over its examples, and silos are weighted by n_k, which gives the
gradient over all data (code: the mean over batches, of which a silo's last one is smaller); models have the same
weights (code: uniform). Our choices: the classifier is the last linear layer (code for rotated MNIST) or the head
(code for photographs: three layers); the gradient is computed in evaluation mode; and with partial participation the
silos that send gradients are sampled independently of those that train.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Payload, Replies, Round, SiloContext, State, Tensors, Update
from ..core.devices import brought
from ..core.settings import LARGE, frozen_settings
from ..training.fit import Loss
from ..training.modules import learning, load, path_of_part
from .fedavg import FedAvg


@frozen_settings
class FedIIR(FedAvg):
    """FedAvg with aligned classifier gradients, for generalization to unseen domains (Guo et al., 2023)."""

    penalty: Annotated[float, Field(ge=0, le=LARGE)] = 0.001
    """Weight of the squared distance between gradients; 0 is FedAvg."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Momentum of the moving average of gradients over rounds."""
    classifier: Literal["last", "head"] = "last"
    """Classifier whose gradients are aligned: the last linear layer (last), or all layers after the encoder (head)."""

    def of_classifier(self, module: nn.Module) -> Tensors:
        """Return the parameters of the classifier, by name."""
        path = path_of_part(module, self.classifier, self.name, "classifier")
        return {name: p for name, p in learning(module).items() if name.startswith(f"{path}." if path else "")}

    def init_server(self, context: SiloContext) -> State:
        none = {name: torch.zeros_like(p) for name, p in self.of_classifier(context.module).items()}
        return super().init_server(context) | {"gradient": none}

    def schedule(self) -> Iterable[Round]:
        tell = Round(
            super().broadcast, self.tell, self.remember, trains=False, linear="examples", origin=from_none, name="tell"
        )
        return chain.from_iterable((tell, step) for step in super().schedule())

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"], "gradient": server["gradient"]}

    def tell(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send the gradient of the mean loss over a silo's training data."""
        module = load(context.module, down["model"] | state["model"]).eval()
        parameters, n = self.of_classifier(module), context.examples
        total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
        for batch in torch.split(brought(torch.arange(n), context.train.counted_on), self.training.batch_size):
            x, y = context.train.batch(batch)
            loss = self.training.cross_entropy(module(x), y) * len(batch) / n
            for sum_, part in zip(total.values(), torch.autograd.grad(loss, list(parameters.values())), strict=True):
                sum_ += part
        return Update({"gradient": {name: each.float() for name, each in total.items()}}, n), state

    def remember(self, server: State, replies: Replies, context: SiloContext) -> State:
        now = replies.mean("gradient")
        kept = {name: self.ema * g + (1 - self.ema) * now[name] for name, g in server["gradient"].items()}
        return server | {"gradient": kept}

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        """Return the cross-entropy plus the penalty on the distance of the classifier's gradient from the average."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            value = self.training.cross_entropy(module(x), y)
            parameters = self.of_classifier(module)
            found = torch.autograd.grad(value, list(parameters.values()), create_graph=True)
            apart = [(g - down["gradient"][name]).square().sum() for name, g in zip(parameters, found, strict=True)]
            return value + self.penalty * torch.stack(apart).sum()

        return loss


def from_none(sent: Payload, reply: Payload) -> Payload:
    """Return the origin 0 of a reply with gradients, so norms of gradients are bounded like norms of updates."""
    return {"gradient": {name: torch.zeros_like(tensor) for name, tensor in reply.get("gradient", {}).items()}}
