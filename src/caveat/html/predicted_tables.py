"""Tables of a page of predictions: shifted columns, answers, and the strangest and the surest inputs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from ..core import Decision, Reason
from ..core.text import count, decimal, initial, percent, plain, probability, ranges
from . import svg
from .predicted_inputs import PredictedInputs
from .templates import Table, column, table, words

_SHOWN = 8
"""Number of strangest and of surest inputs."""
_MOST_ALARMS = 12
"""Maximum number of inputs with an alarm that are listed."""
_MOST_COLUMNS = 8
"""Maximum number of columns of the file in a table of inputs."""
_MOST_RANGES = 40
WHY = {
    Reason.NONE: "",
    Reason.UNDEFINED: "probabilities are not finite",
    Reason.UNFAMILIAR: "unlike the silo's own inputs",
    Reason.NOVEL: "far from all of the silo's training inputs",
    Reason.UNSURE: "more uncertain than the silo's own",
    Reason.AMBIGUOUS: "aleatoric uncertainty above the policy's limit",
    Reason.UNCERTAIN: "uncertainty above the policy's limit",
    Reason.UNTESTED: "the policy has no limit with a guarantee",
    Reason.OUTSIDE: "a value outside the data dictionary",
    Reason.EMPTY: "all values are missing",
}
"""Reasons for a person's decision, in words."""


def shifted(found: PredictedInputs) -> Table | None:
    each = found.prediction.unlike_columns
    if not each:
        return None
    written = [
        [f"{value:.4g}" if one.figure == "median" else percent(value) for value in (one.here, one.known)]
        for one in each
    ]
    counts = [[f" (n = {size:,})" * bool(size) for size in one.values] for one in each]
    columns = [
        words("column", (plain(one.name) for one in each)),
        words("what differs", (plain(one.figure) for one in each)),
        column("here", (here + n for (here, _), (n, _) in zip(written, counts, strict=True))),
        column("the silo's own", (known + n for (_, known), (_, n) in zip(written, counts, strict=True))),
        column("corrected p", (probability(one.p) for one in each)),
    ]
    return table(
        columns,
        "Columns in which all rows together differ from the silo's own calibration rows; p-values are corrected for "
        "all tests. The share missing is of all rows, the other figures are of the n rows with a value.",
    )


def answers(found: PredictedInputs) -> Table | None:
    """Return the number of inputs by label, for the model and for a person, or quantiles of predictions for a quantity
    or a time; None if a person decides all inputs."""
    if all(found.referred):
        return None
    if found.figures:
        return _quantiles(found)
    labels = [found.label(i) for i in range(len(found.prediction))]
    pairs = Counter(zip(labels, found.referred, strict=True))
    names = [name for name in (*found.classes, "undefined") if pairs[name, True] or pairs[name, False]]
    columns = [words("predicted", map(plain, names))]
    used = "beside a person's decision" if found.beside else "for the model"
    for who, referred in ((used, False), ("for a person", True)):
        columns.append(column(who, (count(pairs[name, referred] or None) for name in names)))
    return table(columns, "Inputs by the most probable class.")


def _quantiles(found: PredictedInputs) -> Table | None:
    """Return the lowest, the median and the highest prediction, in a row for the model and one for a person."""
    name, values = next(iter(found.figures.items()))
    rows: list[tuple[str, list[float]]] = []
    for kind, wanted in (("for the model", False), ("for a person", True)):
        known = [v for v, referred in zip(values.tolist(), found.referred, strict=True)
                 if referred is wanted and not math.isnan(v)]  # fmt: skip
        rows += [(kind, sorted(known))] if known else []
    columns = [words("", (kind for kind, _ in rows)), column("inputs", (count(len(known)) for _, known in rows))]
    for head, share in (("lowest", 0.0), ("median", 0.5), ("highest", 1.0)):
        columns.append(column(head, (_number(known[round(share * (len(known) - 1))]) for _, known in rows)))
    return table(columns, f"Predicted {name}s." if name == "value" else "Predicted median times.") if rows else None


def _number(value: float) -> str:
    """Return a number as text, which may be infinite; empty for NaN."""
    return "" if math.isnan(value) else f"{value:.4g}"


def strangest(found: PredictedInputs) -> list[int]:
    values, raised = found.prediction.typicality, found.alarms.raised if found.alarms else 0
    shown = min(max(_SHOWN, raised), _MOST_ALARMS)
    order = found.doubt.nan_to_num(nan=math.inf).argsort(stable=True, descending=True)  # among equal p-values
    if values is not None:
        order = order[values[order].nan_to_num(nan=-math.inf).argsort(stable=True)]
    return order[:shown].tolist()


