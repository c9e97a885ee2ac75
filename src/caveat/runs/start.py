"""Start the run of a configuration in a new folder, resume an interrupted run, or extend it by more rounds.

Also serve requests in a worker process that is not a fork: it reconstructs the run from its folder and data.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .. import config as configuration
from .. import data, files
from ..config import Config
from ..core import ConfigurationError, Method, Round, SiloId, horizon
from ..core.devices import find_device, find_devices
from ..core.errors import CaveatError, message_of
from ..engines.executor import Executor
from ..engines.worker_process import SharedBuffer, end_with_parent, serve
from ..files.schema import Checkpoint, GivenConfiguration, RunFile, Summary
from ..methods.plugins import use
from ..metrics.custom_metrics import check_known as check_metrics
from .execution import execute
from .local_run import LocalRun
from .progress import Progress, Silent
from .spec import spec_of, with_rounds
from .spec_file import check_begun, check_same_data, described, engine_in, run_file, spec_in, with_sets
from .user_code import check_known, import_named

CONFIG, GIVEN = "config.toml", "given.toml"


def start(
    config: Config,
    out: Path,
    progress: Progress | None = None,
    silos: data.Silos | None = None,
    given: GivenConfiguration | None = None,
) -> Path:
    """Run a configuration in a new folder `out`, and return the folder. `silos` are the configuration's, if already
    loaded; `given` are the user's arguments.

    Raises ConfigurationError or DataError before anything is written; RunError once the run has started, or if another
    process starts one there.
    """
    _check_engine(config)
    devices = find_devices(config.engine.device, config.engine.workers)
    silos = silos or data.load(config.data, config.seed)
    check(config, silos, out)
    check_empty(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot create the folder {out}: {error.strerror}") from error
    with files.locked(out / "state"):
        check_empty(out)  # checked again, because another process may have been faster
        run = dataclasses.replace(local_run(config, silos, out), devices=devices, given=given)
        run.keep_description()
        keep_configuration(config, out, given)
        return execute_all(run, progress or Silent())


def _check_engine(config: Config) -> None:
    if config.engine.name != "single_machine":
        raise ConfigurationError(
            f"engine.name = {config.engine.name!r} is for federations on Flower: write the app with `caveat flower "
            "init`"
        )


def check(config: Config, silos: data.Silos, out: Path) -> None:
    """Raise ConfigurationError or DataError for a run that cannot work on these silos, before anything runs."""
    _check_engine(config)
    find_device(config.engine.device, start=False)  # this process may still be forked
    for run in local_run(config, silos, out).with_baselines():
        run.check()


def local_run(config: Config, silos: data.Silos, folder: Path) -> LocalRun:
    """Return the run of a configuration on these silos."""
    return LocalRun(spec=spec_of(config), engine_settings=config.engine, folder=folder, silos=silos)


def check_empty(out: Path) -> None:
    """Raise ConfigurationError unless a run may start in the folder."""
    if (out / files.RUN).exists():
        raise ConfigurationError(
            f"{out} already has a run: continue it with `caveat resume {out}`, or choose another folder with --out"
        )
    if not files.nothing_begun(out):
        raise ConfigurationError(f"{out} exists and is not a run; choose a new folder with --out")


def keep_configuration(config: Config, folder: Path, given: GivenConfiguration | None = None) -> None:
    """Write the complete configuration and the user's own file, with its comments, for users to read and reuse."""
    files.write_bytes(folder / CONFIG, configuration.dump(config).encode(), lasting=True)
    if given is not None and (file := Path(given.source)).is_file():
        files.write_bytes(folder / GIVEN, file.read_bytes(), lasting=True)


def execute_all(run: LocalRun, progress: Progress) -> Path:
    """Run the method, then its baselines with the same number of training rounds. The caller holds the lock of the
    folder."""
    execute(run, progress, run.method.name)
    rounds = files.read(run.folder / "summary.json", Summary).rounds_run
    for baseline in run.baselines(rounds):
        baseline.folder.mkdir(parents=True, exist_ok=True)
        execute(baseline, progress, baseline.method.name)
    return run.folder


