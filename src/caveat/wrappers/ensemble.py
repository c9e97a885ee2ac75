"""Federated deep ensembles: the base several times over, from other weights and with other batches, one after another.

Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, NeurIPS 2017,
without adversarial training. An ensemble of M members takes M times the rounds, the traffic and the memory for states,
and M passes per prediction. Its first member is the run that there would be without an ensemble, to the bit.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..core import (
    Answers,
    Decision,
    Payload,
    Prediction,
    Replies,
    Round,
    SiloContext,
    State,
    Tensors,
    Update,
    horizon,
    seeded,
)
from ..training.modules import in_batches, reset
from .base import Wrapper


@dataclass(frozen=True)
class Ensemble(Wrapper):
    """The base's schedule once for each member; predictions are means over members, and epistemic is what they differ.

    A member's groups of tensors, at the server, at silos and in what is sent for prediction, have its number before
    their names. What is sent in a round is what the base sends. Members that have not begun yet say nothing.
    """

    ensemble_size: int = 5
    """How many there are, above 0."""
    seed: int = 0
    """What the members' initial weights are drawn from, but for the first, whose weights are those of the run."""

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("epistemic", "aleatoric", "total")

    @property
    def cost(self) -> str:
        """What to say before a run begins."""
        return (
            f"an ensemble of {self.ensemble_size} members: {self.ensemble_size} times the rounds and the traffic of "
            f"one model, and {self.ensemble_size} passes per prediction"
        )

    def init_server(self, context: SiloContext) -> State:
        state: State = {"ensemble": {"begun": torch.tensor(1)}}
        for m in range(self.ensemble_size):
            state |= prefixed(m, self.base.init_server(self.fresh(m, context)))
        return state

    def init_silo(self, context: SiloContext) -> State:
        state: State = {}
        for m in range(self.ensemble_size):
            state |= prefixed(m, self.base.init_silo(self.fresh(m, context)))
        return state

    def fresh(self, m: int, context: SiloContext) -> SiloContext:
        """A site whose freshly initialised module is that of a member: the same at the server and at every silo."""
        if m == 0:
            return context
        module = deepcopy(context.module)
        with seeded(self.seed, "member", m):
            reset(module)
        return replace(context, module=module)

    def schedule(self) -> Iterable[Round]:
        position, until = 0, horizon(self.base.schedule())
        for m in range(self.ensemble_size):
            begin = position
            for step in super().schedule():
                yield self.step(m, begin, until, step)
                position += 1

    def step(self, m: int, begin: int, until: int, step: Round) -> Round:
        """A round of the base as one of a member whose schedule begins at that position, and has that horizon."""
        return replace(
            step,
            broadcast=lambda server: step.broadcast(own(m, server)),
            task=partial(task, m, begin, until, step),
            aggregate=partial(aggregate, m, step),
            when=lambda server: step.when(own(m, server)),
            path=f"member{m}.{step.path}",
        )

    def broadcast(self, server: State) -> Payload:
        sent: Payload = {"ensemble": server["ensemble"]}
        for m in self.begun(server):
            sent |= prefixed(m, self.base.broadcast(own(m, server)))
        return sent

    def begun(self, tensors: Payload) -> range:
        """The members that have begun, by the server's state or by what was sent."""
        return range(int(tensors["ensemble"]["begun"]))

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        said: dict[Decision, list[Tensor]] = {}
        for m in self.begun(down):
            for whose, probs in self.probabilities(own(m, down), own(m, state), context, x):
                said.setdefault(whose, []).append(probs)
        return {whose: Prediction.from_samples(torch.stack(each), whose) for whose, each in said.items()}

    def probabilities(
        self, down: Payload, state: State, context: SiloContext, x: Tensor
    ) -> Iterator[tuple[Decision, Tensor]]:
        """(N, C) probabilities by each model that a member asks: of a pass without dropout, where it has such."""
        if self.base.softmax:
            for whose, module in self.base.loaded(down, state, context):
                yield whose, in_batches(module.eval(), x).double().softmax(-1)
        else:
            for whose, answer in self.base.answer(down, state, context, x).items():
                yield whose, answer.probs

    # What is no mean over members is that of one: of the first, and of the newest while a run goes on.

    @property
    def softmax(self) -> bool:
        return False

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        return self.base.decide(own(0, down), own(0, state), answers)

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        return self.base.loaded(own(0, down), own(0, state), context)

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return self.base.describe(own(0, down), own(0, state), context, x)

    def features(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return self.base.features(own(0, down), own(0, state), context, x)

    def milestone(self, server: State) -> dict[str, float]:
        return self.base.milestone(own(self.begun(server)[-1], server))

    def outcome(self, server: State) -> dict[str, object]:
        return self.base.outcome(own(0, server)) | {"source": {"name": "ensemble", "ensemble_size": self.ensemble_size}}


def task(
    m: int, begin: int, until: int, step: Round, down: Payload, state: State, context: SiloContext
) -> tuple[Update, State]:
    """A member's work at a silo, from and to its own groups of the silo's state."""
    update, after = step.task(down, own(m, state), replace(context, round=context.round - begin, horizon=until))
    return update, others(m, state) | prefixed(m, after)


def aggregate(m: int, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
    """A member's aggregation, from and to its own groups of the server's state."""
    after = prefixed(m, step.aggregate(own(m, server), replies, context))
    return others(m, server) | after | {"ensemble": {"begun": torch.tensor(m + 1)}}


def prefixed(m: int, groups: Payload) -> Payload:
    """A member's groups, by names that are no other member's."""
    return {f"{m}.{group}": tensors for group, tensors in groups.items()}


def own(m: int, groups: Mapping[str, Tensors]) -> Payload:
    """The groups of one member, by the names that the base gives them."""
    return {name.removeprefix(f"{m}."): tensors for name, tensors in groups.items() if name.startswith(f"{m}.")}


def others(m: int, groups: Mapping[str, Tensors]) -> Payload:
    """The groups that are not of one member."""
    return {name: tensors for name, tensors in groups.items() if not name.startswith(f"{m}.")}
