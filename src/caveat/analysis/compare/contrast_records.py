"""What a comparison has decided of its contrasts so far."""

from __future__ import annotations

import math

from ...files.schema.comparison import ContrastRecord
from ...files.schema.grid import Contrast
from ..contrasts import ContrastEstimate, estimate, verdicts
from .folder import ComparisonFolder
from .right import differences, place_of


def contrast_records(results: ComparisonFolder) -> tuple[ContrastRecord, ...]:
    """A record per contrast; verdicts once all runs of all of them are there, so that none is looked at before."""
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
    """Of the seeds of which both runs are there, and how many these are."""
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
