"""Evaluation of any method, outside its schedule: silos measure themselves and send sums.

It changes no bit of training: what it returns as the silo's state is what it was given, and an engine keeps
nothing of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import (
    Answers,
    Data,
    Decision,
    Payload,
    Prediction,
    SiloContext,
    SiloTask,
    State,
    Tensors,
    TestContext,
    Update,
    evaluation,
)
from ..metrics import class_sums, measure
from ..metrics.custom_metrics import OwnMetric, own_values
from .base import Wrapper

VALIDATION, TEST = "validation", "test"
"""What orders call the two evaluations; also the splits that they measure on."""


@dataclass(frozen=True)
class Evaluated(Wrapper):
    """The base, and works that measure its predictions on a silo's validation or test split.

    A payload holds the groups of `measured` and `describe`'s numbers as "method"; for the test split also the groups of
    each stream of inputs that the silo does not know, "ood_local.sums" for instance, and as "classes" `class_sums` of
    what it predicts. With two classes these have "calibration" (2, B) too: the same histograms of the calibration
    split, by which a threshold is chosen. As "own" it has what `metrics` of a user's own say of the test split.
    """

    metrics: tuple[OwnMetric, ...] = ()

    @property
    def evaluations(self) -> Mapping[str, SiloTask]:
        return {VALIDATION: self.validation, TEST: self.test}

    @evaluation
    def validation(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        payload, _ = self._measure(down, state, unmeasured(context), {"": context.validation})
        for group in payload.values():
            for name in [name for name in group if name.startswith("score.")]:
                del group[name]  # the bulk of the sums, and a row of a round does not show it
        return Update(payload, len(context.validation)), state

    @evaluation
    def test(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        if not isinstance(context, TestContext):
            raise TypeError("the test split can only be measured on a TestContext, as it is given to evaluations")
        streams = {"": context.test} | {f"{name}.": data for name, data in context.streams.items()}
        own = unmeasured(context)
        payload, tested = self._measure(down, state, own, streams)
        if classes := class_sums(tested, context.test.y):
            if len(classes["confusion"]) == 2:
                # After all else, so that no other prediction draws other random numbers than without it.
                _, calibrated = self._asked(down, state, own, context.calibration)
                classes["calibration"] = class_sums(calibrated, context.calibration.y)["ranks"][0]
            payload["classes"] = classes
        if own_figures := own_values(self.metrics, tested, context.test.y):
            payload["own"] = own_figures
        return Update(payload, len(context.test)), state

    def _measure(
        self, down: Payload, state: State, context: SiloContext, streams: Mapping[str, Data]
    ) -> tuple[Payload, Prediction]:
        """The sums of all streams, and the prediction of the first one."""
        payload: Payload = {"method": self.base.describe(down, state, context, streams[""].x)}
        predictions = []
        for prefix, data in streams.items():
            answers, decided = self._asked(down, state, context, data)
            payload |= {prefix + name: sums for name, sums in measured(decided, answers, data.y).items()}
            predictions.append(decided)
        return payload, predictions[0]

    def _asked(self, down: Payload, state: State, context: SiloContext, data: Data) -> tuple[Answers, Prediction]:
        answers = self.base.answer(down, state, context, data.x)
        return answers, self.base.decide(down, state, answers)


def unmeasured(context: SiloContext) -> SiloContext:
    """What the base sees where it is measured: inputs, and no labels of a test split."""
    splits = context.train, context.validation, context.calibration
    return SiloContext(context.id, *splits, context.module, round=context.round, own=context.own, domain=context.domain)


def measured(decided: Prediction, answers: Answers, y: Tensor) -> Payload:
    """The sums of a prediction, and where it is a choice between two answers, those of each and of the choice."""
    if len(answers) == 1:
        return {"sums": measure(decided, y)}
    each = {whose.name.lower(): measure(answer, y) for whose, answer in answers.items()}
    return {"sums": measure(decided, y), **each, "choice": choice(decided, answers, y)}


def choice(decided: Prediction, answers: Answers, y: Tensor) -> Tensors:
    """(2, 2, 3) counts: whether the global answer was right, whether the local one was, and what was decided."""
    right = [(answers[whose].label == y).long() for whose in (Decision.GLOBAL, Decision.LOCAL)]
    cell = (right[0] * 2 + right[1]) * len(Decision) + decided.decision
    return {"right": torch.bincount(cell, minlength=4 * len(Decision)).view(2, 2, -1).double()}
