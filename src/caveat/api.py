"""The library in Python: run a method on silos in memory, open a run's folder."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from .analysis.compare.calls import compare_calls
from .config import EngineSettings
from .core import ConfigurationError, Method, SiloId
from .core.devices import find_devices
from .core.errors import Diverged
from .core.settings import check_type, path_of
from .data import Silos
from .engines.stacking.decision import Mode
from .files import read_comparison
from .files.checkpoints import StateLost
from .files.reading import RUN
from .files.schema import Comparison
from .files.writing import locked
from .nn.custom_model import Make
from .runs import python_calls
from .runs.base import FIXED
from .runs.callbacks import Callback, Told, check_callbacks
from .runs.execution import carry_out
from .runs.joining import join as join_run
from .runs.local import LocalRun, Run
from .runs.opening import allow_code, open_run
from .runs.plan.costs import Plan
from .runs.plan.estimate import plan as plan_run
from .runs.progress import Progress, Silent
from .runs.spec_file import check_same_data


@python_calls.with_arguments(python_calls.RunArguments)
def run(
    silos: Silos,
    method: Method,
    *,
    workers: int = 1,
    device: str = "cpu",
    vectorized: Mode = "off",
    out: str | Path | None = None,
    progress: Progress | None = None,
    callbacks: Sequence[Callback] = (),
    reset: Sequence[SiloId] = (),
    **settings: Unpack[python_calls.RunArguments],
) -> Run:
    """Train `method` on `silos`; return the finished run, with `summary` and `predictor(silo)`.

    `rounds` and `training` replace the method's own. The model is a small residual network for images and a
    perceptron otherwise, unless given; `personal` are the architectures of the silos' own models, for methods that
    have such models. `uncertainty` says how predictions are calibrated and decided upon,
    `privacy` whether what silos send is clipped and gets noise. Every
    `every` rounds silos are evaluated on their validation split, at the end on the test split: all of them, or
    `n_silos` of them, the same ones every time. `metrics` are functions by name, from NumPy's arrays of
    labels (N,) and probabilities (N, C) of a silo's test split to a number, or NaN where they are not defined:
    `summary` has them beside accuracy (`caveat.metric`). `newcomers` are the names of silos that take no
    part and are measured on their test split in the end, as if they had joined then. `out` is a folder
    for the run's files: the same call, with any `workers`, continues what was interrupted there, and returns what is
    finished as it is; `caveat report` makes a page of it, and `caveat.load` opens it where the silos' data are not.
    Without one, the files go with the returned run. `reset` are silos that begin afresh when an interrupted run
    continues, since their private states were lost. `progress` is told what is shown on a terminal
    (`caveat.runs.progress` has `Plain` and `Live`), and `callbacks` are told all that `caveat.Callback` says, trackers
    of experiments among them. `device` is where silos train and predict: "cpu", "cuda", "cuda:1", "mps", or "auto", the
    first GPU if there is one; what is returned is on the CPU. `vectorized` is whether silos are trained side by side,
    as one batched model, which is much faster for many silos with small models: "auto" by a rule on silos and model,
    "on" wherever it can be; numbers then differ by rounding (docs/hardware.md). Results do not depend on `workers`.
    Raises ConfigurationError or DataError before anything runs, RunError if a silo fails.
    """
    spec = python_calls.spec_of_call(silos, method, settings, python_calls.RunArguments)
    with python_calls.explained():
        engine = EngineSettings(workers=workers, device=device, vectorized=vectorized)
        devices = find_devices(engine.device, engine.workers, "device")
    if progress is not None:
        check_type(progress, Progress, "progress", "an object with begin, round, note and end (caveat.runs.progress)")
    told = Told(progress or Silent(), check_callbacks(callbacks))
    folder = path_of(out, "out") if out else Path(tempfile.mkdtemp(prefix="caveat-"))
    local_run = LocalRun(
        folder=folder,
        spec=spec,
        silos=silos,
        engine_settings=engine,
        devices=devices,
        reset=tuple(reset),
    )
    try:
        python_calls.check_folder(folder)
        finished = (folder / "summary.json").exists()
        if finished:
            local_run.manifest.check(*FIXED)
        check_same_data(folder, silos)
        local_run.check()
        python_calls.check_call(local_run)
        if finished:
            _check_finished(local_run)
        else:
            _carry_out(local_run, told)
    except BaseException:
        if out is None and not (folder / RUN).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    found = Run(local_run)
    if out is None:
        weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


@python_calls.with_arguments(python_calls.RunArguments)
def plan(
    silos: Silos,
    method: Method,
    *,
    workers: int = 1,
    device: str = "cpu",
    vectorized: Mode = "off",
    **settings: Unpack[python_calls.RunArguments],
) -> Plan:
    """Estimate what the same call of `run` will cost: rounds, optimizer steps, bytes, memory and seconds.

    Every kind of round is rehearsed at a few silos, with the first few steps of training; nothing is kept of it.
    `methods[0]` of what is returned has the figures, and `as_dict()` all as plain values. Raises what `run` does before
    anything runs, and RunError if a silo fails in the rehearsal.
    """
    return plan_run(_checked(silos, method, workers, device, vectorized, settings))


def _check_finished(run: LocalRun) -> None:
    """Raises ConfigurationError or RunError if a call asks for another run than the one that its folder has."""
    if run.reset:
        raise ConfigurationError(
            f"reset = {list(run.reset)}: the run in {str(run.folder)!r} is finished, and its model was trained with "
            "these states: put them back from a copy",
            "reset",
        )
    run.check_code()


def _carry_out(run: LocalRun, progress: Progress) -> None:
    """Carry out a call's run, or what is left of it, while no other process can."""
    with locked(run.folder / "state"):
        python_calls.check_folder(run.folder)
        python_calls.check_call(run)
        try:
            carry_out(run, progress, type(run.method).__name__)
        except BaseException as error:
            folder = str(run.folder)
            goes_on = f"the same call with out={folder!r} continues it"
            if isinstance(error, Diverged):
                goes_on = "the same settings diverge again, so that it takes others, and another folder"
            error.add_note(f"What was computed is in {folder}: {goes_on}.")
            if isinstance(error, StateLost):
                error.add_note(f"With reset=[{error.silo!r}] that silo begins afresh.")
            raise


