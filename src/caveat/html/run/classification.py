"""Classification metrics with intervals, the majority-class baseline, and confusion matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from statistics import fmean, stdev
from typing import NamedTuple

from markupsafe import Markup

from ...core.text import count, decimal, listed, percent, plural
from ...files import RunFolder
from ...files.schema import ClassificationRecord, Metrics, OperatingRecord, SiloRecord, Summary
from ...uncertainty.statistical_tests import auroc_interval, binomial_tail, student_quantile, wilson
from ..diagrams import Dot, Square, matrix
from ..svg import Chart
from ..templates import Table, column, words


@dataclass(frozen=True)
class Ranged:
    """A metric with its number of inputs and its 95 % interval over inputs, if known."""

    value: float
    of: int = 0
    interval: tuple[float, float] | None = None

    @property
    def clearly_zero(self) -> bool:
        """Whether the value is 0, and its interval excludes a half."""
        return not self.value and self.interval is not None and self.interval[1] < 0.5


@dataclass(frozen=True)
class Majority:
    """The majority-class baseline, which always predicts the most frequent class of a silo's training data."""

    right: int
    inputs: int
    name: str = ""
    """The predicted class; empty if it differs between silos."""
    gained: int = 0
    """Number of inputs for which only the model is correct."""
    lost: int = 0
    """Number of inputs for which only the baseline is correct."""

    @property
    def share(self) -> float:
        return self.right / self.inputs

    @property
    def beaten(self) -> bool:
        """Whether the model is better beyond chance: a sign test of the inputs for which only one is right."""
        return binomial_tail(self.gained, self.gained + self.lost, 0.5) < _LEVEL

    @property
    def ahead(self) -> float:
        """The p-value of the opposite test: that the baseline is better than the model."""
        return binomial_tail(self.lost, self.gained + self.lost, 0.5)

    @property
    def beatable(self) -> bool:
        """Whether a model that is always right would be better beyond chance."""
        return 0.5 ** (self.inputs - self.right) < _LEVEL

    def __add__(self, other: "Majority") -> "Majority":
        """Return the baseline over the inputs of both silos together, each with its own class."""
        gained, lost = self.gained + other.gained, self.lost + other.lost
        return Majority(self.right + other.right, self.inputs + other.inputs, "", gained, lost)


@dataclass(frozen=True)
class Judged:
    """The metrics of one silo, or of all silos' inputs together."""

    inputs: int
    accuracy: Ranged | None
    majority: Majority | None
    auroc: Ranged | None
    sensitivity: Ranged | None
    specificity: Ranged | None

    @property
    def behind(self) -> bool:
        """Whether the baseline is correct at least as often as the model, and the model makes errors."""
        most = self.majority
        return most is not None and most.gained <= most.lost and most.right + most.gained - most.lost < most.inputs

    @property
    def blind(self) -> str:
        """Each class that is never recognized, such as "sensitivity 0 of 12"; empty if there is none."""
        pairs = (("sensitivity", self.sensitivity), ("specificity", self.specificity))
        return ", ".join(f"{name} 0 of {each.of}" for name, each in pairs if each and each.of and not each.value)

    @property
    def clearly_blind(self) -> bool:
        """Whether one of the two classes is never recognized, and the 95 % interval of its share excludes a half."""
        return any(each.clearly_zero for each in (self.sensitivity, self.specificity) if each)


@lru_cache(1)
def judged(run: RunFolder) -> list[Judged]:
    """Return a record for each of the run's silos, without counts and intervals if classes were not counted."""
    names = (run.summary.classes if run.summary else None) or []
    positive = run.summary.classification.positive if run.summary and run.summary.classification else ""
    return [_judged(silo.test, silo.classification, majority(silo, names), names, positive) for silo in run.silos]


def judged_together(run: RunFolder) -> Judged:
    """Return the metrics over all silos' test inputs, with each silo's own majority class, and without newcomers."""
    summary = run.summary
    if summary is None:
        return Judged(0, None, None, None, None, None)
    names, found = summary.classes or [], summary.classification
    of_silos = [majority(silo, names) for silo in run.silos if not silo.newcomer]
    known = [each for each in of_silos if each]
    together = None
    if known and len(known) == len(of_silos):
        together = reduce(add, known)
    return _judged(summary.pooled, found, together, names, found.positive if found else "")


