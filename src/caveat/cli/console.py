"""Standard output, and errors as clear lines with exit statuses, for all commands."""

from __future__ import annotations

import errno
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os.path import exists  # unlike Path.exists, it does not raise for a long name
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer

if TYPE_CHECKING:
    from ..files import RunFolder


class Outlet:
    """A standard stream. After a write fails, all further output is discarded."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost: OSError | None = None
        """The error of the first write that failed, or None."""

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def failed(self) -> OSError | None:
        """The error that lost output, or None if nothing was lost or the reader, such as `head`, closed the pipe."""
        return None if self.lost is None or self.lost.errno == errno.EPIPE else self.lost

    def _lose(self, error: OSError) -> None:
        self.lost = self.lost or error
        # Otherwise, Python would try to write its buffer again at exit.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def outlets() -> Iterator[Outlet]:
    """Replace standard output and standard error by outlets, and yield the outlet of standard output. A closed stream
    is replaced by /dev/null."""
    # Otherwise, the next opened file would get the stream's number, and its output.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Outlet(stream or open(os.devnull, "w")) for stream in before)  # noqa: SIM115
    try:
        yield sys.stdout
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


USAGE, BAD_DATA, FAILED, INTERRUPTED = 2, 3, 4, 130
"""Exit statuses other than 0: wrong usage or configuration, bad data, a run that failed, Ctrl-C."""


class Reporter:
    """Additions to error messages, which state how to continue the run, audit or comparison of the command."""

    run: Path | None = None
    """Folder of the command's run, if it has one."""
    models: Sequence[str] = ()
    """Code of custom models that the run's configuration names."""
    audit: Path | None = None
    """Folder of the command's audit, if it has one."""
    grid: Path | None = None
    """Folder of the command's comparison, if it has one."""

    def hint(self) -> str:
        """Return how to continue; "" if nothing has started."""
        same = (self.grid is not None and exists(self.grid / "grid.json")) or (
            self.audit is not None and exists(self.audit / "plan.json")
        )
        if same:
            return "; repeat the command to continue"
        started = self.run is not None and exists(self.run / "run.json")
        return f"; continue with `caveat resume {self.run}{self._code()}`" if started else ""

    def _code(self) -> str:
        """Return the options --model and --plugin with which another command gets the same code as this one."""
        from ..methods.plugins import named

        options = [("--model", each) for each in self.models] + [("--plugin", each) for each in named()]
        return "".join(f" {option} {shlex.quote(each)}" for option, each in options)

    def cause(self, error: Exception) -> str:
        """Return how to continue after an error, or "" if continuing would fail again."""
        from ..core.errors import Diverged, RunChanged

        if self.run is not None and isinstance(error, Diverged):
            return "; resuming would fail again: start a new run with a lower training.lr"
        if isinstance(error, RunChanged):
            return ""
        return self.hint()

    def remedy(self, silo: str) -> str:
        """Return how to recover the lost state of a silo."""
        command = f"`caveat resume {self.run} --reset {silo}{self._code()}`"
        return ": restore it from a backup" + (f", or reset it with {command}" if self.run is not None else "")


@contextmanager
def reported(named: bool = False) -> Iterator[Reporter]:
    """Report errors as lines on standard error and as exit statuses; with CAVEAT_DEBUG=1 also print a traceback.

    Pass `named` for commands whose arguments are paths of data or runs: a missing path is then a usage error.
    """
    reporter = Reporter()
    try:
        with warnings.catch_warnings():
            for category in _own_warnings():
                warnings.simplefilter("default", category)
            warnings.showwarning = _warn_with(warnings.showwarning)
            yield reporter
    except KeyboardInterrupt:
        _fail(f"interrupted{reporter.hint()}", INTERRUPTED)
    except Exception as error:
        if os.environ.get("CAVEAT_DEBUG") == "1":
            traceback.print_exc()
        from ..core import CaveatError, ConfigurationError, DataError
        from ..core.errors import MissingError, cut
        from ..files import StateLost

        if isinstance(error, ConfigurationError) or (named and isinstance(error, MissingError)):
            _fail(str(error), USAGE)
        if isinstance(error, DataError):
            _fail(str(error) + as_options(str(error)), BAD_DATA)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _fail(f"{cut(str(error.filename), 100)}: {error.strerror}", USAGE)
        if isinstance(error, StateLost):
            _fail(str(error) + reporter.remedy(error.silo), FAILED)
        known = isinstance(error, CaveatError | OSError)
        text = str(error) if known else f"{type(error).__name__}: {error} (set CAVEAT_DEBUG=1 for a traceback)"
        _fail(text + reporter.cause(error), FAILED)


def say_lacking(run: RunFolder) -> None:
    """Print a line on standard error if baselines of a finished run are missing."""
    from ..core.text import escaped
    from ..html.run.incidents import lacking

    if names := lacking(run):
        typer.echo(escaped(f"{run.path}: baselines missing: {names}; run them with `caveat resume`"), err=True)


def _own_warnings() -> tuple[type[Warning], ...]:
    from ..core import DataWarning, ResultWarning
    from ..core.errors import CallbackWarning

    return DataWarning, ResultWarning, CallbackWarning


def as_options(text: str) -> str:
    """Return the first remedy in each line of a message as options of the command; "" if the command does not take
    keys of [data] as options."""
    from ..data.setting_lines import advised

    context = click.get_current_context(silent=True)
    takes = context is not None and any(each.metavar == "SECTION.KEY=VALUE" for each in context.command.params)
    named = [] if context is None else context.params.get("given") or context.params.get("paths") or []
    if not takes or not named or any(str(each).endswith(".toml") for each in named):
        return ""
    lines = dict.fromkeys(each for line in text.splitlines() for each in advised(line))
    options = " ".join(f"--set {shlex.quote(each)}" for each in lines)
    return f" (as an option: {options})" if options else ""


def _warn_with(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Return a function that shows each warning of caveat only once, as one line, and other warnings with
    `otherwise`."""
    shown = set[str]()

    def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        line = f"warning: {' '.join(str(message).splitlines())}{as_options(str(message))}"
        if not issubclass(category, _own_warnings()):
            otherwise(message, category, *where, **more)
        elif line not in shown:
            shown.add(line)
            typer.echo(line, err=True)

    return show_warning


def _fail(text: str, status: int) -> None:
    from ..core.text import escaped

    for line in escaped(text).split("\n"):
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(status)


def check_written(results: Outlet) -> None:
    """Exit with an error if results could not be written. A closed pipe is not an error."""
    results.flush()
    if results.failed is not None:
        typer.echo(f"error: cannot write to standard output: {results.failed.strerror}", err=True)
        raise SystemExit(FAILED)


def show(table: Any) -> None:
    """Print a table on standard output, with control characters in names escaped."""
    from rich.console import Console

    # A pipe has no width, and cutting a table to a guessed width would lose values.
    Console(width=None if sys.stdout.isatty() else 250).print(_Escaped(table))


@dataclass(frozen=True)
class _Escaped:
    """A rich renderable whose texts have no characters that a terminal would interpret."""

    renderable: Any

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from ..core.text import escaped

        for segment in console.render(self.renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))


def write_file(text: str, path: Path, option: str) -> None:
    """Write a text to the path given by an option. Raises ConfigurationError, which names the option and the path, if
    writing fails."""
    from ..core import ConfigurationError

    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}") from None
