"""Whether models have learnt at all: uncertainties of one that has not say little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...core.text import percent
from ...files.schema.audit import AccuracyRecord, Finding
from .findings import CONFIDENCE
from .observations import Observation, Observed

ERRORS = 3.0
"""Standard errors above chance within which accuracy may well be chance."""


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of the runs with all data, as means over silos and seeds; shares in 0..1."""

    mean: float
    by_chance: float
    """The accuracy if the same labels were dealt out at random among a silo's inputs: 1/C if each of C classes is as
    frequent, the share of the most frequent class if a model says nothing else."""
    error: float
    """Standard deviation of what chance gives. Seeds share test inputs and may err alike: more do not lower it."""
    at_chance: bool
    """Whether `mean` is at most ERRORS errors above `by_chance`; never where no silo has test labels of two classes,
    for there every right answer is one that chance gives too."""

    @property
    def record(self) -> AccuracyRecord:
        return AccuracyRecord(**asdict(self), warning=self.warning)

    @property
    def warning(self) -> str | None:
        """What to say before all else, if anything."""
        if not self.at_chance:
            return None
        return (
            f"These models have not learnt. With all data, {percent(self.mean)} of their labels are right; the same "
            f"labels dealt out at random would be right for {percent(self.by_chance)} (standard error "
            f"{percent(self.error)}). Uncertainties of a model that has not learnt say little: only its confidence is "
            "judged."
        )


def against_chance(runs: Sequence[Observed]) -> Accuracy:
    """Accuracy on test inputs with a label beside what chance gives, of a run per seed. Silos have the same weight."""
    matches = np.array([[by_chance(o) for o in run.values()] for run in runs])  # (seeds, silos, 3)
    right, expected, variance = matches.transpose(2, 0, 1)
    error = math.sqrt(float(variance.mean(0).sum())) / variance.shape[1]
    mean, chance = float(right.mean()), float(expected.mean())
    telling = any(len(np.unique(o.y[o.y >= 0].numpy())) > 1 for o in runs[0].values())
    return Accuracy(mean, chance, error, telling and mean - chance <= ERRORS * error)


def by_chance(observation: Observation) -> tuple[float, float, float]:
    """Accuracy, and its mean and variance over all permutations of the predicted labels; of no labels, zeros.

    With a_c labels predicted and b_c true of class c among N inputs, S = sum a_c b_c: the number of matches has mean
    S / N and variance (S^2 + N^2 S - N sum a_c b_c (a_c + b_c)) / (N^2 (N - 1)).
    """
    known = observation.y >= 0
    y, said, count = observation.y[known], observation.label[known], int(known.sum())
    if count == 0:
        return 0.0, 0.0, 0.0
    a, b = _counts(said, observation), _counts(y, observation)
    both = float((a * b).sum())
    spread = both**2 + count**2 * both - count * float((a * b * (a + b)).sum())
    variance = spread / (count**2 * max(count - 1, 1))
    return float((said == y).double().mean()), both / count**2, max(variance, 0.0) / count**2


def _counts(labels: Tensor, observation: Observation) -> Tensor:
    return torch.bincount(labels, minlength=observation.probs.shape[-1]).double()


def judged(findings: Sequence[Finding], accuracy: Accuracy) -> tuple[Finding, ...]:
    """The findings, without verdicts on what was measured of uncertainties if models have not learnt."""
    if not accuracy.at_chance:
        return tuple(findings)
    sentence = "Not judged, for accuracy is at the level of chance; what was measured is in audit.json."
    return tuple(
        replace(finding, verdict="cannot say", sentence=sentence)
        if finding.name != CONFIDENCE and finding.verdict != "does not apply" and finding.measured
        else finding
        for finding in findings
    )
