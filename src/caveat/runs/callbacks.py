"""Callbacks of runs: experiment trackers and custom ones."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..core import ConfigurationError
from ..core.errors import CallbackWarning, short_repr
from ..core.settings import plain
from .base import BaseRun
from .progress import Progress

Scalar = str | int | float | bool
"""Values of settings that trackers can show."""


class Callback:
    """Base class of callbacks of a run. Override what you need; all methods do nothing by default.

    A run calls `begin`, `settings`, `round` after every round, `note` for messages, `finish` if it completes, and `end`
    in any case; baselines follow, from `begin` on. An error in a callback does not stop the run: it raises a
    `CallbackWarning`, and the callback is not called any more.
    """

    def begin(self, title: str, rounds: int) -> None:
        """A run starts or continues; `rounds` is an upper bound, because it may stop early."""

    def settings(self, folder: str, values: Mapping[str, Scalar]) -> None:
        """The folder of the run, and its settings by key: `method.name`, `training.lr`, `seed`, ..."""

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        """Round `number`, from 1, is done; `metrics` are means over silos on the evaluated split (accuracy, nll,
        entropy) and the round's seconds; only the seconds if the round was not evaluated.
        """

    def note(self, text: str) -> None:
        """A message about the run."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is complete; `summary` has the contents of `summary.json`."""

    def end(self) -> None:
        """The run ends, complete or not."""


class ProgressWithCallbacks:
    """Progress that also calls callbacks, except those that have failed."""

    def __init__(self, progress: Progress, callbacks: Sequence[Callback]) -> None:
        self._progress, self._callbacks = progress, list(callbacks)

    def begin(self, title: str, rounds: int) -> None:
        self._progress.begin(title, rounds)
        self._tell("begin", title, rounds)

    def settings(self, folder: str, values: Mapping[str, Scalar]) -> None:
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
                callback.end()  # so it can release its resources
        name = getattr(callback, "name", type(callback).__name__)
        why = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{name} failed in {what} and will not be called again: {why}", CallbackWarning, stacklevel=2)


def check_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """Return the callbacks of a call. Raises ConfigurationError for other objects."""
    given = tuple(callbacks) if isinstance(callbacks, Sequence) and not isinstance(callbacks, str) else (callbacks,)
    for each in given:
        if not isinstance(each, Callback):
            raise ConfigurationError(f"callbacks = {short_repr(callbacks)}: expected a list of caveat.Callback")
    return given


def settings_of(run: BaseRun) -> dict[str, Scalar]:
    """Return a run's settings as a flat dictionary with the keys of a configuration."""
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


def _flat(values: Mapping[str, Any], place: str = "") -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for name, value in values.items():
        key = f"{place}.{name}".lstrip(".")
        if isinstance(value, Mapping):
            found |= _flat(value, key)
        elif value is not None:
            found[key] = value if isinstance(value, Scalar) else str(value)
    return found
