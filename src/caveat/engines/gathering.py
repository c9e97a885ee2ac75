"""A round's replies while they come: kept, or added up in the order of the silos' names and let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Protocol

from ..core import Replies, RunError, SiloId, Update
from ..replies import Sums

TOGETHER = 1 << 27
"""Bytes of replies that are added up in one go: so many that silos of all sizes are among them, the largest of which
can begin first."""
FEWEST = 8
"""Replies that are added up in one go, however large: a sum goes through memory once for all of them."""
AHEAD = 2
"""Groups of silos that are at work or waiting to be added up."""


class Gathering(Protocol):
    """What becomes of replies. Silos are asked group by group."""

    @property
    def groups(self) -> Sequence[Sequence[SiloId]]: ...

    def ready(self, group: int) -> bool:
        """Whether silos of a group may be asked: not before replies of an earlier one have come; waits for no reply."""

    def take(self, silo: SiloId, update: Update) -> None: ...

    def replies(self, population: int) -> Replies: ...


class Kept:
    """All replies, for rounds whose aggregation looks at each of them."""

    def __init__(self, cohort: Sequence[SiloId]) -> None:
        self.groups = [sorted(cohort)]
        self.updates: dict[SiloId, Update] = {}

    def ready(self, group: int) -> bool:
        return True

    def take(self, silo: SiloId, update: Update) -> None:
        self.updates[silo] = update

    def replies(self, population: int) -> Replies:
        return Replies(self.updates, population)


class AddedUp:
    """Replies of a linear round. Memory is needed for a few of them and one sum, whatever the cohort.

    The sum is in the order of names, so that it has the same bits whoever answered first.
    """

    def __init__(self, examples: Mapping[SiloId, int], size: int, aside: Executor | None) -> None:
        """`examples`: what each silo of the cohort counts as. `size`: of a reply in bytes, about.

        `aside` is what adds up, one call after the other; if None, it is the caller.
        """
        self.examples = examples
        names, count = sorted(examples), max(FEWEST, TOGETHER // max(size, 1))
        self.groups = [names[i : i + count] for i in range(0, len(names), count)]
        self.aside = aside
        self.missing = [set(group) for group in self.groups]
        self.waiting: dict[SiloId, Update] = {}
        self.forms: dict[SiloId, Update] = {}
        self.sums = Sums(sum(examples.values()))
        self.submitted: list[Future[None]] = []

    def ready(self, group: int) -> bool:
        before = group - AHEAD
        if before >= len(self.submitted):
            return False
        if before >= 0:
            self.submitted[before].result()
        return True

    def take(self, silo: SiloId, update: Update) -> None:
        if update.payload and update.examples != self.examples[silo]:
            raise RunError(
                f"silo {silo!r} says that its update is of {update.examples} examples, expected {self.examples[silo]}, "
                "as all silos of a round that is declared linear count by their training examples, or all by 1"
            )
        self.waiting[silo], self.forms[silo] = update, update.form()
        for group in range(len(self.submitted), min(len(self.submitted) + AHEAD, len(self.groups))):
            self.missing[group].discard(silo)
        while len(self.submitted) < len(self.groups) and not self.missing[len(self.submitted)]:
            self._add([self.waiting.pop(name) for name in self.groups[len(self.submitted)]])

    def _add(self, updates: list[Update]) -> None:
        if self.aside is None:
            self.sums.add(updates)
            self.submitted.append(Future())
            self.submitted[-1].set_result(None)
        else:
            self.submitted.append(self.aside.submit(_add, self.sums, updates))

    def replies(self, population: int) -> Replies:
        for each in self.submitted:
            each.result()
        return Replies(self.forms, population, means=self.sums.means())


def _add(sums: Sums, updates: list[Update]) -> None:
    sums.add(updates)
    updates.clear()  # or they would be kept until the thread has something else to do
