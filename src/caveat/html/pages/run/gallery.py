"""Examples of test inputs: as many images as a page may hold, and examples of each quadrant."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ....files.run_folder import RunFolder
from ....files.schema import Gallery, Item, Quadrant
from .decisions import ABOUT, OWN
from .uncertainty import QUADRANTS, two_models

Kept = TypeVar("Kept", bound=Item)
_IMAGE_BUDGET = 4_000_000  # characters of base64; what is over it is described without its image
_SILOS_BY_QUADRANT = 5
"""Silos whose quadrants are shown; a reader learns little from more, and each may have dozens of images."""


def within_budget(gallery: Gallery | None) -> Gallery | None:
    """The gallery with as many of its images as a page may hold, silo by silo; None if it is empty.

    Quadrants, of the first silos only, get the budget that the most and least certain inputs of all silos leave.
    """
    if gallery is None:
        return None
    if not gallery.sure_errors and not any(s.certain or s.uncertain or s.quadrants for s in gallery.silos):
        return None
    budget = _Budget(_IMAGE_BUDGET)
    sure_errors = budget.keep(gallery.sure_errors)
    ends = [
        silo.model_copy(update={"certain": budget.keep(silo.certain), "uncertain": budget.keep(silo.uncertain)})
        for silo in gallery.silos
    ]
    silos = [
        silo.model_copy(update={"quadrants": budget.keep_of_each(silo.quadrants) if i < _SILOS_BY_QUADRANT else []})
        for i, silo in enumerate(ends)
    ]
    return gallery.model_copy(update={"silos": silos, "sure_errors": sure_errors})


class _Budget:
    def __init__(self, characters: int) -> None:
        self.left = characters

    def keep(self, items: Sequence[Kept]) -> list[Kept]:
        """The items, without the images that there is no room for."""
        kept = []
        for item in items:
            self.left -= len(item.image or "")
            kept.append(item if self.left >= 0 else item.model_copy(update={"image": None}))
        return kept

    def keep_of_each(self, quadrants: Sequence[Quadrant]) -> list[Quadrant]:
        return [quadrant.model_copy(update={"items": self.keep(quadrant.items)}) for quadrant in quadrants]


_ONE_MODEL = tuple(replace(q, name="abstained" if q.abstained else "answered") for q in QUADRANTS)
Examples = tuple[Sequence[str], Sequence[tuple[str, Sequence[Sequence[Item]]]]]
"""A silo's examples: the streams, and for each quadrant its name and the items of every stream."""


def examples(run: RunFolder, gallery: Gallery | None) -> dict[str, Examples]:
    """By silo, its examples of each quadrant that has any."""
    chosen = run.summary and run.summary.policy.name != OWN and two_models(run.summary.tested)
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
