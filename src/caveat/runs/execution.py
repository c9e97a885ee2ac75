"""Carrying out a run: the rounds that are left, from the newest checkpoint, and the result at the end."""

from __future__ import annotations

import logging
import time
from collections import Counter

from ..core import seeded
from ..engines import rounds
from ..engines.one_thread import one_thread
from ..files.checkpoints import ServerStore
from ..files.locks import locked
from ..files.schema.small_files import RunState
from .base import BaseRun
from .progress import Progress
from .recorder import Recorder

logger = logging.getLogger(__name__)


def carry_out(run: BaseRun, progress: Progress, title: str) -> None:
    """Carry out whatever of a run is not done yet."""
    if (run.folder / "summary.json").exists():
        return
    steps = Counter(step.trains for step in run.complete_method.schedule())
    progress.begin(title, steps[True])
    try:
        run.prepare()
        finish(run, progress)
    finally:
        progress.end()


def finish(run: BaseRun, progress: Progress) -> None:
    """Carry out all rounds that are left, from the newest checkpoint, and write the result.

    Raises RunError if another process has the folder, or if a round fails.
    """
    began = time.perf_counter()
    with locked(run.folder / "state"):
        store = ServerStore(run.folder / "state")
        site, saved = run.server_site(), store.load()
        with seeded(run.spec.seed, "init_server"):
            start, server, run_state = 0, run.complete_method.init_server(site), RunState()
        if saved is not None:
            server, checkpoint = saved
            start, run_state = checkpoint.t + 1, checkpoint
        logger.info("%s: %s from round %d of the schedule", run.folder, run.method.name, start)
        with run.engine() as engine, one_thread():
            recorder = Recorder(run, engine, store, run_state, progress)
            engine.begin(start, recorder.rewind())
            run_state.seconds["engine"] += time.perf_counter() - began
            server = rounds.run(
                engine.method,
                engine,
                site,
                server,
                participation=run.spec.participation,
                start=start,
                number=run_state.number,
                after=recorder.after,
            )
            recorder.finish(server)
        logger.info("%s: finished after %d rounds of training", run.folder, run_state.number)
