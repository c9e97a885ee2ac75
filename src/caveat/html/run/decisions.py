"""Decisions about the test inputs of each stream and their accuracy, as bars and tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from ...core.text import count, decimal, percent
from ...files import RunFolder
from ...files.schema import INSIDE, NOBODY, ORACLE, Separation, Stream, Summary
from ...uncertainty.statistical_tests import wilson
from .. import svg
from ..diagrams import stack_swatch, stacked_bar
from ..templates import Cell, Statement, Table, column, table, words
from .alarms import AN_ALARM, promised
from .guarantee import Shares, foreign, in_words, kept, shares_of
from .quadrants import KNOWN_TO, quadrants
from .silo_metrics import METRICS

OWN, CHOSEN = "always", "switch"
"""The policy that answers every input, with the local model if there is one; and the name of the chosen model."""
SWITCHING = ("switch", "guaranteed")
"""The policies whose choice is called a switch."""
_ORDER = ("local", "global", CHOSEN, ORACLE)


def streams(run: RunFolder) -> dict[str, Stream]:
    """Return streams by name; empty if there is only one stream, and one model."""
    tested = run.summary.tested if run.summary else {}
    return tested if len(tested) > 1 or any(len(stream.models) > 1 for stream in tested.values()) else {}


def models(tested: Mapping[str, Stream]) -> list[str]:
    """Return the names of all models, the oracle included, in the order in which they are shown."""
    found = dict.fromkeys(name for stream in tested.values() for name in stream.models)
    if any(stream.oracle for stream in tested.values()):
        found[ORACLE] = None
    return sorted(found, key=lambda name: _ORDER.index(name) if name in _ORDER else -1)


def label(run: RunFolder, model: str) -> str:
    """Return the name of a model; the chosen one is called a switch only if the policy switches. If some silos lack the
    model, the name includes the number of silos."""
    name = "answered" if model == CHOSEN and run.summary and run.summary.policy.name not in SWITCHING else model
    found = run.summary.models.get(CHOSEN if model == ORACLE else model) if run.summary else None
    few = found is not None and found.silos is not None and found.silos < len(run.silos)
    return f"{name} ({found.silos} of {len(run.silos)} silos)" if few and found else name


def accuracy(name: str, stream: Stream, model: str) -> float | None:
    """Return a model's mean accuracy over silos; None if no answer can be correct."""
    if name == NOBODY:
        return None
    if model == ORACLE:
        return stream.oracle.accuracy if stream.oracle else None
    return stream.models[model].mean.accuracy if model in stream.models else None


def accuracy_answered(name: str, stream: Stream) -> float | None:
    """Return the accuracy among the answered inputs of all silos together. It is not a mean over silos, because a silo
    can have very few answered inputs."""
    return None if name == NOBODY else stream.chosen.pooled.accuracy_answered


class Single(NamedTuple):
    """One model for all own inputs, local or global, that is right more often than the run's choice of models."""

    local: bool
    right: float
    """The accuracy of the model on own inputs."""
    chosen: float
    """The accuracy of the run's choice on these inputs."""


def better_alone(run: RunFolder) -> Single | None:
    """Return a model that is right more often than the run's choice, beyond chance, and than the run's answers; None
    without one."""
    test, models = (kept(run.summary), run.summary.models) if run.summary else (None, {})
    chosen = models[CHOSEN].pooled.accuracy if CHOSEN in models else None
    if test is None or chosen is None or not test.answered:
        return None
    answers = 1 - test.wrong / test.answered
    least = max(wilson(round(chosen * test.inputs), test.inputs)[1], answers)
    shares = [
        (each.pooled.accuracy or 0.0, name == "local")
        for name, each in models.items() if name in ("local", "global") and each.silos in (None, len(run.silos))
    ]  # fmt: skip
    right, local = max(shares, default=(0.0, False))
    return Single(local, right, chosen) if right > least else None


def local_only(run: RunFolder, by: Markup) -> Markup | None:
    """Return where and how to answer every input with the local models, which are better on own inputs, and what this
    costs on inputs that only other silos know; None if the local models are not better."""
    found = better_alone(run)
    if found is None or not found.local or run.summary is None:
        return None
    other = run.summary.tested.get("ood_local")
    right = [other.models[name].pooled.accuracy for name in ("local", CHOSEN) if name in other.models] if other else []
    cost = f"; for inputs that only other silos know, {' and '.join(map(percent, right))}" * (len(right) == 2)
    text = Markup(
        "Where only classes that a silo has trained on can arrive, use the local models{}. They are right for {} "
    )
    text += Markup("of own inputs{}, this run's choice of models for {}{}.")
    known = run.summary.models.get("local")
    error = f" (ECE {decimal(known.pooled.ece)})" if known and known.pooled.ece is not None else ""
    return text.format(by, percent(found.right), error, percent(found.chosen), cost)


