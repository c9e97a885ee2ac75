"""Plans of configurations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ... import data
from ...config import Config
from ..configured import check, local_run
from ..local import LocalRun
from .plan import Plan, plan


def plan_configured(config: Config) -> Plan:
    """What `caveat run` of a configuration will cost, methods beside it included.

    Raises ConfigurationError or DataError for what cannot be run, before anything is rehearsed.
    """
    silos, nowhere = data.load(config.data, config.seed), Path()
    check(config, silos, nowhere)
    run = local_run(config, silos, nowhere)
    return plan(run, lambda rounds: _beside(replace(config, rounds=rounds), silos, nowhere))


def _beside(config: Config, silos: data.Silos, folder: Path) -> Iterator[LocalRun]:
    for name in config.beside:
        yield local_run(config, silos, folder, name)
