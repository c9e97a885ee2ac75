"""Predictions: the result of every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import reduce

import torch
from torch import Tensor

from ..uncertainty.dirichlet import Dirichlet
from ..uncertainty.histograms import beside
from ..uncertainty.measures import Decomposition, decomposed, decomposed_logits, entropy
from ..uncertainty.typicality import benjamini_hochberg
from .quantity import Quantity, Times


class Decision(IntEnum):
    """What to do with a prediction."""

    GLOBAL = 0
    """Trust the global model, which gave the prediction."""
    LOCAL = 1
    """Trust the silo's local model, which gave the prediction."""
    ABSTAIN = 2
    """Trust no model."""


P_VALUES = ("familiarity", "nearness", "sureness", "typicality")
"""The names of the p-values of a `Prediction`."""


class Reason(IntEnum):
    """Why not to rely on a label."""

    NONE = 0
    """No reason is known."""
    UNDEFINED = 1
    """The probabilities are not finite."""
    UNFAMILIAR = 2
    """An alarm: the input is unlike the silo's own inputs."""
    NOVEL = 3
    """An alarm: the input is farther from the nearest of the silo's training inputs than the silo's own inputs are."""
    UNSURE = 4
    """An alarm: the answer is more uncertain than answers to the silo's own inputs."""
    AMBIGUOUS = 5
    """The aleatoric uncertainty is above a policy's limit."""
    UNCERTAIN = 6
    """The uncertainty is above a policy's limit."""
    UNTESTED = 7
    """A policy has no limit with a guarantee."""
    OUTSIDE = 8
    """A value of a table row is not what the data dictionary allows."""
    EMPTY = 9
    """All values of a table row are missing."""


@dataclass(frozen=True)
class UnlikeColumn:
    """A column of table rows that, as a whole, is unlike the silo's own rows."""

    name: str
    """The name of the column."""
    figure: str
    """The figure that differs: "median", "share missing", "share of 'CATEGORY'", or "share of 1" for the code 1."""
    here: float
    """The figure of the table's rows."""
    known: float
    """The figure of the silo's own rows."""
    p: float
    """P-value for the hypothesis of no difference, corrected for all columns of the table."""
    values: tuple[int, int] = (0, 0)
    """Numbers of rows behind `here` and `known`: all rows for the share missing, otherwise the rows with a value."""

    def __str__(self) -> str:
        here, known = (f"{each:.4g}" if self.figure == "median" else f"{each:.0%}" for each in (self.here, self.known))
        return f'column "{self.name}": {self.figure} {here} here, {known} in the silo\'s data{self._guess}'

    @property
    def _guess(self) -> str:
        """A guess: ": another unit?" if medians differ by a factor of two, ": another spread" if they hardly differ."""
        if self.figure != "median" or math.isnan(self.here + self.known):
            return ""
        if abs(self.here - self.known) <= 0.05 * abs(self.known):
            return ": another spread"
        ratio = self.here / self.known if self.known else math.inf
        return ": another unit?" if not 0.5 < ratio < 2 else ""