def resume(
    folder: Path,
    progress: Progress | None = None,
    workers: int | None = None,
    silos: data.Silos | None = None,
    reset: Sequence[SiloId] = (),
    rounds: int | None = None,
    device: str | None = None,
    sets: Sequence[str] = (),
) -> Path:
    """Continue an interrupted run to a bit-identical result, or extend a run to `rounds` training rounds.

    `silos` are the run's, if already loaded; `device` replaces the run's; `sets` are "KEY=VALUE" of other keys that do
    not affect results, such as the location of moved data. Silos in `reset` restart without the state that they lost.
    Raises ConfigurationError for a run that cannot be continued here, DataError or RunError for a damaged folder,
    StateLost for a silo's damaged state.
    """
    record = with_sets(resumable(folder), sets)
    spec, engine = spec_in(folder, record), engine_in(record)
    engine = dataclasses.replace(engine, workers=workers or engine.workers, device=device or engine.device)
    devices = find_devices(engine.device, engine.workers)
    if rounds is not None or not (folder / "summary.json").exists():
        check_known(spec)
        check_metrics(spec.evaluation.metrics)
    with files.locked(folder / "state"):
        check_begun(folder)
        silos = spec.read_silos() if silos is None else silos
        check_same_data(folder, silos)
        run = LocalRun(
            spec=spec, engine_settings=engine, folder=folder, silos=silos, devices=devices, reset=tuple(reset),
            sets=tuple(sets),
        )  # fmt: skip
        progress = progress or Silent()
        if rounds is not None:
            run = extended(run, rounds)
            if note := remark(run):
                progress.note(note)
        return execute_all(run, progress)


def resumable(folder: Path) -> RunFile:
    """Read the description of a run that can be resumed. Raises ConfigurationError for other folders."""
    record = run_file(folder)
    if (folder / "join.json").exists():
        raise ConfigurationError(
            f"{folder} belongs to silos that joined a finished federation: continue with the same `caveat join`, and "
            "open it with `caveat predict` or caveat.load once it is finished"
        )
    if record.in_python:
        raise ConfigurationError(
            f"{folder} is a run of a Python program: continue with the same call of caveat.run, and open it with "
            "`caveat predict` or caveat.load once it is finished"
        )
    if folder.absolute().parent.name == "baselines":
        raise ConfigurationError(f"{folder} is a baseline of the run {folder.parent.parent}; resume that run")
    return record


def extended(before: LocalRun, rounds: int) -> LocalRun:
    """Return the run with `rounds` training rounds, to which the run in its folder and its baselines can now continue.

    Nothing is trained yet, and the call can be repeated after a crash. Raises ConfigurationError for fewer rounds than
    completed, or if the run cannot be extended, and DataError for damaged files, before anything is changed.
    """
    spec = dataclasses.replace(
        before.spec, method=with_rounds(before.method, rounds),
        baselines=tuple(with_rounds(each, rounds) for each in before.spec.baselines),
    )  # fmt: skip
    after = dataclasses.replace(before, spec=spec)
    parts = [pair for pair in zip(_parts(before), _parts(after), strict=True) if (pair[1].folder / "state").exists()]
    for was, now in parts:
        check_begun(was.folder)
        if rounds != _rounds(before):
            _check_extension(was, now, rounds)
    for now in after.with_baselines():
        now.check()
        now.check_code()
    if rounds != _rounds(before):
        for was, now in parts:
            _extend(was, now, rounds)
    if text := files.text_of(after.folder / CONFIG):
        text = re.sub(r"(?m)^rounds = \d+$", f"rounds = {rounds}", text, count=1)
        files.write_bytes(after.folder / CONFIG, text.encode(), lasting=True)
    return after


def _rounds(run: LocalRun) -> int | None:
    return getattr(run.method, "rounds", None)


def _parts(run: LocalRun) -> list[LocalRun]:
    """Return the baselines, then the run itself, whose description covers all."""
    return [*run.baselines(), run]


def remark(run: LocalRun) -> str:
    """Return a note if the first rounds of an extended run were trained for another number of rounds."""
    numbers = run_file(run.folder).rounds
    methods = [run.complete_method, *run.spec.baselines]
    follows = [f"{method.name}: {method.follows_rounds}" for method in methods if method.follows_rounds]
    if not numbers or not follows:
        return ""
    return (
        f"the first {numbers[0]} rounds were trained for {numbers[0]} rounds in total, later ones for {_rounds(run)}, "
        f"so the model differs from that of a run of {_rounds(run)} rounds: {'; '.join(follows)} depends on the total"
    )


