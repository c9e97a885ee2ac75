"""Progress of a run on standard error: nothing, plain lines, or a live bar on a terminal."""

import sys
from collections.abc import Mapping
from typing import Protocol, TextIO, runtime_checkable

from ..core.text import escaped

SHOWN = {"accuracy": "accuracy {:.3f}", "entropy": "entropy {:.3f}", "seconds": "{:.1f} s"}
"""The metrics that are shown, and how."""


@runtime_checkable
class Progress(Protocol):
    """Interface for progress reporting (`begin`, `round`, `note`, `end`)."""

    def begin(self, title: str, rounds: int) -> None:
        """A run starts; `rounds` is an upper bound, as a method may stop early."""

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        """Round `number`, from 1, is done; `metrics` are means over the silos and may be empty."""

    def note(self, text: str) -> None:
        """Something worth a line has happened."""

    def end(self) -> None:
        """The run is over, finished or not."""


class Silent:
    """Says nothing."""

    def begin(self, title: str, rounds: int) -> None: ...

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


class Plain:
    """One line per round, or whatever `unit` is counted, and note: for logs and pipes."""

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
        # No refreshing thread: a worker process forked while such a thread holds the console's lock would hang.
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
    """The metrics that are shown, in a fixed order."""
    return "  ".join(form.format(metrics[name]) for name, form in SHOWN.items() if name in metrics)


def on_terminal(quiet: bool = False, unit: str = "round") -> Progress:
    """What suits standard error: a live bar on a terminal, lines otherwise, nothing if `quiet`."""
    if quiet:
        return Silent()
    return Live() if sys.stderr.isatty() else Plain(unit=unit)
