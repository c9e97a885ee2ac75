"""Progress of a run on standard error."""

import sys
from collections.abc import Mapping
from typing import Protocol, TextIO, runtime_checkable

from ..core.settings import check_type
from ..core.text import escaped

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
    """Progress without output."""

    def begin(self, title: str, rounds: int) -> None: ...

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


class Plain:
    """Progress as a line per round (or other `unit`) and note, for logs and pipes."""

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
    """Progress as a bar that stays in place, with notes scrolling above it."""

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
