"""Which test inputs the models of runs predict correctly, and the contrasts that these decide."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core import Data, DataError, Payload, Silo, Tensors
from ...data import Silos
from ...files import read_payload, to_bytes, write_bytes
from ...files.schema import Contrast, ContrastRecord
from ...runs.local import Run
from ...runs.opening import open_run
from ..statistics import Array as Floats
from ..statistics import ContrastEstimate, SeedDifferences, Whole, estimate, verdicts
from .folder import ComparisonFolder

INPUT, CHOSEN = "input", "own"
"""The position of every test input in its source, and whether the silo's prediction is correct."""
FOREIGN = "ood_local"
"""The stream of inputs that only other silos know; its arrays have this name and a slash as prefix."""


def place_of(folder: Path) -> Path:
    """Return the file with a run's correct predictions, next to its folder."""
    return folder.with_name(f"{folder.name}.right.safetensors")


def write_right(folder: Path, silos: Silos) -> None:
    """Predict the silos' test splits and the inputs that only other silos know with the models of a finished run, and
    write which predictions are correct.

    Per silo, arrays (N,): the inputs, whether the silo's prediction is correct, and whether each model's is; and the
    same for the stream.
    """
    run = open_run(folder)
    write_bytes(place_of(folder), to_bytes({silo.name: _right_at(run, silo) for silo in silos}))


def _right_at(run: Run, silo: Silo) -> Tensors:
    found = _right(run, silo, silo.test, "test")
    if FOREIGN in silo.streams and FOREIGN in silo.indices:
        foreign = _right(run, silo, silo.streams[FOREIGN], FOREIGN)
        found |= {f"{FOREIGN}/{name}": each for name, each in foreign.items()}
    return found


def _right(run: Run, silo: Silo, data: Data, name: str) -> Tensors:
    y = data.y.cpu()
    models = {decision.name.lower(): answer.label for decision, answer in run.answers(silo.name)(data.x).items()}
    labels = {CHOSEN: run.predictor(silo.name)(data.x).label, **models}
    right = {model: (label.cpu() == y).to(torch.uint8) for model, label in labels.items()}
    return {INPUT: silo.indices[name].cpu(), **right}


class Stratum(NamedTuple):
    """Correctness on a silo's test inputs, or on the stream's, of two runs with the same seed."""

    inputs: Whole
    values: Floats
    """1 if only the first run is correct, -1 if only the second is, else 0."""


def differences(contrast: Contrast, a: Path, b: Path) -> SeedDifferences:
    """Return the differences in correctness of two runs with the same seed, in these folders.

    Raises DataError if their test inputs differ or a model is missing.
    """
    ours, theirs = read_payload(place_of(a)), read_payload(place_of(b))
    if ours.keys() != theirs.keys():
        raise DataError(f"{place_of(a)} and {place_of(b)} have different silos")
    if unknown := [silo for silo in contrast.silos if silo not in ours]:
        raise DataError(f"contrast {contrast.claim!r}: no silo {unknown[0]!r}; there are: {', '.join(sorted(ours))}")
    streams = {"": 1.0} if contrast.known is None else {"": contrast.known, f"{FOREIGN}/": 1 - contrast.known}
    strata, counts = list[Stratum](), list[Floats]()
    for silo in sorted(contrast.silos or ours):
        for stream, share in streams.items():
            strata.append(_stratum(contrast, (a, ours), (b, theirs), silo, stream))
            counts.append(np.full(len(strata[-1].inputs), share / max(len(strata[-1].inputs), 1)))
    return SeedDifferences(
        np.concatenate([each.inputs for each in strata]),
        np.repeat(np.arange(len(strata)), [len(each.inputs) for each in strata]),
        np.concatenate([each.values for each in strata]),
        contrast.pooled,
        None if contrast.known is None else np.concatenate(counts),
    )


def _stratum(contrast: Contrast, a: tuple[Path, Payload], b: tuple[Path, Payload], silo: str, stream: str) -> Stratum:
    places = tuple(place_of(folder) for folder, _ in (a, b))
    models = (contrast.model or CHOSEN, contrast.b_model or contrast.model or CHOSEN)
    kept = tuple(_kept(found[silo], stream) for _, found in (a, b))
    for place, each, model in zip(places, kept, models, strict=True):
        if not each:
            raise DataError(f"{place} has no out-of-distribution inputs of silo {silo!r}, which `known` needs")
        if model not in each:
            raise DataError(f"{place} has no predictions of the {model!r} model at silo {silo!r}")
    if not torch.equal(kept[0][INPUT], kept[1][INPUT]):
        raise DataError(f"{places[0]} and {places[1]} have different test inputs of silo {silo!r}")
    right = [each[model].numpy().astype(np.float64) for each, model in zip(kept, models, strict=True)]
    return Stratum(kept[0][INPUT].numpy(), right[0] - right[1])


def _kept(found: dict[str, Tensor], stream: str) -> Tensors:
    return {name.removeprefix(stream): each for name, each in found.items() if name.startswith(stream)}


def contrast_records(results: ComparisonFolder) -> tuple[ContrastRecord, ...]:
    """Return a record per contrast; verdicts only when all runs are finished, to prevent peeking."""
    contrasts, seeds = results.grid.contrasts, results.grid.seeds
    found = [_estimate(results, contrast) for contrast in contrasts]
    known = [each for each, count in found if count == len(seeds) and not math.isnan(each.error)]
    if not contrasts or len(known) < len(contrasts):
        return tuple(_record(contrast, count) for contrast, (_, count) in zip(contrasts, found, strict=True))
    decided = verdicts(known, [contrast.margin for contrast in contrasts])
    return tuple(
        _record(contrast, len(seeds)).model_copy(
            update={
                "mean": each.mean, "low": each.interval()[0], "high": each.interval()[1],
                "p_different": different, "p_equal": equal, "verdict": verdict,
            }
        )
        for contrast, each, (different, equal, verdict) in zip(contrasts, known, decided, strict=True)
    )  # fmt: skip


def _record(contrast: Contrast, seeds: int) -> ContrastRecord:
    return ContrastRecord(**vars(contrast), seeds=seeds)


def _estimate(results: ComparisonFolder, contrast: Contrast) -> tuple[ContrastEstimate, int]:
    """Return the estimate from the seeds of which both runs are finished, and their number."""
    grid = results.grid
    setting = next(setting for setting in grid.columns if setting.name == contrast.column)
    a, b = (next(method for method in grid.rows if method.name == name) for name in (contrast.a, contrast.b))
    seeds = []
    for seed in grid.seeds:
        planned = [results.planned(setting, method, seed) for method in (a, b)]
        places = [results.place(run) for run in planned if run is not None and results.done(run) is not None]
        if len(places) == 2 and all(place_of(place).exists() for place in places):
            seeds.append(differences(contrast, *places))
    return estimate(seeds), len(seeds)
