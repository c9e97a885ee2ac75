"""What all commands share: common arguments, errors as clear lines and exit statuses, tables on standard output."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

USAGE, BAD_DATA, FAILED, INTERRUPTED = 2, 3, 4, 130
"""Exit statuses, beside 0: wrong usage or configuration, bad data, a run that failed part-way, Ctrl-C."""

ConfigArgument = Annotated[
    str | None, typer.Argument(metavar="[CONFIG.toml|RECIPE]", help="A file or a recipe [digits].")
]
SetOptions = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key; repeatable.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, show_envvar=False, help="Worker processes; the result does not depend on them.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


class Reporter:
    """What an error message should add: the run that can be resumed, or the audit or comparison, if there is one."""

    run: Path | None = None
    audit: Path | None = None
    grid: Path | None = None

    def hint(self) -> str:
        if self.grid is not None and (self.grid / "grid.json").exists():
            return "; the same command continues"
        if self.audit is not None and (self.audit / "plan.json").exists():
            return "; the same command continues"
        begun = self.run is not None and (self.run / "config.toml").exists()
        return f"; `caveat resume {self.run}` continues" if begun else ""


@contextmanager
def reported() -> Iterator[Reporter]:
    """Errors as clear lines on standard error and as exit statuses; a traceback only with CAVEAT_DEBUG=1."""
    from ..core import DataWarning

    reporter = Reporter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", DataWarning)
            warnings.showwarning = _warn_with(warnings.showwarning)
            yield reporter
    except KeyboardInterrupt:
        _fail(f"interrupted{reporter.hint()}", INTERRUPTED)
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("CAVEAT_DEBUG") == "1":
            traceback.print_exc()
        from ..core import CaveatError, ConfigurationError, DataError

        if isinstance(error, ConfigurationError):
            _fail(str(error), USAGE)
        if isinstance(error, DataError):
            _fail(str(error), BAD_DATA)
        known = isinstance(error, CaveatError | OSError)
        text = str(error) if known else f"{type(error).__name__}: {error} (CAVEAT_DEBUG=1 shows where)"
        _fail(text + reporter.hint(), FAILED)


def _warn_with(otherwise: Callable[..., None]) -> Callable[..., None]:
    """What shows warnings of data as a line each, once however often the data are read, and all others as before."""
    said = set[str]()

    def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        from ..core import DataWarning

        line = f"warning: {' '.join(str(message).splitlines())}"
        if not issubclass(category, DataWarning):
            otherwise(message, category, *where, **more)
        elif line not in said:
            said.add(line)
            typer.echo(line, err=True)

    return show_warning


def _fail(text: str, status: int) -> None:
    for line in text.splitlines():
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(status)


def show(table: Any) -> None:
    """Print a table on standard output."""
    from rich.console import Console

    # A pipe has no width; a table cut to a guess would lose figures.
    Console(width=None if sys.stdout.isatty() else 250).print(table)
