"""What the files of an audit hold: `plan.json`, what its runs have in common, and `audit.json`, what came of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from .record import File, Record

Verdict = Literal["holds", "does not hold", "cannot say", "does not apply"]


class Participating(Record):
    """How many silos a round asks."""

    share: float
    least: int


class AuditPlan(Record):
    """`plan.json`: what decides the results of an audit's runs, apart from shares and seeds."""

    OMITTED: ClassVar = frozenset({"privacy", "server"})

    method: dict[str, Any]
    model: dict[str, Any]
    uncertainty: dict[str, Any]
    privacy: dict[str, Any] = {}
    server: dict[str, Any] = {}
    participation: Participating
    personal: list[str]
    data: dict[str, Any]


class AccuracyRecord(Record):
    """Accuracy with all data beside what chance gives, shares in 0..1, and what to say before all else."""

    mean: float
    by_chance: float
    error: float
    at_chance: bool
    warning: str | None


@dataclass(frozen=True)
class Finding:
    """One promise, and what became of it."""

    name: str
    claim: str
    """What the name of the uncertainty promises."""
    verdict: Verdict
    sentence: str
    """What was found, in plain words."""
    measured: Mapping[str, Any]
    """The numbers behind it, as JSON has them."""


class FusedCopies(Record):
    """Opinions of which so many copies are fused, means over silos; what is kept of their vacuity, if they hold any."""

    copies: float
    vacuity: float
    confidence: float
    kept: float | None


class AuditFile(File):
    """`audit.json`."""

    OMITTED: ClassVar = frozenset({"privacy", "server"})

    schema_version: int = Field(alias="schema")
    version: str
    seeds: list[int]
    shares: list[float]
    silos: int
    method: dict[str, Any]
    model: dict[str, Any]
    uncertainty: dict[str, Any]
    privacy: dict[str, Any] = {}
    server: dict[str, Any] = {}
    participation: Participating
    personal: list[str]
    accuracy: AccuracyRecord
    findings: list[Finding]
    runs: list[dict[str, int | float]]
    """Per run its share, seed and training examples per silo, and means over silos: accuracy and uncertainties."""
    plane: list[list[int]]
    """Test inputs by rank of epistemic (row) and of aleatoric uncertainty (column) in their silo."""
    fusion: dict[str, list[list[FusedCopies]]]
    """By rule, seed and number of copies that were fused; empty where there are no opinions."""
