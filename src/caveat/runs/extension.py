"""More rounds of training for a run that is finished or interrupted: it goes on from the states it had after training.

The rounds after training (personal models, temperatures, densities, promises) are made again. All is as it would be in
a run of so many rounds from the beginning, but for settings that follow the number of rounds: a cosine of learning
rates, `trfeddis` with the weights that it anneals over all rounds.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .. import config as configuration
from ..config import Config
from ..config.nearest import nearest_recipe
from ..core import ConfigurationError, Method, Round, horizon
from ..files.checkpoints import NEWEST
from ..files.reading import record_of
from ..files.rollback import TrainedStore
from ..files.schema.record import SCHEMA
from ..files.schema.small_files import Checkpoint, ExtendedFile, SettingsFile
from ..files.writing import write_bytes, write_record
from .begun import SETTINGS, check_begun, check_settings, keep_settings
from .spec import spec_of

EXTENDED = "extended.json"


def longer(config: Config, folder: Path, rounds: int, silos: int) -> Config:
    """The configuration with so many rounds of training, to which the run in a folder and those beside it can go on.

    Raises ConfigurationError for fewer rounds than were made, and where it cannot go on; DataError for what is damaged.
    """
    before = _begun(config, folder)
    check_settings(before, folder)
    after = dataclasses.replace(config, rounds=rounds)
    for name, part in _parts(config, folder).items():
        check_begun(part)
        if rounds != before.rounds:
            _check(before, after, name, part, silos)
    return after


def extend(after: Config, folder: Path, silos: int) -> None:
    """Have the run in a folder, and those beside it, go on to the rounds of a configuration that `longer` gave.

    Nothing is trained yet, and a crash on the way leaves what the same call goes on with. The caller holds the lock.
    """
    before = _begun(after, folder)
    if after.rounds != before.rounds:
        _keep_numbers(folder, before.rounds, after.rounds)
        for name, part in _parts(after, folder).items():
            _extend(before, after, name, part, silos)
    if after != configuration.load_kept(folder / "config.toml"):
        write_bytes(folder / "config.toml", configuration.dump(after).encode(), lasting=True)
        if (folder / "origin.json").exists() and (recipe := nearest_recipe(after)) is not None:
            write_record(folder / "origin.json", recipe)


def rounds_of(folder: Path) -> list[int]:
    """The rounds of training that the run in a folder was to have, each time that it was to have more; else empty."""
    known = record_of(folder / EXTENDED, ExtendedFile)
    return [] if known is None else list(known.rounds)


def remark(config: Config, folder: Path) -> str:
    """What to say of a run that goes on to the rounds of a configuration, if its first rounds were of another one."""
    numbers = rounds_of(folder)
    methods = [spec_of(config, name).method for name in (config.method.name, *config.beside)]
    follows = [f"{method.name}: {method.follows_rounds}" for method in methods if method.follows_rounds]
    if not numbers or not follows:
        return ""
    return (
        f"the first {numbers[0]} rounds were made as of {numbers[0]}, those after them as of {config.rounds}, so that "
        f"the model is not that of a run of {config.rounds} rounds from the beginning; {'; '.join(follows)} follows "
        "their number"
    )


def _keep_numbers(folder: Path, before: int, after: int) -> None:
    numbers = [*(rounds_of(folder) or [before]), after]
    kept = [n for i, n in enumerate(numbers) if not i or n != numbers[i - 1]]  # a crash may have had it written already
    write_record(folder / EXTENDED, ExtendedFile(schema=SCHEMA, rounds=kept), lasting=True)


def _begun(config: Config, folder: Path) -> Config:
    """A configuration with the rounds with which the run in a folder began, or went on."""
    begun = record_of(folder / SETTINGS, SettingsFile)
    return dataclasses.replace(config, rounds=begun.settings["rounds"] if begun else config.rounds)


def _parts(config: Config, folder: Path) -> dict[str, Path]:
    """The folders of methods beside a run that have begun; then its own, whose configuration says what all are of."""
    beside = {name: folder / "beside" / name for name in config.beside}
    return {name: part for name, part in beside.items() if (part / "state").exists()} | {config.method.name: folder}


def _check(before: Config, after: Config, name: str, part: Path, silos: int) -> None:
    """Raises ConfigurationError unless the run in a folder can go on, before anything is changed."""
    method, longer = (spec_of(config, name).complete_method(silos) for config in (before, after))
    now, then = list(method.schedule()), list(longer.schedule())
    checkpoint = record_of(part / "state" / NEWEST, Checkpoint)
    done, asked = 0 if checkpoint is None else checkpoint.number, f"--rounds {after.rounds}"
    trained = min(horizon(now), horizon(then))
    if _forms(now[:trained]) != _forms(then[:trained]) or horizon(now) != before.rounds:
        raise ConfigurationError(
            f"{asked}: rounds of {method.name!r} are followed by others that train, so that it cannot go on with more "
            "of them; begin another run",
            "rounds",
        )
    if done > after.rounds:
        raise ConfigurationError(f"{asked}: {part} has made {done} rounds of training already", "rounds")
    patience = before.evaluation.stop_after
    if checkpoint is not None and (checkpoint.stopped or (patience is not None and checkpoint.worse >= patience)):
        raise ConfigurationError(
            f"{asked}: training of {part} ends after round {checkpoint.number}, by evaluation.stop_after, with more "
            "rounds too",
            "rounds",
        )
    if _is_closing(checkpoint, method) and TrainedStore(part).load() is None:
        raise ConfigurationError(
            f"{asked}: the states that {part} had before its rounds after training were not kept; begin another run",
            "rounds",
        )


def _extend(before: Config, after: Config, name: str, part: Path, silos: int) -> None:
    (part / "summary.json").unlink(missing_ok=True)
    store, checkpoint = TrainedStore(part), record_of(part / "state" / NEWEST, Checkpoint)
    if _is_closing(checkpoint, spec_of(before, name).complete_method(silos)):
        store.restore()
    elif checkpoint is not None:
        store.free(checkpoint)
    if (part / SETTINGS).exists():
        keep_settings(after, part, again=True)


def _is_closing(checkpoint: Checkpoint | None, method: Method) -> bool:
    """Whether a run has gone on after its last round of training."""
    return checkpoint is not None and checkpoint.t >= horizon(method.schedule())


def _forms(rounds: list[Round]) -> list[tuple[str, bool, bool]]:
    return [(step.name, step.trains, step.everyone) for step in rounds]
