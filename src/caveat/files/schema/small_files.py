"""What the small files of a run's folder hold, beside its figures, its ledger and its pictures."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from .costs import RoundTraffic
from .record import Figure, File, Record


class Origin(File):
    """`origin.json`: the recipe that a configuration is, but for some keys."""

    recipe: str
    sets: list[str] = []  # SECTION.KEY=VALUE


class ModelFile(File):
    """`model/model.json`: what the weights beside it are of. What a silo keeps has no more than the round."""

    OMITTED: ClassVar = frozenset({"personal"})

    method: dict[str, Any] = {}
    t: int  # the schedule's position after which they were sent
    model: dict[str, Any] = {}
    personal: dict[str, dict[str, Any]] = {}  # by silo
    shape: list[int] = []  # of one input
    classes: list[str] = []


class RunState(Record):
    """What is counted along the way of a run that is under way."""

    model_config = ConfigDict(frozen=False)

    number: int = 0
    """Rounds of training so far."""
    last: int = -1
    """The schedule's position of the last round carried out."""
    measured: int = -1
    """The schedule's position of the last round after which silos were evaluated."""
    rows: int = 0
    """Bytes of rounds.jsonl that belong to completed rounds."""
    ledger: int = 0
    """Bytes of ledger.jsonl that belong to completed rounds."""
    traffic: list[RoundTraffic] = []
    milestones: list[dict[str, Figure]] = []
    seconds: dict[str, float] = {"train": 0.0, "evaluate": 0.0, "engine": 0.0}


class Checkpoint(RunState):
    """`state/checkpoint.json`: the round after which a run continues, and what was counted until then."""

    t: int  # the schedule's position
    server: str  # the file of the server's state beside it


class SiloSource(Record):
    """A silo's own data, as its `silo.toml` names them."""

    silo: str
    state: str  # a folder
    source: str
    target: str | None = None
    categorical: list[str] | None = None
    numeric: list[str] | None = None
    decimal: str | None = None
    separator: str | None = None


class SiloKeeps(File):
    """`silo.json`: whose data to predict on, and the terms of the federation that trained the model."""

    file: SiloSource
    terms: str


class Started(File):
    """`started.json`: which project started a federation's run, with which overrides."""

    project: str = ""
    sets: list[str] = Field(default=[], alias="set")
