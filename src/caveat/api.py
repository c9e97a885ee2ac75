"""The library in Python: run a method on silos in memory, open a run's folder."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

from .config import EngineSettings, Evaluation, Federation, check_personal
from .core import ConfigurationError, Method, SiloId
from .data import Silos
from .engines.rounds import Participation
from .nn.models import ModelSettings, PersonalModel
from .runs import calls
from .runs.execution import carry_out
from .runs.local import LocalRun, Run, check_same, open_run
from .runs.progress import Progress, Silent
from .training.fit import Training
from .wrappers.privacy import Privacy
from .wrappers.uncertainty import Uncertainty


def run(
    silos: Silos,
    method: Method,
    *,
    rounds: int | None = None,
    seed: int = 0,
    model: ModelSettings | None = None,
    personal: Sequence[PersonalModel] = (),
    training: Training | None = None,
    participation: float = 1.0,
    min_silos: int = 1,
    newcomers: Sequence[SiloId] = (),
    uncertainty: Uncertainty | None = None,
    privacy: Privacy | None = None,
    every: int = 1,
    measured: int | None = None,
    workers: int = 1,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train `method` on `silos`; return the finished run, with `summary` and `predictor(silo)`.

    `rounds` and `training` replace the method's own. The model is a small residual network for images and a
    perceptron otherwise, unless given; `personal` are the architectures of the silos' own models, for methods that
    have such models. `uncertainty` says how predictions are calibrated and decided upon,
    `privacy` whether what silos send is clipped and gets noise. Every
    `every` rounds silos are evaluated on their validation split, at the end on the test split: all of them, or
    `measured` of them, the same ones every time. `newcomers` are the names of silos that take no part and are measured
    on their test split in the end, as if they had joined then. `out` is a folder
    for the run's files: the same call, with any `workers`, continues what was interrupted there, and `caveat report`
    makes a page of it; only the command line's runs can be loaded again. Without one, the files go with the returned
    run. Results do not depend on `workers`. Raises ConfigurationError or DataError before anything runs, RunError if a
    silo fails.
    """
    calls.check_types(
        silos, method, model=(model, ModelSettings), training=(training, Training),
        uncertainty=(uncertainty, Uncertainty), privacy=(privacy, Privacy),
    )  # fmt: skip
    seed = calls.whole(seed)
    if isinstance(newcomers, str):
        raise ConfigurationError(f"newcomers = {newcomers!r}: expected a list of names")
    with calls.explained({"silos": "measured"}):
        federation = Federation(participation=participation, min_silos=min_silos, newcomers=tuple(newcomers))
        evaluation, engine = Evaluation(every=every, silos=measured), EngineSettings(workers=workers)
        method = calls.replaced(method, rounds=rounds, training=training)
    batch_size = getattr(getattr(method, "training", None), "batch_size", 2)
    silos.check(batch_size)
    model = model or ModelSettings(name="residual" if silos.images else "mlp")
    folder = Path(out or tempfile.mkdtemp(prefix="caveat-"))
    calls.check_folder(folder)
    check_same(folder, silos)
    experiment = LocalRun(
        folder=folder, silos=silos, method=method, model=model, seed=seed,
        participation=Participation(seed, federation.participation, federation.min_silos), evaluation=evaluation,
        uncertainty=uncertainty or Uncertainty(), workers=engine.workers, personal=tuple(personal),
        privacy=privacy or Privacy(), newcomers=federation.newcomers,
    )  # fmt: skip
    try:
        check_personal(method, experiment.personal)
        experiment.check()
        calls.keep(experiment)
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        carry_out(experiment, progress or Silent(), type(method).__name__)
    except BaseException as error:
        error.add_note(f"What was computed is in {folder}: the same call with out={str(folder)!r} continues it.")
        raise
    finished = Run(experiment)
    if out is None:
        weakref.finalize(finished, shutil.rmtree, folder, ignore_errors=True)
    return finished


def load(folder: str | Path) -> Run:
    """A finished run of the command line, or what a silo keeps of a federation, to predict with.

    Raises ConfigurationError if the folder holds none.
    """
    if (Path(folder) / "silo.json").exists():
        from .federation.client import open_member

        return open_member(Path(folder))
    return open_run(Path(folder))
