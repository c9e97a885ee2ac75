"""The file with the state of a watch of a served model."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from .base import File, Record, Size


class AlarmRaised(Record):
    """An alarm of a monitor."""

    monitor: str  # inputs, columns or outcomes
    at: Size  # number of inputs, or of outcomes, until the alarm
    since: Size  # number of the first input or outcome after the likely change
    column: str = ""


class WatchFile(File):
    """The state of all monitors of a model, written by `caveat watch` and `caveat serve`."""

    SEALED: ClassVar = True

    model: str  # version of the model: SHA-256 of everything that determines its answers
    silo: str
    alarm: Annotated[float, Field(gt=0, lt=1)]  # maximum probability of ever raising a false alarm
    between: Annotated[int, Field(ge=2)] | None = None  # instead of `alarm`: minimum mean inputs between false alarms
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # the key with which ids are hashed
    ids: list[str]  # hashes of the ids of recent inputs
    answered: dict[str, tuple[float, float]] = {}  # lowest and highest right outcome, by the hash of the answer's row
    repeats: Size  # number of inputs that were not counted, because their ids had occurred before
    every: Size  # number of inputs between two points
    points: list[tuple[int, float]]  # number of inputs, and the evidence as a share of that of an alarm
    alarms: list[AlarmRaised]
    monitors: dict[str, dict[str, Any]]  # the states of the monitors, by name
