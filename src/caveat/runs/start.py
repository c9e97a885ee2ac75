"""Start the run of a configuration in a new folder, resume an interrupted run, or extend it by more rounds."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import config as configuration
from .. import data
from ..config import Config
from ..core import ConfigurationError, Method, Round, SiloId, horizon
from ..core.devices import find_device, find_devices
from ..files.checkpoints import NEWEST
from ..files.reading import RUN, read, record_of, text_of
from ..files.rollback import TrainedStore
from ..files.schema.progress import Checkpoint
from ..files.schema.run import GivenConfiguration, RunFile
from ..files.schema.summary import Summary
from ..files.writing import locked, nothing_begun, write_bytes, write_record
from ..metrics.custom_metrics import check_known as check_metrics
from .execution import carry_out
from .local import LocalRun
from .progress import Progress, Silent
from .spec import spec_of, with_rounds
from .spec_file import check_begun, check_same_data, described, engine_in, run_file, spec_in, with_sets
from .user_code import check_known

CONFIG = "config.toml"


def start(
    config: Config,
    out: Path,
    progress: Progress | None = None,
    silos: data.Silos | None = None,
    given: GivenConfiguration | None = None,
) -> Path:
    """Run a configuration in a new folder `out`, and return it; `silos` are those it describes, if they were loaded
    before, and `given` is what the user gave for it. All that can be checked is checked before anything is written:
    raises ConfigurationError or DataError; RunError once the run has begun, or if another process begins one there.
    """
    _check_engine(config)
    devices = find_devices(config.engine.device, config.engine.workers)
    silos = silos or data.load(config.data, config.seed)
    check(config, silos, out)
    check_empty(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {out}: {error.strerror}") from error
    with locked(out / "state"):
        check_empty(out)  # once more: another process may have been quicker
        run = dataclasses.replace(local_run(config, silos, out), devices=devices, given=given)
        run.keep_description()
        keep_configuration(config, out)
        return carry_out_all(run, progress or Silent())


def _check_engine(config: Config) -> None:
    if config.engine.name != "single_machine":
        raise ConfigurationError(
            f"engine.name = {config.engine.name!r} is for runs that Flower starts: `caveat flower init` writes the app"
        )


def check(config: Config, silos: data.Silos, out: Path) -> None:
    """Raises ConfigurationError or DataError for what cannot be run on these silos, before anything is."""
    _check_engine(config)
    find_device(config.engine.device, start=False)  # whoever checks may be forked yet
    for run in local_run(config, silos, out).with_baselines():
        run.check()


def local_run(config: Config, silos: data.Silos, folder: Path) -> LocalRun:
    """The run of a configuration on these silos."""
    return LocalRun(spec=spec_of(config), engine_settings=config.engine, folder=folder, silos=silos)


def check_empty(out: Path) -> None:
    """Raises ConfigurationError unless a run may begin in the folder."""
    if (out / RUN).exists():
        raise ConfigurationError(f"{out} already holds a run; `caveat resume {out}` continues it, --out names another")
    if not nothing_begun(out):
        raise ConfigurationError(f"{out} exists and is not a run; name a new folder with --out")


def keep_configuration(config: Config, folder: Path) -> None:
    """Write the whole configuration for users to read, and to run again; nothing decides by it."""
    write_bytes(folder / CONFIG, configuration.dump(config).encode(), lasting=True)


def carry_out_all(run: LocalRun, progress: Progress) -> Path:
    """Carry out the method itself, then the baselines beside it, with as many rounds of training as it took.

    The caller holds the lock of the folder.
    """
    carry_out(run, progress, run.method.name)
    rounds = read(run.folder / "summary.json", Summary).rounds_run
    for baseline in run.baselines(rounds):
        baseline.folder.mkdir(parents=True, exist_ok=True)
        carry_out(baseline, progress, baseline.method.name)
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
    """Continue an interrupted run, with its silos if they are loaded; a finished one is left as it is, unless it is to
    go on to more `rounds` of training. `device` is one to go on with in place of the run's, and `sets` are
    "KEY=VALUE" of other keys that change no result, such as where its data are now, if they have moved.

    Same bits as without the interruption, but for silos that are `reset`: they begin afresh, without the state that
    they lost. Raises ConfigurationError for a run that cannot be continued here, DataError or RunError for a folder
    that is damaged, StateLost for a silo's state that is.
    """
    record = with_sets(resumable(folder), sets)
    spec, engine = spec_in(folder, record), engine_in(record)
    engine = dataclasses.replace(engine, workers=workers or engine.workers, device=device or engine.device)
    devices = find_devices(engine.device, engine.workers)
    if rounds is not None or not (folder / "summary.json").exists():
        check_known(spec)
        check_metrics(spec.evaluation.metrics)
    with locked(folder / "state"):
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
        return carry_out_all(run, progress)


def resumable(folder: Path) -> RunFile:
    """The description of a run that a command can continue. Raises ConfigurationError for any other folder."""
    record = run_file(folder)
    if (folder / "join.json").exists():
        raise ConfigurationError(
            f"{folder} is of silos that joined a finished federation; the same `caveat join` continues it, and "
            "`caveat predict` and caveat.load open it once it is finished"
        )
    if record.in_python:
        raise ConfigurationError(
            f"{folder} is of a run in Python, whose silos only that program has: the same call of caveat.run "
            "continues it; once it is finished, `caveat predict` and caveat.load open it"
        )
    if folder.absolute().parent.name == "baselines":
        raise ConfigurationError(f"{folder} is what ran beside {folder.parent.parent}, which is the run")
    return record


def extended(before: LocalRun, rounds: int) -> LocalRun:
    """A run with so many rounds of training, to which the run in its folder and those beside it can now go on.

    Nothing is trained yet, and a crash on the way leaves what the same call goes on with. Raises ConfigurationError for
    fewer rounds than were made, and where it cannot go on, DataError for what is damaged: before anything is changed.
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
    if text := text_of(after.folder / CONFIG):
        text = re.sub(r"(?m)^rounds = \d+$", f"rounds = {rounds}", text, count=1)
        write_bytes(after.folder / CONFIG, text.encode(), lasting=True)
    return after