def _check_extension(before: LocalRun, after: LocalRun, rounds: int) -> None:
    """Raise ConfigurationError unless the run in a folder can be extended, before anything is changed."""
    part = before.folder
    now, then = list(before.complete_method.schedule()), list(after.complete_method.schedule())
    checkpoint = files.record_of(part / "state" / files.NEWEST, Checkpoint)
    done, asked = 0 if checkpoint is None else checkpoint.number, f"--rounds {rounds}"
    trained = min(horizon(now), horizon(then))
    if _forms(now[:trained]) != _forms(then[:trained]) or horizon(now) != _rounds(before):
        raise ConfigurationError(
            f"{asked}: training rounds of {before.method.name!r} are followed by other rounds, so the run cannot be "
            "extended; start a new run",
            "rounds",
        )
    if done > rounds:
        raise ConfigurationError(f"{asked}: {part} has already completed {done} training rounds", "rounds")
    patience = before.spec.evaluation.early_stopping_patience
    if checkpoint is not None and (checkpoint.stopped or (patience is not None and checkpoint.worse >= patience)):
        raise ConfigurationError(
            f"{asked}: early stopping ended training of {part} after round {checkpoint.number}, and would end it again",
            "rounds",
        )
    if _is_closing(checkpoint, before.complete_method) and files.TrainedStore(part).load() is None:
        raise ConfigurationError(
            f"{asked}: the states of {part} at the end of training were not kept; start a new run", "rounds"
        )


def _extend(before: LocalRun, after: LocalRun, rounds: int) -> None:
    (after.folder / "summary.json").unlink(missing_ok=True)
    store, checkpoint = (
        files.TrainedStore(after.folder),
        files.record_of(after.folder / "state" / files.NEWEST, Checkpoint),
    )
    if _is_closing(checkpoint, before.complete_method):
        store.restore()
    elif checkpoint is not None:
        store.free(checkpoint)
    record = run_file(after.folder)
    if record.rounds[-1:] != [rounds]:  # it may have been written before a crash
        changed: dict[str, Any] = {"rounds": [*(record.rounds or [record.spec["method"]["rounds"]]), rounds]}
        if record.given is not None:
            changed["given"] = record.given.model_copy(update={"sets": [*record.given.sets, f"rounds={rounds}"]})
        changed["spec"] = described(after.spec)
        files.write_record(after.folder / files.RUN, record.model_copy(update=changed), lasting=True)


def _is_closing(checkpoint: Checkpoint | None, method: Method) -> bool:
    """Return whether a run has continued after its last training round."""
    return checkpoint is not None and checkpoint.t >= horizon(method.schedule())


def _forms(rounds: list[Round]) -> list[tuple[str, bool, bool]]:
    return [(step.name, step.trains, step.everyone) for step in rounds]


def serve_respawned(about: Mapping[str, Any]) -> None:
    """Serve requests in a process started by `respawn`. If the run cannot be reconstructed, answer with the error."""
    end_with_parent(about["parent"])
    pipe, *buffers = about["descriptors"]
    connection, (down, *up) = Connection(pipe), map(SharedBuffer, buffers)
    try:
        executor = rebuilt_executor(about["rebuild"])
    except Exception as error:
        connection.recv_bytes()
        why = str(error) if isinstance(error, CaveatError) else message_of(error)
        answer = {
            "error": f"a worker process cannot reconstruct the run: {why}",
            "kind": type(error).__name__,
            "silo": None,
        }
        connection.send_bytes(json.dumps(answer).encode())
        return
    executor.device, executor.sharing = torch.device(about["device"]), about["sharing"]
    serve(executor, down, up, connection)


def rebuilt_executor(rebuild: Mapping[str, Any]) -> Executor:
    """Return the executor of a run. The user named all code that is imported here when starting the run. Raises
    RunError if the data have changed, and what reading them raises."""
    for plugin in rebuild["plugins"]:
        use(plugin)
    folder = Path(rebuild["folder"])
    spec = spec_in(folder, with_sets(run_file(folder), rebuild["sets"]))
    spec = dataclasses.replace(spec, method=with_rounds(spec.method, rebuild["rounds"]))
    import_named(spec)
    silos = spec.read_silos()
    check_same_data(folder, silos)
    return LocalRun(spec=spec, folder=folder, silos=silos).executor()
