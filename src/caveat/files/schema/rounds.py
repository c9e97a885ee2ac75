"""What the lines of `rounds.jsonl` hold: figures of silos along the way, and who gave none."""

from __future__ import annotations

from typing import ClassVar

from .figures import Metrics
from .record import Figure, Record
from .summary import Codewords

NO_PART = "had no part in training"
"""Why a silo that came after training, or was away for all of it, is left out of what follows."""


class RoundRow(Metrics):
    """A silo's figures on a split after a round, of what it predicts or of one model, and what its method adds."""

    round: int  # from 1
    phase: str = ""
    split: str
    silo: str
    domain: str = ""
    model: str = ""
    examples: int | None = None
    codewords: Codewords | None = None
    perplexity: Figure = None


class LeftOut(Record):
    """Why a silo that was asked is not counted, or one that is there was not asked."""

    OMITTED: ClassVar = frozenset({"split"})

    round: int
    phase: str = ""
    split: str | None = None  # where it was asked to measure
    silo: str
    left_out: str


class NotedUpdate(Record):
    """What there was to say of a silo's update in a round."""

    OMITTED: ClassVar = frozenset({"times_bound", "times_far"})

    round: int
    phase: str = ""
    silo: str
    noted: str
    times_bound: Figure = None  # its norm over the bound, to which it was scaled down
    times_far: Figure = None  # its distance from the middle of all updates over the median silo's
