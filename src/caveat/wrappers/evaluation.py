"""Evaluation of any method, outside its schedule: silos compute metrics on their own data and send sums.

Evaluation does not change training: it returns the silo state unchanged, and engines discard it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from ..core.prediction import with_subgroup
from ..metrics import class_sums, measure, skill, subgroup_sums
from ..metrics.custom_metrics import OwnMetric, own_values
from .base import Wrapper

VALIDATION, TEST = "validation", "test"
"""The names of the two evaluations in requests, which are also the names of their splits."""


@dataclass(frozen=True)
class Evaluated(Wrapper):
    """The base, with evaluations that measure its predictions on a silo's validation or test split.

    A payload has the groups of `measured`, and the numbers of `describe` as "method". For the test split it also has
    the groups of each stream of out-of-distribution inputs, such as "ood_local.sums", and `class_sums` as "classes".
    With two classes, "classes" includes "calibration" (2, B): the histograms of the calibration split, from which a
    threshold is chosen. The group "own" has the values of custom `metrics` on the test split, and "subgroups" the sums
    by subgroup of its inputs. "skill" has the sums of `metrics.skill` on the validation split, from which a run detects
    a collapsed model; for predictions with sets, it also has "calibration" (C,), the number of calibration inputs of
    each class.
    """

    metrics: tuple[OwnMetric, ...] = ()
    subgroups: int = 0
    """Number of subgroups of inputs."""
    additive: bool = False
    """Whether only sums leave a silo, and not the numbers of `describe`, which describe the silo's own model."""

    @property
    def evaluations(self) -> Mapping[str, SiloTask]:
        return {VALIDATION: self.validation, TEST: self.test}

    @evaluation
    def validation(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        own = {"": (context.validation, context.truth(VALIDATION))}
        payload, _ = self._measure(down, state, unmeasured(context).asking(VALIDATION), own)
        for group in payload.values():
            for name in [name for name in group if name.startswith("score.")]:
                del group[name]  # it has most of the bytes, and metrics by round do not use it
        return Update(payload, len(context.validation)), state

    @evaluation
    def test(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        if not isinstance(context, TestContext):
            raise TypeError("measuring on the test split needs a TestContext, which only evaluations get")
        y = context.truth(TEST)
        streams = {"": (context.test, y)} | {f"{name}.": (data, data.y) for name, data in context.streams.items()}
        own = unmeasured(context)
        payload, tested = self._measure(down, state, own.asking(TEST), streams)
        if classes := class_sums(tested, context.test.y):
            if len(classes["confusion"]) == 2:
                # Last, so the random numbers of all other predictions do not change.
                _, calibrated = self._asked(down, state, own.asking("calibration"), context.calibration)
                classes["calibration"] = class_sums(calibrated, context.calibration.y)["ranks"][0]
            payload["classes"] = classes
        if self.subgroups:
            payload["subgroups"] = subgroup_sums(tested, y, self.subgroups)
        if own_figures := own_values(self.metrics, tested, context.test.y):
            payload["own"] = own_figures
        if len(context.validation) and tested.target is None:
            _, validated = self._asked(down, state, own.asking(VALIDATION), context.validation)
            payload["skill"] = skill(validated, context.validation, context.train)
            if validated.sets is not None:
                counts = torch.bincount(context.calibration.y, minlength=validated.probs.shape[1])
                payload["skill"]["calibration"] = counts.double()
        return Update(payload, len(context.test)), state

    def _measure(
        self, down: Payload, state: State, context: SiloContext, streams: Mapping[str, tuple[Data, Tensor]]
    ) -> tuple[Payload, Prediction]:
        """Return the sums of all streams, each with its labels or quantities, and the prediction of the first one."""
        described = {} if self.additive else self.base.describe(down, state, context, streams[""][0].x)
        payload: Payload = {"method": described}
        predictions = []
        for prefix, (data, y) in streams.items():
            answers, decided = self._asked(down, state, replace(context, subgroup=None) if prefix else context, data)
            payload |= {prefix + name: sums for name, sums in measured(decided, answers, y).items()}
            predictions.append(decided)
        return payload, predictions[0]

    def _asked(self, down: Payload, state: State, context: SiloContext, data: Data) -> tuple[Answers, Prediction]:
        answers = with_subgroup(self.base.answer(down, state, context, data.x), context.subgroup)
        decided = self.base.decide(down, state, answers)
        return answers, replace(decided, subgroup=next(iter(answers.values())).subgroup)


def unmeasured(context: SiloContext) -> SiloContext:
    """Return the context in which the base is evaluated: with inputs, but without labels, of a test split."""
    splits = context.train, context.validation, context.calibration
    return SiloContext(
        context.id, *splits, context.module, round=context.round, own=context.own, domain=context.domain,
        subgroups=context.subgroups, values={name: each for name, each in context.values.items() if name != TEST},
    )  # fmt: skip


def measured(decided: Prediction, answers: Answers, y: Tensor) -> Payload:
    """Return the sums of a prediction; if it is a choice between two answers, also the sums of each answer and, for
    classes, of the choice."""
    if len(answers) == 1:
        return {"sums": measure(decided, y)}
    each = {whose.name.lower(): measure(answer, y) for whose, answer in answers.items()}
    chosen = {"choice": choice(decided, answers, y)} if decided.target is None else {}
    return {"sums": measure(decided, y), **each, **chosen}


def choice(decided: Prediction, answers: Answers, y: Tensor) -> Tensors:
    """Return (2, 2, 3) counts: whether the global answer was right, whether the local one was, and the decision."""
    right = [(answers[whose].label == y).long() for whose in (Decision.GLOBAL, Decision.LOCAL)]
    cell = (right[0] * 2 + right[1]) * len(Decision) + decided.decision
    return {"right": torch.bincount(cell, minlength=4 * len(Decision)).view(2, 2, -1).double()}