def _rounds(run: LocalRun) -> int | None:
    return getattr(run.method, "rounds", None)


def _parts(run: LocalRun) -> list[LocalRun]:
    """The runs of the methods beside a run; then itself, whose description says what all are of."""
    return [*run.baselines(), run]


def remark(run: LocalRun) -> str:
    """What to say of a run that goes on to its rounds, if its first rounds were of another number."""
    numbers = run_file(run.folder).rounds
    methods = [run.method, *run.spec.baselines]
    follows = [f"{method.name}: {method.follows_rounds}" for method in methods if method.follows_rounds]
    if not numbers or not follows:
        return ""
    return (
        f"the first {numbers[0]} rounds were made as of {numbers[0]}, those after them as of {_rounds(run)}, so that "
        f"the model is not that of a run of {_rounds(run)} rounds from the beginning; {'; '.join(follows)} follows "
        "their number"
    )


def _check_extension(before: LocalRun, after: LocalRun, rounds: int) -> None:
    """Raises ConfigurationError unless the run in a folder can go on, before anything is changed."""
    part = before.folder
    now, then = list(before.complete_method.schedule()), list(after.complete_method.schedule())
    checkpoint = record_of(part / "state" / NEWEST, Checkpoint)
    done, asked = 0 if checkpoint is None else checkpoint.number, f"--rounds {rounds}"
    trained = min(horizon(now), horizon(then))
    if _forms(now[:trained]) != _forms(then[:trained]) or horizon(now) != _rounds(before):
        raise ConfigurationError(
            f"{asked}: rounds of {before.method.name!r} are followed by others that train, so that it cannot go on "
            "with more of them; begin another run",
            "rounds",
        )
    if done > rounds:
        raise ConfigurationError(f"{asked}: {part} has made {done} rounds of training already", "rounds")
    start_timeout = before.spec.evaluation.early_stopping_patience
    if checkpoint is not None and (
        checkpoint.stopped or (start_timeout is not None and checkpoint.worse >= start_timeout)
    ):
        raise ConfigurationError(
            f"{asked}: training of {part} ends after round {checkpoint.number}, by evaluation.early_stopping_patience, "
            "with more rounds too",
            "rounds",
        )
    if _is_closing(checkpoint, before.complete_method) and TrainedStore(part).load() is None:
        raise ConfigurationError(
            f"{asked}: the states that {part} had before its rounds after training were not kept; begin another run",
            "rounds",
        )


def _extend(before: LocalRun, after: LocalRun, rounds: int) -> None:
    (after.folder / "summary.json").unlink(missing_ok=True)
    store, checkpoint = TrainedStore(after.folder), record_of(after.folder / "state" / NEWEST, Checkpoint)
    if _is_closing(checkpoint, before.complete_method):
        store.restore()
    elif checkpoint is not None:
        store.free(checkpoint)
    record = run_file(after.folder)
    if record.rounds[-1:] != [rounds]:  # a crash may have had it written already
        changed: dict[str, Any] = {"rounds": [*(record.rounds or [record.spec["method"]["rounds"]]), rounds]}
        if record.given is not None:
            changed["given"] = record.given.model_copy(update={"sets": [*record.given.sets, f"rounds={rounds}"]})
        changed["spec"] = described(after.spec)
        write_record(after.folder / RUN, record.model_copy(update=changed), lasting=True)


def _is_closing(checkpoint: Checkpoint | None, method: Method) -> bool:
    """Whether a run has gone on after its last round of training."""
    return checkpoint is not None and checkpoint.t >= horizon(method.schedule())


def _forms(rounds: list[Round]) -> list[tuple[str, bool, bool]]:
    return [(step.name, step.trains, step.everyone) for step in rounds]
