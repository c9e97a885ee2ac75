"""Figures of classes with what they rest on: how many inputs, the interval that these leave open, and the majority.

The majority is the rule that looks at no input: always the class that is the most frequent in a silo's training data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....core.text import joined, percent
from ....files.run_folder import RunFolder
from ....files.schema.figures import ClassificationRecord, Metrics, OperatingRecord
from ....files.schema.summary import SiloRecord
from ...intervals import auroc_interval, wilson


@dataclass(frozen=True)
class Ranged:
    """A figure, of how many inputs it is, and its 95 % interval over these; without one where they are not known."""

    value: float
    of: int = 0
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Majority:
    """What always saying the most frequent class of the training data comes to on test inputs."""

    right: int
    inputs: int
    name: str = ""
    """That class; empty where silos differ in it."""

    @property
    def share(self) -> float:
        return self.right / self.inputs


@dataclass(frozen=True)
class Judged:
    """The figures of one silo, or of all silos' inputs together."""

    inputs: int
    accuracy: Ranged | None
    majority: Majority | None
    auroc: Ranged | None
    sensitivity: Ranged | None
    specificity: Ranged | None

    @property
    def behind(self) -> bool:
        """Whether the majority is more often right."""
        return bool(self.accuracy and self.majority and self.accuracy.value < self.majority.share - 1e-9)


def judged(run: RunFolder) -> list[Judged]:
    """A record for each of the run's silos; all of them empty where classes were not counted."""
    names = (run.summary.classes if run.summary else None) or []
    positive = run.summary.classification.positive if run.summary and run.summary.classification else ""
    return [_judged(silo.test, silo.classification, majority(silo, names), names, positive) for silo in run.silos]


def judged_together(run: RunFolder) -> Judged:
    """The same of all silos' test inputs, of which the majority is each silo's own; newcomers count in none of them."""
    summary = run.summary
    if summary is None:
        return Judged(0, None, None, None, None, None)
    names, found = summary.classes or [], summary.classification
    of_silos = [majority(silo, names) for silo in run.silos if not silo.newcomer]
    known = [each for each in of_silos if each]
    together = None
    if known and len(known) == len(of_silos):
        together = Majority(sum(each.right for each in known), sum(each.inputs for each in known))
    return _judged(summary.pooled, found, together, names, found.positive if found else "")


def majority(silo: SiloRecord, names: Sequence[str]) -> Majority | None:
    """None where the silo's training or test inputs were not counted by class. Of equals it is the first class."""
    counts, found = silo.class_counts, silo.classification
    if not counts or found is None or not found.confusion or len(counts) != len(found.confusion):
        return None
    inputs = [sum(row) for row in found.confusion]
    most = counts.index(max(counts))
    name = names[most] if len(names) == len(counts) else str(most)
    return Majority(inputs[most], sum(inputs), name) if sum(inputs) else None


def beside_majority(run: RunFolder) -> str:
    """In a sentence, where there are two classes or where the majority is ahead of a silo; else empty."""
    pairs = [(silo.name, each) for silo, each in zip(run.silos, judged(run), strict=True) if not silo.newcomer]
    shares = [each.majority.share for _, each in pairs if each.majority]
    two = run.summary is not None and run.summary.classification is not None and run.summary.classification.positive
    behind = [name for name, each in pairs if each.behind]
    if not shares or not (two or behind):
        return ""
    said = (
        f"Always the most frequent class of a silo's training data is right about {percent(sum(shares) / len(shares))}"
    )
    if len(shares) == 1:
        return f"{said}{', which is more' if behind else ''}."
    return (
        f"{said}, mean over silos{f'; this run is right less often than that at {joined(behind)}' if behind else ''}."
    )


def _judged(
    test: Metrics, found: ClassificationRecord | None, most: Majority | None, names: Sequence[str], positive: str
) -> Judged:
    confusion = (found.confusion if found else None) or []
    inputs, right = sum(map(sum, confusion)), sum(row[k] for k, row in enumerate(confusion))
    auroc = None if test.auroc is None else Ranged(test.auroc)
    if auroc and positive in names and len(confusion) == len(names) == 2:
        own = sum(confusion[list(names).index(positive)])
        auroc = Ranged(auroc.value, inputs, auroc_interval(auroc.value, own, inputs - own))
    at = (found.operating if found else None) or OperatingRecord()
    return Judged(
        inputs,
        _share(test.accuracy, right, inputs),
        most,
        auroc,
        _share(test.sensitivity, at.true_positives, at.true_positives + at.false_negatives),
        _share(test.specificity, at.true_negatives, at.true_negatives + at.false_positives),
    )


def _share(value: float | None, right: int, of: int) -> Ranged | None:
    if value is None:
        return None
    return Ranged(value, of, wilson(right, of)) if of else Ranged(value)