def majority(silo: SiloRecord, names: Sequence[str]) -> Majority | None:
    """Return the majority-class baseline, with the first of tied classes; None if a silo's inputs were not counted by
    class."""
    counts, found = silo.class_counts, silo.classification
    if not counts or found is None or not found.confusion or len(counts) != len(found.confusion):
        return None
    inputs = [sum(row) for row in found.confusion]
    most = counts.index(max(counts))
    name = names[most] if len(names) == len(counts) else str(most)
    gained = sum(row[k] for k, row in enumerate(found.confusion) if k != most)
    lost = inputs[most] - found.confusion[most][most]
    return Majority(inputs[most], sum(inputs), name, gained, lost) if sum(inputs) else None


_LEVEL = 0.05
_MOST_NAMED = 6
MANY, MOST_ROWS = 10, 40
"""Number of silos above which they are counted instead of named, and above which the table of silos is a CSV."""
_NEARLY_ALL, _COMMON = 0.99, 0.95
"""Minimum share of predictions in one class for a collapsed model, and maximum share of inputs that have this class."""
ALONE = "local"
"""The method and the model of training alone."""


def called(method: str) -> str:
    """Return the name that the report uses for a method."""
    return "training alone" if method == ALONE else method


class OneClass(NamedTuple):
    """The class that a collapsed model predicts for (nearly) every test input of all silos."""

    name: str
    called: int
    """Number of inputs for which the class is predicted."""
    having: int
    """Number of inputs that have the class."""
    inputs: int

    @property
    def of(self) -> str:
        """The number of inputs for which the class is predicted, in words."""
        which = f"all {self.inputs:,}" if self.called == self.inputs else f"{self.called:,} of {self.inputs:,}"
        return f"{which} test inputs"

    @property
    def always(self) -> str:
        return "whatever the input" if self.called == self.inputs else "for nearly every input"


def one_class(run: RunFolder) -> OneClass | None:
    """Return the only class that is predicted; None for a model that has not collapsed, or if that is unknown.

    Wilson's 95 % intervals of the shares of predictions and of inputs in this class must not overlap, and the model
    must not be better beyond chance than a constant one.
    """
    summary = run.summary
    confusion = (summary.classification.confusion if summary and summary.classification else None) or []
    inputs, called = sum(map(sum, confusion)), [sum(column) for column in zip(*confusion, strict=True)]
    if summary is None or not inputs or max(called) < _NEARLY_ALL * inputs:
        return None
    k = called.index(max(called))
    names, having = summary.classes or [], sum(confusion[k])
    right = sum(row[i] for i, row in enumerate(confusion) if i != k)
    constant = Majority(having, inputs, gained=right, lost=having - confusion[k][k])
    few = wilson(called[k], inputs)[0] <= wilson(having, inputs)[1]
    if few or having > _COMMON * inputs or constant.beaten:
        return None
    return OneClass(names[k] if len(names) == len(called) else str(k), called[k], having, inputs)


