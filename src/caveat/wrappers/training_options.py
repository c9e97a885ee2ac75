"""Options of `[training]` for all methods: balanced class weights, and optimizer state that persists over rounds."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch

from ..core import Method, Payload, Replies, Round, SiloContext, State, Tensors, Update
from ..core.quantity import Quantity
from ..training.fit import Training, balanced
from .base import Wrapper

MOMENTS = "moments"
"""Name of the group with optimizer state, at a silo, at the server and in messages."""


def trained(method: Method, target: Quantity | None = None) -> Method:
    """Return the method with the wrappers that its `training` needs, if any, and with the loss of a quantity if the
    target is a quantity."""
    training = getattr(method, "training", None)
    if not isinstance(training, Training):
        return method
    if target is not None:
        method = replace(method, training=training.smoothed(target))  # type: ignore[type-var]
    inner = Balanced(method) if training.class_weights == "balanced" else method
    if training.optimizer_state == "reset":
        return inner
    return Carried(inner, training, shared=training.optimizer_state == "average" and method.federated)


@dataclass(frozen=True)
class Balanced(Wrapper):
    """The base, with class weights at each silo that balance the labels of its training data."""

    def schedule(self) -> Iterable[Round]:
        for t, step in enumerate(self.base.schedule()):
            yield replace(step, task=partial(self.task, t))

    def task(self, t: int, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Run the base's client task of round t, with the silo's class weights."""
        training = replace(self.base.training, class_weights=balanced(context.train.y))  # type: ignore[attr-defined]
        method = replace(self.base, training=training)  # type: ignore[type-var]
        return next(islice(method.schedule(), t, None)).task(down, state, context)


@dataclass(frozen=True)
class Carried(Wrapper):
    """The base, whose optimizers start a training round with their state from the previous one.

    If `shared`, the state is the mean over the silos of a round, weighted like the model and sent with it. Before the
    first round it is 0, an optimizer's initial state. The state of parameters that are not sent stays at the silo;
    without sharing, all state stays there.
    """

    training: Training
    shared: bool

    def init_server(self, context: SiloContext) -> State:
        server = self.base.init_server(context)
        if not self.shared:
            return server
        parameters, sent = dict(context.module.named_parameters()), self.base.broadcast(server)["model"]
        begun: Tensors = {}
        for name in (name for name in sent if name in parameters):
            for part in self.training.remembered:
                begun[f"{part}.{name}"] = torch.zeros(() if part == "step" else sent[name].shape)
        return server | {MOMENTS: begun}

    def schedule(self) -> Iterable[Round]:
        for own, step in zip(self.base.schedule(), super().schedule(), strict=True):
            if not own.trains:
                yield step
            elif self.shared:
                # Keeps the base's name and random numbers, but runs here.
                yield replace(
                    own, broadcast=partial(self.send, own), task=partial(self.task, own),
                    aggregate=partial(self.settle, own),
                )  # fmt: skip
            else:
                yield replace(own, task=partial(self.task, own))

    def send(self, step: Round, server: State) -> Payload:
        return step.broadcast(server) | {MOMENTS: server[MOMENTS]}

    def task(self, step: Round, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Run the base's client task from the silo's optimizer state, and keep or send the state after it."""
        moments = {**state.get(MOMENTS, {}), **down.get(MOMENTS, {})}
        update, after = step.task(without(down), without(state), replace(context, moments=moments))
        if not self.shared:
            return update, after | {MOMENTS: moments}
        whole = {name for name in down[MOMENTS] if name.partition(".")[2] in update.payload["model"]}
        sent = {name: tensor for name, tensor in moments.items() if name in whole}
        kept = {name: tensor for name, tensor in moments.items() if name not in down[MOMENTS]}
        return Update(update.payload | {MOMENTS: sent}, update.examples), after | ({MOMENTS: kept} if kept else {})

    def settle(self, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
        """Aggregate as the base does, and average the optimizer state."""
        after = step.aggregate(without(server), replies, context)
        return after | {MOMENTS: server[MOMENTS] | replies.mean(MOMENTS)}


def without(groups: Payload) -> Payload:
    """Return all groups except the optimizer state."""
    return {name: tensors for name, tensors in groups.items() if name != MOMENTS}
