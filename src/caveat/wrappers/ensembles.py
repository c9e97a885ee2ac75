"""Ensembles of any method: separate trainings, and snapshots of a single one.

Ensemble: Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, NeurIPS
2017, without adversarial training. An ensemble of M members takes M times the rounds, the traffic and the memory for
states, and M passes per prediction.

Snapshots: Chen, Lundberg & Lee, Checkpoint Ensembles: Ensemble Methods from a Single Training Process, arXiv
1710.03282, 2017, with the last M rounds of training as members. They take M times the memory for states and M passes
per prediction, but no further round and no further message.

The first member of both is bit-identical to the run without an ensemble.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from ..core import (
    Answers,
    ConfigurationError,
    Decision,
    Method,
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
class SeveralModels(Wrapper):
    """Several models of the base; predictions are means, and epistemic uncertainty measures how much members differ.

    The names of a member's groups of tensors, at the server, at silos and in the broadcast for prediction, begin with
    its number. Messages of a round are the base's. Members that have not started yet do not answer.
    """

    ensemble_size: int = 5
    """Number of members, above 0."""

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("epistemic", "aleatoric", "total")

    def broadcast(self, server: State) -> Payload:
        sent: Payload = {"ensemble": server["ensemble"]}
        for m in self.begun(server):
            sent |= numbered(m, self.base.broadcast(self.of_member(m, server)))
        return sent

    def begun(self, tensors: Payload) -> range:
        """Return the members that have started, the newest last, from the server's state or from a broadcast."""
        return range(int(tensors["ensemble"]["begun"]))

    def of_member(self, m: int, state: State) -> State:
        """Return a member's state at the server or at a silo."""
        return member_groups(m, state)

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        said: dict[Decision, list[Tensor]] = {}
        for m in self.begun(down):
            for whose, probs in self.probabilities(member_groups(m, down), self.of_member(m, state), context, x):
                said.setdefault(whose, []).append(probs)
        return {whose: Prediction.from_samples(torch.stack(each), whose) for whose, each in said.items()}

    def probabilities(
        self, down: Payload, state: State, context: SiloContext, x: Tensor
    ) -> Iterator[tuple[Decision, Tensor]]:
        """Yield (N, C) probabilities of each model of a member; softmax outputs come from a pass without dropout."""
        if self.base.softmax:
            for whose, module in self.base.loaded(down, state, context):
                yield whose, in_batches(module.eval(), x).double().softmax(-1)
        else:
            for whose, answer in self.base.answer(down, state, context, x).items():
                yield whose, answer.probs

    # Values that are not means over members come from the first member, or from the newest one during a run.

    @property
    def softmax(self) -> bool:
        return False

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        return self.base.decide(member_groups(0, down), member_groups(0, state), answers)

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        return self.base.loaded(member_groups(0, down), member_groups(0, state), context)

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return self.base.describe(member_groups(0, down), member_groups(0, state), context, x)

    def features(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return self.base.features(member_groups(0, down), member_groups(0, state), context, x)

    def milestone(self, server: State) -> dict[str, float]:
        return self.base.milestone(member_groups(self.begun(server)[-1], server))

    def outcome(self, server: State) -> dict[str, object]:
        return self.base.outcome(member_groups(0, server)) | {
            "source": {"name": type(self).__name__.lower(), "ensemble_size": self.ensemble_size}
        }


@dataclass(frozen=True)
class Ensemble(SeveralModels):
    """Run the base's schedule once per member."""

    seed: int = 0
    """Seed of the members' initial weights, except for the first member, which has the run's weights."""

    @property
    def cost(self) -> str:
        """A sentence to print before a run starts."""
        return (
            f"an ensemble of {self.ensemble_size} members needs {self.ensemble_size} times the rounds and traffic of "
            f"one model, and {self.ensemble_size} passes per prediction"
        )

    def init_server(self, context: SiloContext) -> State:
        state: State = {"ensemble": {"begun": torch.tensor(1)}}
        for m in range(self.ensemble_size):
            state |= numbered(m, self.base.init_server(self.fresh(m, context)))
        return state

    def init_silo(self, context: SiloContext) -> State:
        state: State = {}
        for m in range(self.ensemble_size):
            state |= numbered(m, self.base.init_silo(self.fresh(m, context)))
        return state

    def fresh(self, m: int, context: SiloContext) -> SiloContext:
        """Return a context whose module is initialized for a member, equally at the server and at every silo."""
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
        """Convert a round of the base to a round of a member whose schedule begins at `begin`, with horizon `until`."""
        return replace(
            step,
            broadcast=lambda server: step.broadcast(member_groups(m, server)),
            task=partial(member_task, m, begin, until, step),
            aggregate=partial(member_aggregate, m, step),
            when=lambda server: step.when(member_groups(m, server)),
            path=f"member{m}.{step.path}",
        )


def member_task(
    m: int, begin: int, until: int, step: Round, down: Payload, state: State, context: SiloContext
) -> tuple[Update, State]:
    """Run a member's client task on its own groups of the silo's state."""
    update, after = step.task(
        down, member_groups(m, state), replace(context, round=context.round - begin, horizon=until)
    )
    return update, other_groups(m, state) | numbered(m, after)


def member_aggregate(m: int, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
    """Aggregate for a member, on its own groups of the server's state."""
    after = numbered(m, step.aggregate(member_groups(m, server), replies, context))
    return other_groups(m, server) | after | {"ensemble": {"begun": torch.tensor(m + 1)}}


@dataclass(frozen=True)
class Snapshots(SeveralModels):
    """The base, with copies of its states after earlier training rounds as further members.

    Member 0 has the base's current state, and member m > 0 the state after round `taken[m - 1]`. The server and every
    silo copy their state in the first later round in which they take part; until then both states are equal. A silo
    without a state by then copies its first one.

    Raises ConfigurationError for a base with rounds after training, whose results earlier models lack, and for a base
    with fewer training rounds than members.
    """

    def __post_init__(self) -> None:
        if has_rounds_after_training(self.base):
            raise ConfigurationError(
                f"uncertainty.source = 'snapshots' does not fit {self.name!r}: silos complete their models after the "
                "last training round, so models of earlier rounds are incomplete; use 'ensemble'",
                "uncertainty.source",
            )
        if (rounds := sum(step.trains for step in self.base.schedule())) < self.ensemble_size:
            raise ConfigurationError(
                f"uncertainty.ensemble_size = {self.ensemble_size}, but with uncertainty.source = 'snapshots' it is at "
                f"most {rounds}, the number of training rounds of {self.name!r}",
                "uncertainty.ensemble_size",
            )

    @cached_property
    def taken(self) -> Sequence[int]:
        """Positions of the rounds after which members are copied: the last training rounds except the final one."""
        return [t for t, step in enumerate(self.base.schedule()) if step.trains][-self.ensemble_size : -1]

    def init_server(self, context: SiloContext) -> State:
        return numbered(0, self.base.init_server(context)) | {"ensemble": {"begun": torch.tensor(1)}}

    def init_silo(self, context: SiloContext) -> State:
        return numbered(0, self.base.init_silo(context))

    def schedule(self) -> Iterable[Round]:
        for t, step in enumerate(super().schedule()):
            yield self.step(t, step)

    def step(self, t: int, step: Round) -> Round:
        """Convert the base's round t."""
        return replace(
            step,
            broadcast=lambda server: step.broadcast(member_groups(0, server)),
            task=partial(self.task, step),
            aggregate=partial(self.settle, t, step),
            when=lambda server: step.when(member_groups(0, server)),
        )

    def task(self, step: Round, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, after = step.task(down, member_groups(0, state), context)
        return update, self.copied(context.round, state) | numbered(0, after)

    def settle(self, t: int, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
        after = step.aggregate(member_groups(0, server), replies, context)
        begun = {"begun": torch.tensor(1 + sum(taken < t for taken in self.taken))}
        return self.copied(t, server) | numbered(0, after) | {"ensemble": begun}

    def copied(self, t: int, groups: State) -> State:
        """Return all groups except member 0's, and copies of member 0's for members that are taken before round t."""
        current, others = member_groups(0, groups), other_groups(0, groups)
        for m, taken in enumerate(self.taken, 1):
            if taken < t and any(current.values()) and not member_groups(m, groups):
                copies = {group: {n: each.clone() for n, each in named.items()} for group, named in current.items()}
                others |= numbered(m, copies)
        return others

    def begun(self, tensors: Payload) -> range:
        return super().begun(tensors)[::-1]

    @property
    def follows_rounds(self) -> str:
        return self.base.follows_rounds or "uncertainty.source = 'snapshots'"

    def of_member(self, m: int, state: State) -> State:
        return member_groups(m, state) or member_groups(0, state)


def has_rounds_after_training(method: Method) -> bool:
    """Return whether rounds follow a method's last training round."""
    return len(list(method.schedule())) > horizon(method.schedule())


def numbered(m: int, groups: Payload) -> Payload:
    """Return a member's groups with its number before their names."""
    return {f"{m}.{group}": tensors for group, tensors in groups.items()}


def member_groups(m: int, groups: Mapping[str, Tensors]) -> Payload:
    """Return the groups of one member, under the base's names."""
    return {name.removeprefix(f"{m}."): tensors for name, tensors in groups.items() if name.startswith(f"{m}.")}


def other_groups(m: int, groups: Mapping[str, Tensors]) -> Payload:
    """Return the groups of all other members."""
    return {name: tensors for name, tensors in groups.items() if not name.startswith(f"{m}.")}
