"""Every test input's contributions to the metrics of runs, and the differences and contrasts based on them."""

import math
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core import Data, DataError, Payload, Silo, Tensors
from ...data import Inputs, Silos
from ...files import to_bytes, write_bytes
from ...files.schema import Contrast, ContrastRecord, Measure
from ...metrics import LOWER_IS_BETTER, contributions
from ...runs.finished_run import Run
from ..statistics import Array as Floats
from ..statistics import Difference, SeedDifferences, Whole, estimate, reported_intervals, verdicts
from .compared_run import FinishedRun, inputs_file
from .folder import ComparisonFolder

INPUT, CHOSEN = "input", "own"
"""The id of every test input, and the prediction of the silo, which may choose between models."""
FOREIGN = "ood_local"
"""The stream of inputs that only other silos know; its arrays have this name and a slash as prefix."""
PER_INPUT = re.compile(
    r"((streams/(?P<stream>ind|ood_local)/)?models/(?P<model>\*|global|local)/)?(?P<over>pooled/|mean/)?(?P<figure>\w+)"
)
"""Metrics whose values per input are stored: metrics of silos or, with "over", of whole runs."""
TELLING = frozenset({"auroc_error", "fpr95_error"})
"""Metrics of error detection, which depend on few errors."""
COUNTED = TELLING | {"accuracy", "coverage", "answered_accuracy", "coverage_at_1", "coverage_at_5", "risk_at_80",
                     "interval_coverage"}  # fmt: skip
"""Metrics that are shares of test inputs."""


def write_inputs(run: Run, silos: Silos) -> None:
    """Predict the evaluated silos' test splits, and the inputs that only other silos know, with the models of a
    finished run, and write each input's contributions to each metric (`caveat.metrics.contributions`).

    The file has arrays (N,) for each silo: the ids of inputs, and MODEL/METRIC for the silo's prediction and for each
    model; for the stream it has only the accuracy, because some of its labels may not be classes of any model.
    """
    evaluated = [silos.named(silo["name"]) for silo in run.summary["silos"]]
    positions = [silo.indices["test"] for silo in evaluated if "test" in silo.indices]
    one_source = bool(positions) and len({*torch.cat(positions).tolist()}) == sum(map(len, positions))
    write_bytes(inputs_file(run.folder), to_bytes({silo.name: _inputs_at(run, silo, one_source) for silo in evaluated}))


def _inputs_at(run: Run, silo: Silo, one_source: bool) -> Tensors:
    found = _contributed(run, silo, silo.test, "test", one_source)
    if FOREIGN in silo.streams and FOREIGN in silo.indices:
        foreign = _contributed(run, silo, silo.streams[FOREIGN], FOREIGN, one_source)
        found |= {f"{FOREIGN}/{name}": each for name, each in foreign.items()}
    return found


def _contributed(run: Run, silo: Silo, data: Data, name: str, one_source: bool) -> Tensors:
    x = Inputs(data.x, subgroup=silo.subgroups.get(name))
    y, answers = silo.values.get(name, data.y).cpu(), run.answers(silo.name)(x)
    models = {CHOSEN: run.experiment.predictor(silo.name)(x.x, x.subgroup)}
    models |= {decision.name.lower(): answer for decision, answer in answers.items()}
    # With one source, its domains are shifts, and an input is the same in each of them.
    if name not in silo.indices:
        origin, positions = silo.name, torch.arange(len(y))
    else:
        origin, positions = "" if one_source else silo.domain, silo.indices[name].cpu()
    kept = {INPUT: ((zlib.crc32(origin.encode()) % 2**31) * 2**32 + positions)}
    for model, prediction in models.items():
        if name == FOREIGN:
            kept[f"{model}/accuracy"] = (prediction.label.cpu() == y).float()
        else:
            kept |= {f"{model}/{figure}": each.float() for figure, each in contributions(prediction, y).items()}
    return kept