def fewer_handed_over(run: RunFolder, by: Markup) -> Markup | None:
    """Return how to pass fewer own inputs to a global model that is less accurate on them; None without such inputs."""
    own = run.summary.tested.get(INSIDE) if run.summary else None
    share = own.decisions.get("global", 0.0) if own else 0.0
    if own is None or run.summary is None or run.summary.policy.name != CHOSEN or not share:
        return None
    right = [own.models[name].pooled.accuracy for name in ("global", "local") if name in own.models]
    if len(right) < 2 or right[0] is None or right[1] is None or right[0] >= right[1]:
        return None
    text = "Where other classes can arrive, too, try to pass fewer own inputs to the global model: it answers {} of "
    text += "them now, and is right for {} of all own inputs, the local models for {}. Lower "
    text += "<code>uncertainty.handover_rate</code>{}; fewer foreign inputs are then "
    return Markup(text + "passed on, too, and local models answer more of these.").format(
        percent(share), percent(right[0]), percent(right[1]), by
    )


def not_foreign(run: RunFolder, line: Statement | None, few: bool) -> Markup | None:
    """Return what a person decides where foreign inputs can arrive, if too many of these are answered wrongly by the
    verdict `line`; `few` is whether not all own inputs are answered."""
    if line is None or line.kind == "good" or run.summary is None:
        return None
    limit = run.summary.guarantee.risk if run.summary.guarantee else TOLERATED
    found = {name: each for name, each in foreign(run.summary).items() if each.wrong > limit}
    known = " or ".join(in_words(name) for name in found)
    what = "predictions for" if run.summary.policy.name == OWN else "answers to"
    told = "; ".join(
        f"of {what} {f'inputs {in_words(name)}' if len(found) > 1 else 'these'}, {wrong} wrong"
        for name in found
        for wrong in [_answered_wrong(run.summary, name)]
    )
    alarms = {name: run.summary.tested[name].chosen.pooled.alarms for name in found}
    known_alarms = [(of, 1 - found[name].answered) for name, of in alarms.items() if of is not None]
    which, rest = "every input", Markup()
    if run.summary.policy.name != "guaranteed" and not promised(run):
        rest = Markup(" Alarms may detect these: set <code>uncertainty.false_alarm_rate</code> above 0.")
    elif len(known_alarms) == len(found) and all(math.isclose(*each, abs_tol=1e-6) for each in known_alarms):
        rest = Markup(" As many inputs raised {} as have no answer.").format(AN_ALARM)
    elif len(known_alarms) == len(found):
        noticed = all(1 - of <= limit for of, _ in known_alarms)
        which = "those with {}" + " or without an answer" * few if noticed else "every input, not only those with {}"
    text = Markup("Where inputs {} can arrive, have a person decide {}: {}.{}")
    return text.format(known, which.format(AN_ALARM), told, rest)


def _answered_wrong(summary: Summary, name: str) -> str:
    """Return which share of the answers to a stream is wrong, with the numbers if these are known."""
    inputs, shares = summary.tested[name].examples, foreign(summary)[name]
    counts = f" ({round(shares.wrong * inputs):,} of {round(shares.answered * inputs):,})" if inputs else ""
    return f"{percent(shares.wrong / shares.answered)}{counts} are"


TOLERATED = 0.05
"""Share of wrong answers to out-of-distribution inputs above which the page warns, if there is no guarantee."""


def abstains(tested: Mapping[str, Stream]) -> bool:
    return any(stream.decisions.get("abstain", 0.0) > 0 for stream in tested.values())


def decisions(run: RunFolder) -> dict[str, Any] | None:
    """Return the section's tables by name. None if there was nothing to decide, because one model answers everything in
    the only stream."""
    tested = streams(run)
    found = {
        "quadrants": quadrants(tested) if run.summary and run.summary.policy.name != OWN else None,
        "outside": [_outside_table(*each) for each in tested.items()],
        "models": _model_table(run),
    }
    return found if tested or found["models"] else None


_OUTCOMES = {"right": "right", "wrong": "wrong", "abstain": "abstained"}


