"""Temperature scaling of any method: one round after training, of sums over validation splits that add up over silos.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017. The federation's temperature is that of the silos'
validation splits pooled; a silo's own is what its own split says, shrunk towards the federation's by how far silos lie
apart, which the same sums tell (`caveat.uncertainty.temperature`). A silo that was not there takes the federation's.

Prediction sets that hold the true class as often as promised: at each silo from its own calibration split.

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

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.silo_info import SiloInfo
from ..uncertainty import temperature
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
class TemperatureScaled(Wrapper):
    """The base, with the probabilities of each of its models raised to a power, the inverse temperature."""

    shared: bool = True
    """Whether silos send sums. Without, nothing leaves them: each has the temperature of its own split alone."""
    everyone: bool = True
    """Whether all silos are asked, or those that a round of training asks; the others take the federation's."""

    @property
    def scaled(self) -> list[str]:
        """The names of the base's models, each of which gets a temperature."""
        return [whose.name.lower() for whose in self.models]

    @property
    def unknown(self) -> Tensors:
        """The federation's temperatures while there are none."""
        return {model: torch.tensor([1.0, temperature.ALONE], dtype=torch.float64) for model in self.scaled}

    def init_server(self, context: SiloContext) -> State:
        return self.base.init_server(context) | {"temperature": self.unknown}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast, self.measure, self.settle, everyone=self.everyone, trains=False, linear="silos",
            name="temperature", sums=SumOver("validation", self.wrong) if self.shared else None,
        )  # fmt: skip

    def broadcast(self, server: State) -> Payload:
        """With the federation's power and the standard deviation of silos' logarithms of it, (2,) per model."""
        return self.base.broadcast(server) | {"temperature": server["temperature"]}

    def measure(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Keep the likelihood of the validation split at a grid of powers, and send what the federation needs of it."""
        x, y = context.validation
        found = {model: temperature.curve(torch.zeros(0, 1, device=y.device), y[:0]) for model in self.scaled}
        for whose, answer in (self.base.answer(down, state, context, x) if len(y) else {}).items():
            found[whose.name.lower()] = temperature.curve(answer.probs.log(), y)
        sent = {model: temperature.message(each) for model, each in found.items()} if self.shared else {}
        return Update({"likelihood": sent}, 1), state | {"likelihood": found}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Why these are no likelihoods of a silo's validation inputs."""
        n, classes = card.examples["validation"], len(card.class_counts)
        found = (temperature.impossible(each, n, classes) for each in sent.get("likelihood", {}).values())
        return next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """The power that is best for all silos together, and how far theirs lie apart."""
        means = replies.mean("likelihood")
        found = {model: temperature.agreed(each.double() * len(replies)) for model, each in means.items()}
        return server | {"temperature": self.unknown | found}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        answers = self.base.answer(down, state, context, x)
        return {whose: each.calibrated(self.power(whose, down, state)) for whose, each in answers.items()}

    def power(self, whose: Decision, down: Payload, state: State) -> float:
        """The silo's own inverse temperature, or the federation's for a silo that has measured nothing."""
        model = whose.name.lower()
        common, spread = down["temperature"][model].tolist()
        own = state.get("likelihood", {}).get(model)
        return common if own is None else temperature.near(own, common, spread)

    def outcome(self, server: State) -> dict[str, object]:
        if not self.shared:
            return self.base.outcome(server)
        found = {model: server["temperature"][model].tolist() for model in self.scaled}
        return self.base.outcome(server) | {
            "temperature": {model: 1 / power for model, (power, _) in found.items()},
            "temperature_spread": {model: spread for model, (_, spread) in found.items()},
        }


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