def baseline(run: RunFolder) -> tuple[str, Markup] | None:
    """Return the kind and the text of the comparison with the majority class of each silo; None if that is unknown.

    The kind is "bad" for a collapsed model or if the baseline is right at least as often; "unknown" if the difference
    is within chance (sign test of inputs for which only one is right), or if no model could be better beyond chance;
    "open" if some silo is worse beyond chance or blind to a class, "unknown" if some silo gains nothing; else "good".
    """
    if only := one_class(run):
        text = Markup("<b>It predicts class {} for {}</b>: {} of these have this class.")
        return "bad", text.format(only.name, only.of, percent(only.having / only.inputs))
    pairs = [(silo.name, each) for silo, each in zip(run.silos, judged(run), strict=True) if not silo.newcomer]
    known = [(name, each, each.majority) for name, each in pairs if each.majority]
    if not known:
        return None
    whole = reduce(add, (most for _, _, most in known))
    counts = f": of {plural(whole.inputs, 'test input')}, only this run is right for {whole.gained:,}, and only this "
    counts += f"baseline for {whole.lost:,}"
    if not whole.beatable and whole.ahead >= _LEVEL:
        head, kind = "These test inputs cannot show whether it has learned", "unknown"
        others = f"{whole.inputs - whole.right:,} of {plural(whole.inputs, 'test input')}"
        rest = f": only {others} have a less frequent class"
    elif whole.gained <= whole.lost:
        head, rest, kind = "It is no more accurate than always predicting the most frequent class", counts, "bad"
    elif not whole.beaten:
        head = "It is not shown to be better than always predicting the most frequent class"
        rest, kind = counts, "unknown"
    elif (most := too_few(run)) and len(known) > 1:
        head, kind = "Over all silos together, better than always predicting each silo's most frequent class", "good"
        rest = f"{counts}; single silos, with at most {plural(most, 'input')} each, cannot be judged"
    elif texts := [_gained_nothing(name, each) for name, each, _ in known if each.behind or each.clearly_blind]:
        blind = "" if all(each.behind for _, each, _ in known if each.clearly_blind) else ", or blind to a class,"
        head = f"No better than always predicting the most frequent class{blind} at {len(texts):,} of "
        head += plural(len(known), "silo")
        rest = f": {listed(texts, _MOST_NAMED)}" if len(texts) <= MANY else counts
        kind = "open" if without_gain(run)[0] or any(each.clearly_blind for _, each, _ in known) else "unknown"
    else:
        head, rest, kind = "Better than always predicting the most frequent class", counts, "good"
    return kind, Markup("<b>{}</b>{}.").format(head, rest)


_FEWEST = 20
"""Number of test inputs below which the 95 % interval of a silo's accuracy can be wider than 40 points."""


def too_few(run: RunFolder) -> int:
    """Return the largest number of test inputs of a silo if no silo has enough to be judged; else 0."""
    most = max((silo.n_test or 0 for silo in run.silos), default=0)
    return most if most < _FEWEST else 0


def majority_share(run: RunFolder) -> float | None:
    """Return the mean over silos of the share of test inputs in a silo's most frequent class; None if unknown."""
    pairs = zip(run.silos, judged(run), strict=True)
    found = [each.majority.share for silo, each in pairs if each.majority and not silo.newcomer]
    return fmean(found) if found else None


def _gained_nothing(name: str, of: Judged) -> str:
    most = of.majority
    told = [of.blind] if of.blind else []
    if most is not None and of.behind:
        told = [f"{most.right + most.gained - most.lost} of {most.inputs} right, this baseline {most.right}", *told]
    return f"{name} ({', '.join(told)})"


def without_gain(run: RunFolder) -> tuple[list[str], list[str]]:
    """Return the silos at which the baseline is right more often than the model, beyond chance (corrected for the
    number of silos), and the others at which the model is right no more often."""
    pairs = zip(run.silos, judged(run), strict=True)
    found = [(silo.name, each.majority) for silo, each in pairs if each.behind and not silo.newcomer]
    worse = [name for name, most in found if most and most.ahead < _LEVEL / len(run.silos)]
    return worse, [name for name, _ in found if name not in worse]


def gap_to(run: RunFolder, other: RunFolder, metric: str = "accuracy") -> Dot | None:
    """Return the mean difference in a metric to another run over common silos, with its 95 % interval over silos if
    there are more than two."""
    mine, theirs = ({silo.name: getattr(silo.test, metric) for silo in each.silos} for each in (run, other))
    known = [name for name, value in mine.items() if value is not None and theirs.get(name) is not None]
    return over_silos([mine[name] - theirs[name] for name in known])


def over_silos(found: Sequence[float]) -> Dot | None:
    """Return the mean of silos' differences, with its 95 % interval over silos if there are more than two."""
    if len(found) < 3:
        return Dot(fmean(found)) if found else None
    half = student_quantile(0.975, len(found) - 1) * stdev(found) / math.sqrt(len(found))
    return Dot(fmean(found), fmean(found) - half, fmean(found) + half)


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
        _ranged(test.accuracy, right, inputs),
        most,
        auroc,
        _ranged(test.sensitivity, at.true_positives, at.true_positives + at.false_negatives),
        _ranged(test.specificity, at.true_negatives, at.true_negatives + at.false_positives),
    )