def first(found: PredictedInputs) -> str:
    """Return the order of the strangest inputs, in words."""
    p_values = found.prediction.typicality
    if p_values is None or not len(p_values):
        return "most uncertain first"
    among = found.ranked_among
    least = f", so at least 1/{among + 1:,}" if isinstance(found.prediction.ranked_among, int) else ""
    return f"lowest p-value (typicality among {among:,} calibration inputs{least}) first"


def tied(found: PredictedInputs) -> str:
    """Return how many inputs have p-values as low as the listed inputs, if there are more of them, and the rows that a
    person decides, if these are some of the rows of a table."""
    values, shown = found.prediction.typicality, strangest(found)
    tied = int((values <= values[shown[-1]]).sum()) if values is not None and shown else 0
    text = f" {tied:,} inputs have p-values as low as these; the most uncertain are shown." * (tied > len(shown))
    if not found.files and 0 < sum(found.referred) < len(found.prediction):
        rows = ranges((i for i, referred in enumerate(found.referred) if referred), _MOST_RANGES)
        alone = " without the label" * found.beside
        text += f" A person decides rows {rows}{alone}."
    return text


def surest(found: PredictedInputs, last: bool = False) -> list[int]:
    """Return the surest inputs without an abstention or, if `last`, the least sure ones; at most `_SHOWN`."""
    order = found.doubt.argsort(stable=True, descending=last).tolist()
    return [i for i in order if found.answered[i]][:_SHOWN]


def _finite(number: float, write: Callable[[float], str]) -> str:
    """Return a number as text, empty if it is undefined."""
    return write(number) if math.isfinite(number) else ""


def _share(probability: float) -> str:
    return "> 99.9 %" if probability >= 0.9995 else percent(probability)


def _decider(found: PredictedInputs, i: int) -> str:
    if found.referred[i]:
        return "a person"
    if found.beside:
        return "a person with the label"
    return f"{Decision(int(found.prediction.decision[i])).name.lower()} model"


def inputs(found: PredictedInputs, places: Sequence[int], caption: str, rows_told: bool = False) -> Table | None:
    """Return a row per input with its prediction, the values of its columns, and its note; `rows_told` is whether
    the caption contains `tied`."""
    if not places:
        return None
    prediction, reasons, quantity = found.prediction, found.reasons, bool(found.figures)
    order = {name: i for i, name in enumerate(found.unlike)}  # shifted columns first
    shown = sorted(found.cells.items(), key=lambda each: order.get(plain(each[0]), len(order)))[:_MOST_COLUMNS]
    images = [image and svg.element("img", src=f"data:image/png;base64,{image}", alt=found.place(i))
              for i in places for image in [found.image(i)]]  # fmt: skip
    p = prediction.typicality
    p_values = ["" if p is None else _finite(float(p[i]), probability) for i in places]
    same = len(set(p_values)) == 1 < len(places) and bool(p_values[0])
    deciders = [_decider(found, i) for i in places]
    one = len(set(deciders)) == 1 < len(places)
    columns = [
        words("input", (found.place(i) for i in places)),
        words("image", (image or "" for image in images)),
        *(column(name, (_number(float(values[i])) for i in places)) for name, values in found.figures.items()),
        words("predicted", ("" if quantity else plain(found.label(i)) for i in places)),
        words("who decides", [""] * len(places) if one else deciders),
        words("reason", (WHY[reasons[i]] for i in places)),
        column("probability", ("" if quantity else _finite(float(prediction.probs[i].max()), _share) for i in places)),
        column("p-value", [""] * len(places) if same else p_values),
        column("uncertainty", ("" if quantity else _finite(float(found.doubt[i]), decimal) for i in places), "nats"),
        *(words(plain(name), (plain(values[i], 24) or "missing" for i in places)) for name, values in shown),
        words("note", (plain(prediction.input_notes[i]) if prediction.input_notes else "" for i in places)),
    ]
    caption += f" Each of the {len(places)} shown has the p-value {p_values[0]}." * same
    known = deciders[0] == "a person" and (all(found.referred) or (rows_told and not found.files))
    who = deciders[0] if deciders[0].startswith("a person") else f"the {deciders[0]}"
    caption += f" {initial(who)} decides each." * (one and not known)
    more = len(found.cells) - len(shown)
    caption += f" {more:,} further columns of the file are not shown." if more > 0 else ""
    return table(columns, caption)