class Stratum(NamedTuple):
    """A silo's test inputs, or the stream's: ids, and differences between two runs with the same seed."""

    inputs: Whole
    values: Floats


def steps_of(run: FinishedRun, measure: Measure) -> dict[str, float]:
    """Return per silo 1/n if its value is a share of its n test inputs, else 0."""
    counts = measure.figure.rpartition("/")[2] in COUNTED
    return {silo.name: 1 / silo.n_test if counts and silo.n_test else 0.0 for silo in run.silos}


def paired(measure: Measure, a: FinishedRun, b: FinishedRun) -> SeedDifferences | None:
    """Return the differences in a measure between two runs with the same seed; None if they lack it. They are per
    input, or else per silo or for the whole run, which treats test inputs as fixed."""
    ours, theirs = ({"": one} if (one := run.of_run(measure)) is not None else run.of_silos(measure) for run in (a, b))
    silos = sorted(name for name in ours if not math.isnan(ours[name] - theirs.get(name, math.nan)))
    if not silos:
        return None
    values = np.array([ours[silo] - theirs[silo] for silo in silos])
    found = PER_INPUT.fullmatch(measure.figure or measure.path)
    if found is not None and bool(measure.path) == bool(found["over"]):
        stream = f"{FOREIGN}/" * (found["stream"] == FOREIGN)
        name = f"{stream}{(found['model'] or '*').replace('*', CHOSEN)}/{found['figure']}"
        if strata := _strata((a, b), None if measure.path else silos, f"{stream}{INPUT}", name):
            steps = float(found["figure"] in COUNTED)
            pooled = found["over"] == "pooled/"
            return SeedDifferences(*_joined(strata), pooled, steps=steps, whole=float(values.mean()))
    steps_at = steps_of(a, measure)
    return SeedDifferences(
        None, np.arange(len(values)), values, steps=np.array([steps_at.get(silo, 0.0) for silo in silos])
    )


def _strata(runs: tuple[FinishedRun, FinishedRun], silos: list[str] | None, inputs: str, name: str) -> list[Stratum]:
    """Return the differences in the arrays `name` of these silos, or of all that have them; empty if inputs differ."""
    ours, theirs = (run.inputs or {} for run in runs)
    names = [silo.name for silo in runs[0].silos if name in ours.get(silo.name, {})] if silos is None else silos
    kept = [(ours.get(silo, {}), theirs.get(silo, {})) for silo in sorted(names)]
    if not all(name in one and name in other and torch.equal(one[inputs], other[inputs]) for one, other in kept):
        return []
    return [Stratum(one[inputs].numpy(), (one[name].double() - other[name].double()).numpy()) for one, other in kept]


def _joined(strata: list[Stratum]) -> tuple[Whole, Whole, Floats]:
    """Return ids, numbers of strata and values of all strata's inputs."""
    return (
        np.concatenate([each.inputs for each in strata]),
        np.repeat(np.arange(len(strata)), [len(each.inputs) for each in strata]),
        np.concatenate([each.values for each in strata]),
    )


def differences(contrast: Contrast, a: FinishedRun, b: FinishedRun) -> SeedDifferences:
    """Return the differences in a contrast's metric between two runs with the same seed. Raises DataError if their test
    inputs differ, or a model or the metric is missing."""
    ours, theirs = (run.inputs or {} for run in (a, b))
    if ours.keys() != theirs.keys():
        raise DataError(f"{inputs_file(a.folder)} and {inputs_file(b.folder)} contain different silos")
    if unknown := [silo for silo in contrast.silos if silo not in ours]:
        raise DataError(f"contrast {contrast.claim!r}: no silo {unknown[0]!r}; silos: {', '.join(sorted(ours))}")
    streams = {"": 1.0} if contrast.known is None else {"": contrast.known, f"{FOREIGN}/": 1 - contrast.known}
    strata, counts = list[Stratum](), list[Floats]()
    for silo in sorted(contrast.silos or ours):
        for stream, share in streams.items():
            strata.append(_stratum(contrast, (a.folder, ours), (b.folder, theirs), silo, stream))
            counts.append(np.full(len(strata[-1].inputs), share / max(len(strata[-1].inputs), 1)))
    return SeedDifferences(
        *_joined(strata), contrast.pooled, None if contrast.known is None else np.concatenate(counts),
        steps=float(contrast.figure in COUNTED),
    )  # fmt: skip


