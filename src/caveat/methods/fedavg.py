"""FedAvg: the mean of locally trained models, weighted by n_k, their numbers of training examples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from ..core import Answers, Decision, Method, Payload, Prediction, Replies, Round, SiloContext, State, Update, Weights
from ..core.settings import MAX_COUNT, frozen_settings
from ..nn.dropout import mc_dropout
from ..training.fit import Loss, Training
from ..training.modules import in_batches, load, snapshot, split


@frozen_settings
class FedAvg(Method):
    """The n_k-weighted mean of locally trained models (McMahan et al., 2017)."""

    rounds: Annotated[int, Field(gt=0, le=MAX_COUNT)] = 20
    """Number of training rounds."""
    training: Training = Training()
    """Local training of a silo in one round."""
    mc_samples: Annotated[int, Field(gt=0, le=10_000)] = 20
    """Number of MC dropout passes per prediction."""

    def init_server(self, context: SiloContext) -> State:
        shared, _ = split(snapshot(context.module), self.private(context.module))
        return {"model": shared}

    def init_silo(self, context: SiloContext) -> State:
        return {"model": snapshot(context.module, self.private(context.module))}

    def schedule(self) -> Iterable[Round]:
        return repeat(Round(self.broadcast, self.train, self.aggregate, linear=self.linear, name="train"), self.rounds)

    @property
    def linear(self) -> Weights | None:
        """`Round.linear` of training: "examples" for the `aggregate` below, which needs means only.

        It is None for a subclass that overrides `aggregate`, unless the subclass overrides this property, too.
        """
        return "examples" if type(self).aggregate is FedAvg.aggregate else None

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"]}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        load(context.module, down["model"] | state["model"])
        self.training.fit(context, self.objective(context.module, down))
        shared, own = split(snapshot(context.module), self.private(context.module))
        return Update({"model": shared}, context.examples), state | {"model": own}

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        return server | {"model": replies.mean("model")}

    @property
    def softmax(self) -> bool:
        """True for the `answer` and `ask` below; a subclass that overrides either may override this property, too."""
        return type(self).answer is FedAvg.answer and type(self).ask is FedAvg.ask

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        yield self.models[0], load(context.module, down["model"] | state.get("model", {}))
        if "own" in state:
            yield Decision.LOCAL, load(context.module, state["own"])

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        return {whose: self.ask(module, x, whose) for whose, module in self.loaded(down, state, context)}

    def ask(self, module: nn.Module, x: Tensor, whose: Decision) -> Prediction:
        """Return the prediction of the model that is loaded into a module."""
        return Prediction.from_logits(in_batches(lambda part: self.sampled(module, part), x, dim=1), whose)

    def sampled(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the logits (S, N, C) of S passes of MC dropout for inputs (N, ...)."""
        return mc_dropout(module, x, self.mc_samples)

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        """Return the loss that a silo minimizes, as a function of a batch. Subclasses may override it."""
        return lambda x, y: self.training.cross_entropy(module(x), y)

    def fitted(self, module: nn.Module) -> frozenset[str] | None:
        """Return the names of trained tensors that stay at the silo; None for a subclass that overrides `train`."""
        return self.private(module) if type(self).train is FedAvg.train else None

    def private(self, module: nn.Module) -> frozenset[str]:
        """Return the names of the tensors that never leave a silo; FedAvg has none."""
        return frozenset()
