"""Predictions: what every method returns, always."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

from ..uncertainty.dirichlet import Dirichlet
from ..uncertainty.measures import Decomposition, decomposed, decomposed_logits, entropy


class Decision(IntEnum):
    """What to do with a prediction."""

    GLOBAL = 0
    """Trust the federation's model, which gave it."""
    LOCAL = 1
    """Trust the silo's own model, which gave it."""
    ABSTAIN = 2
    """Trust neither."""


@dataclass(frozen=True)
class Prediction:
    """Class probabilities for N inputs, how unsure they are and why, and what to do with them.

    Higher uncertainty always means less certain. In nats: `total` is the entropy of `probs`, `aleatoric` the part
    that the data are to blame for (they are ambiguous), and `epistemic` the part that the model is (the input is
    unfamiliar). A method may add scores of its own.
    """

    probs: Tensor  # (N, C) float64, rows sum to one
    uncertainty: dict[str, Tensor]  # (N,) float64 each: total, aleatoric, epistemic, ...
    decision: Tensor  # (N,) int64 of Decision
    log_evidence: Tensor | None = None  # (N,) float64 where the method has one; rank by it
    sets: Tensor | None = None  # (N, C) bool, after conformal calibration
    source: Tensor | None = None  # (N,) int64 of Decision, where it is not what `decision` says: see `answered_by`
    familiarity: Tensor | None = None  # (N,) float64 in (0, 1], p-values: low where unlike what the silo knows
    false_alarm_rate: float = 0.0  # familiarity up to which an input is called unfamiliar
    input_notes: tuple[str, ...] = ()  # (N,) what is unlike training in raw inputs, "" for most; () for tensors
    uncalibrated_probs: Tensor | None = (
        None  # (N, C) float64, probabilities before a temperature if there was one: `uncalibrated`
    )

    @classmethod
    def from_samples(cls, samples: Tensor, decision: Decision | Tensor = Decision.GLOBAL) -> Prediction:
        """From (S, N, C) sampled class probabilities; one sample has no epistemic uncertainty.

        Total is the entropy of the mean sample and aleatoric the samples' mean entropy. Epistemic is their mutual
        information freed from the bias that S samples cause, so that aleatoric and epistemic add up to
        more than the total, the fewer the samples the more: it is the total that is too small. Where the estimate
        exceeds even the total, which no part of it can, it is cut to it: for a few inputs in a thousand of few samples.
        """
        return cls._of_parts(decomposed(samples), decision)

    @classmethod
    def from_logits(cls, logits: Tensor, decision: Decision | Tensor = Decision.GLOBAL) -> Prediction:
        """From (S, N, C) sampled logits: `from_samples` of their softmax, in float64."""
        return cls._of_parts(decomposed_logits(logits), decision)

    @classmethod
    def _of_parts(cls, found: tuple[Tensor, Decomposition], decision: Decision | Tensor) -> Prediction:
        probs, parts = found
        return cls(probs, parts._asdict(), _spread(decision, parts.total))

    @classmethod
    def from_dirichlet(
        cls, log_alpha: Tensor, decision: Decision | Tensor = Decision.GLOBAL, log_evidence: Tensor | None = None
    ) -> Prediction:
        """From (N, K) logarithms of the parameters of Dirichlet distributions over class probabilities.

        Adds the scores `dirichlet_entropy`, the differential entropy of the distribution in nats, which may be
        negative, and `vacuity`, K over the sum of the parameters. Aleatoric and epistemic add up to the total.
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
    def answered_by(self) -> Tensor:
        """(N,) int64 of Decision, LOCAL or GLOBAL: whose model the label is of, abstained from or not."""
        if self.source is not None:
            return self.source
        return torch.where(self.decision == Decision.ABSTAIN, int(Decision.GLOBAL), self.decision)

    @property
    def uncalibrated(self) -> Tensor:
        """(N, C) the class probabilities that the model itself gives, before any temperature."""
        return self.probs if self.uncalibrated_probs is None else self.uncalibrated_probs

    @property
    def total(self) -> Tensor:
        """(N,) nats, the entropy of `probs`."""
        return self.uncertainty["total"]

    @property
    def aleatoric(self) -> Tensor:
        """(N,) nats, the part of the uncertainty that the data are to blame for."""
        return self.uncertainty["aleatoric"]

    @property
    def epistemic(self) -> Tensor:
        """(N,) nats, the part of the uncertainty that the model is to blame for."""
        return self.uncertainty["epistemic"]

    @property
    def scores(self) -> dict[str, Tensor]:
        """Everything to rank inputs by, (N,) each, higher being less certain: the uncertainties, and as
        `log_evidence` minus the log-evidence where there is one.
        """
        evidence = {} if self.log_evidence is None else {"log_evidence": -self.log_evidence}
        return self.uncertainty | evidence

    def score(self, name: str) -> Tensor:
        """(N,) one of `scores`. ValueError if there is none of that name."""
        scores = self.scores
        if name not in scores:
            raise ValueError(f"no score {name!r}; this prediction has {', '.join(scores)}")
        return scores[name]

    def calibrated(self, inverse_temperature: float) -> Prediction:
        """With probabilities in proportion to `probs ** inverse_temperature`: above 1 surer, below 1 less sure.

        The total is that of the new probabilities; aleatoric and epistemic keep their shares of the total, since
        a temperature says nothing about where uncertainty comes from. All else stays: a temperature of 1
        changes no bit, and class probabilities of zero stay zero. `uncalibrated` has the probabilities as they were.
        ValueError unless positive and finite.
        """
        if not 0 < inverse_temperature < torch.inf:
            raise ValueError(f"an inverse temperature is positive and finite, not {inverse_temperature}")
        if inverse_temperature == 1:
            return self
        probs = (inverse_temperature * self.probs.double().log()).softmax(-1)
        total = entropy(probs)
        parts = {
            name: torch.where(self.total > 0, self.uncertainty[name] / self.total, 0.0) * total
            for name in ("aleatoric", "epistemic")
        }
        scores = self.uncertainty | {"total": total} | parts
        return replace(self, probs=probs, uncertainty=scores, uncalibrated_probs=self.uncalibrated)

    @property
    def is_unfamiliar(self) -> Tensor:
        """(N,) bool: inputs that are called unfamiliar, of familiarity at most `false_alarm_rate`; none without a
        familiarity.

        Of inputs like those that the silo calibrated with, an expected share of at most `false_alarm_rate` is called
        so.
        """
        if self.familiarity is None:
            return torch.zeros_like(self.decision, dtype=torch.bool)
        return self.familiarity <= self.false_alarm_rate

    def abstaining(self, where: Tensor) -> Prediction:
        """This prediction with the decision to trust neither model for the inputs of `where`, (N,) bool."""
        decision = torch.where(where, int(Decision.ABSTAIN), self.decision)
        return replace(self, decision=decision, source=self.answered_by)

    def where(self, mask: Tensor, other: Prediction) -> Prediction:
        """The rows of this prediction where `mask` (N,) bool holds, and those of `other` elsewhere, decisions included.

        What only one of the two has (an uncertainty, log-evidence, sets, familiarity) is left out. ValueError if they
        are not about as many inputs and classes.
        """
        if self.probs.shape != other.probs.shape or mask.shape != self.decision.shape:
            shapes = [tuple(part.shape) for part in (self.probs, other.probs, mask)]
            raise ValueError("predictions of {} and {} cannot be chosen from by a mask of {}".format(*shapes))
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
            self.false_alarm_rate,
            uncalibrated_probs=torch.where(mask[:, None], self.uncalibrated, other.uncalibrated),
        )


def _spread(decision: Decision | Tensor, of: Tensor) -> Tensor:
    """(N,) the decision of every input that (N,) numbers are of."""
    return decision if isinstance(decision, Tensor) else torch.full_like(of, int(decision), dtype=torch.long)


def _choose(mask: Tensor, ours: Tensor | None, theirs: Tensor | None) -> Tensor | None:
    return None if ours is None or theirs is None else torch.where(mask, ours, theirs)


Answers = dict[Decision, Prediction]
"""What each model at hand says of the same inputs: the federation's, the silo's own, or both."""
