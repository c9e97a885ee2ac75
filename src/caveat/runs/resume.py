"""Resume an interrupted run, or extend a run by more rounds."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import data, files
from ..core import ConfigurationError, Method, Round, SiloId, horizon
from ..core.devices import find_devices
from ..files.schema import Checkpoint, RunFile
from ..metrics.custom_metrics import check_known as check_metrics
from .continuing_checks import check_begun, check_same_data
from .local_run import LocalRun
from .progress import Progress, Silent
from .spec import with_rounds
from .spec_file import described, engine_in, run_file, spec_in, with_sets
from .start import CONFIG, execute_all
from .user_code import check_known


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
