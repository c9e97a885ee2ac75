"""Test inputs as gallery.json and features.json hold them, and how many of their images a page may show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from .records import Figure, Record
from .svg import Point

_IMAGE_BUDGET = 4_000_000  # characters of base64; what is over it is described without its image
_SILOS_BY_QUADRANT = 5
"""Silos whose quadrants are shown; a reader learns little from more, and each may have dozens of images."""


class Item(Record):
    """One test input; images are base64 PNG, absent for tabular data."""

    image: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")] = None
    label: int  # -1 where it is no class of the model
    predicted: int
    probability: float
    total: Figure = None
    aleatoric: Figure = None
    epistemic: Figure = None
    decision: str | None = None

    @property
    def right(self) -> bool:
        return self.label == self.predicted


class Quadrant(Record):
    """Some of the inputs of one stream that one model was asked about, and answered or abstained from."""

    stream: str
    model: str
    abstained: bool
    items: list[Item]


class GallerySilo(Record):
    name: str
    domain: str = ""
    certain: Sequence[Item] = ()
    uncertain: Sequence[Item] = ()
    quadrants: Sequence[Quadrant] = ()


class Gallery(Record):
    classes: Sequence[str] = ()
    silos: list[GallerySilo]

    @property
    def decided(self) -> bool:
        """Whether decisions differ among the most and least certain inputs."""
        return len({item.decision for silo in self.silos for item in (*silo.certain, *silo.uncertain)}) > 1

    def name_of(self, label: int) -> str:
        if label < 0:
            return "no class of the model"
        return self.classes[label] if label < len(self.classes) else str(label)


class FeatureSilo(Record):
    name: str
    domain: str = ""
    points: Mapping[str, Sequence[Point]]


class Features(Record):
    schema_version: int = Field(alias="schema")
    stages: Sequence[str]
    explained: Sequence[float] = ()
    """Shares of the variance of the first stage along either axis."""
    silos: Sequence[FeatureSilo]

    @model_validator(mode="after")
    def _same_stages(self) -> Features:
        if any(set(silo.points) != set(self.stages) for silo in self.silos):
            raise ValueError("every silo must have points of every stage")
        return self


def within_budget(gallery: Gallery | None) -> Gallery | None:
    """The gallery with as many of its images as a page may weigh, silo by silo; None if it is empty.

    Quadrants, of the first silos only, get what the most and least certain inputs of all silos leave.
    """
    if gallery is None or not any(silo.certain or silo.uncertain or silo.quadrants for silo in gallery.silos):
        return None
    budget = _Budget(_IMAGE_BUDGET)
    ends = [
        silo.model_copy(update={"certain": budget.keep(silo.certain), "uncertain": budget.keep(silo.uncertain)})
        for silo in gallery.silos
    ]
    silos = [
        silo.model_copy(update={"quadrants": budget.keep_of_each(silo.quadrants) if i < _SILOS_BY_QUADRANT else []})
        for i, silo in enumerate(ends)
    ]
    return gallery.model_copy(update={"silos": silos})


class _Budget:
    def __init__(self, characters: int) -> None:
        self.left = characters

    def keep(self, items: Sequence[Item]) -> list[Item]:
        """The items, without the images that there is no room for."""
        kept = []
        for item in items:
            self.left -= len(item.image or "")
            kept.append(item if self.left >= 0 else item.model_copy(update={"image": None}))
        return kept

    def keep_of_each(self, quadrants: Sequence[Quadrant]) -> list[Quadrant]:
        return [quadrant.model_copy(update={"items": self.keep(quadrant.items)}) for quadrant in quadrants]
