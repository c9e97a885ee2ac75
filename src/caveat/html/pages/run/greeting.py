"""What silos with data of their own told the server before the first round, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.text import listed, plain
from ....files.schema.federation import DataSchemaRecord, FederationFile

_MOST = 12
"""Labels or columns that are named."""


def told_before(greeting: FederationFile | None) -> str:
    """What was told; empty where nobody has told anything."""
    if greeting is None:
        return ""
    sketches = list(greeting.sketches.values())
    if not sketches:
        return ""
    told = [_labels(sketches), _columns(sketches) or "the shape of an input"]
    if greeting.silos:
        told.append("of each split the size, the samples per class and a hash")
    silos = "the silo" if len(sketches) == 1 else f"each of {len(sketches)} silos"
    return f"Before the first round {silos} told its name, {'; '.join(told)}."


def _labels(sketches: Sequence[DataSchemaRecord]) -> str:
    labels = dict.fromkeys(label for sketch in sketches for label in sketch.labels)
    return f"its labels ({listed(list(map(plain, labels)), _MOST)})"


def _columns(sketches: Sequence[DataSchemaRecord]) -> str:
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
