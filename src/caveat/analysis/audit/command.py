"""Carry out `caveat audit`, and parse the texts of its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from ... import data
from ...config import Config
from ...core import ConfigurationError
from ...core.errors import cut
from ...runs.progress import Progress
from ...runs.spec import spec_of
from .procedure import Audit, audit_of

Number = TypeVar("Number", int, float)


def audit_configured(
    config: Config, out: Path, seeds: str, shares: str, workers: int | None, progress: Progress
) -> Audit:
    """Audit the configured method in folder `out`; methods beside it are left out, `seed` decides the splits."""
    if config.federation.newcomers:
        raise ConfigurationError("federation.newcomers is not for audits, in which every silo takes part")
    return audit_of(
        spec_of(config),
        data.load(config.data, config.seed),
        numbers(seeds, "--seeds", int, "0,1,2"),
        numbers(shares, "--shares", lambda text: float(Fraction(text)), "1/8,1/4,1/2,1"),
        replace(config.engine, workers=workers or config.engine.workers),
        out,
        progress,
    )


def numbers(text: str, option: str, read: Callable[[str], Number], example: str) -> tuple[Number, ...]:
    """Numbers between commas. Raises ConfigurationError naming the option."""
    try:
        return tuple(read(part.strip()) for part in text.split(","))
    except (ValueError, ZeroDivisionError, OverflowError):
        about = f"{option} {cut(text, 100)}: expected numbers between commas, for instance {example}"
        raise ConfigurationError(about) from None
