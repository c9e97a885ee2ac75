"""The four quadrants of what is known: whose turn it was to answer, and whether the answer was sure enough to be given.

Kotelevskii et al., Dirichlet-Based Uncertainty Quantification for Personalized Federated Learning with Improved
Posterior Networks, IJCAI 2024, table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ....core.text import percent
from ....files.run_folder import RunFolder
from ....files.schema.figures import INSIDE, NOBODY, Stream
from ....files.schema.gallery import Gallery, Item
from ...charts.svg import element
from ...tables import Table, column, table, words
from .streams import ABOUT, OWN


@dataclass(frozen=True)
class Case:
    """What is known of an input: by whom, and whether enough to answer."""

    name: str
    meaning: str
    model: str
    abstained: bool

    @property
    def key(self) -> str:
        """Under which summaries count it."""
        return f"{self.model}_{'unsure' if self.abstained else 'sure'}"


QUADRANTS = (
    Case("known knowns", "the silo's own model knows such inputs: it answers", "local", False),
    Case("known unknowns", "the silo's own model knows such inputs, this one is ambiguous: no answer", "local", True),
    Case("unknown knowns", "the silo does not know them, the federation does: its model answers", "global", False),
    Case("unknown unknowns", "neither the silo's nor the federation's model knows enough: no answer", "global", True),
)
_ONE_MODEL = tuple(replace(q, name="abstained" if q.abstained else "answered") for q in QUADRANTS)
_BEST = {INSIDE: QUADRANTS[0], "ood_local": QUADRANTS[2], NOBODY: QUADRANTS[3]}


def quadrants(tested: dict[str, Stream]) -> Table | None:
    """A row per quadrant, a column per stream; None where there is no choice between two models to tell them by."""
    found = {name: stream.quadrants for name, stream in tested.items() if sum(stream.quadrants.values())}
    if not found or not _two_models(tested):
        return None
    names = (element("span", q.name) + element("span", q.meaning, class_="meaning") for q in QUADRANTS)
    columns = [column(name, (_cell(counts, q.key) for q in QUADRANTS)) for name, counts in found.items()]
    caption = "What was known of each stream's test inputs: how many fell into each quadrant, and their share"
    best = [f"{name} in {_BEST[name].name}" for name in found if name in _BEST]
    wanted = f"; best is {', '.join(best)}" if len(best) > 1 else ""
    return table([words("quadrant", names), *columns], f"{caption}{wanted}.")


def _two_models(tested: dict[str, Stream]) -> bool:
    return any(len(stream.models) > 1 for stream in tested.values())


def _cell(counts: dict[str, int], key: str) -> Markup:
    count = counts.get(key, 0)
    share = element("small", percent(count / sum(counts.values())))
    return Markup("{} {}").format(f"{count:,}", share)


Examples = tuple[Sequence[str], Sequence[tuple[str, Sequence[Sequence[Item]]]]]
"""A silo's examples: the streams, and for each quadrant its name and the items of every stream."""


def examples(run: RunFolder, gallery: Gallery | None) -> dict[str, Examples]:
    """By silo, its examples of each quadrant that it has any of."""
    chosen = run.summary and run.summary.policy.name != OWN and _two_models(run.summary.tested)
    shown = QUADRANTS if chosen else _ONE_MODEL
    found: dict[str, Examples] = {}
    for silo in gallery.silos if gallery else []:
        items = {(q.model, q.abstained, q.stream): q.items for q in silo.quadrants if q.items}
        streams = sorted({stream for *_, stream in items}, key=_place)
        rows = [(q.name, [items.get((q.model, q.abstained, stream), []) for stream in streams]) for q in shown]
        if items:
            found[silo.name] = streams, [row for row in rows if any(row[1])]
    return found


def _place(stream: str) -> tuple[int, str]:
    names = list(ABOUT)
    return names.index(stream) if stream in names else len(names), stream
