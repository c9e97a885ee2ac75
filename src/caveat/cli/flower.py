"""`caveat flower`: federations across machines, or simulated on one, with Flower."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .console import reported, show
from .options import ConfigArgument, Plugins, RunArgument, SetOptions

flower = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Run federations over Flower."
)


@flower.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    config: ConfigArgument = None,
    sets: SetOptions = None,
    plugins: Plugins = None,
) -> None:
    """Write a Flower app for a configuration.

    With data.source = "on_site", each silo runs on its own machine; otherwise the app simulates the silos of the data
    source. The folder's README has the commands. Files of --plugin are copied to DIR/federation, where server and silos
    import them; modules and packages must be installed on every machine. The same holds for the code of custom models.
    """
    with reported():
        from ..config import dictionary_text, dump, load
        from ..federation.project import write_project
        from ..federation.refusals import check_federation
        from ..federation.silo.silo_file import beside
        from ..runs.user_code import codes_of, import_named, weights_of, with_whole_paths

        settings = load(config, [*(sets or ()), "engine.name=flower"])
        check_federation(settings)
        # The app runs elsewhere, so write absolute paths.
        source = " + ".join(beside(part, Path.cwd()) for part in settings.data.source.split(" + "))
        settings = replace(settings, data=replace(settings.data, source=source))
        import_named(settings)
        settings = with_whole_paths(settings, weights=settings.data.source != "on_site")
        silos = None
        if settings.data.source != "on_site":
            from ..data import load as load_data

            silos = len(load_data(settings.data, settings.seed))
        dictionary = dictionary_text(config, sets or (), settings) if silos is None else ""
        write_project(folder, dump(settings), silos, plugins or (), codes_of(settings), dictionary)
        how = "on many machines" if silos is None else f"a simulation of {silos} silos"
        typer.echo(f"{folder}: {settings.method.name}, {how}; {folder / 'README.md'} explains how to start it")
        for file in weights_of(settings) if silos is None else ():
            typer.echo(f"model.weights: the server and every silo need {file}, at this path or in $CAVEAT_DATA")


@flower.command()
def deliver(
    folder: RunArgument,
    silos: Annotated[list[str], typer.Option("--silo", metavar="NAME", help="Silo that gets the model. Repeatable.")],
    project: Annotated[Path, typer.Option(metavar="DIR", help="The project whose run.sh started the run.")],
    rounds: Annotated[
        int | None,
        typer.Option(min=0, max=1_000_000, help="Training rounds for silos that never took part.  [default: 5]"),
    ] = None,
) -> None:
    """Send the model of a finished federation to late-joining silos.

    Run it on the server's machine; it waits for the silos. A silo that took part gets the rounds after training that it
    missed. A silo that never took part joins: it fits the method's local parameters and sends only metrics. Each silo
    stores the model, as after the last round.
    """
    with reported(named=True):
        from ..federation.project import deliver_models

        deliver_models(folder, project, silos, rounds)


@flower.command()
def ledger(folder: RunArgument) -> None:
    """Print what left the silos in a run.

    Lists name, shape, type and bytes of every tensor, then totals per silo. RUN is the run folder at the server, or the
    folder of a silo: STATE/FEDERATION/METHOD.
    """
    with reported(named=True):
        from ..terminal.results import ledger_tables

        for table in ledger_tables(folder):
            show(table)


@flower.command()
def status(folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder at the server.")]) -> None:
    """Print the progress of a federation, what it waits for, and its last error.

    Run it on the server's machine. Lists each silo with the last round in which its update was aggregated, then the
    last messages of the server: which silos joined, were asked, or are not connected.
    """
    with reported():
        from ..core.text import escaped
        from ..federation.server.status import status_of

        for line in status_of(folder):
            typer.echo(escaped(line))


@flower.command()
def delete_data(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="STATE/FEDERATION, or STATE for all federations.")],
) -> None:
    """Delete the rows that a silo has stored for a federation, and the features of its inputs.

    Run it on the silo's machine. The silo no longer takes part in that federation, unless its source yields the same
    rows again; its stored model still predicts, but without the alarm novel. With STATE, delete them for all
    federations.
    """
    with reported():
        from ..federation.silo.data_deletion import delete_data as delete_rows

        for line in delete_rows(folder):
            typer.echo(line)


@flower.command()
def reset(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="STATE/FEDERATION/METHOD.")]) -> None:
    """Reset a silo that lost its private state.

    Run it on the silo's machine; the silo's log names the folder. The federation continues without the silo until then.
    """
    with reported():
        from ..core import ConfigurationError
        from ..federation.silo.store import OwnBooks

        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is not a folder; expected STATE/FEDERATION/METHOD of a silo")
        OwnBooks(folder).check_place()
        OwnBooks(folder).begin_afresh()
        typer.echo(f"{folder}: the silo restarts with its next round")
