"""What a run has to know of its silos beside their data: all that the server of a real federation ever does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import DataError
from .silo import Silo
from .tensors import SiloId

MOST = 10**9
"""Examples of a split, or of a class."""
LONGEST = 500
"""Characters of the name of a silo or a domain."""
SPLITS = ("train", "validation", "calibration", "test")


@dataclass(frozen=True)
class SiloInfo:
    """A silo's name, where its data come from, and how much it has."""

    name: SiloId
    domain: str
    examples: Mapping[str, int]
    """Per split."""
    class_counts: tuple[int, ...]
    """Training examples per class."""

    @classmethod
    def of(cls, silo: Silo, classes: int) -> SiloInfo:
        counts = silo.train.y.bincount(minlength=classes).tolist()
        return cls(silo.name, silo.domain, {split: len(getattr(silo, split)) for split in SPLITS}, tuple(counts))

    @classmethod
    def of_json(cls, value: Any, classes: int) -> SiloInfo:
        """A card from the wire. Raises DataError for what is none."""
        try:
            card = cls(value["name"], value["domain"], value["examples"], tuple(value["class_counts"]))
            counts = [*card.examples.values(), *card.class_counts]
            whole = all(type(count) is int and 0 <= count <= MOST for count in counts)
            fits = set(card.examples) == set(SPLITS) and len(card.class_counts) == classes
            named = all(
                isinstance(text, str) and text.isprintable() and len(text) <= LONGEST
                for text in (card.name, card.domain)
            )
            if whole and fits and named and sum(card.class_counts) == card.examples["train"]:
                return card
        except (KeyError, TypeError, AttributeError):
            pass
        raise DataError(f"a silo's card that is none: {str(value)[:200]}")

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "examples": dict(self.examples), "class_counts": list(self.class_counts)}

    @property
    def most(self) -> int:
        """The examples of its largest split: no update can speak for more."""
        return max(self.examples.values())


class LazySiloInfos(Mapping[SiloId, SiloInfo]):
    """What is known of each silo, made when it is asked for."""

    def __init__(self, silos: Mapping[SiloId, Silo], classes: int) -> None:
        self.silos, self.classes = silos, classes

    def __len__(self) -> int:
        return len(self.silos)

    def __iter__(self) -> Iterator[SiloId]:
        return iter(self.silos)

    def __getitem__(self, name: SiloId) -> SiloInfo:
        return SiloInfo.of(self.silos[name], self.classes)


@dataclass(frozen=True)
class FederationInfo:
    """The silos of a run, in its order, and what their inputs and labels are."""

    shape: tuple[int, ...]
    """Of one input: (C, H, W) or (D,)."""
    classes: tuple[str, ...]
    silo_infos: Mapping[SiloId, SiloInfo]
    order: Sequence[SiloId] | None = None
    """The names, where they need not be listed."""

    @classmethod
    def of(
        cls, silos: Mapping[SiloId, Silo], names: Sequence[SiloId], shape: tuple[int, ...], classes: tuple[str, ...]
    ) -> FederationInfo:
        return cls(shape, classes, LazySiloInfos(silos, len(classes)), names)

    def __len__(self) -> int:
        return len(self.silo_infos)

    @property
    def names(self) -> Sequence[SiloId]:
        return list(self.silo_infos) if self.order is None else self.order
