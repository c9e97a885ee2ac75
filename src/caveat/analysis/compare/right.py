"""Which test inputs a run's models have right, one by one: what contrasts are decided by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core import DataError
from ...data import Silos
from ...files.atomic import write_bytes
from ...files.payloads import read_payload, to_bytes
from ...files.schema.grid import Contrast
from ...runs.configured import open_run
from ..contrasts import SeedDifferences

INPUT, OWN = "input", "own"
"""The position of every test input in its source; whether the silo's own prediction of it is right."""


def place_of(folder: Path) -> Path:
    """Where a run's right answers are: beside its folder, which is as any other run's."""
    return folder.with_name(f"{folder.name}.right.safetensors")


def write_right(folder: Path, silos: Silos) -> None:
    """Ask the models of the finished run in a folder about the test splits of its silos, and keep what they have right.

    Per silo (N,): the inputs, whether what the silo predicts is right, and whether each model at hand is.
    """
    run, found = open_run(folder), {}
    for silo in silos:
        x, y = silo.test.x, silo.test.y.cpu()
        models = {decision.name.lower(): answer.label for decision, answer in run.answers(silo.name)(x).items()}
        labels = {OWN: run.predictor(silo.name)(x).label, **models}
        right = {name: (label.cpu() == y).to(torch.uint8) for name, label in labels.items()}
        found[silo.name] = {INPUT: silo.indices["test"].cpu(), **right}
    write_bytes(place_of(folder), to_bytes(found))


def differences(contrast: Contrast, a: Path, b: Path) -> SeedDifferences:
    """What two runs with the same seed, in these folders, have right and the other has not.

    Raises DataError where they were not asked about the same inputs, or a model is not there.
    """
    ours, theirs = read_payload(place_of(a)), read_payload(place_of(b))
    model = contrast.model or OWN
    inputs, silos, values = list[NDArray[Any]](), list[NDArray[Any]](), list[NDArray[Any]]()
    if ours.keys() != theirs.keys():
        raise DataError(f"{place_of(a)} and {place_of(b)} have different silos")
    for number, name in enumerate(sorted(ours)):
        one, other = ours[name], theirs[name]
        for place, each in ((a, one), (b, other)):
            if model not in each:
                raise DataError(f"{place_of(place)} has no answers of the model {model!r} at silo {name!r}")
        if not torch.equal(one[INPUT], other[INPUT]):
            raise DataError(f"{place_of(a)} and {place_of(b)} have different test inputs of silo {name!r}")
        inputs.append(one[INPUT].numpy())
        silos.append(np.full(len(one[INPUT]), number))
        values.append(one[model].numpy().astype(np.float64) - other[model].numpy())
    return SeedDifferences(np.concatenate(inputs), np.concatenate(silos), np.concatenate(values), contrast.pooled)
