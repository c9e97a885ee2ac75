"""The record of a cell of the leaderboard: one method, trained on one federation with one seed and evaluated with
several sources of uncertainty."""

from typing import Any, ClassVar

from .base import Figure, File, Record, Share, Size
from .training_files import FileSum


class AlarmShares(Record):
    """Shares of a silo's inputs of one kind that raise an alarm, by the reason of the alarm."""

    unfamiliar: Share
    novel: Share
    unsure: Share

    @property
    def any(self) -> float:
        """The share of inputs with any alarm."""
        return (self.unfamiliar or 0.0) + (self.novel or 0.0) + (self.unsure or 0.0)


class KeptPromise(Record):
    """The errors on a silo's test inputs under the policy "guaranteed", which other metrics of the board do not use."""

    promised: Share
    """The guaranteed maximum share of errors among answered inputs."""
    answered: int
    wrong: int


class CellSilo(Record):
    """Metrics of a silo's test inputs, with the model that answers at the silo."""

    n: int
    accuracy: Share
    nll: Figure
    augrc: Share
    error_auroc: Share
    """None unless there are both right and wrong answers."""
    alarms: dict[str, AlarmShares]
    """Shares of alarms by kind of inputs: own, new, near, far."""
    guarantee: KeptPromise | None = None


class CellEce(Record):
    """The calibration error over the test inputs of all silos, and the 95 % quantile of this error for a calibrated
    model."""

    value: Share
    chance95: Share


class CellSource(Record):
    """The metrics and the cost of one source of uncertainty."""

    silos: dict[str, CellSilo]
    ece: CellEce
    trainings: float
    """Number of trainings of the method that the source needs."""
    up: Size
    """Number of bytes that all silos send, without evaluations."""
    down: Size


class BoardCell(File):
    """`cells/FEDERATION.METHOD.SEED.json`. If the same cell is made again, only `seconds` differs."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({"failed", "inputs", "code"})

    federation: str
    method: str
    seed: int
    split: str
    """SHA-256 of the positions of all silos' inputs in their splits."""
    settings: dict[str, Any]
    version: str
    code: str | None = None
    """SHA-256 of the source of a custom method's classes; None for built-in methods."""
    sources: dict[str, CellSource]
    inputs: FileSum | None = None
    """The size and hash of the file with the scores per input; None if the cell failed."""
    failed: str | None = None
    seconds: dict[str, float]
    """Seconds of training and, by source, of the rounds and predictions after training."""
