"""`caveat ood`: does a federation notice what it does not know?"""

from pathlib import Path
from typing import Annotated

import typer

from .console import ModelOptions, Plugins, Quiet, SetOptions, Workers, import_typed, reported, show


def ood(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of finished runs.")] = None,
    names: Annotated[
        str | None, typer.Option("--federations", metavar="A,B,...|all", help="Train these instead; --list has them.")
    ] = None,
    methods: Annotated[str, typer.Option(metavar="A,B,...", callback=import_typed, help="Of these federations.")] = (
        "fedavg,fedbn,uefl,fedpn,trfeddis"
    ),
    sets: SetOptions = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,...", help="Of these federations.")] = "0,1,2",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder, or one to continue.")] = None,
    plugins: Plugins = None,
    model: ModelOptions = None,
    workers: Workers = None,
    quiet: Quiet = False,
    listed: Annotated[bool, typer.Option("--list", help="The federations that can be trained.")] = False,
) -> None:
    """Measure how well a run detects out-of-distribution inputs.

    Noise, other data, shuffled pixels or moved columns of a table, against the silos' own test inputs: how well the
    familiarity tells them, and how well every other uncertainty does.
    """
    with reported(named=True):
        from ..analysis.ood import battery, federations, of_runs, prepare, result_tables, write
        from ..core import ConfigurationError
        from ..runs.opening import allow_code
        from ..runs.progress import on_terminal

        if listed:
            typer.echo("\n".join(federations()))
            return
        if bool(runs) == bool(names):
            raise ConfigurationError("expected finished runs or --federations, and not both")
        if runs:
            if out is not None:
                prepare(out)
            allow_code(runs, model or ())
            rows = of_runs(runs)
            if out is not None:
                write(rows, out / "ood.csv")
        else:
            chosen = federations() if names == "all" else [name.strip() for name in str(names).split(",")]
            out = out or Path("runs") / "ood"
            asked = [method.strip() for method in methods.split(",")]
            rows = battery(chosen, asked, sets or (), seeds, out, workers or 2, on_terminal(quiet, "run"))
        for table in result_tables(rows):
            show(table)
        if out is not None:
            typer.echo(f"rows: {out / 'ood.csv'}")
