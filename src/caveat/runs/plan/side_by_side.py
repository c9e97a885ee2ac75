"""What training silos side by side gains a run, by the trial that decides it, with a few steps of training."""

from __future__ import annotations

from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from ...engines.stacking.chunk import StackedPlace
from ...engines.stacking.decisions import Stacking
from ...training.fit import Training
from ..local import LocalRun
from .estimate import CostSheet
from .phases import phases
from .rehearsal import Rehearsed, Stage, in_short
from .sample import typical

STEPS = 3
"""Of training, with which it is tried."""


def gain_of(run: LocalRun, sheet: CostSheet) -> float | None:
    """How many times as fast the run's rounds of training are side by side, as `engine.stacked` has it; None where they
    are not carried out so.
    """
    method: Any = run.spec.method
    training = vars(method).get("training")
    if run.stacked == "off" or sheet.cohort < 2 or not isinstance(training, Training):
        return None
    few = replace(method, training=replace(training, local_epochs=None, local_steps=STEPS))
    short = replace(run, spec=replace(run.spec, method=few), workers=1)
    with TemporaryDirectory(prefix="caveat-plan-") as folder:
        stage = Stage(in_short(short, folder, typical(sheet.sizes, 2)))
        return _measured(stage, sheet.cohort, run.workers, run.stacked == "on")


def _measured(stage: Stage, cohort: int, workers: int, anyway: bool) -> float | None:
    with stage.open():
        engine = stage.engine
        phase = next(each for each in phases(engine.method) if each.step.trains)
        step, t = phase.step, phase.begin
        done = stage.exchange(t, step)
        if phase.count > 1:  # later rounds are carried out as the second one is
            stage.aggregate(step, done)
            t += 1
        sent = step.broadcast(stage.server)
        silos = list(engine.silos)[:cohort]
        one = engine.states.get(stage.sample[0])  # which stands for what all have kept by then
        kept = {} if one is None else dict.fromkeys(silos, one)
        stacking = Stacking("auto")
        stacking.plan(StackedPlace(engine.executor), t, step.address, sent, silos, engine.examples, kept, workers)
    gains = [record.gain for record in stacking.works.values() if record.stacked or anyway]
    found = [gain for gain in gains if gain is not None]
    return min(found) if found and len(found) == len(stacking.works) else None


def faster(sheet: CostSheet, gain: float) -> CostSheet:
    """A sheet on which rounds of training take so much less."""

    def shorter(each: Rehearsed) -> Rehearsed:
        if not each.phase.step.trains:
            return each
        fits = tuple(replace(fit, seconds=fit.seconds / gain) for fit in each.fits)
        return replace(each, seconds=each.seconds / gain, extra=each.extra / gain, fits=fits)

    phases = tuple(map(shorter, sheet.rehearsal.phases))
    return replace(sheet, rehearsal=replace(sheet.rehearsal, phases=phases), gain=gain)
