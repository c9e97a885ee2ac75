"""Progress of a run on standard error, and callbacks: experiment trackers and custom ones."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TextIO, runtime_checkable

from ..core import ConfigurationError
from ..core.errors import CallbackWarning, short_repr
from ..core.settings import check_type, plain
from ..core.text import escaped
from .base import BaseRun

SHOWN = {"accuracy": "accuracy {:.3f}", "crps": "crps {:.4g}", "entropy": "entropy {:.3f}", "seconds": "{:.1f} s"}
"""The metrics that are printed, and their formats."""


@runtime_checkable
class Progress(Protocol):
    """Interface for progress reporting (`begin`, `round`, `note`, `end`)."""

    def begin(self, title: str, rounds: int) -> None:
        """A run starts; `rounds` is an upper bound, because it may stop early."""

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        """Round `number`, from 1, is done; `metrics` are means over the silos and may be empty."""

    def note(self, text: str) -> None:
        """A message about the run."""

    def end(self) -> None:
        """The run ends, complete or not."""


class Silent:
    """No output."""

    def begin(self, title: str, rounds: int) -> None: ...

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


class Plain:
    """A line per round (or other `unit`) and note, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, unit: str = "round") -> None:
        self._stream = stream or sys.stderr
        self._rounds, self._unit = 0, unit

    def begin(self, title: str, rounds: int) -> None:
        self._rounds = rounds
        self._print(f"{title}: up to {rounds} {self._unit}s")

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        width = len(str(self._rounds))
        self._print(f"{self._unit} {number:>{width}}/{self._rounds}  {phase}  {describe(metrics)}".rstrip())

    def note(self, text: str) -> None:
        self._print(text)

    def end(self) -> None: ...

    def _print(self, line: str) -> None:
        print(escaped(line), file=self._stream, flush=True)


class Live:
    """A bar that stays in place, with notes scrolling above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}", markup=False),
        )
        # No refresh thread, because a worker process forked while it holds the console's lock would hang.
        self._bars = Bars(*columns, console=Console(stderr=True), auto_refresh=False, redirect_stdout=False)
        self._task = self._bars.add_task("", visible=False, status="")

    def begin(self, title: str, rounds: int) -> None:
        self._bars.reset(self._task, description=title, total=rounds, visible=True, status="")
        self._bars.start()
        self._bars.refresh()

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        self._bars.update(self._task, completed=number, status=f"{phase}  {describe(metrics)}".rstrip(), refresh=True)

    def note(self, text: str) -> None:
        self._bars.console.print(escaped(text), markup=False, highlight=False)

    def end(self) -> None:
        self._bars.refresh()
        self._bars.stop()


def describe(metrics: Mapping[str, float]) -> str:
    """Return the metrics as text, in a fixed order."""
    return "  ".join(form.format(metrics[name]) for name, form in SHOWN.items() if name in metrics)


def on_terminal(quiet: bool = False, unit: str = "round") -> Progress:
    """Return progress for standard error: a live bar on a terminal, lines otherwise, nothing if `quiet`."""
    if quiet:
        return Silent()
    return Live() if sys.stderr.isatty() else Plain(unit=unit)


def progress_of(given: Progress | bool | None) -> Progress:
    """Return the progress of a call: True reports on standard error. Raises ConfigurationError for other objects."""
    if given is None or isinstance(given, bool):
        return on_terminal(quiet=not given)
    check_type(given, Progress, "progress", "True, or an object with begin, round, note and end (caveat.runs.progress)")
    return given


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
