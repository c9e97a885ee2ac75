"""What a run says of stacked silos, and that it goes on as it began."""

from collections.abc import Mapping
from pathlib import Path

from ..core import ConfigurationError, Method
from ..files.schema import StackedRecord


def check_stacked(folder: Path, mode: str, kept: str) -> None:
    """Raises ConfigurationError unless the mode is the one that a checkpoint has kept: numbers differ by rounding."""
    if mode != kept:
        raise ConfigurationError(
            f"{folder}: engine.vectorized = {mode!r}, but the run began with {kept!r}; put it back, or begin another "
            f"run",
            "engine.vectorized",
        )


def training_works(decided: Mapping[str, StackedRecord], method: Method) -> dict[str, StackedRecord]:
    """Which works of a run were carried out stacked, and why others that train were not: by their name, with the groups
    that silos kept before.
    """
    training = {step.name for step in method.schedule() if step.trains}
    found = {}
    for address, record in decided.items():
        path, space, groups = address.partition(" ")
        name = path.rpartition(".")[2]
        if record.stacked or name in training:
            found[name + space + groups] = record
    return found


def not_stacked(works: Mapping[str, StackedRecord]) -> list[str]:
    """What there is to say of works that were to be stacked."""
    return [
        f"{name}: {'some ' if record.stacked else ''}silos were trained one after the other: {record.why}"
        for name, record in works.items()
        if record.why
    ]
