"""The Python interface: run, plan, compare and join federations in memory, and load finished runs."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from .analysis.compare.python_calls import compare_calls
from .config import EngineSettings
from .core import ConfigurationError, Method, SiloId
from .core.devices import find_devices
from .core.errors import Diverged
from .core.settings import check_type, path_of
from .data import Silos
from .engines.vectorization import Mode
from .files import RUN, StateLost, locked, read_comparison
from .files.schema import Comparison
from .nn.custom_model import Make
from .runs import call_arguments
from .runs.base import FIXED
from .runs.callbacks import Callback, ProgressWithCallbacks, check_callbacks
from .runs.continuing_checks import check_same_data
from .runs.execution import execute
from .runs.finished_run import Run, allow_code, open_run
from .runs.joining import join as join_run
from .runs.local_run import LocalRun
from .runs.plan.estimate import Plan
from .runs.plan.estimate import plan as plan_run
from .runs.progress import Progress, progress_of


@call_arguments.with_arguments(call_arguments.RunArguments)
def run(
    silos: Silos,
    method: Method,
    *,
    workers: int = 1,
    device: str = "cpu",
    vectorized: Mode = "off",
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    callbacks: Sequence[Callback] = (),
    reset: Sequence[SiloId] = (),
    **settings: Unpack[call_arguments.RunArguments],
) -> Run:
    """Train `method` on `silos`, and return the finished run, with `summary` and `predictor(silo)`.

    Results do not depend on `workers`. Raises ConfigurationError or DataError before anything runs, RunError if a silo
    fails.

    Parameters
    ----------
    rounds, training
        Number of training rounds, and training settings, which replace those of the method.
    model, personal
        The model, by default a small residual network for images and a perceptron otherwise. The architectures of
        personalized models, for methods with such models.
    uncertainty, privacy
        Calibration of predictions and decisions. Clipping and noise for what silos send.
    every, n_silos
        Number of rounds between evaluations on validation splits; test splits are evaluated at the end. Number of silos
        that are evaluated, always the same ones; by default all.
    metrics
        Custom metrics by name: functions from NumPy arrays of labels (N,) and probabilities (N, C) of a silo's test
        split to a number, or NaN if undefined. `summary` contains their values next to accuracy (see `caveat.metric`).
    newcomers
        Names of held-out silos, which take no part in training and are evaluated on their test splits at the end.
    workers, device
        Number of worker processes, and the device on which silos train and predict: "cpu", "cuda", "cuda:1", "mps", or
        "auto" (the first GPU if there is one). Results are returned on the CPU.
    vectorized
        Whether to train silos as one batched model, which is much faster for many silos with small models: "off", "on"
        (if possible), or "auto" (depending on silos and model). Results differ by rounding (docs/how-to/hardware.md).
    out
        Folder for the run's files. The same call continues an interrupted run in this folder, and returns a finished
        run. `caveat report` writes the report of the run, and `caveat.load` opens the folder elsewhere. By default, the
        folder is temporary and deleted with the returned run.
    progress, callbacks
        How to report rounds: True for standard error, or an object as in `caveat.runs.progress`. Objects of the class
        `caveat.Callback`, such as experiment trackers.
    reset
        Names of silos whose private states were lost. They restart from scratch when an interrupted run continues.
    """
    local_run = _local_run(silos, method, workers, device, vectorized, settings)
    reported = ProgressWithCallbacks(progress_of(progress), check_callbacks(callbacks))
    folder = path_of(out, "out") if out else Path(tempfile.mkdtemp(prefix="caveat-"))
    local_run = replace(local_run, folder=folder, reset=tuple(reset))
    try:
        call_arguments.check_folder(folder)
        finished = (folder / "summary.json").exists()
        if finished:
            local_run.manifest.check(*FIXED)
        check_same_data(folder, silos)
        local_run.check()
        call_arguments.check_call(local_run)
        if finished:
            _check_finished(local_run)
        else:
            _execute(local_run, reported)
    except BaseException:
        if out is None and not (folder / RUN).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    found = Run(local_run)
    if out is None:
        weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


@call_arguments.with_arguments(call_arguments.RunArguments)
def plan(
    silos: Silos,
    method: Method,
    *,
    workers: int = 1,
    device: str = "cpu",
    vectorized: Mode = "off",
    **settings: Unpack[call_arguments.RunArguments],
) -> Plan:
    """Estimate the cost of the same call of `run`: rounds, optimizer steps, bytes, memory and seconds.

    Runs every kind of round at a few silos with the first few training steps, and stores nothing. `methods[0]` of the
    result contains the numbers, and `as_dict()` returns the result as plain values. Raises what `run` raises before
    anything runs, and RunError if a silo fails.
    """
    run = _local_run(silos, method, workers, device, vectorized, settings)
    run.check()
    return plan_run(run)


def _check_finished(run: LocalRun) -> None:
    """Raise ConfigurationError or RunError if a call does not fit the finished run in its folder."""
    if run.reset:
        raise ConfigurationError(
            f"reset = {list(run.reset)}: the run in {str(run.folder)!r} is finished, and its model was trained with "
            "these states; restore them from a backup",
            "reset",
        )
    run.check_code()


def _execute(run: LocalRun, progress: Progress) -> None:
    """Run the remaining rounds while holding the lock of the folder."""
    with locked(run.folder / "state"):
        call_arguments.check_folder(run.folder)
        call_arguments.check_call(run)
        try:
            execute(run, progress, type(run.method).__name__)
        except BaseException as error:
            folder = str(run.folder)
            remedy = f"continue with the same call and out={folder!r}"
            if isinstance(error, Diverged):
                remedy = "the same settings would diverge again; change them, and use a new folder"
            error.add_note(f"Results so far are in {folder}: {remedy}.")
            if isinstance(error, StateLost):
                error.add_note(f"Restart the silo with reset=[{error.silo!r}].")
            raise


def load(folder: str | Path, *, model: Make | str | Sequence[str] | None = None, device: str = "cpu") -> Run:
    """Load a finished run, or a silo's stored copy of a federated model, for predictions on any machine. The data of
    the silos are not needed.

    `device` is the device for predictions, which can differ from the device of training.

    Code that a folder names is not imported. Pass the code of the run's custom model as `model`: a function or class,
    its name, or several names if there are personalized models. The output of the model is compared with the output of
    the original code. Register custom methods before this call (`caveat.register`). The run's `silos` are read when
    they are accessed. Raises ConfigurationError if the folder has no finished run, DataError for a damaged file.
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
    progress: Progress | bool | None = None,
) -> Run:
    """Add silos to the federation of a finished run, and return the run of these silos, for predictions.

    A joining silo gets the global model. By itself, it runs `rounds` training rounds (by default 5, or fewer if the
    federation took fewer) and all rounds after training, which fit the method's local parameters, the temperature,
    familiarity and the thresholds on the silo's own splits. The silo sends nothing, and the run and its silos do not
    change.

    By default, the `newcomers` of the run join. Other silos must have the federation's classes and inputs. `out` is a
    new folder. In this folder, `join.json` contains metrics of the test split before joining, and `summary.json`
    contains the metrics after joining. If a call is interrupted, the same call continues. Raises ConfigurationError or
    DataError before anything runs.
    """
    opened = run if isinstance(run, Run) else load(path_of(run, "run"))
    if rounds is not None:
        check_type(rounds, int, "rounds", "a whole number")
    if silos is not None:
        check_type(silos, Silos, "silos", "Silos, for example from caveat.data.from_arrays")
    folder = path_of(out, "out") if out else Path(tempfile.mkdtemp(prefix="caveat-"))
    try:
        found = join_run(opened, silos, rounds, folder, progress_of(progress))
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
    progress: Progress | bool | None = None,
    **settings: Any,
) -> Comparison:
    """Compare methods on the same silos over several seeds, return the result tables, and write a report to `out`.

    `methods` maps names of rows to methods, such as {"fedavg": caveat.FedAvg(), "uefl": caveat.UEFL()}. `silos` may be
    a function of the seed, so that splits depend on the seed. `settings` are the same as in `caveat.run`. The same call
    continues an interrupted comparison. The tables mark failed runs, and `to_frame()` of the result returns a row per
    run and silo. Raises ConfigurationError or DataError before anything runs.
    """
    if reserved := sorted(settings.keys() & {"seed", "out", "callbacks", "reset"}):
        raise ConfigurationError(f"{reserved[0]} cannot be passed to compare, which sets it for each run", reserved[0])
    folder = path_of(out, "out")
    return compare_calls(run, check_call, silos, methods, seeds, folder, progress_of(progress), settings)


def check_call(
    silos: Silos, method: Method, *, workers: int = 1, device: str = "cpu", vectorized: Mode = "off", **settings: Any
) -> None:
    """Raise ConfigurationError or DataError for an invalid call of `run`, without writing any file."""
    _local_run(silos, method, workers, device, vectorized, settings).check()


def _local_run(
    silos: Silos, method: Method, workers: int, device: str, vectorized: Mode, settings: Mapping[str, Any]
) -> LocalRun:
    """Return the run that a call describes, without its folder. Raises ConfigurationError for invalid arguments."""
    spec = call_arguments.spec_of_call(silos, method, settings, call_arguments.RunArguments)
    with call_arguments.explained():
        engine = EngineSettings(workers=workers, device=device, vectorized=vectorized)
        devices = find_devices(engine.device, engine.workers, "device")
    return LocalRun(folder=Path(), spec=spec, silos=silos, engine_settings=engine, devices=devices)


def load_comparison(folder: str | Path) -> Comparison:
    """Load the result tables of a comparison, made in Python or on the command line. Raises DataError if the folder has
    no comparison."""
    return read_comparison(path_of(folder, "folder"))
