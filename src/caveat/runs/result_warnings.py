"""Warnings about the result of a finished run: `warnings` of summary.json, which page and terminal show.

A check is a function of the `RunResult` that yields a `Caution` for each thing to know before using the model;
to add one, write the function and append it to `CHECKS`. A method adds its own by `Method.cautions`. Checks of models
use the validation split, because a user changes settings after a warning. Each needs enough inputs for what it says.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..core import Caution, Payload, SiloId
from ..core.text import listed, plain
from ..files.schema import Summary, WarningRecord
from .base import BaseRun

_MOST_NAMES = 12
"""Maximum number of silos that a text names."""


@dataclass(frozen=True)
class RunResult:
    """What checks can use: the run, its summary, and the measurements of each silo on two splits."""

    run: BaseRun
    summary: Summary
    validation: Mapping[SiloId, Payload]
    test: Mapping[SiloId, Payload]


def of_method(result: RunResult) -> Iterator[Caution]:
    """Yield the warnings of the method itself."""
    described = {silo: payload["method"] for silo, payload in result.validation.items() if payload["method"]}
    yield from result.run.complete_method.cautions(described) if described else ()


def full_sets(result: RunResult) -> Iterator[Caution]:
    """Warn of silos whose prediction sets all hold all classes because there are too few calibration inputs."""
    if (sets := result.summary.sets) is None:
        return
    sizes = {silo: payload["sums"]["set_sizes"] for silo, payload in result.test.items()}
    few = {silo.name for silo in result.summary.silos if (silo.n_calibration or 0) < sets.least}
    full = tuple(silo for silo, counts in sizes.items() if silo in few and counts.any() and not counts[:-1].any())
    if full:
        yield Caution(
            "full_sets",
            f"Every prediction set of test inputs holds all classes at {named(full)}, because there are fewer than "
            f"{sets.least} calibration inputs.",
            "Increase data.split.calibration, or lower uncertainty.set_coverage.",
            full,
        )


CHECKS: tuple[Callable[[RunResult], Iterator[Caution]], ...] = (of_method, full_sets)


def result_warnings(result: RunResult) -> list[WarningRecord]:
    """Return the warnings of all checks."""
    found = (caution for check in CHECKS for caution in check(result))
    return [WarningRecord(**each._asdict() | {"silos": list(each.silos)}) for each in found]


def named(silos: tuple[SiloId, ...]) -> str:
    """Return the names of silos for a text; of many, the first ones and how many more there are."""
    return listed(list(map(plain, silos)), _MOST_NAMES)