def _stratum(contrast: Contrast, a: tuple[Path, Payload], b: tuple[Path, Payload], silo: str, stream: str) -> Stratum:
    places = tuple(inputs_file(folder) for folder, _ in (a, b))
    models = (contrast.model or CHOSEN, contrast.b_model or contrast.model or CHOSEN)
    kept = tuple(_kept(found[silo], stream) for _, found in (a, b))
    for place, each, model in zip(places, kept, models, strict=True):
        if not each:
            raise DataError(f"{place} has no out-of-distribution inputs of silo {silo!r}, which `known` needs")
        if f"{model}/{contrast.figure}" not in each:
            raise DataError(f"{place} has no {contrast.figure} of the {model!r} model at silo {silo!r}")
    if not torch.equal(kept[0][INPUT], kept[1][INPUT]):
        raise DataError(f"{places[0]} and {places[1]} have different test inputs of silo {silo!r}")
    one, other = (each[f"{model}/{contrast.figure}"].double().numpy() for each, model in zip(kept, models, strict=True))
    return Stratum(kept[0][INPUT].numpy(), one - other)


def _kept(found: dict[str, Tensor], stream: str) -> Tensors:
    return {name.removeprefix(stream): each for name, each in found.items() if name.startswith(stream)}


def contrast_records(results: ComparisonFolder) -> tuple[ContrastRecord, ...]:
    """Return a record per contrast; verdicts only when all runs are finished, to prevent peeking.

    Intervals of contrasts that are not decided are corrected for all contrasts.
    """
    contrasts, seeds = results.grid.contrasts, results.grid.seeds
    found = [_estimate(results, contrast) for contrast in contrasts]
    known = [each for each, count in found if count == len(seeds) and not math.isnan(each.error)]
    if not contrasts or len(known) < len(contrasts):
        return tuple(_record(contrast, count) for contrast, (_, count) in zip(contrasts, found, strict=True))
    turned = [
        replace(each, mean=-each.mean) if contrast.figure in LOWER_IS_BETTER else each
        for each, contrast in zip(known, contrasts, strict=True)
    ]
    decided = verdicts(turned, [contrast.margin for contrast in contrasts])
    ends = reported_intervals(known, [verdict for *_, verdict in decided])
    return tuple(
        _record(contrast, len(seeds)).model_copy(
            update={
                "mean": each.mean, "low": low, "high": high,
                "p_different": different, "p_equal": equal, "verdict": verdict,
            }
        )
        for contrast, each, (low, high), (different, equal, verdict)
        in zip(contrasts, known, ends, decided, strict=True)
    )  # fmt: skip


def _record(contrast: Contrast, seeds: int) -> ContrastRecord:
    return ContrastRecord(**vars(contrast), seeds=seeds)


def _estimate(results: ComparisonFolder, contrast: Contrast) -> tuple[Difference, int]:
    """Return the estimate from the seeds for which both runs are finished, and their number."""
    grid = results.grid
    setting = next(setting for setting in grid.columns if setting.name == contrast.column)
    a, b = (next(method for method in grid.rows if method.name == name) for name in (contrast.a, contrast.b))
    seeds = []
    for seed in grid.seeds:
        planned = [results.planned(setting, method, seed) for method in (a, b)]
        runs = [found for run in planned if run is not None and (found := results.done(run)) is not None]
        if len(runs) == 2 and all(run.inputs is not None for run in runs):
            seeds.append(differences(contrast, *runs))
    return estimate(seeds), len(seeds)
