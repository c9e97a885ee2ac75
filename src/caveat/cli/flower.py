"""`caveat flower`: federations on Flower, across machines or simulated on one machine."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .console import reported, show
from .options import ConfigArgument, Plugins, RunArgument, SetOptions

flower = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Run federations on Flower."
)


@flower.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    config: ConfigArgument = None,
    sets: SetOptions = None,
    plugins: Plugins = None,
) -> None:
    """Write a Flower app for a configuration.

    With data.source = "on_site", each silo runs on its own machine. Otherwise, the app simulates the silos of the data
    source on one machine. DIR/README.md lists the commands to run the app.

    Files given by --plugin, and files with the code of custom models, are copied to DIR/federation, from where the
    server and the silos import them. Modules of installed packages must be installed on every machine.
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
    silos: Annotated[list[str], typer.Option("--silo", metavar="NAME", help="Silo to send the model to. Repeatable.")],
    project: Annotated[
        Path, typer.Option(metavar="DIR", help="Project folder that started the run. Its run.sh is executed.")
    ],
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1_000_000,
            metavar="N",
            help="Number of training rounds at silos that never took part.  [default: 5]",
        ),
    ] = None,
) -> None:
    """Send the model of a finished federation to more silos.

    Run this command on the server's machine. The command waits until the silos are connected. A silo that took part in
    training performs the rounds after training that it missed. A silo that never took part fits the method's local
    parameters, and sends only metrics. In both cases, the silo stores a copy of the model.
    """
    with reported(named=True):
        from ..federation.project import deliver_models

        deliver_models(folder, project, silos, rounds)


@flower.command()
def ledger(folder: RunArgument) -> None:
    """Print what left the silos in a run.

    The command prints the name, shape, type and bytes of every tensor, and then totals per silo. RUN is the run folder
    at the server, or the folder STATE/FEDERATION/METHOD of a silo.
    """
    with reported(named=True):
        from ..terminal.results import ledger_tables

        for table in ledger_tables(folder):
            show(table)


@flower.command()
def status(folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder at the server.")]) -> None:
    """Print the progress of a federation and what it waits for.

    Run this command on the server's machine. The command prints the state of the run, the error if the run failed, the
    last round in which each silo was aggregated, and the last messages of the server. The messages state, for example,
    which silos are not connected.
    """
    with reported():
        from ..core.text import escaped
        from ..federation.server.status import status_of

        for line in status_of(folder):
            typer.echo(escaped(line))


@flower.command()
def delete_data(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder STATE/FEDERATION, or STATE for all federations.")
    ],
) -> None:
    """Delete the rows that a silo has stored for a federation.

    Run this command on the silo's machine. The command also deletes the stored features of inputs. Afterwards, the silo
    can take part in the federation only if its data source yields the same rows again. The silo's stored model still
    predicts, but without the alarm "novel".
    """
    with reported():
        from ..federation.silo.data_deletion import delete_data as delete_rows

        for line in delete_rows(folder):
            typer.echo(line)


@flower.command()
def reset(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder STATE/FEDERATION/METHOD of the silo.")],
) -> None:
    """Reset a silo that lost its private state.

    Run this command on the silo's machine. The silo's log names the folder. Until the reset, the federation continues
    without the silo.
    """
    with reported():
        from ..core import ConfigurationError
        from ..federation.silo.store import OwnBooks

        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is not a folder; expected STATE/FEDERATION/METHOD of a silo")
        OwnBooks(folder).check_place()
        OwnBooks(folder).begin_afresh()
        typer.echo(f"{folder}: the silo starts again without its lost state in its next round")
