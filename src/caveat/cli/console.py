"""What all commands share: common arguments, errors as clear lines and exit statuses, tables on standard output."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import exists  # which a name that is too long does not upset, as it does that of a Path
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .streams import Outlet

if TYPE_CHECKING:
    from ..files.run_folder import RunFolder

USAGE, BAD_DATA, FAILED, INTERRUPTED = 2, 3, 4, 130
"""Exit statuses, beside 0: wrong usage or configuration, bad data, a run that failed part-way, Ctrl-C."""


def _import_plugins(named: list[str] | None) -> list[str] | None:
    """Import what `--plugin` names, before a command looks for methods."""
    if named:
        with reported():
            from ..methods.plugins import use

            for each in named:
                use(each)
    return named


def import_typed(given: Any) -> Any:
    """Import the installed packages that have the methods which the user typed: in --set, --methods or --variant.

    What files and folders name is not imported.
    """
    texts = [given] if isinstance(given, str) else given or ()
    if names := [name for text in texts for name in _typed(text)]:
        with reported():
            from ..methods.plugins import use_typed

            for name in names:
                use_typed(name)
    return given


def _typed(text: str) -> list[str]:
    """The methods that an option's text names: "a,b", "method.name=a", 'baselines=["a"]' or "ROW: method.name=a
    ..."."""
    if "=" not in text:
        return [name.strip() for name in text.split(",")]
    if text.partition("=")[0].strip() == "baselines":
        return re.findall(r"\w+", text.partition("=")[2])
    return re.findall(r"""method\.name\s*=\s*["']?(\w+)""", text)


ConfigArgument = Annotated[
    str | None, typer.Argument(metavar="[CONFIG.toml|RECIPE]", help="Configuration file or recipe.  [default: digits]")
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", callback=import_typed, help="Override one configuration key. Repeatable."
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="FILE.py|MODULE", callback=_import_plugins, is_eager=True,
        help="Import this file or module first, for example to register your own method. Repeatable.",
    ),
]  # fmt: skip
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", show_envvar=False, help="Number of worker processes. Does not change the result."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Where to compute: cpu, cuda, cuda:N, mps or auto (a GPU if there is one).  [default: cpu]"
    ),
]
Stacked = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        show_envvar=False,
        help="Train several silos as one batched model: off, auto (if measured to be faster) or on. Results differ by "
        "rounding only.  [default: off]",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress.")]
Trackers = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker",
        metavar="NAME[:PLACE]",
        help="Log to tensorboard, mlflow or wandb. Offline unless you configure otherwise. Repeatable.",
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="MODULE:NAME", help="The run's own code, which its folder only names; repeatable."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


def with_engine(sets: list[str] | None, **options: object) -> list[str]:
    """What `--set` says, and options of commands that are keys of `[engine]`."""
    return [*(sets or ()), *(f"engine.{key}={value}" for key, value in options.items() if value is not None)]


class Reporter:
    """What an error message should add: the run that can be resumed, or the audit or comparison, if there is one."""

    run: Path | None = None
    models: Sequence[str] = ()
    """Code of one's own that the run's configuration names."""
    audit: Path | None = None
    grid: Path | None = None

    def hint(self) -> str:
        if self.grid is not None and exists(self.grid / "grid.json"):
            return "; the same command continues"
        if self.audit is not None and exists(self.audit / "plan.json"):
            return "; the same command continues"
        begun = self.run is not None and exists(self.run / "run.json")
        return f"; `caveat resume {self.run}{self._code()}` continues" if begun else ""

    def _code(self) -> str:
        """The options that name the code of this command, for another command that needs it too."""
        from ..methods.plugins import named

        options = [("--model", each) for each in self.models] + [("--plugin", each) for each in named()]
        return "".join(f" {option} {shlex.quote(each)}" for option, each in options)

    def cause(self, error: Exception) -> str:
        """What an error message should add for an error: how to go on, but never with what would fail again."""
        from ..core.errors import Diverged, OtherBeginning

        if self.run is not None and isinstance(error, Diverged):
            return "; resuming would fail again: lower training.lr in another run"
        if isinstance(error, OtherBeginning):
            return ""
        return self.hint()

    def mending(self, silo: str) -> str:
        """What to do about a silo's state that is lost."""
        afresh = (
            f", or `caveat resume {self.run} --reset {silo}{self._code()}` has it begin afresh"
            if self.run is not None
            else ""
        )
        return f": put it back from a copy{afresh}"


