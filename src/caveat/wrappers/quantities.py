"""Quantities: predictions over bars, and conformal intervals of each silo.

A method predicts probabilities of bars in the same way as probabilities of classes. `Valued` adds the values of the
bars. `Intervals` has the same rounds as prediction sets: a silo with enough calibration inputs keeps the exact quantile
of the nonconformity of its calibration targets, so its intervals contain the targets of its own inputs with the
guaranteed coverage. All other silos send histograms, and the quantile of their sum covers the mixture of these silos.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..core import Answers, Payload, Prediction, Round, SiloContext, State, Update
from ..core.quantity import Quantity, unit_of
from ..uncertainty.histograms import histogram, quantile
from .base import Wrapper
from .choice_policies import scalar
from .prediction_sets import Conformal, mean_probs

SCORE = "nonconformity"
"""Name of the score whose bins the nonconformity of a target has."""
UNIT = "target"
"""Group of a silo's state with the mean and standard deviation of its training targets, if silos standardize them."""


@dataclass(frozen=True)
class Valued(Wrapper):
    """The base, whose predictions are about a quantity."""

    target: Quantity

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.base.scores, "spread")

    def init_silo(self, context: SiloContext) -> State:
        own = {UNIT: {"unit": unit_of(context.values["train"])}} if self.target.standardized else {}
        return self.base.init_silo(context) | own

    def schedule(self) -> Iterable[Round]:
        for step in super().schedule():
            yield replace(step, task=partial(self.keep, step)) if self.target.standardized else step

    def keep(self, step: Round, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Run the base's client task, and keep the unit of the silo's targets, which stays at the silo."""
        own = {name: group for name, group in state.items() if name != UNIT}
        update, after = step.task(down, own, context)
        return update, after | {UNIT: state[UNIT]}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        answers, target = self.base.answer(down, state, context, x), self.target.placed(state.get(UNIT, {}))
        return {whose: replace(each, target=target) for whose, each in answers.items()}


@dataclass(frozen=True, kw_only=True)
class Intervals(Conformal):
    """The base, whose predictions get intervals, independently of decisions."""

    target: Quantity

    def conform(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        there = replace(self, target=self.target.placed(state.get(UNIT, {})))
        return Conformal.conform(there, down, state, context)

    def surprise(self, probs: Tensor, y: Tensor) -> Tensor:
        return self.target.nonconformity(probs, y)

    def histogram(self, probs: Tensor, y: Tensor) -> Tensor:
        return histogram(SCORE, self.surprise(probs, y))

    def merged(self, counts: Tensor) -> Tensor:
        return scalar(quantile(SCORE, counts, self.coverage))

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        decided = self.base.decide(down, state, answers)
        if not down["sets"]["ready"]:
            return decided
        limit = self.limit(down["sets"], state.get("sets", {}), next(iter(answers.values())).subgroup)
        target, value = decided.target or self.target, decided.value
        found = target.interval(mean_probs(answers), limit)
        return replace(decided, interval=torch.stack([found[:, 0].fmin(value), found[:, 1].fmax(value)], 1))

    def outcome(self, server: State) -> dict[str, object]:
        found = super().outcome(server)
        return {name: each for name, each in found.items() if name != "sets"} | {"intervals": found["sets"]}
