"""Prediction sets that hold the true class as often as promised: at each silo from its own calibration split.

A silo with calibration inputs enough keeps the exact quantile of how surprising its calibration labels are, so that its
sets hold the true class of its own inputs as often as promised. The others send histograms of theirs, and use the
quantile of all of them together, which promises it for their mixture alone: silos that need no help would make it one
of theirs. Which of the two depends on the number of inputs and on nothing else.

Label shift: the classes of a silo can be mixed otherwise than in the calibration inputs of all silos. A silo without a
quantile of its own uses the calibration inputs of all silos, weighted class by class so that classes are as frequent
among them as at the silo (`caveat.uncertainty.sets.shifted_threshold`; Podkopaev & Ramdas, UAI 2021). How frequent they
are there is told by the silo's training labels, whose counts stay at the silo. Silos send their histograms of surprise
by class, all of them: if silos differ in nothing but how often they see each class, the inputs of any silo say how
surprising a class is.

Under that condition, sets hold the true class of a silo's own inputs as often as promised, but for what its n training
labels miss of how frequent C classes are: the total variation between both, sqrt((C - 1) / n) / 2 at most in the mean.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Answers, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.silo import SiloInfo
from ..uncertainty.sets import (
    merged_threshold,
    prediction_sets,
    shifted_threshold,
    surprise,
    surprise_by_class,
    surprise_histogram,
    threshold,
)
from .base import Wrapper, no_histograms
from .switched import scalar


@dataclass(frozen=True)
class Conformal(Wrapper):
    """The base, whose predictions get sets of classes, whatever is decided about them."""

    coverage: float = 0.9
    """Share of inputs whose set is to hold the true class."""

    @property
    def least(self) -> int:
        """The calibration inputs with which a silo has a quantile of its own."""
        return math.ceil(self.coverage / (1 - self.coverage) - 1e-9)

    def init_server(self, context: SiloContext) -> State:
        return self.base.init_server(context) | {"sets": {"ready": torch.tensor(False), "limit": scalar(torch.inf)}}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast,
            self.conform,
            self.settle,
            everyone=True,
            trains=False,
            name="conform",
            sums=SumOver("calibration", self.wrong),
        )

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {"sets": server["sets"]}

    def conform(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Keep the silo's own quantile of how surprising calibration labels are, or send a histogram, if too few."""
        x, y = context.calibration
        probs = mean_probs(self.base.answer(down, state, context, x))
        own = len(y) >= self.least
        kept = {"limit": scalar(threshold(surprise(probs, y), self.coverage))} if own else {}
        return Update({"sets": self.sent(probs, y)}, len(y)), state | {"sets": kept}

    def sent(self, probs: Tensor, y: Tensor) -> Tensors:
        """The histogram, empty where the silo has a quantile of its own: the common one is for those who need it."""
        counts = surprise_histogram(probs, y)
        return {"surprise": torch.zeros_like(counts) if len(y) >= self.least else counts}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Why these are no histograms of a silo's calibration inputs."""
        return no_histograms(sent.get("sets", {}), card.examples["calibration"])

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Add up the histograms, and keep the quantile of all silos without one of their own."""
        limit = merged_threshold(replies.stack("sets", "surprise").sum(0), self.coverage)
        return server | {"sets": {"ready": torch.tensor(True), "limit": scalar(limit)}}

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        decided = self.base.decide(down, state, answers)
        if not down["sets"]["ready"]:
            return decided
        limit = self.limit(down["sets"], state.get("sets", {}))
        return replace(decided, sets=prediction_sets(mean_probs(answers), decided.label, limit))

    def limit(self, agreed: Tensors, kept: Tensors) -> float:
        """The largest surprise of a class in a set: the silo's own quantile, or else that of the silos without one."""
        return float(kept.get("limit", agreed["limit"]))

    def outcome(self, server: State) -> dict[str, object]:
        return self.base.outcome(server) | {"sets": {"coverage": self.coverage, "least": self.least}}


def mean_probs(answers: Answers) -> Tensor:
    """(N, C) the mean of what the models at hand say.

    Which of two answers is given may depend on calibration labels; what sets are made from must not.
    """
    return torch.stack([answer.probs.double() for answer in answers.values()]).mean(0)


@dataclass(frozen=True)
class LabelShifted(Conformal):
    """The base with sets, whose common threshold is each silo's own by how frequent classes are there."""

    def conform(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send what `Conformal` sends and a histogram per class; keep the numbers of training inputs by class."""
        update, state = super().conform(down, state, context)
        classes = len(update.payload["sets"]["surprise_by_class"])
        seen = torch.bincount(context.train.y.cpu(), minlength=classes).double()
        return update, state | {"sets": state["sets"] | {"seen": seen}}

    def sent(self, probs: Tensor, y: Tensor) -> Tensors:
        return super().sent(probs, y) | {"surprise_by_class": surprise_by_class(probs, y)}

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Add up the histograms of each class."""
        settled = super().settle(server, replies, context)
        added = {"surprise_by_class": replies.stack("sets", "surprise_by_class").sum(0)}
        return settled | {"sets": settled["sets"] | added}

    def limit(self, agreed: Tensors, kept: Tensors) -> float:
        """The silo's own quantile, or that of all silos for its classes.

        A silo that was away, or has no training labels, has the unweighted one.
        """
        seen = kept.get("seen")
        if "limit" in kept or seen is None or not seen.any():
            return super().limit(agreed, kept)
        return shifted_threshold(agreed["surprise_by_class"], seen / seen.sum(), self.coverage)

    def outcome(self, server: State) -> dict[str, object]:
        about = {"coverage": self.coverage, "least": self.least, "label_shift": True}
        return super().outcome(server) | {"sets": about}
