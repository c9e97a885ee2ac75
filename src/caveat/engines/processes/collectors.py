"""A round's replies while they come: kept, or added up in the order of the silos' names and let go."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from itertools import pairwise
from typing import Protocol

import torch

from ...core import Payload, Replies, RunError, SiloId, Update
from ...core.aggregation import RunningSums
from ..checks.norms import BUFFERED, Admission

TOGETHER = 1 << 27
"""Bytes of replies that are added up in one go: so many that silos of all sizes are among them, the largest of which
can begin first."""
FEWEST = 8
"""Replies that are added up in one go, however large: a sum goes through memory once for all of them."""
BUFFERS = 2
"""Groups of silos that are at work or waiting to be added up."""


class ReplyCollector(Protocol):
    """Takes the replies of a round as they come. Silos are asked group by group."""

    @property
    def groups(self) -> Sequence[Sequence[SiloId]]:
        """The cohort, in the order in which its parts are asked."""

    def ready(self, group: int) -> bool:
        """Whether silos of a group may be asked: not before replies of an earlier one have come.

        Waits until those are added up, and raises what that has raised, but does not wait for replies.
        """

    def take(self, silo: SiloId, update: Update) -> None:
        """A silo has replied."""

    def replies(self, population: int) -> Replies:
        """The replies of a federation of so many silos, after the last one has come."""


class BufferedReplies:
    """All replies, for rounds whose aggregation looks at each of them."""

    def __init__(self, cohort: Sequence[SiloId], admission: Admission | None = None) -> None:
        self.groups, self.admission = [sorted(cohort)], admission
        self.updates: dict[SiloId, Update] = {}

    def ready(self, group: int) -> bool:
        return True

    def take(self, silo: SiloId, update: Update) -> None:
        self.updates[silo] = update

    def replies(self, population: int) -> Replies:
        return Replies(self.updates if self.admission is None else self.admission.admit(self.updates), population)


class StreamingMean:
    """Replies of a linear round. Memory is needed for a few of them and one sum, whatever the cohort.

    The sum is in the order of names, so that it has the same bits whoever answered first.
    """

    def __init__(
        self,
        examples: Mapping[SiloId, int],
        size: int,
        workers: int,
        aside: Executor | None,
        admission: Admission | None = None,
    ) -> None:
        """`examples` is what each silo of the cohort counts as. `size` is the bytes of what was sent; replies are
        assumed to be as large. `aside` adds up, one call after the other; where it is None, the caller does. Updates
        are admitted in the order of groups, as they are added up.
        """
        self.examples, self.aside, self.admission = examples, aside, admission
        names, count = sorted(examples), max(FEWEST, 2 * workers, TOGETHER // max(size, 1))
        first = max(count, BUFFERED) if admission is not None and admission.waits else count
        ends = [0, *range(first, len(names), count), len(names)]
        self.groups = [names[begin:end] for begin, end in pairwise(ends) if begin < end]
        self.group = {name: number for number, names in enumerate(self.groups) for name in names}
        self.missing = [len(names) for names in self.groups]
        self.waiting: dict[SiloId, Update] = {}
        self.forms: dict[SiloId, Update] = {}
        self.layout: list[tuple[str, str, torch.Size, torch.dtype]] | None = None
        self.form: Payload = {}
        self.sums = RunningSums(sum(examples.values()))
        self.submitted: list[Future[None]] = []

    def ready(self, group: int) -> bool:
        before = group - BUFFERS
        if before >= len(self.submitted):
            return False
        if before >= 0:
            self.submitted[before].result()
        return True

    def take(self, silo: SiloId, update: Update) -> None:
        if update.examples != self.examples[silo]:
            raise RunError(
                f"silo {silo!r} says that its update is of {update.examples} examples, expected {self.examples[silo]}, "
                "as all silos of a round that is declared linear count by their training examples, or all by 1"
            )
        self.waiting[silo], self.forms[silo] = update, self._form(update)
        self.missing[self.group[silo]] -= 1
        while len(self.submitted) < len(self.groups) and not self.missing[len(self.submitted)]:
            self._add({name: self.waiting.pop(name) for name in self.groups[len(self.submitted)]})

    def _form(self, update: Update) -> Update:
        """Shared by updates of the same layout: tensors take memory even without numbers."""
        layout = [
            (group, name, t.shape, t.dtype) for group, named in update.payload.items() for name, t in named.items()
        ]
        if layout != self.layout:
            self.layout, self.form = layout, update.form().payload
        return Update(self.form, update.examples)

    def _add(self, updates: dict[SiloId, Update]) -> None:
        if self.aside is None:
            _add(self.sums, updates, self.admission)
            self.submitted.append(Future())
            self.submitted[-1].set_result(None)
        else:
            self.submitted.append(self.aside.submit(_add, self.sums, updates, self.admission))

    def replies(self, population: int) -> Replies:
        for each in self.submitted:
            each.result()
        return Replies(self.forms, population, means=self.sums.means())


def _add(sums: RunningSums, updates: dict[SiloId, Update], admission: Admission | None) -> None:
    sums.add(list((updates if admission is None else admission.admit(updates)).values()))
    updates.clear()  # before anybody hears that it is done, and looks whether their memory can be used again
