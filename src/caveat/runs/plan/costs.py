"""The cost of a run, as `caveat.plan` returns it: rounds, optimizer steps, bytes, seconds and memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

TRAINING, AFTER, EVALUATION = "training", "after training", "evaluation"


class Span(NamedTuple):
    """A number that depends on what is learnt: at least, and at most."""

    least: float
    most: float

    def __add__(self, other: object) -> Span:
        least, most = other if isinstance(other, Span) else (0.0, 0.0)
        return Span(self.least + least, self.most + most)

    def times(self, number: float) -> Span:
        return Span(self.least * number, self.most * number)


NOTHING = Span(0, 0)


class Steps(NamedTuple):
    """Optimizer steps of a silo in a round, over the silos."""

    least: int
    median: int
    most: int


@dataclass(frozen=True)
class PhaseCost:
    """Rounds of one kind, or evaluations of one split. Bytes are in every round but the first one."""

    name: str
    kind: str
    """training, after training or evaluation."""
    silos: int
    """That take part in a round."""
    steps: Steps | None
    """None where nothing is trained."""
    bytes_down: int
    """To one silo."""
    bytes_up: int
    """From one silo."""
    rounds: Span
    total_down: Span
    """To all silos in all rounds."""
    total_up: Span
    total_steps: Span
    seconds: Span


@dataclass(frozen=True)
class Needs:
    """Estimated bytes at the peak; None where the system does not say what memory a process takes."""

    total: int | None
    parent: int | None
    worker: int | None
    workers: int
    """Processes besides the parent."""
    data: int
    """The silos' data, within the parent's memory; of a population those of one silo."""
    replies: int
    """Replies that are in memory at once, and a frozen encoder's rows."""
    disk: int
    """States of the server and of silos."""


@dataclass(frozen=True)
class MethodCost:
    """The cost of one method.

    Bytes are exact where the shapes of messages do not depend on data, as with all methods that come with caveat.
    """

    method: str
    silos: int
    """That take part."""
    looked_at: int
    """Silos whose sizes were read: all, or some of a population."""
    examples: tuple[int, int, int]
    """Training examples of a silo: least, median, most."""
    parameters: int
    """Numbers that the method's model learns."""
    workers: int
    gain: float | None
    """Speed-up of training rounds by stacked silos; None where silos are not stacked."""
    phases: tuple[PhaseCost, ...]
    seconds: Span
    """From when the data are read until the run is finished."""
    seconds_beside: float
    """Those that belong to no phase: the start, the gallery, files, a frozen encoder's rows."""
    seconds_encoding: float
    """Those in which a frozen encoder's rows are computed."""
    needs: Needs

    def total(self, what: str, *kinds: str) -> Span:
        """A sum over phases of some kinds, or of all, such as `total("total_up", "evaluation")`."""
        return sum((getattr(each, what) for each in self.phases if not kinds or each.kind in kinds), NOTHING)


@dataclass(frozen=True)
class Plan:
    """The cost of a run, and of the methods beside it."""

    methods: tuple[MethodCost, ...]
    """The run's own first."""

    @property
    def seconds(self) -> Span:
        """Of all methods."""
        return sum((each.seconds for each in self.methods), NOTHING)

    def as_dict(self) -> dict[str, Any]:
        """All figures as plain values, as `caveat plan --json` prints them. Spans are [least, most]."""
        return {"seconds": self.seconds, **asdict(self)}
