"""Alarms at silos with too few calibration inputs for their own alarms: ranks among the calibration inputs of all such
silos.

With n calibration inputs no p-value is below 1 / (n + 1), so a silo with fewer than 19 raises no alarm at 5 %. Such
silos send histograms of the scores of their calibration inputs, which add up, and rank a new input among all N of them.
These silos have a joint guarantee: among the inputs of these silos together, in the proportions of their calibration
inputs, an expected share of at most the false alarm rate raises an alarm; at a silo unlike the others, the share may be
larger. Only the number of calibration inputs decides which guarantee a silo has.

For N inputs of the mixture, a p-value is at most r / (N + 1) with a probability of at most r / (N + 1). But silos have
fixed numbers of inputs. For r = 1 the bound still holds, because the largest score tends to be larger then: a product
of the silos' distribution functions is at most their weighted mean to the power N. For larger r and rates up to .2 it
is checked by simulation (`tests/wrappers/test_pooled_alarms.py`).

No score may depend on the calibration inputs themselves. So a silo measures distances with densities of its own
training inputs, in units from its training and validation inputs. No further round is needed. A silo without features
of training inputs (`caveat.wrappers.alarms.without_rows`) has no novelty, and ranks typicality as if it were 0: its
alarms are rarer.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Decision, Payload, Prediction, Replies, SiloContext, State, Tensors, Update
from ..core.prediction import P_VALUES
from ..core.silo import SiloInfo
from ..uncertainty import familiarity, novelty, typicality
from ..uncertainty.histograms import BINS, beside, coarser, edges, histogram
from .alarms import GROUP, INPUT, NEAREST, PART, ROWS, Familiar, Observed, densities, distances, whose_stage
from .base import no_histograms

COUNTS = "alarms"
"""The group with the histograms that silos send."""
COARSE = 256
"""Number of bins of these histograms, each of 16 bins of `histogram`: more scores tie, which raises p-values."""
ALONE, POOLED = "alone.", "pooled."
"""Prefixes of the tensors that a silo keeps of its training inputs, and of the tensors with the scores of all silos."""
UNITS = ".units"
"""Suffix of the median and the unit of a stage's distances, or of a model's uncertainties."""
FOLDS = 20
"""Number of folds of training inputs, each of which is left out of a density."""


@dataclass(frozen=True)
class PooledAlarms(Familiar):
    """The base, with alarms also at silos that have too few calibration inputs for alarms of their own."""

    def few(self, context: SiloContext) -> bool:
        """Return whether a silo has too few calibration inputs for its own alarms."""
        rate = self.false_alarm_rate
        return rate > 0 and len(context.calibration) < typicality.least(rate)

    # After training: a silo sends histograms, and keeps the units of its scores.

    def describe_own(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Also send histograms of the scores of calibration inputs; a silo with enough inputs sends zeros."""
        update, state = super().describe_own(down, state, context)
        none = torch.zeros(0, dtype=torch.float64)
        scores = {f"{whose.name.lower()}.{p}": none for whose in self.models for p in P_VALUES}
        if self.few(context):
            kept = state[GROUP] | self.describe_alone(down, state, context, state[GROUP])
            state = state | {GROUP: kept}
            found = self.observed(down, state, context, context.calibration.x)
            for whose, answer in found.answers.items():
                scores |= self.ranked(answer, whose, found, kept)
        sent = {name: coarse(self.binned_as(name), each) for name, each in scores.items()}
        return Update(update.payload | {COUNTS: sent}, update.examples), state

    def describe_alone(self, down: Payload, state: State, context: SiloContext, kept: Tensors) -> Tensors:
        """Return densities of a silo's training inputs, and the units of distances and uncertainties.

        The units of distances come from training inputs, with densities that exclude these inputs, because an input is
        near a density that includes it. The units of uncertainties and of distances to the nearest row (of another
        fold) also use validation inputs, on which no model was trained.
        """
        some = context.train.part(torch.arange(min(len(context.train), PART)))
        answers, numbers, _ = self.observed(down, state, context, some.x)
        unseen = self.observed(down, state, context, context.validation.x)
        classes = next(iter(answers.values())).probs.shape[1]
        group = familiarity.grouped(some.y.cpu(), classes)
        found = densities({name: familiarity.sums(h, group, classes) for name, h in numbers.items()}, 1)
        for stage, h in numbers.items():
            apart = familiarity.left_out_distances(h, group, classes, FOLDS)
            if len(apart):
                found[f"{stage}{UNITS}"] = typicality.units(typicality.settled(apart), typicality.LEAST_UNIT)
        for whose, answer in answers.items():
            model, rows = whose.name.lower(), kept[f"{whose.name.lower()}{ROWS}"]
            own = torch.cat([each.score(self.score) for each in (answer, unseen.answers[whose])])
            found[f"{model}{UNITS}"] = typicality.units(typicality.settled_scores(own), typicality.SMALLEST)
            near = [novelty.left_out_log_distances(rows, FOLDS), novelty.log_distances(rows, unseen.last[model])]
            found[f"{model}{NEAREST}{UNITS}"] = typicality.units(
                typicality.settled(torch.cat(near)), typicality.LEAST_UNIT
            )
        return {f"{ALONE}{name}": each for name, each in found.items()}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        return super().wrong(sent, card) or no_histograms(sent.get(COUNTS, {}), card.examples["calibration"])

    def pool(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Also keep the histograms of all silos with few calibration inputs together."""
        server = super().pool(server, replies, context)
        means = replies.mean(COUNTS)
        counts = {f"{POOLED}{name}": (mean.double() * len(replies)).round() for name, mean in means.items()}
        return server | {GROUP: server[GROUP] | counts}

    # Prediction: a silo with few calibration inputs ranks an input among those of all such silos.

    def made_up(self, down: Payload, state: State, context: SiloContext) -> Tensors:
        made = super().made_up(down, state, context)
        return made | self.describe_alone(down, state, context, made) if self.few(context) else made

    def judged(self, answer: Prediction, whose: Decision, found: Observed, known: Tensors) -> Prediction:
        judged, model = super().judged(answer, whose, found, known), whose.name.lower()
        if f"{ALONE}{model}{UNITS}" not in known or f"{POOLED}{model}.{P_VALUES[0]}" not in known:
            return judged
        scores = self.ranked(answer, whose, found, known)
        counts = {name: known[f"{POOLED}{name}"].long() for name in scores}
        among = {
            name: beside(coarse_edges(self.binned_as(name)), each).repeat_interleave(each)
            for name, each in counts.items()
        }
        p_values = {name.partition(".")[2]: typicality.sureness(among[name], each) for name, each in scores.items()}
        inputs = len(among[f"{model}.{P_VALUES[0]}"])
        return replace(judged, **p_values, ranked_among=inputs)  # type: ignore[arg-type]

    def ranked(self, answer: Prediction, whose: Decision, found: Observed, known: Tensors) -> Tensors:
        """Return (N,) scores by model and p-value: of distance, nearest row, uncertainty, and all together."""
        alone = {name.removeprefix(ALONE): each for name, each in known.items() if name.startswith(ALONE)}
        model, numbers = whose.name.lower(), found.numbers

        def in_units(name: str, numbers: Tensor) -> Tensor:
            low, unit = alone[f"{name}{UNITS}"].unbind()
            return torch.div(numbers - low, unit)

        stages = [s for s in numbers if whose_stage(s) in (INPUT, model) and f"{s}{UNITS}" in alone]
        measured = [in_units(s, typicality.settled(distances(alone, s, numbers[s]))) for s in stages]
        score, rows = typicality.settled_scores(answer.score(self.score)), known.get(f"{model}{ROWS}")
        near = torch.zeros_like(score)
        if rows is not None:
            nearest = typicality.settled(novelty.log_distances(rows, found.last[model]))
            near = in_units(f"{model}{NEAREST}", nearest)
        far, both = typicality.joint(measured, near, in_units(model, score))
        ranked = {f"{model}.{name}": each for name, each in zip(P_VALUES, (far, near, score, both), strict=True)}
        return {name: each for name, each in ranked.items() if rows is not None or not name.endswith(P_VALUES[1])}

    def binned_as(self, name: str) -> str:
        """Return the score whose bins a histogram has."""
        return self.score if name.endswith(P_VALUES[2]) else typicality.SCORE

    def outcome(self, server: State) -> dict[str, object]:
        found, pooled = (
            self.base.outcome(server),
            server[GROUP].get(f"{POOLED}{self.models[0].name.lower()}.{P_VALUES[0]}"),
        )
        if pooled is None or not pooled.any():
            return found
        return found | {"alarms": {"least": typicality.least(self.false_alarm_rate), "pooled": int(pooled.sum())}}


def coarse(name: str, scores: Tensor) -> Tensor:
    """Return (256,) float64: how many of (N,) scores lie in each bin."""
    return coarser(histogram(name, scores), COARSE)


def coarse_edges(name: str) -> Tensor:
    """Return (256,) float64: the upper edges of the bins of `coarse`."""
    return edges(name)[BINS // COARSE :: BINS // COARSE]
