"""What `[training]` asks of all methods alike: classes that count as much, and optimisers that go on over rounds."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch

from ..core import Method, Payload, Replies, Round, SiloContext, State, Tensors, Update
from ..training.fit import Training, balanced
from .base import Wrapper

MOMENTS = "moments"
"""The group of what optimisers remember, at a silo, at the server and in messages."""


def trained(method: Method) -> Method:
    """The method with what its `training` asks for around it; the method itself if that is nothing of the kind."""
    training = getattr(method, "training", None)
    if not isinstance(training, Training):
        return method
    inner = Balanced(method) if training.class_weights == "balanced" else method
    if training.optimizer_state == "reset":
        return inner
    return Carried(inner, training, shared=training.optimizer_state == "average" and method.federated)


@dataclass(frozen=True)
class Balanced(Wrapper):
    """The base, with the class weights at each silo that balance the labels of its training data."""

    def schedule(self) -> Iterable[Round]:
        for t, step in enumerate(self.base.schedule()):
            yield replace(step, task=partial(self.task, t))

    def task(self, t: int, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """The base's work of round t, with the site's weights."""
        training = replace(self.base.training, class_weights=balanced(context.train.y))  # type: ignore[attr-defined]
        method = replace(self.base, training=training)  # type: ignore[type-var]
        return next(islice(method.schedule(), t, None)).task(down, state, context)


@dataclass(frozen=True)
class Carried(Wrapper):
    """The base, whose silos' optimisers begin a round of training with what they remember of the one before.

    Shared, that is the mean over the silos of a round, weighted as the model is, which is sent along; before the first
    round all is 0, with which an optimiser begins anyway. What is of parameters that are not sent stays at the silo,
    as everything does where nothing is shared.
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
                # By the name that it has at the base, and with its random numbers, but carried out here.
                yield replace(
                    own, broadcast=partial(self.send, own), task=partial(self.task, own),
                    aggregate=partial(self.settle, own),
                )  # fmt: skip
            else:
                yield replace(own, task=partial(self.task, own))

    def send(self, step: Round, server: State) -> Payload:
        return step.broadcast(server) | {MOMENTS: server[MOMENTS]}

    def task(self, step: Round, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """The base's work, from and to what the silo's optimiser remembers."""
        moments = {**state.get(MOMENTS, {}), **down.get(MOMENTS, {})}
        update, after = step.task(without(down), without(state), replace(context, moments=moments))
        if not self.shared:
            return update, after | {MOMENTS: moments}
        whole = {name for name in down[MOMENTS] if name.partition(".")[2] in update.payload["model"]}
        sent = {name: tensor for name, tensor in moments.items() if name in whole}
        kept = {name: tensor for name, tensor in moments.items() if name not in down[MOMENTS]}
        return Update(update.payload | {MOMENTS: sent}, update.examples), after | ({MOMENTS: kept} if kept else {})

    def settle(self, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
        """The base's aggregation, and the mean of what optimisers have come to."""
        after = step.aggregate(without(server), replies, context)
        return after | {MOMENTS: server[MOMENTS] | replies.mean(MOMENTS)}


def without(groups: Payload) -> Payload:
    """All but what optimisers remember."""
    return {name: tensors for name, tensors in groups.items() if name != MOMENTS}
