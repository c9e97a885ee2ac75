"""`caveat flower`: a federation between machines, or simulated on one, by Flower."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .console import ConfigArgument, Plugins, RunArgument, SetOptions, reported, show

flower = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Federations on Flower.")


@flower.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    config: ConfigArgument = None,
    sets: SetOptions = None,
    plugins: Plugins = None,
) -> None:
    """Write a Flower app around a configuration.

    With data.source = "on_site" it is for silos on machines of their own, otherwise for a simulation of the silos that
    the source makes. The folder's README has the commands. What --plugin names goes along: a file as a copy in
    DIR/federation, which server and silos import; a module or package by its name, to be installed on every machine.
    So does the code of a model that the configuration names.
    """
    with reported():
        from ..config import dictionary_text, dump, load
        from ..federation.project import write_project
        from ..federation.refusals import check_federation
        from ..federation.silo.silo_file import beside
        from ..runs.user_code import codes_of, import_named, weights_of, with_whole_paths

        settings = load(config, [*(sets or ()), "engine.name=flower"])
        check_federation(settings.data)
        # The app runs elsewhere: paths that are found from here are written in full.
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
        typer.echo(f"{folder}: {settings.method.name}, {how}; {folder / 'README.md'} says how to start it")
        for file in weights_of(settings) if silos is None else ():
            typer.echo(f"model.weights: the server and every silo need {file}, at that place or below $CAVEAT_DATA")


@flower.command()
def deliver(
    folder: RunArgument,
    silos: Annotated[list[str], typer.Option("--silo", metavar="NAME", help="Who is to get the model; repeatable.")],
    project: Annotated[Path, typer.Option(metavar="DIR", help="The project whose run.sh started the run.")],
    rounds: Annotated[
        int | None, typer.Option(min=0, max=1_000_000, help="Of training, for silos that never took part [5].")
    ] = None,
) -> None:
    """Give the model of a finished federation to silos that are late.

    Waits until they are there. A silo that took part gets what it has missed after training, one that never did joins:
    it trains by itself what the method keeps at a silo, and sends nothing but its figures. Then each keeps the model,
    as after the last round. For the machine of the server.
    """
    with reported(named=True):
        from ..federation.project import deliver_models

        deliver_models(folder, project, silos, rounds)


@flower.command()
def ledger(folder: RunArgument) -> None:
    """Print what left the silos of a run.

    Names, shapes, types and bytes of every tensor, then totals per silo. RUN is the folder of a run at the server, or
    the one that a silo keeps: STATE/FEDERATION/METHOD.
    """
    with reported(named=True):
        from ..terminal.run import ledger_tables

        for table in ledger_tables(folder):
            show(table)


@flower.command()
def status(folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder at the server.")]) -> None:
    """Say how far a federation's run is, what it waits for, and what went wrong last.

    For the machine of the server. It names each silo that has been counted and the last round of it, then prints what
    the server has said last: who has joined, who was asked, who is not connected.
    """
    with reported():
        from ..core.text import escaped
        from ..federation.server.log import status_of

        for line in status_of(folder):
            typer.echo(escaped(line))


@flower.command()
def delete_data(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="STATE/FEDERATION, or STATE for all in it.")],
) -> None:
    """Delete the rows that a silo has stored of a federation, and its calibration inputs' numbers.

    For the machine of the silo. It takes no further part in that federation, unless its source gives the same rows
    again; what it keeps of the model goes on predicting, with the same answers. With STATE, in all federations.
    """
    with reported():
        from ..federation.silo.store import delete_data as delete_rows

        for line in delete_rows(folder):
            typer.echo(line)


@flower.command()
def reset(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="STATE/FEDERATION/METHOD.")]) -> None:
    """Have a silo that lost its private state begin afresh.

    For the machine of the silo. Its log names the folder; until then the federation goes on without the silo.
    """
    with reported():
        from ..core import ConfigurationError
        from ..federation.silo.store import OwnBooks

        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is no folder; expected what a silo keeps: STATE/FEDERATION/METHOD")
        OwnBooks(folder).check_place()
        OwnBooks(folder).begin_afresh()
        typer.echo(f"{folder}: the silo begins afresh with the next round that it is asked for")
