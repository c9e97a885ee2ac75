"""FedCR: silos share an encoder of Gaussian representations that agree with the federation's Gaussian of each class.

Zhang et al., FedCR: Personalized Federated Learning Based on Across-Client Common Representation with Conditional
Mutual Information Regularization, ICML 2023. The encoder outputs the mean and standard deviation of a Gaussian
representation; samples of it are classified by a linear layer, which stays at its silo. The loss is the cross-entropy,
averaged over samples, plus beta times the divergence of the federation's Gaussian of the class from the Gaussian of the
input. A silo multiplies the Gaussians of all its inputs of a class, and the server multiplies the products of all silos
and N(0, 1) (products of experts). After the last round, silos train the linear layer alone.

Precisions, and means times precisions, are additive, so a silo sends their sums by class. It sends 0 for a class with
fewer than five examples, because the Gaussian of a single example reveals that example. Where the paper and the
released code differ or are silent, we follow the code: the server's product includes N(0, 1); the divergence is of the
class's Gaussian from the input's; a class that no silo sends in a round keeps its Gaussian; and a new product replaces
the old one (the code's moving average, with the weight beta2 = 1 of its published command). Our choices: silos are
weighted by n_k in the mean of the encoder (code: uniform); Gaussians of inputs are computed by the trained model in
evaluation mode (code: by the models of the last epoch's batches); a prediction is a mean of probabilities (code: of
logits); gradients are clipped only if `training.clip_norm` is set (code: at 10); all other choices are those of FedSR.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Decision, Payload, Replies, Round, SiloContext, State, Tensors, Update, Weights
from ..core.settings import LARGE, MAX_COUNT, frozen_settings
from ..nn.dropout import GaussianUnits, divergence
from ..nn.encoders import Model
from ..training.fit import Loss
from ..training.modules import expect, load, names_below, snapshot
from ..uncertainty.familiarity import LEAST
from .fedavg import FedAvg
from .fedbabu import fit_alone
from .fedsr import with_gaussian
from .moon import representations

NARROWEST = 1e-6
"""Smallest standard deviation of a representation in a product."""


@frozen_settings
class FedCR(FedAvg):
    """A shared stochastic encoder, near a common Gaussian of each class, with local heads (Zhang et al., 2023)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)
    counts_classes: ClassVar[bool] = True

    beta: Annotated[float, Field(ge=0, le=LARGE)] = 0.001
    """Weight of the divergence from the federation's Gaussian of the class, in nats. Code: 0.001 or 0.0001."""
    samples: Annotated[int, Field(gt=0, le=10_000)] = 15
    """Samples of the representation per input in training. Code: 15 or 18."""
    units: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """Dimension of the representation; default: the number of hidden units of the head. Code: 256 or 512."""
    head_epochs: Annotated[int, Field(gt=0, le=MAX_COUNT)] = 10
    """Epochs for the linear layer after the last round, at the final learning rate of training."""

    def build(self, model: nn.Module) -> nn.Module:
        return with_gaussian(model, self.name, self.units, lambda units, classes: GaussianUnits())

    def private(self, module: nn.Module) -> frozenset[str]:
        return names_below(module, last(module))

    def fitted(self, module: nn.Module) -> frozenset[str] | None:
        return self.private(module)

    def init_server(self, context: SiloContext) -> State:
        layer = expect(nn.Linear, context.module.get_submodule(last(context.module)))
        known = {"means": torch.zeros_like(layer.weight), "deviations": torch.ones_like(layer.weight)}
        return super().init_server(context) | {"classes": {name: each.detach() for name, each in known.items()}}

    def schedule(self) -> Iterable[Round]:
        for step in super().schedule():
            yield replace(step, broadcast=self.start)
        yield Round(self.start, self.personalise, everyone=True, trains=False, linear="examples", name="personalise")

    @property
    def linear(self) -> Weights | None:
        return None

    def start(self, server: State) -> Payload:
        """Return what the server sends to a silo for training."""
        return {"model": server["model"], "classes": server["classes"]}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, after = super().train(down, state, context)
        return Update(update.payload | {"products": products(context)}, update.examples), after

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        model = expect(Model, module)
        gaussian, classifier = expect(GaussianUnits, model.head[-2]), model.head[-1]
        means, deviations = down["classes"]["means"], down["classes"]["deviations"]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            h = model.head.hidden(model.encoder(x))
            z = gaussian.drawn(h, torch.randn(self.samples, len(h), h.shape[1] // 2, device=h.device))
            label = self.training.cross_entropy(classifier(z).flatten(0, 1), y.repeat(self.samples))
            return label + self.beta * divergence((means[y], deviations[y]), gaussian.moments(h)).mean()

        return loss

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        precisions, shifts = (replies.stack("products", name).double().sum(0) for name in ("precisions", "shifts"))
        before, sent = server["classes"], precisions.any(1, keepdim=True)
        after = {"means": shifts / (1 + precisions), "deviations": (1 + precisions).rsqrt()}
        classes = {name: torch.where(sent, each.to(before[name].dtype), before[name]) for name, each in after.items()}
        return super().aggregate(server, replies, context) | {"classes": classes}

    def personalise(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Train the silo's linear layer behind the final encoder."""
        module = load(context.module, down["model"] | state["model"])
        training = replace(self.training, local_epochs=self.head_epochs, local_steps=None)
        fit_alone(training, context, self.objective(module, down), last(module))
        return Update({}, context.examples), state | {"model": snapshot(module, self.private(module))}


def last(module: nn.Module) -> str:
    """Return the path of the linear layer that stays at the silo."""
    return f"head.{len(expect(Model, module).head) - 1}"


def products(context: SiloContext) -> Tensors:
    """Return what a silo sends: the products (C, Z) of the Gaussians of its training inputs by class, as precisions and
    as means times precisions (shifts). They are 0 for a class with fewer than `LEAST` examples.
    """
    model, y = expect(Model, context.module), context.train.y
    gaussian, classes = expect(GaussianUnits, model.head[-2]), expect(nn.Linear, model.head[-1]).out_features
    mean, deviation = gaussian.moments(representations(model, context.train.x))
    precision = deviation.clamp_min(NARROWEST).square().reciprocal()
    enough = torch.bincount(y, minlength=classes)[:, None] >= LEAST
    return {
        name: each.new_zeros(classes, each.shape[1]).index_add_(0, y, each) * enough
        for name, each in (("precisions", precision), ("shifts", mean * precision))
    }
