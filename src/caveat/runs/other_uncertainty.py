"""Another estimator of uncertainty for a finished run: it continues from the run's trained models."""

from dataclasses import replace
from pathlib import Path

from ..core import ConfigurationError, Payload
from ..files import STATES, AppendLog, ServerStore, SiloStore
from ..files.schema import RunState
from ..wrappers.base import find
from ..wrappers.ensembles import SeveralModels, Snapshots, member_groups, numbered
from ..wrappers.uncertainty_settings import Uncertainty
from .call_arguments import with_samples
from .execution import execute
from .finished_run import Run
from .local_run import LocalRun
from .progress import Progress, Silent

TRAINED = Uncertainty(temperature_scaling=False, familiarity=False, policy="always")
"""The settings of a run that only trains, from which runs with other settings can continue."""


def with_uncertainty(run: Run, uncertainty: Uncertainty, folder: Path, progress: Progress | None = None) -> Run:
    """Return the run with other settings of uncertainty, in a new folder; only the missing models are trained.

    The result is bit-identical to a run that trains with these settings from the start, except for traffic and seconds,
    which cover only the additional rounds. An ensemble takes the models as its first member. A run that trained with
    snapshots can continue with any source, any other run with any source except snapshots. Raises ConfigurationError
    unless the run only trained (`TRAINED`, or members of this number with the same settings).
    """
    before = run.experiment
    if not isinstance(before, LocalRun) or replace(before.spec.uncertainty, source=None, ensemble_size=None) != TRAINED:
        text = "expected a run of this process that only trained, with the uncertainty TRAINED"
        raise ConfigurationError(f"{run.folder}: {text}", "uncertainty")
    method = with_samples(before.spec.method, uncertainty)
    after = replace(before, folder=folder, spec=replace(before.spec, method=method, uncertainty=uncertainty))
    after.check()
    if find(after.complete_method, Snapshots) and not find(before.complete_method, Snapshots):
        raise ConfigurationError(f"{run.folder} was trained without snapshots", "uncertainty.source")
    _continue_from(before, after)
    execute(after, progress or Silent(), after.method.name)
    return Run(after)


def _continue_from(before: LocalRun, after: LocalRun) -> None:
    """Write a checkpoint to the folder of `after`, with the last states of `before`."""
    saved = ServerStore(before.folder / "state").load()
    if saved is None:
        raise ConfigurationError(f"{before.folder} has no state to continue from", "uncertainty")
    t = len(list(before.complete_method.schedule())) - 1
    old_kind, new_kind = (type(find(each.complete_method, SeveralModels)) for each in (before, after))
    alone = type(None)

    def named(groups: Payload) -> Payload:
        if old_kind is new_kind:
            return dict(groups)
        first = dict(groups) if old_kind is alone else member_groups(0, groups)
        return first if new_kind is alone else numbered(0, first)

    states, old, new = AppendLog(after.folder / STATES), before.executor(), after.executor()
    store = SiloStore(after.folder / "state" / "silos")
    store.begin()
    for silo in after.participants:
        state = new.state(silo, None) | named(old.state(silo, before.kept(silo, t)))
        if any(state.values()):
            states.add([store.save(silo, t, state)])
    server = after.first_state(after.server_context()) | named(saved.server)
    counters = RunState.model_validate(saved.checkpoint.model_dump(include={"number", "last", "vectorization"}))
    files = {STATES: states.sum} if states.bytes else {}
    ServerStore(after.folder / "state").save(t, server, counters, files)
