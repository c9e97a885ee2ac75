"""What a comparison was made to decide: each contrast with its difference and verdict."""

from __future__ import annotations

from ....core.text import MINUS, plural, probability
from ....files.schema.comparison import Comparison, ContrastRecord
from ...tables import Table, column, table, words

_ABOUT = (
    "Contrasts and margins were fixed before the table was made. Intervals count test inputs and seeds as random and "
    "silos as fixed; p-values are corrected by Holm's method over all contrasts, for being different and for being "
    "equal within the margin."
)
_OWN = "what silos predict with"
_WHOSE = {"": "", "own": _OWN, "global": "the federation's model", "local": "silos' own models"}


def contrast_table(record: Comparison) -> Table | None:
    """A row per contrast; None where nothing was to be decided."""
    found = record.contrasts
    columns = [
        words("claim", (each.claim for each in found)),
        words("contrast", map(named, found)),
        column("difference in points", (_points(each.mean) for each in found)),
        column("95 % interval", map(_interval, found)),
        words("verdict", map(said, found)),
        column("Holm p, different", (probability(each.p_different) for each in found)),
        column("Holm p, equal", (probability(each.p_equal) for each in found)),
    ]
    return table(columns, _ABOUT) if found else None


def decided(record: Comparison) -> list[str]:
    """A sentence per contrast, for a terminal."""
    lines = []
    for each in record.contrasts:
        by = f" {_points(each.mean)} points ({_interval(each)})" if each.mean is not None else ""
        lines.append(f"{each.claim}: {named(each)}{by}: {said(each)}")
    return lines


def named(contrast: ContrastRecord) -> str:
    """Both methods, the setting, and whose accuracy it is."""
    whose = _WHOSE.get(contrast.model, contrast.model)
    known = "" if contrast.known is None else f"{100 * contrast.known:g} % known"
    at = f"at {' and '.join(contrast.silos)}" if contrast.silos else ""
    b = contrast.b
    if contrast.b_model:
        b, whose = f"{b}: {_WHOSE.get(contrast.b_model, contrast.b_model)}", ""
    a = f"{contrast.a}: {_WHOSE.get(contrast.model, contrast.model) or _OWN}" if contrast.b_model else contrast.a
    where = ", ".join(part for part in (contrast.column, whose, known, at, "pooled" * contrast.pooled) if part)
    return f"{a} {MINUS} {b}" + (f" ({where})" if where else "")


def said(contrast: ContrastRecord) -> str:
    """The verdict in words."""
    margin = f"{100 * contrast.margin:g} point" + ("" if contrast.margin == 0.01 else "s")
    if contrast.verdict == "equal":
        return f"equal within {margin}"
    if contrast.verdict in ("better", "worse"):
        return f"{contrast.a} is {contrast.verdict}"
    return contrast.verdict or f"open: {plural(contrast.seeds, 'seed')} done"


def _points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f}".replace("-", MINUS)


def _interval(contrast: ContrastRecord) -> str:
    return f"{_points(contrast.low)} to {_points(contrast.high)}" if contrast.low is not None else ""
