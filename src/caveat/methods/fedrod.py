"""FedRoD: one body with two last layers, a generic one for balanced classes and a personalized one.

Chen & Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022, Algorithm 1
with the linear personalized predictor. Body and generic layer are trained with the balanced softmax (Ren et al.,
NeurIPS 2020), which adds log n_c to the logits, for the silo's n_c training examples of class c, and so removes the
effect of the silo's class frequencies. The personalized layer is trained with the cross-entropy of the sum of both
layers' logits, with body and generic layer as constants. The global model is the body with the generic layer; the
personalized model is the body with the sum of both layers, which is again a linear layer.

The paper's hypernetwork, which generates the personalized layer of a new silo from its labels, is not implemented.
Our choices: the layer is the last linear layer of the model, after the hidden units; the personalized layer starts at
0, so the personalized model starts as the global one.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import ConfigurationError, Decision, Payload, SiloContext, State, Tensors, Update
from ..core.settings import frozen_settings
from ..nn.encoders import Model
from ..nn.stage_features import last_layer
from ..training.fit import LABELS, Loss
from ..training.modules import expect, learning, load, names_below, path_of_part, snapshot, zeros
from .fedavg import FedAvg


@frozen_settings
class FedRoD(FedAvg):
    """A generic last layer for balanced classes plus a personalized one at every silo (Chen & Chao, 2022)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)
    counts_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.training.optimizer_state == "average":
            self.training.leave(
                "fedrod", "a silo trains two last layers; 'keep' keeps the state of both", "optimizer_state"
            )
        self.training.leave("fedrod", "its two losses weight classes in different ways", *LABELS)

    def init_server(self, context: SiloContext) -> State:
        self.check_last(context)
        return super().init_server(context)

    def check_last(self, context: SiloContext) -> None:
        """Raise ConfigurationError unless the module ends in a trainable linear layer without tied weights."""
        module = context.module
        try:
            path = self.path(module)
            ends = last_path(context) == path and f"{path}.weight" in learning(module)
        except ConfigurationError:
            ends = False
        if not ends:
            raise ConfigurationError(
                f"{self.name} needs a model that ends in a trainable linear layer, but {type(module).__name__} "
                "does not",
                "model",
            )
        names_below(module, path)

    def init_silo(self, context: SiloContext) -> State:
        return {}

    def path(self, module: nn.Module) -> str:
        """Return the path of the module's last linear layer."""
        return path_of_part(module, "last", self.name)

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        module = load(context.module, down["model"])
        generic = expect(nn.Linear, module.get_submodule(self.path(module)))
        own = own_layer(generic, state)
        hidden: list[Tensor] = []

        def keep(layer: nn.Module, given: tuple[Any, ...]) -> None:
            hidden[:] = given

        watched = generic.register_forward_pre_hook(keep)
        try:
            both = replace(context, module=nn.ModuleList([module, own]))
            counts = torch.bincount(context.train.y, minlength=own.out_features)
            self.training.fit(both, self.both(module, own, hidden, counts))
        finally:
            watched.remove()
        return Update({"model": snapshot(module)}, context.examples), state | {"layer": snapshot(own)}

    def both(self, module: nn.Module, own: nn.Linear, hidden: list[Tensor], counts: Tensor) -> Loss:
        """Return the sum of both losses of a batch; `hidden` contains the input of the generic layer."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            generic = module(x)
            personal = own(hidden[0].detach())
            return balanced_softmax(generic, y, counts) + F.cross_entropy(generic.detach() + personal, y)

        return loss

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        yield Decision.GLOBAL, load(context.module, down["model"])
        if "layer" in state:
            yield Decision.LOCAL, load(context.module, self.added(context.module, down["model"], state["layer"]))

    def added(self, module: nn.Module, model: Tensors, layer: Tensors) -> Tensors:
        """Return a model's tensors with the personalized layer added to the last layer, which adds their logits."""
        path = self.path(module)
        return model | {f"{path}.{name}": model[f"{path}.{name}"] + tensor for name, tensor in layer.items()}


def last_path(context: SiloContext) -> str:
    """Return the path of the linear layer that outputs the logits. Raises ConfigurationError if there is none."""
    module = context.module
    if isinstance(module, Model):  # the encoder may be on another device
        tokens = next(module.head.parameters()).new_zeros(1, module.tokens, module.features)
        return f"head.{last_layer(module.head, tokens).name}"
    return last_layer(module, context.train.x.new_zeros(1, *context.train.x.shape[1:])).name


def own_layer(generic: nn.Linear, state: State) -> nn.Linear:
    """Return a silo's personalized layer, or zeros if it has none yet."""
    own = deepcopy(generic)
    load(own, state.get("layer") or zeros(own))
    return own


def balanced_softmax(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of -log(n_y e^l_y / sum_c n_c e^l_c) over logits (N, C) and labels (N,); `counts` (C,) are n_c.

    A class without examples gets no gradient.
    """
    return F.cross_entropy(logits + counts.to(logits.dtype).log(), y)
