"""A few silos that stand for all: as large as silos are in the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ...core import Silo, SiloId
from ...data.population import Population
from ...data.splits import NAMES
from ..local import LocalRun

LOOKED_AT = 50
"""Silos of a population that are made to see how large silos are."""


@dataclass(frozen=True)
class Sizes:
    """How large silos are: examples by split, of all of them or of those that were looked at."""

    of: dict[SiloId, dict[str, int]]
    population: int
    """How many there are."""
    bytes: int
    """Of the data of those that were looked at."""

    @property
    def train(self) -> list[int]:
        return [each["train"] for each in self.of.values()]

    @property
    def complete(self) -> bool:
        """Whether all silos were looked at."""
        return len(self.of) == self.population


def sizes_of(run: LocalRun) -> Sizes:
    """How large the participants of a run are; of a population some, evenly over all."""
    names = run.participants
    population = isinstance(run.silos.silos, Population)
    looked_at = spread(names, LOOKED_AT) if population else list(names)
    of, size = {}, 0
    by_name = run.silos.by_name
    for name in looked_at:
        silo = by_name[name]
        of[name] = {split: len(getattr(silo, split)) for split in NAMES}
        size += bytes_of(silo)
    return Sizes(of, len(names), size)


def bytes_of(silo: Silo) -> int:
    """Bytes of a silo's inputs and labels."""
    parts = [*(getattr(silo, split) for split in NAMES), *silo.streams.values()]
    return sum(len(part) * (part.x[:1].nbytes + part.y.element_size()) for part in parts)


def spread(names: Sequence[SiloId], count: int) -> list[SiloId]:
    """So many of the names, evenly over all."""
    if len(names) <= count:
        return list(names)
    return [names[i * (len(names) - 1) // max(count - 1, 1)] for i in range(count)]


def typical(sizes: Sizes, count: int) -> tuple[SiloId, ...]:
    """So many silos, those nearest to the mean in training examples, in the order of their names."""
    middle = mean(sizes.train)
    nearest = sorted(sizes.of, key=lambda name: (abs(sizes.of[name]["train"] - middle), name))
    return tuple(sorted(nearest[:count]))
