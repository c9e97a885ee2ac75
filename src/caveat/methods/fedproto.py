"""FedProto: silos share prototypes, the mean representation of each class, instead of models.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, Algorithm 1. Every silo
trains a local model, with any encoder. The loss is the cross-entropy plus lambda times the distance of the batch's
representations from the global prototypes of their classes; a class without a prototype adds nothing. After training, a
silo sends the mean representation of each class with its number of examples, by which the server weights it. A silo
sends no prototype of a class with fewer than five examples, because the mean of a single example is that example.

Where the paper and the released code differ or are silent: the distance is the mean square over examples and units
(code; the paper sums distances between prototypes over classes); silos are weighted by their examples of the class (eq.
6, whose further division by the number of silos would shrink prototypes; the code: uniform); a silo predicts with the
logits of its model (code; in the paper also with the nearest prototype, which gives no probabilities). Our choices: a
representation is the first hidden layer of the head, before its dropout, so models must have equal numbers of hidden
units but may differ in everything else; prototypes are computed by the trained model in evaluation mode (code: by the
models of the last epoch's batches); and a class that no silo sends in a round keeps its prototype.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Decision, Payload, Replies, Round, SiloContext, State, Tensors, Update, Weights, nothing
from ..core.settings import LARGE, frozen_settings
from ..nn.encoders import Model, parts
from ..training.fit import Loss
from ..training.modules import expect, load, reset, snapshot
from ..uncertainty.familiarity import LEAST
from .fedavg import FedAvg
from .moon import representations


@frozen_settings
class FedProto(FedAvg):
    """Local models with any encoder, which share only the mean representation of each class (Tan et al., 2022)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)
    counts_classes: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    lam: Annotated[float, Field(ge=0, le=LARGE)] = 1.0
    """Lambda, the weight of the distance to the global prototypes; 0 is local training."""

    def __post_init__(self) -> None:
        if self.training.optimizer_state == "average":
            self.training.leave(
                "fedproto", "no model is sent; 'keep' keeps the state of the silo's model", "optimizer_state"
            )

    def build(self, model: nn.Module) -> nn.Module:
        return parts(model, self.name)

    def mismatch(self, module: nn.Module, own: nn.Module) -> str:
        (_, ours), (_, theirs) = sizes(module, self.name), sizes(own, self.name)
        text = f"has {theirs} hidden units, but [model] has {ours}; prototypes need equal numbers"
        return "" if ours == theirs else text

    def init_server(self, context: SiloContext) -> State:
        classes, units = sizes(context.module, self.name)
        return {"prototypes": {"means": torch.zeros(classes, units), "known": torch.zeros(classes, dtype=torch.bool)}}

    def init_silo(self, context: SiloContext) -> State:
        own = expect(nn.Module, context.own)
        reset(own)
        return {"own": snapshot(own)}

    @property
    def linear(self) -> Weights | None:
        return None

    def broadcast(self, server: State) -> Payload:
        return {"prototypes": server["prototypes"]}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        own = expect(Model, load(expect(nn.Module, context.own), state["own"]))
        self.training.fit(replace(context, module=own), self.near(own, down["prototypes"]))
        sent = prototypes(own, context, len(down["prototypes"]["known"]))
        return Update({"prototypes": sent}, context.examples), state | {"own": snapshot(own)}

    def near(self, own: Model, shared: Tensors) -> Loss:
        """Return the cross-entropy plus the mean square distance of representations to their class prototypes."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = own.head.hidden(own.encoder(x))
            label = self.training.cross_entropy(own.head.output(z), y)
            apart = (z - shared["means"][y]).square() * shared["known"][y, None]
            return label + self.lam * apart.mean()

        return loss

    def schedule(self) -> Iterable[Round]:
        # Prototypes are means of a silo's data, not updates of the broadcast.
        return (replace(step, origin=nothing) for step in super().schedule())

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        before, counts = server["prototypes"], replies.stack("prototypes", "counts").double()
        sums = (counts[:, :, None] * replies.stack("prototypes", "means").double()).sum(0)
        n = counts.sum(0)
        sent = n > 0
        means = (sums / n.clamp_min(1)[:, None]).to(before["means"].dtype)
        after = {"means": torch.where(sent[:, None], means, before["means"]), "known": before["known"] | sent}
        return server | {"prototypes": after}

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        yield Decision.LOCAL, load(expect(nn.Module, context.own), state["own"])


def prototypes(own: nn.Module, context: SiloContext, classes: int) -> Tensors:
    """Return what a silo sends: the mean representations (C, H) of its training data by class, and the numbers of
    examples (C,). Both are 0 for a class with fewer than `LEAST` examples.
    """
    z, y = representations(own, context.train.x), context.train.y
    counts = torch.bincount(y, minlength=classes)
    sums = z.new_zeros(classes, z.shape[1]).index_add_(0, y, z)
    counts = torch.where(counts < LEAST, 0, counts)
    means = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], 0.0)
    return {"means": means, "counts": counts}


@torch.no_grad()
def sizes(module: nn.Module, method: str) -> tuple[int, int]:
    """Return a model's numbers of classes and hidden units. Raises ConfigurationError without encoder and head."""
    model = parts(module, method).eval()
    tokens = next(model.parameters()).new_zeros(1, model.tokens, model.features)
    hidden = model.head.hidden(tokens)
    return model.head.output(hidden).shape[1], hidden.shape[1]
