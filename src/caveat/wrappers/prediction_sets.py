"""Prediction sets with a guaranteed coverage, for any method after training.

A silo with enough calibration inputs keeps the exact quantile of the surprise of its calibration
labels, so its sets contain the true class of its own inputs with the guaranteed coverage. All other silos send
histograms and use the quantile of their sum, which guarantees the coverage for the mixture of such silos only; adding
the larger silos would change the mixture. Only the number of inputs decides which quantile a silo uses.

Label shift: class frequencies at a silo can differ from those in the calibration inputs of all silos. A silo without
its own quantile uses the calibration inputs of all silos, weighted by class to match the silo's class frequencies
(`caveat.uncertainty.sets.shifted_threshold`; Podkopaev & Ramdas, UAI 2021). The frequencies are estimated from the
silo's training labels, whose counts stay at the silo. All silos send histograms of surprise by class: if silos differ
only in class frequencies, the distribution of surprise within a class is the same at all silos. Under this condition,
sets contain the true class of a silo's own inputs with the guaranteed coverage, up to the estimation error of the class
frequencies from n training labels of C classes: their total variation distance, at most sqrt((C - 1) / n) / 2 on
average.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Answers, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.devices import brought
from ..core.silo import SiloInfo
from ..uncertainty import mondrian as by_subgroup
from ..uncertainty import sets
from ..uncertainty.histograms import BINS
from .base import Wrapper, apart, asked, no_histograms
from .choice_policies import scalar


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
        """Keep the silo's own quantile of the surprise of calibration labels; with too few labels, send a histogram."""
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
        """Return the surprises (N,) of labels (N,)."""
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
        """Return why `sent` cannot be histograms of a silo's calibration inputs; "" if it can."""
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
        """Return the largest surprise in a set, a scalar or (N, 1): the silo's quantile, or the quantile of all silos
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
        """Return the silo's own quantile, or the quantile of all silos, weighted by the silo's class frequencies. A
        silo that missed the round, or has no training labels, uses the unweighted quantile."""
        seen = kept.get("seen")
        if "limit" in kept or seen is None or not seen.any():
            return super().limit(agreed, kept, subgroup)
        return scalar(sets.shifted_threshold(agreed["surprise_by_class"], seen / seen.sum(), self.coverage))

    def outcome(self, server: State) -> dict[str, object]:
        about = {"coverage": self.coverage, "least": self.least, "label_shift": True}
        return super().outcome(server) | {"sets": about}
