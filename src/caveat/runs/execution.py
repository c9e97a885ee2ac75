"""Carrying out a run: the rounds that are left, from the newest checkpoint, and the result at the end."""

from __future__ import annotations

import time
from collections import Counter

from ..core import seeded
from ..engines.rounds import run
from ..engines.threads import one_thread
from ..files.checkpoints import ServerStore
from ..files.locks import locked
from ..files.schema.folder import RunState
from .base import BaseRun
from .progress import Progress
from .recorder import Recorder


def carry_out(plan: BaseRun, progress: Progress, title: str) -> None:
    """Whatever of a run is not done yet."""
    if (plan.folder / "summary.json").exists():
        return
    steps = Counter(step.trains for step in plan.complete.schedule())
    progress.begin(title, steps[True])
    try:
        plan.prepare()
        run_rounds(plan, progress)
    finally:
        progress.end()


def run_rounds(plan: BaseRun, progress: Progress) -> None:
    """Carry out all rounds that are left, from the newest checkpoint, and write the result."""
    with locked(plan.folder / "state"):
        _run_rounds(plan, progress)


def _run_rounds(plan: BaseRun, progress: Progress) -> None:
    began = time.perf_counter()
    site = plan.server_site()
    store = ServerStore(plan.folder / "state")
    saved = store.load()
    with seeded(plan.spec.seed, "init_server"):
        start, server, run_state = 0, plan.complete.init_server(site), RunState()
    if saved is not None:
        server, checkpoint = saved
        start, run_state = checkpoint.t + 1, checkpoint
    with plan.engine() as engine, one_thread():
        recorder = Recorder(plan, engine, store, run_state, progress)
        engine.begin(start, recorder.rewind())
        run_state.seconds["engine"] += time.perf_counter() - began
        server = run(
            engine.method, engine, site, server,
            participation=plan.spec.participation, start=start, number=run_state.number, after=recorder.after,
        )  # fmt: skip
        recorder.finish(server)
