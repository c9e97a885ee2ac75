"""Plans of configurations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from ... import data
from ...config import Config
from ...core.devices import find_devices
from ..configured import check, local_run
from ..local import LocalRun
from .plan import Plan, plan


def plan_configured(config: Config) -> Plan:
    """What `caveat run` of a configuration will cost, methods beside it included.

    Raises ConfigurationError or DataError for what cannot be run, before anything is rehearsed.
    """
    silos, nowhere = data.load(config.data, config.seed), Path()
    check(config, silos, nowhere)
    devices = find_devices(config.engine.device, config.engine.workers)
    run = local_run(config, silos, nowhere, None, devices)
    return plan(run, lambda rounds: _beside(replace(config, rounds=rounds), silos, nowhere, devices))


def _beside(config: Config, silos: data.Silos, folder: Path, devices: tuple[torch.device, ...]) -> Iterator[LocalRun]:
    for name in config.beside:
        yield local_run(config, silos, folder, name, devices)