def outcomes(run: RunFolder) -> tuple[Table, Sequence[tuple[Markup, str]]] | None:
    """Return what local models, the global model and the run make of each stream of inputs, as shares of all of its
    inputs, and a legend; None if there was nothing to decide."""
    rows = [
        (KNOWN_TO.get(name, name), count(stream.examples), who, shares)
        for name, stream in streams(run).items() if name != "mix"
        for who, shares in _answering(run, name, stream) if shares
    ]  # fmt: skip
    if not rows:
        return None
    shares = [each for *_, each in rows]
    columns = [
        words("kind of inputs", [name for name, *_ in rows]),
        words("predicted by", [who for *_, who, _ in rows]),
        column("right", [percent(each.right) for each in shares]),
        column("wrong", [percent(each.wrong) for each in shares]),
        column("abstained", [percent(1 - each.answered) for each in shares]),
        words("shares", [_bar(each) for each in shares]),
        column("inputs", [n for _, n, *_ in rows]),
    ]
    caption = "Shares of all silos' test inputs of each kind; if no silo knows an input, only abstention is correct."
    return Table(columns, caption), [(stack_swatch(kind, "outcome"), name) for kind, name in _OUTCOMES.items()]


def _answering(run: RunFolder, name: str, stream: Stream) -> list[tuple[str, Shares | None]]:
    """Return who predicts a stream's inputs, with the shares of right and wrong predictions."""
    found: list[tuple[str, Shares | None]] = []
    for model in ("local", "global"):
        if model in stream.models:
            right = 0.0 if name == NOBODY else stream.models[model].pooled.accuracy
            found.append((label(run, model), None if right is None else Shares(right, 1 - right)))
    return [*found, (Markup("<b>this run</b>"), shares_of(run.summary).get(name) if run.summary else None)]


def _bar(shares: Shares) -> Markup:
    parts = {"right": shares.right, "wrong": shares.wrong, "abstain": 1 - shares.answered}
    parts = {kind: share for kind, share in parts.items() if share > 1e-9}
    told = ", ".join(f"{_OUTCOMES[kind]} {percent(share)}" for kind, share in parts.items())
    return svg.drawing(110, 14, told, *stacked_bar(parts, (0, 0), (110, 14), "outcome", _OUTCOMES), class_="interval")


def _outside_table(stream: str, found: Stream) -> Table | None:
    by_model = {name: found.outside[name] for name in models({"": found}) if name in found.outside}
    scores = list(dict.fromkeys(score for each in by_model.values() for score in each))
    of = {name: [each.get(score, Separation()) for score in scores] for name, each in by_model.items()}
    about = "share of own inputs flagged when 95 % of the others are; 0 is best"
    columns = [
        words("score", scores),
        *(column(f"{name} AUROC", map(separated, each), "0.5 is chance, 1 is best") for name, each in of.items()),
        *(column(f"{name} FPR95", (percent(one.fpr95) for one in each), about) for name, each in of.items()),
    ]
    about_stream = f"inputs {known} ({stream})" if (known := in_words(stream)) else stream
    caption = f"How well each score separates {about_stream} from the silo's own test split, mean over silos; "
    return table(columns, f"{caption}a triangle marks a value that is inexact because many scores are equal.")


def _model_table(run: RunFolder) -> Table | None:
    """Return the local, the global and the chosen model side by side; None if there is nothing to choose from."""
    found = run.summary.models if run.summary else {}
    if len(found) < 2:  # one model's metrics are in the mean row of the silos
        return None
    shown = {name: found[name] for name in ("local", "global", "switch", ORACLE) if name in found} | found
    columns = [words("model", (label(run, name) for name in shown))]
    for metric, header, write, help in (*METRICS, ("ece", "ECE", decimal, "expected calibration error")):
        columns.append(column(header, (write(getattr(each.mean, metric)) for each in shown.values()), help))
        if metric == "accuracy":
            worst = (percent(each.worst.accuracy) for each in shown.values())
            columns.append(column("worst silo", worst, "accuracy at the silo with the lowest accuracy"))
    caption = "Metrics of each model if it answers the whole test split, mean over silos."
    return table(columns, caption)


_TIED = 0.02
"""Tolerance of an AUROC above which its value is flagged."""


def separated(found: Separation) -> Cell:
    """Return an AUROC, flagged if it is inexact because many scores are equal."""
    tolerance = found.auroc_tolerance or 0.0
    tied = f"so many scores are equal that the value is only known to within {tolerance:.3f}"
    return Cell(decimal(found.auroc), tied if tolerance > _TIED else "")
