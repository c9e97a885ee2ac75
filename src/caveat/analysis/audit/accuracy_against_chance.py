"""A test of whether models have learned at all: their accuracy, compared with labels in random order."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...core.text import percent
from ...files.schema import AccuracyRecord, Finding
from .claim_tests import CONFIDENCE
from .run_predictions import Observation, Observed

ERRORS = 3.0
"""Number of standard errors above chance within which accuracy counts as chance."""


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of the runs with all data: means over silos and seeds, from 0 to 1."""

    mean: float
    by_chance: float
    """The expected accuracy if the predicted labels were permuted at random among a silo's inputs: 1/C for C equally
    frequent classes, the share of the most frequent class if a model predicts nothing else."""
    error: float
    """Standard deviation of the accuracy by chance. More seeds do not lower it, because they share test inputs."""
    at_chance: bool
    """Whether `mean` is at most ERRORS errors above `by_chance`; False if no silo has test labels of two classes,
    because then chance predicts every label correctly, too."""

    @property
    def record(self) -> AccuracyRecord:
        return AccuracyRecord(**asdict(self), warning=self.warning)

    @property
    def warning(self) -> str | None:
        """The warning at the top of the page; None if models have learned."""
        if not self.at_chance:
            return None
        return (
            f"These models have not learned. With all data, {percent(self.mean)} of their labels are correct; the same "
            f"labels in random order would be correct for {percent(self.by_chance)} (standard error "
            f"{percent(self.error)}). The uncertainties of a model that has not learned mean little, so only "
            "its confidence is judged."
        )


def against_chance(runs: Sequence[Observed]) -> Accuracy:
    """Return the accuracy on labelled test inputs and by chance, from one run per seed; silos have equal weights."""
    matches = np.array([[by_chance(o) for o in run.values()] for run in runs])  # (seeds, silos, 3)
    right, expected, variance = matches.transpose(2, 0, 1)
    error = math.sqrt(float(variance.mean(0).sum())) / variance.shape[1]
    mean, chance = float(right.mean()), float(expected.mean())
    telling = any(len(np.unique(o.y[o.y >= 0].numpy())) > 1 for o in runs[0].values())
    return Accuracy(mean, chance, error, telling and mean - chance <= ERRORS * error)


def by_chance(observation: Observation) -> tuple[float, float, float]:
    """Return accuracy, and its mean and variance over all permutations of the predicted labels; zeros without labels.

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
    """Return the findings; if models have not learned, without verdicts that depend on measured uncertainties."""
    if not accuracy.at_chance:
        return tuple(findings)
    sentence = "Not judged, because accuracy is at the level of chance; audit.json has the measurements."
    return tuple(
        replace(finding, verdict="cannot say", sentence=sentence)
        if finding.name != CONFIDENCE and finding.verdict != "does not apply" and finding.measured
        else finding
        for finding in findings
    )