def _ranged(value: float | None, right: int, of: int) -> Ranged | None:
    if value is None:
        return None
    return Ranged(value, of, wilson(right, of)) if of else Ranged(value)


_MOST_CLASSES = 20
"""Maximum number of classes of a full confusion matrix; with more, the most frequent errors are shown."""
_MOST_MISTAKES = 15


@dataclass(frozen=True)
class Classified:
    """Notes on classes, the confusion matrix as a map, and tables of errors."""

    notes: Sequence[str]
    map: Chart | None
    tables: Sequence[Table]


def classification(run: RunFolder) -> Classified | None:
    """Return the confusion of classes; None for a run without it (unfinished, or with too many classes)."""
    summary = run.summary
    if summary is None or summary.classification is None:
        return None
    found = summary.classification
    names = summary.classes or list(map(str, range(len(found.confusion or []))))
    if not found.confusion or len(names) != len(found.confusion):
        return Classified(_notes(summary, found), None, [])
    if len(names) > _MOST_CLASSES:
        return Classified(_notes(summary, found), None, [_mistakes(found.confusion, names)])
    return Classified(_notes(summary, found), _map(found.confusion, names), [])


def _map(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Chart:
    cells = sorted(
        ((n, i, k) for i, row in enumerate(confusion) for k, n in enumerate(row) if n and i != k), reverse=True
    )
    told = "; ".join(f"{n:,} of class {names[i]} predicted as {names[k]}" for n, i, k in cells[:3])
    most = f"Most frequent errors: {told}" if told else "No errors"
    label = f"Confusion matrix of {len(names)} classes. {most}"
    caption = (
        "All silos' test inputs by their class (rows) and the most probable class (columns). Shades are shares of "
    )
    squares = [
        Square(i, k, f"{n:,}", f"{n:,} of class {names[i]} predicted as {names[k]}", _KINDS[i == k], n / sum(row))
        for i, row in enumerate(confusion) for k, n in enumerate(row) if n
    ]  # fmt: skip
    side = min(46.0, 440 / len(names))
    drawn = matrix(names, names, squares, (side, min(side, 30.0)), label, "predicted (across), class (down)")
    return Chart("Confusion", drawn, f"{caption}a class; cells without inputs are blank. {most}.")


_KINDS = ("wrong", "right")


def _notes(summary: Summary, found: ClassificationRecord) -> list[str]:
    if not found.positive:
        return []
    sentence = f"The positive class is {found.positive!r}."
    at = found.operating
    if at is None:
        return [f"{sentence} Sensitivity and specificity are missing, because there are too few calibration inputs."]
    texts = [silo.classification.operating for silo in summary.silos if silo.classification is not None]
    whose = [each.whose for each in texts if each is not None]
    sentence += " Sensitivity and specificity are at thresholds from calibration inputs, "
    sentence += f"chosen for {_rule(found.rule)}; accuracy, confusion and gains are for the most probable class."
    if shared := whose.count("federation"):
        which = "All silos have" if shared == len(whose) else f"{shared} of {len(whose)} silos have"
        inputs = f"{count(at.positives)} calibration inputs of the positive class and {count(at.negatives)} others"
        sentence += f" {which} too few calibration inputs for their own thresholds, and use that of the federation "
        sentence += f"({decimal(at.threshold)}, from {inputs})."
    return [sentence]


def _rule(rule: str) -> str:
    kind, _, target = rule.partition(" ")
    if kind != "sensitivity":
        return f"the largest sum of both ({rule})"
    return f"a sensitivity of {float(target):.3g}, which holds on average over calibration splits"


def _mistakes(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Table:
    cells = [(n, i, k) for i, row in enumerate(confusion) for k, n in enumerate(row) if n and i != k]
    most = sorted(cells, key=lambda cell: (-cell[0], *cell[1:]))[:_MOST_MISTAKES]
    columns = [
        words("class", [names[i] for _, i, _ in most]),
        words("predicted as", [names[k] for _, _, k in most]),
        column("inputs", [count(n) for n, _, _ in most]),
        column("share of the class", [percent(n / sum(confusion[i])) for n, i, _ in most]),
    ]
    return Table(columns, f"The most frequent of {count(len(cells))} kinds of errors, over all silos' test inputs.")
