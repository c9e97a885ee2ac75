"""What silos with data of their own told the server before the first round, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from .records import Record
from .words import listed, plain

_MOST = 12
"""Labels or columns that are named."""


class ColumnSketch(Record):
    name: str
    categories: tuple[str, ...] = ()


class Sketch(Record):
    labels: tuple[str, ...]
    columns: tuple[ColumnSketch, ...] = ()


class Greeting(Record):
    """What `federation.json` keeps of it: a sketch and a card per silo."""

    sketches: Mapping[str, Sketch] = Field(default_factory=dict)
    silos: Mapping[str, object] = Field(default_factory=dict)

    def __str__(self) -> str:
        """Empty where nobody has told anything."""
        sketches = list(self.sketches.values())
        if not sketches:
            return ""
        told = [_labels(sketches), _columns(sketches) or "the shape of an input"]
        if self.silos:
            told.append("of each split the size, the samples per class and a hash")
        silos = "the silo" if len(sketches) == 1 else f"each of {len(sketches)} silos"
        return f"Before the first round {silos} told its name, {'; '.join(told)}."


def _labels(sketches: Sequence[Sketch]) -> str:
    labels = dict.fromkeys(label for sketch in sketches for label in sketch.labels)
    return f"its labels ({listed(list(map(plain, labels)), _MOST)})"


def _columns(sketches: Sequence[Sketch]) -> str:
    """Its columns, each with the number of its categories over all silos."""
    found: dict[str, set[str]] = {}
    for sketch in sketches:
        for column in sketch.columns:
            found.setdefault(column.name, set()).update(column.categories)
    if not found:
        return ""
    known = {name: len(categories) for name, categories in found.items() if categories}
    text = (
        f"the names of its columns ({listed(list(map(plain, found)), _MOST)}), which of them hold numbers or miss any"
    )
    if known:
        counts = [f"{plain(name)}: {count} in all" for name, count in known.items()]
        text += f", and the categories in its training split ({listed(counts, _MOST)})"
    return text
