"""Execution of a run: the remaining rounds, from the newest checkpoint, and the result."""

import logging
import time
import warnings
from collections import Counter

from ..core import DataWarning, ResultWarning
from ..engines import rounds
from ..engines.secure_sums import unsecured
from ..engines.silos_on_device import one_thread
from ..files import ServerStore, manifest_of, read
from ..files.schema import RunState, Summary, as_json
from ..nn.dropout import has_dropout
from ..wrappers.base import find
from ..wrappers.ensembles import Ensemble
from .base import BaseRun
from .callbacks import ProgressWithCallbacks, settings_of
from .progress import Progress
from .recorder import Recorder
from .summary import check_vectorized, not_batched
from .unusual_updates import norms_of, say_unbounded

logger = logging.getLogger(__name__)


def execute(run: BaseRun, progress: Progress, title: str) -> None:
    """Run the remaining part of a run. The caller holds the lock of its folder.

    Raises DataError if a file of a finished run is damaged.
    """
    if (run.folder / "summary.json").exists():
        finished = manifest_of(run.folder)
        finished.check(*finished.sums)
        return
    steps = Counter(step.trains for step in run.complete_method.schedule())
    progress.begin(title, steps[True])
    if isinstance(progress, ProgressWithCallbacks):
        progress.settings(str(run.folder), settings_of(run))
    if (ensemble := find(run.complete_method, Ensemble)) is not None:
        progress.note(ensemble.cost)
    module = run.server_context().module
    if remark := run.method.remark(module):
        progress.note(remark)
    if run.spec.federation.secure and (single := unsecured(run.complete_method)):
        progress.note(
            f"federation.secure = true, but in {', '.join(single)} the server sees each silo's own update, because "
            f"{run.method.name} needs more than sums"
        )
    for line in say_unbounded(run):
        progress.note(line)
    try:
        run.prepare()
        if run.spec.model.own and run.spec.uncertainty.samples_dropout(run.method) and not has_dropout(module):
            warnings.warn(
                "the model has no dropout, so MC dropout cannot sample and epistemic uncertainty is 0: add nn.Dropout, "
                "or set uncertainty.source to 'laplace' or 'ensemble'",
                DataWarning,
                stacklevel=2,
            )
        finish(run, progress)
        summary = read(run.folder / "summary.json", Summary)
        for line in not_batched(summary.vectorized):
            progress.note(line)
        if isinstance(progress, ProgressWithCallbacks):
            progress.finish(as_json(summary))
    finally:
        progress.end()
    for each in (each for each in summary.warnings if not each.of_data):
        warnings.warn(f"{title}: {each.sentences}", ResultWarning, stacklevel=2)


def finish(run: BaseRun, progress: Progress) -> None:
    """Run the remaining rounds, from the newest checkpoint, and write the result. Raises RunError if the folder is
    damaged or a round fails, StateLost if a silo's state is damaged."""
    began = time.perf_counter()
    store = ServerStore(run.folder / "state", run.keep_checkpoints)
    context, saved = run.server_context(), store.load()
    if saved is None:
        server = run.first_state(context)
        start, run_state = 0, RunState(vectorization=run.vectorized)
    else:
        start, server = saved.checkpoint.t + 1, saved.server
        run_state = RunState.model_validate(saved.checkpoint.model_dump(include=set(RunState.model_fields)))
        check_vectorized(run.folder, run.vectorized, run_state.vectorization)
        if saved.damage:
            warnings.warn(f"{saved.damage}; continuing from the previous checkpoint", DataWarning, stacklevel=2)
    norms = norms_of(run, run_state)
    logger.info("%s: %s from round %d of the schedule", run.folder, run.method.name, start)
    with run.engine() as engine, one_thread():
        recorder = Recorder(run, engine, store, run_state, progress, norms)
        counted, kept = recorder.rewind(saved)
        if saved is not None:
            store.tidy(saved)
            recorder.check_trained(saved)
        engine.begin(start, counted, kept, len(run_state.rollbacks))
        recorder.end_training(start)
        engine.vectorized = run_state.vectorized  # stored in every checkpoint
        recorder.keep_trained(start - 1)
        engine.keep(store.needed)
        run_state.seconds["engine"] += time.perf_counter() - began
        try:
            server = rounds.run(
                engine.method,
                engine,
                context,
                server,
                participation=run.spec.participation,
                start=start,
                number=run_state.number,
                after=recorder.after,
                ended=lambda: run_state.stopped,
                norms=norms,
            )
            recorder.finish(server)
        except Exception as error:
            recorder.fail(error)
            raise
    logger.info("%s: finished after %d training rounds", run.folder, run_state.number)