@dataclass(frozen=True)
class Prediction:
    """Class probabilities for N inputs, their uncertainty by cause, and a decision for each input.

    A higher uncertainty always means less certainty. `total` is the entropy of `probs` in nats, `aleatoric` is the part
    of the entropy that is caused by the data (ambiguous inputs), and `epistemic` is the part that is caused by the
    model (unfamiliar inputs). Methods may add further scores.
    """

    probs: Tensor  # (N, C) float64, rows sum to one
    uncertainty: dict[str, Tensor]  # (N,) float64 each: total, aleatoric, epistemic, ...
    decision: Tensor  # (N,) int64 of Decision
    log_evidence: Tensor | None = None  # (N,) float64, a score for ranking inputs, if the method computes it
    sets: Tensor | None = None  # (N, C) bool, prediction sets of conformal calibration
    source: Tensor | None = None  # (N,) int64 of Decision, see `answered_by`; None: follows from `decision`
    familiarity: Tensor | None = None  # (N,) float64 in (0, 1], p-values: low for inputs unlike the silo's data
    nearness: Tensor | None = None  # (N,) float64 in (0, 1], p-values: low for inputs far from every training input
    sureness: Tensor | None = None  # (N,) float64 in (0, 1], p-values: low for answers less certain than the silo's own
    typicality: Tensor | None = None  # (N,) float64 in (0, 1], combined p-values, which raise alarms
    false_alarm_rate: float = 0.0  # an input has an alarm if its typicality is at most this rate
    ranked_among: int | Tensor = 0  # number of calibration inputs among which p-values rank inputs, or (N,) numbers
    limited: Tensor | None = None  # (N,) int64 of Reason: why a policy abstained, if known
    input_notes: tuple[str, ...] = ()  # (N,) warnings about raw inputs unlike training data, or ""; () for tensors
    unlike_columns: tuple[UnlikeColumn, ...] = ()  # of all raw table rows together; at most 5 % false alarms per batch
    uncalibrated_probs: Tensor | None = None  # (N, C) float64, `probs` before temperature scaling, if they were scaled
    subgroup: Tensor | None = None  # (N,) int64, the subgroup of each input, -1 if unknown; None: unknown for all
    target: Quantity | None = None  # the quantity whose bars are the classes; None: the target has classes
    interval: Tensor | None = None  # (N, 2) float64, conformal prediction intervals of a quantity

    @classmethod
    def from_samples(cls, samples: Tensor, decision: Decision | Tensor = Decision.GLOBAL) -> Prediction:
        """Return the prediction of (S, N, C) sampled class probabilities. For one sample, `epistemic` is 0.

        `total` is the entropy of the mean over samples, and `aleatoric` is the mean of the samples' entropies.
        `epistemic` is the mutual information, corrected for the bias of S samples. The total is not corrected and is
        biased downwards, so aleatoric and epistemic add up to more than the total, especially for few samples. Values
        of `epistemic` above the total are clipped to the total; with few samples, these are a few inputs in a thousand.
        """
        return cls._of_parts(decomposed(samples), decision)

    @classmethod
    def from_logits(cls, logits: Tensor, decision: Decision | Tensor = Decision.GLOBAL) -> Prediction:
        """Return the prediction of (S, N, C) sampled logits, equal to `from_samples` of their softmax in float64."""
        return cls._of_parts(decomposed_logits(logits), decision)

    @classmethod
    def _of_parts(cls, found: tuple[Tensor, Decomposition], decision: Decision | Tensor) -> Prediction:
        probs, parts = found
        return cls(probs, parts._asdict(), _spread(decision, parts.total))

    @classmethod
    def from_dirichlet(
        cls, log_alpha: Tensor, decision: Decision | Tensor = Decision.GLOBAL, log_evidence: Tensor | None = None
    ) -> Prediction:
        """Return the prediction of (N, K) log-parameters of Dirichlet distributions over class probabilities.

        Aleatoric and epistemic add up to the total. There are two more scores: `dirichlet_entropy`, the differential
        entropy of the distribution in nats, may be negative; `vacuity` is K divided by the sum of the parameters.
        """
        found = Dirichlet(log_alpha)
        uncertainty = {
            "total": found.entropy,
            "aleatoric": found.expected_entropy,
            "epistemic": found.mutual_information,
            "dirichlet_entropy": found.dirichlet_entropy,
            "vacuity": found.vacuity,
        }
        return cls(found.mean, uncertainty, _spread(decision, found.entropy), log_evidence)

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def label(self) -> Tensor:
        """(N,) the most probable class."""
        return self.probs.argmax(-1)

    @property
    def value(self) -> Tensor:
        """(N,) float64, the median of a quantity; infinite for a time after all events of the training data. `value`,
        `mean` and `quantile` raise ValueError for classes."""
        return self.quantile(0.5)

    @property
    def mean(self) -> Tensor:
        """(N,) float64, the mean of a quantity."""
        return self._quantity.mean(self.probs)

    def quantile(self, level: float) -> Tensor:
        """Return (N,) float64, a quantile of a quantity at a level from 0 to 1. Raises ValueError for other levels."""
        if not 0 <= level <= 1:
            raise ValueError(f"level = {level}, expected a number from 0 to 1")
        return self._quantity.quantile(self.probs, level)

    def risk(self, horizon: float) -> Tensor:
        """Return (N,) float64, the probability that the event happens until a horizon. Raises ValueError unless the
        target is a time to an event."""
        if not isinstance(self.target, Times):
            raise ValueError("this prediction is not about a time to an event, which a risk needs")
        return self.target.risk(self.probs.double(), horizon)

    @property
    def _quantity(self) -> Quantity:
        if self.target is None:
            raise ValueError("this prediction is about classes, but a quantity is needed")
        return self.target

    @property
    def answered_by(self) -> Tensor:
        """(N,) int64 of Decision, LOCAL or GLOBAL: the model that gave the label, even if the decision is ABSTAIN."""
        if self.source is not None:
            return self.source
        return torch.where(self.decision == Decision.ABSTAIN, int(Decision.GLOBAL), self.decision)

    @property
    def uncalibrated(self) -> Tensor:
        """(N, C) class probabilities before temperature scaling."""
        return self.probs if self.uncalibrated_probs is None else self.uncalibrated_probs

    @property
    def total(self) -> Tensor:
        """(N,) the entropy of `probs` in nats."""
        return self.uncertainty["total"]

    @property
    def aleatoric(self) -> Tensor:
        """(N,) the part of the uncertainty that is caused by the data, in nats."""
        return self.uncertainty["aleatoric"]

    @property
    def epistemic(self) -> Tensor:
        """(N,) the part of the uncertainty that is caused by the model, in nats."""
        return self.uncertainty["epistemic"]

    @property
    def scores(self) -> dict[str, Tensor]:
        """Scores by which inputs can be ranked, (N,) each, where higher means less certain: the uncertainties,
        minus the log-evidence as `log_evidence` if known, and the standard deviation of a quantity as `spread`."""
        evidence = {} if self.log_evidence is None else {"log_evidence": -self.log_evidence}
        spread = {} if self.target is None else {"spread": self.target.spread(self.probs)}
        return self.uncertainty | evidence | spread

    def score(self, name: str) -> Tensor:
        """Return the score (N,) with this name from `scores`. Raises ValueError for an unknown name."""
        scores = self.scores
        if name not in scores:
            raise ValueError(f"no score {name!r}; this prediction has {', '.join(scores)}")
        return scores[name]

    def calibrated(self, inverse_temperature: float, bias: Tensor | None = None) -> Prediction:
        """Return the prediction with probabilities proportional to `probs ** inverse_temperature` or, with a bias (C,)
        per class, to `probs ** inverse_temperature * exp(bias)`.

        An inverse temperature above 1 makes the prediction more certain. The total is recomputed; aleatoric and
        epistemic keep their shares of the total, because a temperature does not change the causes of uncertainty. A
        temperature of 1 without a bias changes no bit, and class probabilities of zero stay zero. `uncalibrated` has
        the original probabilities. Raises ValueError unless the inverse temperature is positive and finite.
        """
        if not 0 < inverse_temperature < torch.inf:
            raise ValueError(f"inverse_temperature = {inverse_temperature}: expected a positive, finite number")
        if inverse_temperature == 1 and bias is None:
            return self
        logits = inverse_temperature * self.probs.double().log()
        probs = (logits if bias is None else logits + beside(bias, logits)).softmax(-1)
        total = entropy(probs)
        parts = {
            name: torch.where(self.total > 0, self.uncertainty[name] / self.total, 0.0) * total
            for name in ("aleatoric", "epistemic")
        }
        scores = self.uncertainty | {"total": total} | parts
        return replace(self, probs=probs, uncertainty=scores, uncalibrated_probs=self.uncalibrated)

    @property
    def p_values(self) -> dict[str, Tensor]:
        """The available p-values among `familiarity`, `nearness`, `sureness` and `typicality`, (N,) each, by name."""
        found = {name: getattr(self, name) for name in P_VALUES}
        return {name: p for name, p in found.items() if p is not None}

    @property
    def alarms(self) -> Tensor:
        """(N,) bool: inputs with an alarm, whose typicality is at most `false_alarm_rate`; none without typicality. The
        expected fraction of alarms among inputs like the silo's calibration inputs is at most this rate."""
        if self.typicality is None:
            return torch.zeros_like(self.decision, dtype=torch.bool)
        return self.typicality <= self.false_alarm_rate

    def unfamiliar_at(self, rate: float) -> Tensor:
        """Return (N,) bool: inputs that are unfamiliar at a false discovery rate (Benjamini & Hochberg, 1995). The
        expected share of inputs like the silo's calibration inputs among them is at most `rate`."""
        if self.familiarity is None:
            return torch.zeros_like(self.decision, dtype=torch.bool)
        return benjamini_hochberg(self.familiarity, rate)

    @property
    def is_unfamiliar(self) -> Tensor:
        """(N,) bool: inputs with an alarm because they are unlike the silo's own: no other p-value is lower."""
        return self._alarms_by(self.familiarity, self.nearness, self.sureness)

    @property
    def is_novel(self) -> Tensor:
        """(N,) bool: inputs with an alarm because they are far from every training input, but not unfamiliar."""
        return self._alarms_by(self.nearness, self.sureness) & ~self.is_unfamiliar

    @property
    def is_unsure(self) -> Tensor:
        """(N,) bool: inputs with an alarm because the answer is less certain than answers to the silo's own inputs."""
        return self.alarms & ~self.is_unfamiliar & ~self.is_novel

    def _alarms_by(self, p: Tensor | None, *others: Tensor | None) -> Tensor:
        """Return (N,) bool: inputs with an alarm whose p-value `p` is not above the others; none if `p` is None."""
        if p is None:
            return torch.zeros_like(self.alarms)
        return reduce(torch.logical_and, (p <= other for other in others if other is not None), self.alarms)

    @property
    def reason(self) -> Tensor:
        """(N,) int64 of Reason: why you should not rely on the label.

        It is the first of these reasons that applies: undefined probabilities, unusable values, an alarm, a policy's
        reason to abstain. An input has a reason, too, if it has an alarm but the policy does not abstain.
        """
        abstained = self.decision == Decision.ABSTAIN
        limited = int(Reason.UNCERTAIN) if self.limited is None else self.limited
        found = torch.where(abstained, limited, int(Reason.NONE))
        found = torch.where(self.is_unsure, int(Reason.UNSURE), found)
        found = torch.where(self.is_novel, int(Reason.NOVEL), found)
        found = torch.where(self.is_unfamiliar, int(Reason.UNFAMILIAR), found)
        found = found if self.limited is None else torch.where(self.limited >= int(Reason.OUTSIDE), self.limited, found)
        return torch.where(self.probs.isfinite().all(-1), found, int(Reason.UNDEFINED))

    def abstaining(self, where: Tensor, reason: Reason = Reason.UNCERTAIN) -> Prediction:
        """Return this prediction with decision ABSTAIN for the inputs in `where`, (N,) bool, for a policy's reason."""
        new = where & (self.decision != Decision.ABSTAIN)
        return self._abstaining(where, torch.where(new, int(reason), self._limited))

    def refusing(self, why: Tensor) -> Prediction:
        """Return this prediction with decision ABSTAIN for unusable inputs; `why`, (N,) int64 of Reason, is NONE for
        usable inputs."""
        where = why != int(Reason.NONE)
        return self._abstaining(where, torch.where(where, why, self._limited))

    @property
    def _limited(self) -> Tensor:
        """(N,) int64 of Reason: why a policy abstained, or NONE."""
        abstained = self.decision == Decision.ABSTAIN
        return torch.where(abstained, int(Reason.UNCERTAIN), 0) if self.limited is None else self.limited

    def _abstaining(self, where: Tensor, limited: Tensor) -> Prediction:
        decision = torch.where(where, int(Decision.ABSTAIN), self.decision)
        return replace(self, decision=decision, source=self.answered_by, limited=limited)

    def part(self, rows: Tensor) -> Prediction:
        """Return the prediction for some of the inputs, given as (N,) bool or as positions."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        own |= {name: value[rows] for name, value in own.items() if isinstance(value, Tensor)}
        own["uncertainty"] = {name: value[rows] for name, value in self.uncertainty.items()}
        return Prediction(**own | {"input_notes": (), "unlike_columns": ()})

    def where(self, mask: Tensor, other: Prediction) -> Prediction:
        """Return the rows of this prediction where `mask` (N,) bool is true, and the rows of `other` elsewhere.

        A part that only one of the two predictions has (an uncertainty, log-evidence, sets, a p-value) is dropped.
        Raises ValueError unless the numbers of inputs and classes agree.
        """
        if self.probs.shape != other.probs.shape or mask.shape != self.decision.shape:
            shapes = [tuple(part.shape) for part in (self.probs, other.probs, mask)]
            raise ValueError("cannot combine predictions of shapes {} and {} by a mask of shape {}".format(*shapes))
        return Prediction(
            torch.where(mask[:, None], self.probs, other.probs),
            {
                name: torch.where(mask, values, other.uncertainty[name])
                for name, values in self.uncertainty.items()
                if name in other.uncertainty
            },
            torch.where(mask, self.decision, other.decision),
            _choose(mask, self.log_evidence, other.log_evidence),
            _choose(mask[:, None], self.sets, other.sets),
            torch.where(mask, self.answered_by, other.answered_by),
            _choose(mask, self.familiarity, other.familiarity),
            _choose(mask, self.nearness, other.nearness),
            _choose(mask, self.sureness, other.sureness),
            _choose(mask, self.typicality, other.typicality),
            self.false_alarm_rate,
            self.ranked_among,
            limited=_choose(mask, self.limited, other.limited),
            uncalibrated_probs=torch.where(mask[:, None], self.uncalibrated, other.uncalibrated),
            subgroup=self.subgroup,
            target=self.target,
            interval=_choose(mask[:, None], self.interval, other.interval),
        )


def _spread(decision: Decision | Tensor, of: Tensor) -> Tensor:
    return decision if isinstance(decision, Tensor) else torch.full_like(of, int(decision), dtype=torch.long)


def _choose(mask: Tensor, ours: Tensor | None, theirs: Tensor | None) -> Tensor | None:
    return None if ours is None or theirs is None else torch.where(mask, ours, theirs)


Answers = dict[Decision, Prediction]
"""Predictions of all available models for the same inputs: the global model, the local model, or both."""


def with_subgroup(answers: Answers, subgroup: Tensor | None) -> Answers:
    """Return the answers with the subgroup (N,) of each input."""
    if subgroup is None:
        return answers
    return {whose: replace(each, subgroup=subgroup.to(each.probs.device)) for whose, each in answers.items()}
