"""What the server knows of the silos: names, domains and sizes, never data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .errors import ConfigurationError, DataError
from .silo import Silo
from .tensors import SiloId

MOST = 10**9
"""The most examples that a silo can say to have in a split, or of a class."""
LONGEST = 500
"""The most characters of the name of a silo or a domain."""
SPLITS = ("train", "validation", "calibration", "test")


@dataclass(frozen=True)
class SiloInfo:
    """A silo's name, where its data come from, and how much it has."""

    name: SiloId
    domain: str
    examples: Mapping[str, int]
    """How many examples each split has."""
    class_counts: tuple[int, ...]
    """Training examples per class."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """How many examples have left a split since the silo joined; empty where none have."""

    @classmethod
    def of(cls, silo: Silo, classes: int) -> SiloInfo:
        """Metadata of a silo, from its data and the number of classes."""
        counts = silo.train.y.bincount(minlength=classes).tolist()
        return cls(silo.name, silo.domain, {split: len(getattr(silo, split)) for split in SPLITS}, tuple(counts))

    @classmethod
    def of_json(cls, value: Any, classes: int) -> SiloInfo:
        """What `to_json` has made, as a silo sends it. Raises DataError for anything else."""
        try:
            dropped = value.get("dropped", {})
            info = cls(value["name"], value["domain"], value["examples"], tuple(value["class_counts"]), dropped)
            counts = [*info.examples.values(), *info.class_counts, *dropped.values()]
            whole = all(type(count) is int and 0 <= count <= MOST for count in counts)
            fits = set(info.examples) == set(SPLITS) >= set(dropped) and len(info.class_counts) == classes
            named = all(
                isinstance(text, str) and text.isprintable() and len(text) <= LONGEST
                for text in (info.name, info.domain)
            )
            if whole and fits and named and sum(info.class_counts) == info.examples["train"]:
                return info
        except (KeyError, TypeError, AttributeError):
            pass
        raise DataError(f"a silo's card that is none: {str(value)[:200]}")

    def to_json(self) -> dict[str, Any]:
        """What a silo sends of itself before it takes part, for `of_json`."""
        found = {**vars(self), "examples": dict(self.examples), "class_counts": list(self.class_counts)}
        del found["dropped"]
        return found | ({"dropped": dict(self.dropped)} if self.dropped else {})

    def rest_of(self, before: SiloInfo) -> bool:
        """Whether this is what a silo has once examples have left it: all that it had are there or counted as left."""
        left = {split: self.dropped.get(split, 0) - before.dropped.get(split, 0) for split in SPLITS}
        return (
            (self.name, self.domain) == (before.name, before.domain)
            and all(left[split] >= 0 for split in SPLITS)
            and all(self.examples[split] + left[split] == before.examples[split] for split in SPLITS)
            and all(now <= then for now, then in zip(self.class_counts, before.class_counts, strict=True))
        )

    @property
    def most(self) -> int:
        """The examples of its largest split: no update can speak for more."""
        return max(self.examples.values())


def positive_class(positive: str | None, classes: Sequence[str]) -> int:
    """The index of the positive class of two: that of its name, or the second one.

    Raises ConfigurationError for a name that neither has, and where there are more classes.
    """
    if positive is None:
        return 1
    if len(classes) != 2:
        raise ConfigurationError(
            f"data.positive_class = {positive!r} names the positive class of two, but there are {len(classes)} "
            "classes; of several each is taken against the rest",
            "data.positive_class",
        )
    if positive not in classes:
        raise ConfigurationError(
            f"data.positive_class = {positive!r}, expected the name of one of the two classes, {classes[0]!r} or "
            f"{classes[1]!r}",
            "data.positive_class",
        )
    return list(classes).index(positive)


class LazySiloInfos(Mapping[SiloId, SiloInfo]):
    """A `SiloInfo` per silo, made when it is asked for, since silos may be many and made on demand themselves."""

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
    """The shape of one input: (C, H, W) of an image, (D,) of features, (T,) of tokens, (T, C) of a series."""
    classes: tuple[str, ...]
    silo_infos: Mapping[SiloId, SiloInfo]
    order: Sequence[SiloId] | None = None
    """The names of the silos; None where `silo_infos` lists them in the order of the run."""
    dtype: torch.dtype = torch.float32
    """The type of inputs: float32, or int64 for ids of tokens."""
    positive: str | None = None
    """Which of two classes figures are of; None for the second one, and where there are more."""

    @classmethod
    def of(
        cls,
        silos: Mapping[SiloId, Silo],
        names: Sequence[SiloId],
        shape: tuple[int, ...],
        classes: tuple[str, ...],
        dtype: torch.dtype = torch.float32,
        positive: str | None = None,
    ) -> FederationInfo:
        return cls(shape, classes, LazySiloInfos(silos, len(classes)), names, dtype, positive)

    def __len__(self) -> int:
        return len(self.silo_infos)

    @property
    def names(self) -> Sequence[SiloId]:
        return list(self.silo_infos) if self.order is None else self.order
