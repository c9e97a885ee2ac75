"""The command line. Results go to standard output; progress and errors to standard error.

What needs torch is imported inside the commands, so that `caveat --help` answers at once.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from .._version import __version__
from ..engines.allocator import use_huge_pages
from .compare import compare, reproduce
from .console import (
    ConfigArgument,
    Plugins,
    Quiet,
    RunArgument,
    SetOptions,
    Workers,
    check_written,
    reported,
    say_lacking,
    show,
)
from .data import data
from .export import export
from .flower import flower
from .joining import join
from .new import new
from .ood import ood
from .plan import plan
from .predict import evaluate, predict
from .rollback import rollback
from .running import resume, run
from .streams import outlets


class CommandLine(typer.core.TyperGroup):
    """All commands. Once it runs, the process is its own, and it sets what it does not touch in a program's."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # Typer 0.20 escapes brackets for rich where help is plain, too, so that it shows backslashes.
        typer.core.HAS_RICH = False
        use_huge_pages()
        with outlets() as results:
            try:
                return super().main(*args, **kwargs)
            finally:
                check_written(results)


app = typer.Typer(
    name="caveat",
    cls=CommandLine,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Kind(StrEnum):
    """What `caveat list` lists."""

    methods = "methods"
    datasets = "datasets"
    models = "models"
    recipes = "recipes"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"caveat {__version__}")
        raise typer.Exit


@app.callback()
def caveat(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Print it.")] = False,
) -> None:
    """Federated learning over heterogeneous data silos, with models that say how sure they are."""


app.command(
    epilog="See also: caveat config RECIPE (print every key), caveat plan (estimate the cost first), caveat compare "
    "(several methods and seeds)."
)(run)
app.command()(plan)
app.command()(resume)
app.command()(rollback)
app.command()(join)
app.command()(predict)
app.command()(evaluate)
app.command()(export)


@app.command()
def report(
    folder: RunArgument,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Where to [RUN/report.html].")] = None,
) -> None:
    """Write the report of a run or a comparison.

    One self-contained page, also of what is not finished.
    """
    with reported(named=True):
        from ..config import reading
        from ..files.run_folder import read_run
        from ..html.run.page import write_page

        if (folder / "grid.json").exists():
            from ..analysis.compare.runner import opened, write

            with reading():
                typer.echo(write(opened(folder), out))
        else:
            found = read_run(folder)
            typer.echo(write_page(found, out or folder / "report.html"))
            say_lacking(found)


@app.command()
def audit(
    config: ConfigArgument = None,
    sets: SetOptions = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,...", help="Of weights, batches and shares.")] = "0,1,2",
    fractions: Annotated[
        str, typer.Option(metavar="S,S,...", help="Of the training data; 1 is one.")
    ] = "1/8,1/4,1/2,1",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder, or one to continue.")] = None,
    plugins: Plugins = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Test whether uncertainties mean what their names say.

    Trains the method on shares of the data and with several seeds; the same command continues what was interrupted.
    """
    with reported() as reporter:
        from ..analysis.audit.procedure import audit_configured
        from ..config import find, load
        from ..runs.progress import on_terminal
        from ..runs.user_code import import_named

        settings = load(config, sets or ())
        folder = out or Path("runs") / f"audit-{find(config).stem}-{settings.method.name}"
        reporter.audit = folder
        import_named(settings)
        show(audit_configured(settings, folder, seeds, fractions, workers, on_terminal(quiet)))
        typer.echo(f"audit:  {folder / 'audit.json'}\nreport: {folder / 'audit.html'}")


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_choices=True)], plugins: Plugins = None
) -> None:
    """List what a configuration can name."""
    with reported():
        from ..core.text import escaped
        from . import lists

        rows = list(getattr(lists, kind.value)())
        width = max(len(name) for name, _ in rows)
        for name, about in rows:
            typer.echo(escaped(f"{name:<{width}}  {about}".rstrip()))


@app.command("config")
def config_(config: ConfigArgument = None, sets: SetOptions = None, plugins: Plugins = None) -> None:
    """Print a configuration in full.

    Every key with its effective value and its meaning, ready to edit.
    """
    with reported():
        from ..config import dump, load

        typer.echo(dump(load(config, sets or ())), nl=False)


app.command()(data)


app.command()(compare)
app.command()(reproduce)
app.command()(ood)
app.add_typer(flower, name="flower")
app.add_typer(new, name="new")


def main() -> None:
    app(prog_name="caveat")


if __name__ == "__main__":
    main()
