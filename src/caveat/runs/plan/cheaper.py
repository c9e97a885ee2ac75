"""What would make a run cheaper: keys of its configuration, and by how much, as computed for this very run.

What only counts differently is computed from the rehearsal; what computes otherwise is rehearsed for a round.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ...core import ConfigurationError
from ...training.fit import Training
from ..local import LocalRun
from .encoding import encoding_of
from .estimate import EVALUATION, TRAINING, CostSheet
from .rehearsal import PER_WORKER, Rehearsed, glance
from .sample import typical
from .side_by_side import gain_of

LEAST, CLEAR = 0.05, 0.1
"""Share of the whole time that a saving has to be: one that is counted, and one that was timed."""
WORTH = 20.0
"""Seconds of a run for which other computations are rehearsed."""
MOST = 6
"""Savings that are named."""
PASSES = 5
"""MC samples that a prediction can do with."""
RARELY = 5
"""Rounds between two evaluations."""
SAME, FEWER, OTHER = "the same model", "fewer figures meanwhile", "another model"
ROUNDING = "rounding in training"


@dataclass(frozen=True)
class Saving:
    """A key that would make a run cheaper."""

    key: str
    value: object
    seconds: float
    """That it saves."""
    changes: str
    """What else it changes."""


def savings(run: LocalRun, sheet: CostSheet) -> list[Saving]:
    """The largest savings in seconds, where they are worth something, largest first."""
    usual = sheet.seconds.most
    found = [each for each in savings_by_counting(sheet) if each.seconds > LEAST * usual]
    if usual > WORTH:
        found += [each for each in _rehearsed(run, sheet) if each.seconds > CLEAR * usual]
    return sorted(found, key=lambda each: -each.seconds)[:MOST]


# What only counts differently.


def savings_by_counting(sheet: CostSheet) -> Iterator[Saving]:
    """Savings by doing less of what was rehearsed."""
    usual = sheet.seconds.most
    for key, value, other, changes in _fewer(sheet):
        yield Saving(key, value, usual - other.seconds.most, changes)


def _fewer(sheet: CostSheet) -> Iterator[tuple[str, object, CostSheet, str]]:
    spec, population = sheet.spec, sheet.sizes.population
    if spec.evaluation.stop_after is None and spec.evaluation.every < RARELY:
        yield "evaluation.every", RARELY, on(sheet, evaluation=replace(spec.evaluation, every=RARELY)), FEWER
    if (few := max(10, sheet.cohort // 5)) < sheet.measured:
        yield "evaluation.silos", few, on(sheet, evaluation=replace(spec.evaluation, silos=few)), FEWER
    if (steps := _steps(sheet) // 2) > 0:
        yield "training.local_steps", steps, _with_steps(sheet, steps), OTHER
    if sheet.cohort == population >= 10:
        half = replace(spec.federation, participation=0.5)
        yield "federation.participation", 0.5, on(sheet, federation=half), OTHER


def on(sheet: CostSheet, **settings: Any) -> CostSheet:
    """A sheet with other settings of the run."""
    return replace(sheet, spec=replace(sheet.spec, **settings))


def _is_own(fit: Any, training: object) -> bool:
    """Whether a call is of as many steps as [training] says."""
    return isinstance(training, Training) and (fit.epochs, fit.steps) == (training.local_epochs, training.local_steps)


def _steps(sheet: CostSheet) -> int:
    """Steps of a silo in a round by [training], of the silo in the middle; 0 where a method has no such steps."""
    training = getattr(sheet.spec.method, "training", None)
    own = [fit for each in sheet.rehearsal.phases if each.phase.step.trains for fit in each.fits]
    own = [fit for fit in own if _is_own(fit, training)]
    train = sorted(sheet.sizes.train)
    return own[0].count(train[len(train) // 2]) if own else 0


def _with_steps(sheet: CostSheet, steps: int) -> CostSheet:
    training = getattr(sheet.spec.method, "training", None)

    def shorter(each: Rehearsed) -> Rehearsed:
        fits = (replace(fit, epochs=None, steps=steps) if _is_own(fit, training) else fit for fit in each.fits)
        return replace(each, fits=tuple(fits))

    phases = tuple(shorter(each) if each.phase.step.trains else each for each in sheet.rehearsal.phases)
    return replace(sheet, rehearsal=replace(sheet.rehearsal, phases=phases))


# What computes otherwise.


class Otherwise(NamedTuple):
    """A key with which a run computes otherwise."""

    key: str
    value: object
    run: Callable[[], LocalRun]
    changes: str
    kinds: tuple[str, ...] = (TRAINING, EVALUATION)
    """Phases that it changes."""


def _rehearsed(run: LocalRun, sheet: CostSheet) -> Iterator[Saving]:
    """Savings by other computations, a round of which is carried out."""
    if run.stacked == "off" and (gain := gain_of(replace(run, stacked="auto"), sheet)) is not None:
        yield Saving("engine.stacked", "auto", sheet.of(TRAINING).most * (1 - 1 / gain), ROUNDING)
    others = list(_otherwise(run, sheet))
    usual = glance_at(run, sheet) if others else {}
    for each in others:
        try:
            other = each.run()
            other.check()
            found = glance_at(other, sheet)
        except ConfigurationError:
            continue  # not for this method or model
        saved = sum(sheet.of(kind).most * (1 - found[kind] / usual[kind]) for kind in each.kinds if usual[kind])
        encoding = None if sheet.encoding else encoding_of(other, sheet.sizes, next(iter(sheet.sizes.of)))
        spent = replace(sheet, encoding=encoding).encoding_seconds if encoding else 0.0
        yield Saving(each.key, each.value, saved - spent, each.changes)


def _otherwise(run: LocalRun, sheet: CostSheet) -> Iterator[Otherwise]:
    spec, cores, method = run.spec, os.cpu_count() or 1, vars(run.spec.method)
    workers = min(cores, sheet.cohort)
    if (workers > run.workers and hasattr(os, "fork")) or run.workers > cores:
        yield Otherwise("engine.workers", workers, lambda: replace(run, workers=workers), SAME)
    if method.get("mc_samples", 0) > PASSES and sheet.of(EVALUATION).most > 2 * LEAST * sheet.seconds.most:
        changes = "coarser uncertainty"
        yield Otherwise("uncertainty.mc_samples", PASSES, lambda: _with_samples(run), changes, (EVALUATION,))
    training = method.get("training")
    if isinstance(training, Training) and training.precision == "float32" and has_bfloat16():
        low = partial(replace, training, precision="bfloat16")
        yield Otherwise("training.precision", "bfloat16", lambda: _with(run, training=low()), ROUNDING, (TRAINING,))
    if spec.model.encoder is not None and not spec.model.frozen:
        model = replace(spec.model, frozen=True)
        yield Otherwise("model.frozen", True, lambda: replace(run, spec=replace(spec, model=model)), OTHER)


def _with(run: LocalRun, **fields: Any) -> LocalRun:
    """A run whose method has other fields."""
    method: Any = run.spec.method
    return replace(run, spec=replace(run.spec, method=replace(method, **fields)))


def _with_samples(run: LocalRun) -> LocalRun:
    other = _with(run, mc_samples=PASSES)
    return replace(other, spec=replace(other.spec, uncertainty=replace(run.spec.uncertainty, mc_samples=PASSES)))


def has_bfloat16() -> bool:
    """Whether this processor computes in bfloat16 itself."""
    known: Sequence[str] = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in known)


def glance_at(run: LocalRun, sheet: CostSheet) -> dict[str, float]:
    """Seconds of a round of training, and of measuring what is measured along the way."""
    found = glance(run, typical(sheet.sizes, PER_WORKER * run.workers))
    other = replace(sheet, rehearsal=replace(sheet.rehearsal, workers=min(run.workers, sheet.cohort)))
    measured = sum(each.seconds for each in found.measuring.values()) / min(run.workers, sheet.cohort)
    return {TRAINING: other.round_seconds(found, sheet.cohort), EVALUATION: measured}
