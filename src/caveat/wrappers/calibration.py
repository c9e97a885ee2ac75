"""Calibration of any method after training: temperature scaling, and prediction sets with a guaranteed coverage.

Temperature scaling: Guo et al., On Calibration of Modern Neural Networks, ICML 2017. The global temperature fits the
silos' pooled validation splits, from sums that add up over silos. A silo's own temperature fits its own split, shrunk
towards the global one the less silos differ, which the same sums determine (`caveat.uncertainty.temperature`).

Prediction sets: a silo with enough calibration inputs keeps the exact quantile of the surprise of its calibration
labels, so its sets contain the true class of its own inputs with the guaranteed coverage. All other silos send
histograms and use the quantile of their sum, which guarantees the coverage for the mixture of these silos only; adding
the larger silos would change the mixture. Only the number of inputs decides which of the two a silo uses.

Label shift: class frequencies at a silo can differ from those in the calibration inputs of all silos. A silo without
its own quantile uses the calibration inputs of all silos, weighted by class to match the silo's class frequencies
(`caveat.uncertainty.sets.shifted_threshold`; Podkopaev & Ramdas, UAI 2021). The frequencies are estimated from the
silo's training labels, whose counts stay at the silo. All silos send histograms of surprise by class: if silos differ
only in class frequencies, the distribution of surprise within a class is the same at all silos. Under this condition,
sets contain the true class of a silo's own inputs with the guaranteed coverage, up to the estimation error of the class
frequencies from n training labels of C classes: their total variation distance, at most sqrt((C - 1) / n) / 2 on
average.

A bias per class for each silo, in addition to its temperature: the silo fits it to its own validation split, shrunk
towards 0 the less silos differ, which is estimated from sums that are sent together with the sums for the temperature
(`caveat.uncertainty.class_bias`). It changes labels.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.devices import brought
from ..core.silo import SiloInfo
from ..uncertainty import class_bias, sets, temperature
from ..uncertainty import mondrian as by_subgroup
from ..uncertainty.histograms import BINS
from .base import Wrapper, apart, asked, no_histograms
from .choice_policies import scalar


@dataclass(frozen=True)
class TemperatureScaled(Wrapper):
    """The base, with each model's probabilities raised to a power, the inverse temperature, and normalized."""

    shared: bool = True
    """Whether silos send sums. Otherwise nothing leaves a silo, and each fits its temperature to its own split only."""
    everyone: bool = True
    """Whether all silos are asked, or only as many as in a training round; the others use the global temperature."""
    censored: bool = False
    """Whether labels can be those of censored times."""

    @property
    def scaled(self) -> list[str]:
        """The names of the base's models, each of which gets a temperature."""
        return [whose.name.lower() for whose in self.models]

    @property
    def unknown(self) -> Tensors:
        """The global temperatures before there are any."""
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
        """Add the global power and the standard deviation of the logarithm of silos' powers, (2,) per model."""
        return self.base.broadcast(server) | {"temperature": server["temperature"]}

    def measure(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Keep the likelihood of the validation split on a grid of powers, and send the sums that the server needs."""
        x, y = context.validation
        known = dict.fromkeys(self.scaled, (torch.zeros(0, 1, device=y.device), y[:0]))
        for whose, answer in (self.base.answer(down, state, context, x) if len(y) else {}).items():
            known[whose.name.lower()] = answer.probs.log(), y
        sent, kept = self.sums(known)
        return Update(sent, 1), state | kept

    def sums(self, log_probs: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Payload, Payload]:
        """Return the groups to send and to keep, from each model's (n, C) log-probabilities and labels (n,)."""
        found = {model: temperature.curve(*each) for model, each in log_probs.items()}
        sent = {model: temperature.message(each) for model, each in found.items()} if self.shared else {}
        return {"likelihood": sent}, {"likelihood": found}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why these cannot be likelihoods of a silo's validation inputs."""
        n, classes = card.examples["validation"], len(card.class_counts)
        found = (
            temperature.impossible(each, n, classes, self.censored) for each in sent.get("likelihood", {}).values()
        )
        return next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Set the best power for all silos together, and how much silos' powers differ."""
        means = replies.mean("likelihood")
        found = {model: temperature.agreed(each.double() * len(replies)) for model, each in means.items()}
        return server | {"temperature": self.unknown | found}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        answers = self.base.answer(down, state, context, x)
        return {
            whose: each.calibrated(power := self.power(whose, down, state), self.bias(whose, power, down, state))
            for whose, each in answers.items()
        }

    def bias(self, whose: Decision, power: float, down: Payload, state: State) -> Tensor | None:
        """Return the (C,) bias of a model's classes at the silo, if any."""
        return None

    def power(self, whose: Decision, down: Payload, state: State) -> float:
        """Return the silo's own inverse temperature; the global one for a silo that has measured nothing."""
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
    """The base, whose predictions get prediction sets, independently of decisions."""

    coverage: float = 0.9
    """Share of inputs whose set should contain the true class."""
    subgroups: tuple[str, ...] = ()
    """Names of the subgroups of inputs for which the coverage is guaranteed."""

    @property
    def least(self) -> int:
        """The minimum number of calibration inputs for a silo to have its own quantile."""
        return math.ceil(self.coverage / (1 - self.coverage) - 1e-9)

    def init_server(self, context: SiloContext) -> State:
        shape = (1 + len(self.subgroups), BINS) if self.subgroups else (BINS,)
        unset = self.limits(torch.zeros(shape, dtype=torch.float64))
        return self.base.init_server(context) | {"sets": {"ready": torch.tensor(False)} | unset}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast,
            self.conform,
            self.settle,
            everyone=True,
            trains=False,
            name="conform",
            totals=True,
            sums=SumOver("calibration", self.wrong),
        )

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {"sets": server["sets"]}

    def conform(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Keep the silo's own quantile of the surprise of calibration labels; with too few, send a histogram."""
        y, subgroup = context.truth("calibration"), context.subgroups.get("calibration")
        subgroup = None if subgroup is None else brought(subgroup, y.device)
        probs = mean_probs(asked(self.base, down, state, context, "calibration"))
        own = len(y) >= self.least
        kept = self.own_limits(probs, y, subgroup) if own else {}
        return Update({"sets": self.sent(probs, y, subgroup)}, len(y)), state | {"sets": kept}

    def own_limits(self, probs: Tensor, y: Tensor, subgroup: Tensor | None) -> Tensors:
        """Return a silo's own quantile of the surprises of its labels, or quantiles by row with subgroups."""
        found = self.surprise(probs, y)
        if not self.subgroups:
            return {"limit": scalar(sets.threshold(found, self.coverage))}
        pool = by_subgroup.pools(by_subgroup.sizes(subgroup, len(self.subgroups)), self.least)
        row = by_subgroup.rows(subgroup, pool)
        parts = [found, *(found[row == 1 + g] if row is not None else found[:0] for g in range(len(pool)))]
        return {"limit": torch.stack([scalar(sets.threshold(each, self.coverage)) for each in parts]), "pools": pool}

    def surprise(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) the surprises of labels (N,)."""
        return sets.surprise(probs, y)

    def histogram(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return the histogram (4096,) of the surprises of labels (N,)."""
        return sets.surprise_histogram(probs, y)

    def merged(self, counts: Tensor) -> Tensor:
        """Return the quantile of a histogram (4096,)."""
        return scalar(sets.merged_threshold(counts, self.coverage))

    def limits(self, counts: Tensor) -> Tensors:
        """Return the quantile of a histogram (4096,) or, with subgroups, quantiles by row (R, 4096) of their pools."""
        if not self.subgroups:
            return {"limit": self.merged(counts)}
        pool = by_subgroup.pools(counts[1:].sum(1), self.least)
        merged = by_subgroup.pooled(counts, pool)
        limit = torch.stack([self.merged(each) for each in merged])
        return {"limit": limit, "pools": pool, "sizes": merged.sum(1)}

    def sent(self, probs: Tensor, y: Tensor, subgroup: Tensor | None) -> Tensors:
        """Return the histogram, by row with subgroups; all zeros if the silo has its own quantile."""
        counts = self.histogram(probs, y)
        if self.subgroups:
            none = torch.zeros_like(y, dtype=torch.bool)
            there = [subgroup == g if subgroup is not None else none for g in range(len(self.subgroups))]
            counts = torch.stack([counts, *(self.histogram(probs[each], y[each]) for each in there)])
        return {"surprise": torch.zeros_like(counts) if len(y) >= self.least else counts}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why these cannot be histograms of a silo's calibration inputs."""
        found = sent.get("sets", {})
        if self.subgroups and "surprise" in found:
            found = apart("surprise", found["surprise"])
        return no_histograms(found, card.examples["calibration"])

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Sum the histograms, and keep the quantile for all silos without their own."""
        limits = self.limits(replies.total("sets", "surprise"))
        return server | {"sets": {"ready": torch.tensor(True)} | limits}

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        decided = self.base.decide(down, state, answers)
        if not down["sets"]["ready"]:
            return decided
        subgroup = next(iter(answers.values())).subgroup
        limit = self.limit(down["sets"], state.get("sets", {}), subgroup)
        return replace(decided, sets=sets.prediction_sets(mean_probs(answers), decided.label, limit))

    def limit(self, agreed: Tensors, kept: Tensors, subgroup: Tensor | None = None) -> Tensor:
        """Return the largest surprise in a set, one or (N, 1): the silo's quantile, or the quantile of all silos
        without their own."""
        by = kept if "limit" in kept else agreed
        if not self.subgroups:
            return by["limit"]
        return by_subgroup.by_row(by["limit"], by_subgroup.rows(subgroup, by["pools"]))[..., None]

    def outcome(self, server: State) -> dict[str, object]:
        about: dict[str, object] = {"coverage": self.coverage, "least": self.least}
        about |= {"subgroups": list(self.subgroups)} if self.subgroups else {}
        return self.base.outcome(server) | {"sets": about}


def mean_probs(answers: Answers) -> Tensor:
    """Return the mean (N, C) of the models' probabilities. The choice between two models may depend on calibration
    labels, but the probabilities for prediction sets must not."""
    return torch.stack([answer.probs.double() for answer in answers.values()]).mean(0)


@dataclass(frozen=True)
class ByClass(Conformal):
    """The base, whose prediction sets have class-conditional coverage (Vovk, Conditional Validity of Inductive
    Conformal Predictors, 2012).

    A class with too few calibration inputs is pooled with the next larger one, like subgroups: the coverage then holds
    for the inputs of both together.
    """

    def init_server(self, context: SiloContext) -> State:
        unset = {"ready": torch.tensor(False), "limit": scalar(torch.inf)}
        return self.base.init_server(context) | {"sets": unset}

    def own_limits(self, probs: Tensor, y: Tensor, subgroup: Tensor | None) -> Tensors:
        """Return a silo's own quantile for each class, (C,)."""
        found, classes = sets.surprise(probs, y), probs.shape[1]
        pool = by_subgroup.pools(torch.bincount(y.cpu(), minlength=classes), self.least)
        of = pool.to(y.device)[y]
        limit = torch.stack([scalar(sets.threshold(found[of == c], self.coverage)) for c in range(classes)])
        return {"limit": limit[pool]}

    def sent(self, probs: Tensor, y: Tensor, subgroup: Tensor | None) -> Tensors:
        """Return the histograms by class (C, 4096); all zeros if the silo has its own quantiles."""
        counts = sets.surprise_by_class(probs, y)
        return {"surprise": torch.zeros_like(counts) if len(y) >= self.least else counts}

    def limits(self, counts: Tensor) -> Tensors:
        """Return the quantile of each class, (C,), from histograms by class (C, 4096)."""
        pool = by_subgroup.pools(counts.sum(1), self.least)
        merged = torch.zeros_like(counts).index_add_(0, pool.to(counts.device), counts)
        return {"limit": torch.stack([scalar(sets.merged_threshold(each, self.coverage)) for each in merged])[pool]}

    def outcome(self, server: State) -> dict[str, object]:
        about = {"coverage": self.coverage, "least": self.least, "per_class": True}
        return super().outcome(server) | {"sets": about}


@dataclass(frozen=True)
class LabelShifted(Conformal):
    """The base with prediction sets whose shared threshold is adapted to each silo's class frequencies."""

    def conform(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Also send a histogram per class; keep the numbers of training inputs by class."""
        update, state = super().conform(down, state, context)
        classes = len(update.payload["sets"]["surprise_by_class"])
        seen = torch.bincount(context.train.y.cpu(), minlength=classes).double()
        return update, state | {"sets": state["sets"] | {"seen": seen}}

    def sent(self, probs: Tensor, y: Tensor, subgroup: Tensor | None) -> Tensors:
        return super().sent(probs, y, subgroup) | {"surprise_by_class": sets.surprise_by_class(probs, y)}

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Sum the histograms of each class."""
        settled = super().settle(server, replies, context)
        added = {"surprise_by_class": replies.total("sets", "surprise_by_class")}
        return settled | {"sets": settled["sets"] | added}

    def limit(self, agreed: Tensors, kept: Tensors, subgroup: Tensor | None = None) -> Tensor:
        """Return the silo's own quantile, or the quantile of all silos, weighted by its class frequencies. A silo that
        missed the round, or has no training labels, uses the unweighted quantile."""
        seen = kept.get("seen")
        if "limit" in kept or seen is None or not seen.any():
            return super().limit(agreed, kept, subgroup)
        return scalar(sets.shifted_threshold(agreed["surprise_by_class"], seen / seen.sum(), self.coverage))

    def outcome(self, server: State) -> dict[str, object]:
        about = {"coverage": self.coverage, "least": self.least, "label_shift": True}
        return super().outcome(server) | {"sets": about}


@dataclass(frozen=True)
class ClassBiased(TemperatureScaled):
    """The base with a temperature, and with a bias per class for each silo, for each model."""

    def init_server(self, context: SiloContext) -> State:
        return super().init_server(context) | {"class_bias": {model: scalar(0.0) for model in self.scaled}}

    def broadcast(self, server: State) -> Payload:
        """Add the standard deviation of silos' biases, () per model."""
        return super().broadcast(server) | {"class_bias": server["class_bias"]}

    def sums(self, log_probs: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Payload, Payload]:
        """Also send sums over classes, and keep the log-probabilities and labels for fitting a bias."""
        sent, kept = super().sums(log_probs)
        rows = {model: class_bias.usable(*each) for model, each in log_probs.items()}
        powers = {model: temperature.near(each, 1.0, temperature.SPREAD) for model, each in kept["likelihood"].items()}
        sent["bias_sums"] = {model: class_bias.message(powers[model] * z, y) for model, (z, y) in rows.items()}
        kept["class_bias"] = {f"{model}.log_probs": z for model, (z, _) in rows.items()}
        kept["class_bias"] |= {f"{model}.labels": y for model, (_, y) in rows.items()}
        return sent, kept

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why these cannot be sums over a silo's validation inputs."""
        n = card.examples["validation"]
        found = (class_bias.impossible(each, n) for each in sent.get("bias_sums", {}).values())
        return super().wrong(sent, card) or next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Also set how much silos' biases differ."""
        means = replies.mean("bias_sums")
        widths = {model: scalar(class_bias.width(each.double() * len(replies))) for model, each in means.items()}
        return super().settle(server, replies, context) | {"class_bias": server["class_bias"] | widths}

    def bias(self, whose: Decision, power: float, down: Payload, state: State) -> Tensor | None:
        """Return the silo's bias at its power; none for a silo that has measured nothing."""
        model, kept = whose.name.lower(), state.get("class_bias", {})
        if f"{model}.labels" not in kept:
            return None
        z, y = kept[f"{model}.log_probs"].cpu(), kept[f"{model}.labels"].cpu()
        return class_bias.fitted(power * z, y, float(down["class_bias"][model]))

    def outcome(self, server: State) -> dict[str, object]:
        widths = {model: float(server["class_bias"][model]) for model in self.scaled}
        return super().outcome(server) | {"class_bias": widths}
