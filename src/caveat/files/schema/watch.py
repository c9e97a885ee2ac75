"""The state of a watch of a served model."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from .base import File, Record, Size


class AlarmRaised(Record):
    """An alarm of a monitor."""

    monitor: str  # inputs, columns or outcomes
    at: Size  # the number of inputs, or of outcomes, at the alarm
    since: Size  # the input since which there is likely a change
    column: str = ""


class WatchFile(File):
    """The state of all monitors of a model, written by `caveat watch` and `caveat serve`."""

    SEALED: ClassVar = True

    model: str  # version of the model: SHA-256 of what decides its answers
    silo: str
    alarm: Annotated[float, Field(gt=0, lt=1)]  # largest chance of ever raising a false alarm
    between: Annotated[int, Field(ge=2)] | None = None  # or the mean number of inputs between false alarms, at least
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # key of the hashes of ids
    ids: list[str]  # hashes of the ids of recent inputs
    answered: dict[str, tuple[float, float]] = {}  # lowest and highest right outcomes, by hashes of answers' rows
    repeats: Size  # inputs that did not count, because their ids had occurred
    every: Size  # inputs between two points
    points: list[tuple[int, float]]  # inputs, and the evidence as a share of that of an alarm
    alarms: list[AlarmRaised]
    monitors: dict[str, dict[str, Any]]  # the state of each
