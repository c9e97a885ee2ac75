"""What `gallery.json` and `features.json` hold: test inputs to look at, and where they lie among each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from .record import Figure, File, Record

Point = tuple[float, float]


class Item(Record):
    """One test input; images are base64 PNG, absent for tabular data."""

    OMITTED: ClassVar = frozenset({"image"})

    image: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")] = None
    label: int  # -1 where it is no class of the model
    predicted: int
    probability: float
    total: Figure = None
    aleatoric: Figure = None
    epistemic: Figure = None
    dirichlet_entropy: Figure = None
    vacuity: Figure = None
    conflict: Figure = None
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


class SureError(Item):
    """A wrong answer, and whose."""

    silo: str


class Gallery(Record):
    """`gallery.json`."""

    OMITTED: ClassVar = frozenset({"sure_errors"})

    classes: Sequence[str] = ()
    sure_errors: Sequence[SureError] = ()
    """The most certain of all silos' wrong answers, surest first."""
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
    """The labels of some test inputs of one silo, and where they lie at each stage."""

    name: str
    domain: str = ""
    labels: Sequence[int] = ()
    points: Mapping[str, Sequence[Point]]


class Features(File):
    """`features.json`."""

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
