"""Commands on many runs: `caveat compare`, `caveat reproduce`, `caveat audit` and `caveat ood`."""

import dataclasses
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import (
    ConfigArgument,
    Device,
    ModelOptions,
    NewFolder,
    Plugins,
    Quiet,
    Reporter,
    SetOptions,
    Workers,
    import_typed,
    reported,
    show,
)


class ScaleOption(StrEnum):
    """The scales of `caveat reproduce`."""

    cpu = "cpu"
    paper = "paper"


def compare(
    config: ConfigArgument = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", callback=import_typed, help="Methods to compare.  [default: those of the configuration]"
        ),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant", metavar="'NAME: KEY=VALUE ...'", callback=import_typed, help="Add a row. Repeatable."
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N,N,...", help="Random seeds of splits, weights and batches.")
    ] = "0,1,2",
    sets: SetOptions = None,
    sweeps: Annotated[
        list[str] | None, typer.Option("--sweep", metavar="KEY=V,V,...", help="Add a column per value. Repeatable.")
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=V,V,...", help="Hyperparameter values to try; each row keeps the best one on validation data."
        ),
    ] = None,
    tune_seeds: Annotated[
        int,
        typer.Option(
            min=1, show_envvar=False, metavar="N", help="Number of seeds used for tuning; the mean over them decides."
        ),
    ] = 1,
    match_rounds: Annotated[
        str | None, typer.Option(metavar="ROW", help="Train all rows for as many rounds as this one took.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Metric of the verdict, e.g. nll.  [default: accuracy]"),
    ] = None,
    out: NewFolder = None,
    plugins: Plugins = None,
    workers: Workers = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same data, over seeds and settings.

    Writes tables with intervals, tests for other seeds and test inputs, costs, and an HTML report. Repeat the command
    to continue.
    """
    with reported() as reporter:
        from ..analysis.compare.grid import asked
        from ..config import find

        grid = asked(config, methods, variants or (), seeds, sets or (), sweeps or (), tune, tune_seeds, match_rounds)
        grid = grid if metric is None else grid.led_by(metric)
        _compare(grid, out or Path("runs") / f"compare-{find(config).stem}", workers, device, quiet, reporter)


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Name of the table; see --list.")] = None,
    list_tables: Annotated[
        bool, typer.Option("--list", help="List all tables with their data and expected time.")
    ] = False,
    scale: Annotated[
        ScaleOption, typer.Option(help="cpu: reduced, for two CPU cores; paper: the size in the paper.")
    ] = ScaleOption.cpu,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_envvar=False,
            metavar="N",
            help="Number of repetitions.  [default: 3, or the seeds of the table]",
        ),
    ] = None,
    out: NewFolder = None,
    workers: Workers = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce a table of a paper.

    Prints the paper's values next to ours, and their differences. Repeat the command to continue.
    """
    with reported() as reporter:
        from ..analysis import reproduce
        from ..core import ConfigurationError, DataError

        if list_tables:
            show(reproduce.listing())
            return
        if table is None:
            raise ConfigurationError(f"Missing TABLE. `caveat reproduce --list` lists all {len(reproduce.tables())}.")
        found = reproduce.named(table)
        if gone := reproduce.missing(found):
            raise DataError(f"{table} needs {', '.join(gone)} in the folder $CAVEAT_DATA")
        if lacking := reproduce.absent(found):
            text = f"{table} needs {' and '.join(lacking)}, which is not installed: pip install 'caveat[pretrained]'"
            raise ConfigurationError(text)
        grid = reproduce.grid(found, reproduce.Scale(scale), reproduce.seeds_of(found, seeds))
        _compare(grid, out or Path("runs") / f"{table}-{scale}", workers, device, quiet, reporter)


def _compare(grid: Any, folder: Path, workers: int | None, device: str | None, quiet: bool, reporter: Reporter) -> None:
    from ..analysis.compare.runner import compare, lacking
    from ..core import RunError
    from ..core.text import escaped
    from ..files import read_comparison
    from ..runs.progress import on_terminal
    from ..terminal.results import comparison_table, conclusion

    reporter.grid = folder
    grid = dataclasses.replace(grid, command=shlex.join(["caveat", *sys.argv[1:]]))
    page = compare(grid, folder, workers or 2, on_terminal(quiet, "run"), device)
    record = read_comparison(folder / "comparison.json")
    show(comparison_table(record))
    typer.echo(f"tables: {folder / 'comparison.json'}\nreport: {page}")
    for line in conclusion(record):
        typer.echo(escaped(line))
    if without := lacking(folder):
        raise RunError(without)


def audit(
    config: ConfigArgument = None,
    sets: SetOptions = None,
    seeds: Annotated[
        str, typer.Option(metavar="N,N,...", help="Random seeds of weights, batches and subsets.")
    ] = "0,1,2",
    fractions: Annotated[
        str, typer.Option(metavar="S,S,...", help="Fractions of the training data; 1 must be one of them.")
    ] = "1/8,1/4,1/2,1",
    out: NewFolder = None,
    plugins: Plugins = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Test whether uncertainties measure what their names say.

    Trains the method on fractions of the data and with several seeds. Repeat the command to continue.
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


def ood(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="Finished run folders.")] = None,
    names: Annotated[
        str | None,
        typer.Option("--federations", metavar="A,B,...|all", help="Train these federations instead; see --list."),
    ] = None,
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", callback=import_typed, help="Methods for --federations.")
    ] = ("fedavg,fedbn,uefl,fedpn,trfeddis"),
    sets: SetOptions = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,...", help="Random seeds for --federations.")] = "0,1,2",
    out: NewFolder = None,
    plugins: Plugins = None,
    model: ModelOptions = None,
    workers: Workers = None,
    quiet: Quiet = False,
    listed: Annotated[bool, typer.Option("--list", help="List the federations that can be trained.")] = False,
) -> None:
    """Measure how well a run detects out-of-distribution inputs.

    Compares noise, other data, shuffled pixels or moved columns of a table with the silos' own test inputs, by
    familiarity and by every other uncertainty.
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
            raise ConfigurationError("Give either run folders or --federations, not both.")
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