@contextmanager
def reported(named: bool = False) -> Iterator[Reporter]:
    """Errors as clear lines on standard error and as exit statuses; a traceback only with CAVEAT_DEBUG=1.

    `named` is for commands whose data are named on the command line: what is not there is then wrong usage.
    """
    from ..core import DataWarning
    from ..core.errors import CallbackWarning

    reporter = Reporter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", DataWarning)
            warnings.simplefilter("default", CallbackWarning)
            warnings.showwarning = _warn_with(warnings.showwarning)
            yield reporter
    except KeyboardInterrupt:
        _fail(f"interrupted{reporter.hint()}", INTERRUPTED)
    except Exception as error:
        if os.environ.get("CAVEAT_DEBUG") == "1":
            traceback.print_exc()
        from ..core import CaveatError, ConfigurationError, DataError
        from ..core.errors import MissingError, cut
        from ..files.checkpoints import StateLost

        if isinstance(error, ConfigurationError) or (named and isinstance(error, MissingError)):
            _fail(str(error), USAGE)
        if isinstance(error, DataError):
            _fail(str(error), BAD_DATA)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _fail(f"{cut(str(error.filename), 100)}: {error.strerror}", USAGE)
        if isinstance(error, StateLost):
            _fail(str(error) + reporter.mending(error.silo), FAILED)
        known = isinstance(error, CaveatError | OSError)
        text = str(error) if known else f"{type(error).__name__}: {error} (CAVEAT_DEBUG=1 shows where)"
        _fail(text + reporter.cause(error), FAILED)


def say_lacking(run: RunFolder) -> None:
    """A line on standard error where methods were to run beside a finished run and are not there."""
    from ..core.text import escaped
    from ..html.run.incidents import lacking

    if names := lacking(run):
        typer.echo(
            escaped(f"{run.path}: without {names}, which it was to be compared with: `caveat resume` runs it"), err=True
        )


def _warn_with(otherwise: Callable[..., None]) -> Callable[..., None]:
    """What shows warnings of caveat as a line each, once however often they come, and all others as before."""
    said = set[str]()

    def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        from ..core import DataWarning
        from ..core.errors import CallbackWarning

        line = f"warning: {' '.join(str(message).splitlines())}"
        if not issubclass(category, DataWarning | CallbackWarning):
            otherwise(message, category, *where, **more)
        elif line not in said:
            said.add(line)
            typer.echo(line, err=True)

    return show_warning


def _fail(text: str, status: int) -> None:
    from ..core.text import escaped

    for line in escaped(text).split("\n"):
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(status)


def check_written(results: Outlet) -> None:
    """Ends a command that had results and could not write them. A reader that had enough of them is no failure."""
    results.flush()
    if results.failed is not None:
        typer.echo(f"error: standard output cannot be written: {results.failed.strerror}", err=True)
        raise SystemExit(FAILED)


def show(table: Any) -> None:
    """Print a table on standard output, whatever characters the names in it have."""
    from rich.console import Console

    # A pipe has no width; a table cut to a guess would lose figures.
    Console(width=None if sys.stdout.isatty() else 250).print(_Escaped(table))


@dataclass(frozen=True)
class _Escaped:
    """What rich makes of something, without characters in its texts that a terminal would act upon."""

    shown: Any

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from ..core.text import escaped

        for segment in console.render(self.shown, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))
