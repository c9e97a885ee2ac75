"""Silos by the hundred thousand: each is made when it is asked for, and none is kept for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import overload

from ..core import Silo, SiloId

KEPT = 4
"""How many silos stay in memory: one that takes part is asked for a few times in a row."""


class SiloNames(Sequence[SiloId]):
    """The names silo-000, silo-001, ... in their order, without a list of them in memory."""

    def __init__(self, count: int) -> None:
        self.total, self.width = count, len(str(count - 1))

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, index: int) -> SiloId: ...
    @overload
    def __getitem__(self, index: slice) -> list[SiloId]: ...
    def __getitem__(self, index: int | slice) -> SiloId | list[SiloId]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.total))]
        if not -self.total <= index < self.total:
            raise IndexError(index)
        return f"silo-{index % self.total:0{self.width}d}"

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """The number of the silo with this name. Raises ValueError for any other name."""
        number = str(value).removeprefix("silo-")
        if number.isdecimal() and int(number) < self.total and self[int(number)] == value:
            return int(number)
        raise ValueError(f"{value!r} is not among {self[0]} to {self[-1]}")

    def __contains__(self, value: object) -> bool:
        try:
            self.index(value)
        except ValueError:
            return False
        return True


class Population(Sequence[Silo]):
    """Silos made on demand: `make` gets a silo's number and name, and makes the same silo every time."""

    def __init__(self, count: int, make: Callable[[int, SiloId], Silo]) -> None:
        self.names = SiloNames(count)
        self._made = lru_cache(KEPT)(lambda number: make(number, self.names[number]))

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Silo: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Silo, ...]: ...
    def __getitem__(self, index: int | slice) -> Silo | tuple[Silo, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._made(index % len(self))


class SilosByName(Mapping[SiloId, Silo]):
    """The silos of a population by their names, each made when it is looked up."""

    def __init__(self, population: Population) -> None:
        self.population = population

    def __len__(self) -> int:
        return len(self.population)

    def __iter__(self) -> Iterator[SiloId]:
        return iter(self.population.names)

    def __getitem__(self, name: SiloId) -> Silo:
        if name not in self.population.names:
            raise KeyError(name)
        return self.population[self.population.names.index(name)]
