"""Whom a run tells what it does, beside its progress: trackers of experiments, and what users write themselves."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..core import ConfigurationError
from ..core.errors import CallbackWarning, short_repr
from ..core.settings import plain
from .base import BaseRun
from .progress import Progress

Plain = str | int | float | bool
"""What a tracker can show of a setting."""


class Callback:
    """Whom a run tells what it does. Override what you need; every method does nothing by itself.

    A run calls `begin`, `settings`, `round` per round, `note` now and then, `finish` if it comes to its end, and `end`
    in any case. Methods beside the main one come after it, from `begin` on again. An error in a callback ends no run:
    a `CallbackWarning` tells it once, and that callback is told nothing more.
    """

    def begin(self, title: str, rounds: int) -> None:
        """A run starts or goes on; `rounds` is an upper bound, as a method may stop early."""

    def settings(self, folder: str, values: Mapping[str, Plain]) -> None:
        """The folder of the run, and what decides its results, by key: `method.name`, `training.lr`, `seed` ..."""

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        """Round `number`, from 1, is done; `metrics` are means over the silos of the split that was evaluated
        (accuracy, nll, entropy), and the round's seconds. Without evaluation in that round they are the seconds alone.
        """

    def note(self, text: str) -> None:
        """Something worth a line has happened."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run has its result: what `summary.json` holds."""

    def end(self) -> None:
        """The run is over, finished or not."""


class Told:
    """A progress that tells callbacks too, and leaves out one that has failed."""

    def __init__(self, progress: Progress, callbacks: Sequence[Callback]) -> None:
        self._progress, self._callbacks = progress, list(callbacks)

    def begin(self, title: str, rounds: int) -> None:
        self._progress.begin(title, rounds)
        self._tell("begin", title, rounds)

    def settings(self, folder: str, values: Mapping[str, Plain]) -> None:
        self._tell("settings", folder, values)

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        self._progress.round(number, phase, metrics)
        self._tell("round", number, phase, metrics)

    def note(self, text: str) -> None:
        self._progress.note(text)
        self._tell("note", text)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._tell("finish", summary)

    def end(self) -> None:
        self._tell("end")
        self._progress.end()

    def _tell(self, what: str, *values: object) -> None:
        for callback in list(self._callbacks):
            try:
                getattr(callback, what)(*values)
            except Exception as error:
                self._leave_out(callback, what, error)

    def _leave_out(self, callback: Callback, what: str, error: Exception) -> None:
        self._callbacks.remove(callback)
        if what != "end":
            with suppress(Exception):
                callback.end()  # so that what it holds open does not outlast the run
        name = getattr(callback, "name", type(callback).__name__)
        why = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{name} failed in {what}, and is told no more: {why}", CallbackWarning, stacklevel=2)


def check_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """The callbacks of a call. Raises ConfigurationError for anything else."""
    given = tuple(callbacks) if isinstance(callbacks, Sequence) and not isinstance(callbacks, str) else (callbacks,)
    for each in given:
        if not isinstance(each, Callback):
            raise ConfigurationError(f"callbacks = {short_repr(callbacks)}: expected a list of caveat.Callback")
    return given


def settings_of(run: BaseRun) -> dict[str, Plain]:
    """What decides a run's results, flat: its keys are those of a configuration."""
    spec = run.spec
    found: dict[str, Any] = {"seed": spec.seed, "method": {"name": spec.method.name} | plain(spec.method)}
    for name in ("federation", "evaluation", "uncertainty", "privacy", "server"):
        found[name] = plain(getattr(spec, name))
    found["model"] = {name: value for name, value in spec.model.described.items() if value is not None}
    if spec.init_from is not None:
        found["init_from"] = spec.init_from
    method = found["method"]
    found |= {name: method.pop(name) for name in ("rounds", "training") if name in method}
    return _flat(found)


def _flat(values: Mapping[str, Any], place: str = "") -> dict[str, Plain]:
    found: dict[str, Plain] = {}
    for name, value in values.items():
        key = f"{place}.{name}".lstrip(".")
        if isinstance(value, Mapping):
            found |= _flat(value, key)
        elif value is not None:
            found[key] = value if isinstance(value, Plain) else str(value)
    return found
