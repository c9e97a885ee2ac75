"""The command line. Results go to standard output; progress and errors to standard error.

What needs torch is imported inside the commands, so that `caveat --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    ModelOptions,
    Plugins,
    Quiet,
    RunArgument,
    SetOptions,
    Workers,
    check_written,
    reported,
    say_lacking,
    say_unverified,
    show,
)
from .data import data
from .flower import flower
from .foreign import foreign
from .new import new
from .predict import predict
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


NO_RESET = {
    "embedded": "the run is finished, and its model was trained with that state: put it back from a copy",
    "flower": "the silo keeps its own state: `caveat flower reset` there has it begin afresh",
}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"caveat {__version__}")
        raise typer.Exit


@app.callback()
def caveat(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Print it.")] = False,
) -> None:
    """Federated learning over heterogeneous data silos, with models that say how sure they are."""


@app.command()
def run(
    config: ConfigArgument = None,
    sets: SetOptions = None,
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="A new folder [runs/...].")] = None,
    plugins: Plugins = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment and report on it, also where it fails on the way."""
    with reported() as reporter:
        from ..config import find, load
        from ..runs.configured import start
        from ..runs.own_code import import_named
        from ..runs.progress import on_terminal

        settings = load(config, [*(sets or ()), *([f"engine.workers={workers}"] if workers else ())])
        import_named(settings)
        stem = f"{find(config).stem}-{settings.method.name}-seed{settings.seed}"
        reporter.run = out or Path("runs") / stem
        with _reported_failure(reporter.run):
            start(settings, reporter.run, on_terminal(quiet))
        _show_result(reporter.run)


@app.command()
def resume(
    folder: RunArgument,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="SILO", help="Begins afresh, its state being lost; repeatable.")
    ] = None,
    project: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of a federation's run: the project whose run.sh continues it.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Go on to so many in all, also where it is finished.")
    ] = None,
    model: ModelOptions = None,
    plugins: Plugins = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run, to the same result, or any run to more rounds.

    Nothing that the folder names is started: the run of a federation is continued by the project that --project names.
    """
    with reported() as reporter:
        from ..config import reading
        from ..core import ConfigurationError
        from ..runs.configured import load_config, resume
        from ..runs.own_code import allow, codes_of
        from ..runs.progress import on_terminal

        with reading():
            config = load_config(folder)
        allow(codes_of(config), model or ())
        federation = config.engine.name == "flower"
        if reset and ((folder / "summary.json").exists() or federation):
            raise ConfigurationError(f"--reset {reset[0]}: {NO_RESET[config.engine.name]}")
        if project is not None and not federation:
            raise ConfigurationError(
                f"--project {project}: {folder} is no federation's run; `caveat resume {folder}` continues it"
            )
        if rounds is not None and federation:
            raise ConfigurationError(f"--rounds {rounds}: {folder} is of a federation, whose silos keep their states")
        parts = [folder, *(folder / "beside" / name for name in config.beside)]
        if rounds is None and all((part / "summary.json").exists() for part in parts):
            typer.echo(f"{folder}: nothing is left of the run itself", err=True)
        elif federation:
            from ..federation.resume import resume_federation

            with reading():
                resume_federation(folder, project)
        reporter.run = folder
        say_unverified(folder)
        if not federation:
            with _reported_failure(folder):
                resume(folder, on_terminal(quiet), workers, reset=reset or (), rounds=rounds)
        _show_result(folder)


app.command()(predict)


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
        from ..html.pages.run.page import write_page
        from ..runs.begun import check_configuration

        if (folder / "grid.json").exists():
            from ..analysis.compare.command import opened, write

            with reading():
                typer.echo(write(opened(folder), out))
        else:
            with reading():
                check_configuration(folder)
            found = read_run(folder)
            typer.echo(write_page(found, out or folder / "report.html"))
            say_unverified(folder)
            say_lacking(found)


@app.command()
def audit(
    config: ConfigArgument = None,
    sets: SetOptions = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,...", help="Of weights, batches and shares.")] = "0,1,2",
    shares: Annotated[str, typer.Option(metavar="S,S,...", help="Of the training data; 1 is one.")] = "1/8,1/4,1/2,1",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder, or one to continue.")] = None,
    plugins: Plugins = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Test whether uncertainties mean what their names say.

    Trains the method on shares of the data and with several seeds; the same command continues what was interrupted.
    """
    with reported() as reporter:
        from ..analysis.audit.command import audit_configured
        from ..analysis.audit.sweep import began_earlier
        from ..config import find, load
        from ..runs.own_code import import_named
        from ..runs.progress import on_terminal

        settings = load(config, sets or ())
        folder = out or Path("runs") / f"audit-{find(config).stem}-{settings.method.name}"
        reporter.audit = folder
        if began_earlier(folder):
            settings = load(config, sets or (), earlier=True)
        import_named(settings)
        show(audit_configured(settings, folder, seeds, shares, workers, on_terminal(quiet)))
        typer.echo(f"audit:  {folder / 'audit.json'}\nreport: {folder / 'audit.html'}")


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_choices=True)], plugins: Plugins = None
) -> None:
    """List what a configuration can name."""
    with reported():
        from ..html.text import escaped
        from . import output

        rows = list(getattr(output, kind.value)())
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


@contextmanager
def _reported_failure(folder: Path) -> Iterator[None]:
    """Writes the page of a run that fails on the way, which says of what."""
    try:
        yield
    except Exception:
        from ..core import CaveatError
        from ..files.run_folder import FAILURE
        from ..html.pages.run.page import write_report

        if any(folder.glob(FAILURE)) or any(folder.glob(f"beside/*/{FAILURE}")):
            with suppress(CaveatError, OSError):  # the run's own error is what is told
                write_report(folder)
        raise


def _show_result(folder: Path) -> None:
    from ..files.run_folder import read_run
    from ..html.pages.run.absence import afresh
    from ..html.pages.run.guarantee import guarantee_lines
    from ..html.pages.run.page import write_report
    from ..html.pages.run.terminal import model_table, result_table
    from ..html.text import escaped

    page = write_report(folder)
    finished = read_run(folder)
    say_unverified(folder)
    show(result_table(finished))
    if models := model_table(finished):
        typer.echo()
        show(models)
    for line in guarantee_lines(finished):
        typer.echo(escaped(line))
    if began := afresh(finished):
        typer.echo(escaped(f"begun afresh, since their states were lost: {began}"))
    typer.echo(f"run:    {folder}\nreport: {page}")


app.command()(compare)
app.command()(reproduce)
app.command()(foreign)
app.add_typer(flower, name="flower")
app.add_typer(new, name="new")


def main() -> None:
    app(prog_name="caveat")


if __name__ == "__main__":
    main()