def load(folder: str | Path, *, model: Make | str | Sequence[str] | None = None, device: str = "cpu") -> Run:
    """A finished run, or what a silo keeps of a federation, to predict with: on any machine, without any data.

    `device` is where predictions are computed, "cpu", "cuda" or others as for `run`, wherever the run was trained.

    Nothing that a folder names is imported. `model` is code of one's own that the run's model is made by, or its name,
    or the names where silos' own models have some too; what it makes is compared with what it made when the run began.
    A method of one's own has to be known (`caveat.register`) before. `silos` of the run are read when they are asked
    for. Raises ConfigurationError if the folder holds no finished run, DataError for a file that is damaged.
    """
    place = path_of(folder, "folder")
    if model is not None:
        allow_code([place], model)
    if (place / "silo.json").exists():
        from .federation.silo.member import open_member

        return open_member(place, device)
    return open_run(place, device)


def join(
    run: Run | str | Path,
    silos: Silos | None = None,
    *,
    rounds: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Have silos join the federation of a finished run; return what they have, to predict with as with any run.

    A silo that joins is sent the finished federation's model, and carries out `rounds` of its rounds of training (5,
    or as many as the federation made) and all that follow training by itself: what the method keeps at a silo, its
    temperature, familiarity and thresholds are fitted on its own splits. It sends nothing, and the run and all its
    silos stay as they are. Without `silos` those join that the run was told as `newcomers`; others have to have the
    federation's classes and inputs. `out` is a new folder, whose `join.json` has figures of the test split before
    joining, and `summary.json` those after it; the same call goes on with what was interrupted there. Raises
    ConfigurationError or DataError before anything runs.
    """
    opened = run if isinstance(run, Run) else load(path_of(run, "run"))
    if rounds is not None:
        check_type(rounds, int, "rounds", "a whole number")
    if silos is not None:
        check_type(silos, Silos, "silos", "Silos, as caveat.data.from_arrays and others make them")
    folder = path_of(out, "out") if out else Path(tempfile.mkdtemp(prefix="caveat-"))
    try:
        found = join_run(opened, silos, rounds, folder, progress)
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if out is None:
        weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


def compare(
    silos: Silos | Callable[[int], Silos],
    methods: Mapping[str, Method],
    *,
    out: str | Path,
    seeds: Sequence[int] = (0, 1, 2),
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method with every seed on the same silos; return the tables, which `out` has as a page too.

    `methods` are by the names of their rows, such as {"fedavg": caveat.FedAvg(), "uefl": caveat.UEFL()}. `silos` may be
    a function of the seed, for splits of its own with each. `settings` are those of `caveat.run`. The same call goes on
    with what was interrupted, a run that fails is a failed one in the tables, and `to_frame()` of what is returned has
    a row per run and silo. Raises ConfigurationError or DataError before anything runs.
    """
    if reserved := sorted(settings.keys() & {"seed", "out", "callbacks", "reset"}):
        raise ConfigurationError(f"{reserved[0]} is not for compare, which says it itself", reserved[0])
    folder = path_of(out, "out")
    return compare_calls(run, _check_call, silos, methods, seeds, folder, progress or Silent(), settings)


def _check_call(
    silos: Silos, method: Method, *, workers: int = 1, device: str = "cpu", vectorized: Mode = "off", **settings: Any
) -> None:
    """Raises ConfigurationError or DataError for a call of `run` that cannot be carried out; writes nothing."""
    _checked(silos, method, workers, device, vectorized, settings)


def _checked(
    silos: Silos, method: Method, workers: int, device: str, vectorized: Mode, settings: Mapping[str, Any]
) -> LocalRun:
    """The run of a call, in no folder. Raises ConfigurationError or DataError where it cannot be carried out."""
    spec = python_calls.spec_of_call(silos, method, settings, python_calls.RunArguments)
    with python_calls.explained():
        engine = EngineSettings(workers=workers, device=device, vectorized=vectorized)
        devices = find_devices(engine.device, engine.workers, "device")
    local_run = LocalRun(folder=Path(), spec=spec, silos=silos, engine_settings=engine, devices=devices)
    local_run.check()
    return local_run


def load_comparison(folder: str | Path) -> Comparison:
    """The tables of a comparison's folder, of the command line or of Python. Raises DataError if there is none."""
    return read_comparison(path_of(folder, "folder"))
