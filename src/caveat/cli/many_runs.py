"""Commands on many runs: `caveat compare`, `reproduce`, `audit`, `ood` and `bench`."""

import dataclasses
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from . import console, options


class ScaleOption(StrEnum):
    """The scales of `caveat reproduce`."""

    cpu = "cpu"
    paper = "paper"


def compare(
    config: options.ConfigArgument = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            callback=options.import_typed,
            help="Methods to compare.  [default: the methods in the configuration]",
        ),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="'NAME: KEY=VALUE ...'",
            callback=options.import_typed,
            help="Add a row with this name and these configuration keys. Repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N,N,...", help="Random seeds for splits, weights and batches.")
    ] = "0,1,2",
    sets: options.SetOptions = None,
    sweeps: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="KEY=V,V,...", help="Add a column per value of the key. Repeatable."),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=V,V,...",
            help="Values to try for a key. Each row keeps the value that is best on validation data.",
        ),
    ] = None,
    tune_seeds: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of seeds for tuning. The value with the best mean over these seeds is kept.",
        ),
    ] = 1,
    match_rounds: Annotated[
        str | None, typer.Option(metavar="ROW", help="Train all rows for as many rounds as this row.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Metric for the verdict, such as nll.  [default: accuracy for classifiers]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to create or to continue.  [default: runs/compare-RECIPE]"),
    ] = None,
    plan: options.PlanOnly = False,
    plugins: options.Plugins = None,
    workers: options.Workers = None,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Compare methods on the same data, over seeds and settings.

    The command writes an HTML report and tables of means with 95 % intervals, significance tests (of differences with
    other seeds and other test inputs) and costs. If the command is interrupted, repeat it to continue.
    """
    with console.reported() as reporter:
        from ..analysis.compare.grid import asked
        from ..config import find

        grid = asked(config, methods, variants or (), seeds, sets or (), sweeps or (), tune, tune_seeds, match_rounds)
        grid = grid if metric is None else grid.led_by(metric)
        folder = out or Path("runs") / f"compare-{find(config).stem}"
        if plan:
            _show_plan(grid, folder, workers, device)
        else:
            _compare(grid, folder, workers, device, quiet, reporter)


def reproduce(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Name of the table. The option --list lists all tables.")
    ] = None,
    list_tables: Annotated[
        bool, typer.Option("--list", help="List all tables with their data and expected times.")
    ] = False,
    scale: Annotated[
        ScaleOption, typer.Option(help="Size of the experiments: reduced for two CPU cores, or as in the paper.")
    ] = ScaleOption.cpu,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of random seeds.  [default: 3, or the number of fixed seeds of the table]",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Rows to run, separated by commas. Write a name with a comma in double quotes."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to create or to continue.  [default: runs/TABLE-SCALE]"),
    ] = None,
    plan: options.PlanOnly = False,
    workers: options.Workers = None,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Reproduce a table of a paper.

    The command prints the paper's values, the reproduced values and their differences. If the command is interrupted,
    repeat it to continue.
    """
    with console.reported() as reporter:
        from ..analysis import reproduced_tables
        from ..core import ConfigurationError, DataError

        if list_tables:
            console.show(reproduced_tables.listing())
            return
        if table is None:
            raise ConfigurationError(
                f"Missing TABLE. `caveat reproduce --list` lists all {len(reproduced_tables.tables())} tables."
            )
        found = reproduced_tables.named(table)
        if rows is not None:
            found = reproduced_tables.with_rows(found, rows)
        if gone := reproduced_tables.missing(found):
            raise DataError(f"{table} needs {', '.join(gone)} in the folder $CAVEAT_DATA")
        if lacking := reproduced_tables.absent(found):
            text = f"{table} cannot be run without {' and '.join(lacking)}: pip install 'caveat[pretrained]'"
            raise ConfigurationError(text)
        grid = reproduced_tables.grid(found, reproduced_tables.Scale(scale), reproduced_tables.seeds_of(found, seeds))
        folder = out or Path("runs") / f"{table}-{scale}"
        if plan:
            _show_plan(grid, folder, workers, device)
        else:
            _compare(grid, folder, workers, device, quiet, reporter)


def _show_plan(grid: Any, folder: Path, workers: int | None, device: str | None) -> None:
    from ..analysis.compare.expected_times import plan_table

    console.show(plan_table(grid, folder, workers or 2, device))


def _compare(
    grid: Any, folder: Path, workers: int | None, device: str | None, quiet: bool, reporter: console.Reporter
) -> None:
    from ..analysis.compare.runner import compare, lacking
    from ..core import RunError
    from ..files import read_comparison
    from ..runs.progress import on_terminal
    from ..terminal.comparisons import comparison_table, conclusion

    reporter.grid = folder
    grid = dataclasses.replace(grid, command=shlex.join(["caveat", *sys.argv[1:]]))
    page = compare(grid, folder, workers or 2, on_terminal(quiet, "run"), device)
    record = read_comparison(folder / "comparison.json")
    console.show(comparison_table(record))
    for line in conclusion(record):
        typer.echo(line)
    typer.echo(f"tables: {folder / 'comparison.json'}\nreport: {page}")
    if without := lacking(folder):
        raise RunError(without)


def audit(
    config: options.ConfigArgument = None,
    sets: options.SetOptions = None,
    seeds: Annotated[
        str, typer.Option(metavar="N,N,...", help="Random seeds for weights, batches and subsets.")
    ] = "0,1,2",
    fractions: Annotated[
        str, typer.Option(metavar="S,S,...", help="Fractions of the training data, which must include 1.")
    ] = "1/8,1/4,1/2,1",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to create or to continue.  [default: runs/audit-RECIPE-METHOD]"),
    ] = None,
    plugins: options.Plugins = None,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
) -> None:
    """Test whether uncertainties measure what their names say.

    The command trains the method on fractions of the data with several seeds. If the command is interrupted, repeat it
    to continue.
    """
    with console.reported() as reporter:
        from ..analysis.audit.procedure import audit_configured
        from ..config import find, load
        from ..runs.progress import on_terminal
        from ..runs.user_code import import_named
        from ..terminal.comparisons import audit_conclusion

        settings = load(config, sets or ())
        folder = out or Path("runs") / f"audit-{find(config).stem}-{settings.method.name}"
        reporter.audit = folder
        import_named(settings)
        command = shlex.join(["caveat", *sys.argv[1:]])
        found = audit_configured(settings, folder, seeds, fractions, workers, on_terminal(quiet), command)
        console.show(found)
        for line in audit_conclusion(found.file):
            typer.echo(line)
        typer.echo(f"audit:  {folder / 'audit.json'}\nreport: {folder / 'audit.html'}")


def ood(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Finished run folders.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write ood.csv to.  [default: write no files]")
    ] = None,
    plugins: options.Plugins = None,
    model: options.ModelOptions = None,
) -> None:
    """Measure how well runs detect out-of-distribution inputs.

    Out-of-distribution inputs are, for example, noise, other data, images with shuffled pixels, or rows with shifted
    columns. The command measures how well familiarity and every other score distinguish them from the silos' own test
    inputs.
    """
    with console.reported(named=True):
        from ..analysis.ood import of_runs, prepare, result_tables, write
        from ..runs.finished_run import allow_code

        if out is not None:
            prepare(out)
        allow_code(runs, model or ())
        rows = of_runs(runs)
        for table in result_tables(rows):
            console.show(table)
        if out is not None:
            write(rows, out / "ood.csv")
            typer.echo(f"rows: {out / 'ood.csv'}")


def bench(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to create or to continue.")],
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            callback=options.import_typed,
            help="Methods to train.  [default: the methods in the settings]",
            show_default=False,
        ),
    ] = None,
    federations: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Federations to train on.  [default: all]", show_default=False),
    ] = None,
    lite: Annotated[
        bool,
        typer.Option(
            "--lite", help="Use few methods, and small federations of scikit-learn's data sets, which need no files."
        ),
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Random seeds.  [default: the seeds in the settings]", show_default=False),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Only estimate the time. For this, one cell per federation is made and kept."),
    ] = False,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Settings of rows and contrasts.  [default: the built-in settings]",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the data sets.  [default: $CAVEAT_DATA]",
            show_default=False,
        ),
    ] = None,
    plugins: options.Plugins = None,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
) -> None:
    """Make a leaderboard of methods and sources of uncertainty.

    The command trains every method once per federation and seed, and evaluates it with every source of uncertainty. It
    writes a file per cell, and the leaderboard as Markdown and HTML. If the command is interrupted, repeat it to
    continue.
    """
    with console.reported():
        from ..bench.page import board_table, write_board
        from ..bench.plan import plan_table
        from ..bench.running import Bench, data_folder, keep_settings
        from ..bench.settings import SETTINGS, federations_of, read_settings, rows_of
        from ..runs.progress import on_terminal

        asked, place = read_settings(settings or SETTINGS), data_folder(data)
        methods, names = rows_of(asked, rows, lite), federations_of(federations, lite, place)
        found = Bench(asked, names, methods, asked.seeds_of(seeds, lite), place or Path(), out)
        found.check_folder(settings or SETTINGS)
        found.check()
        keep_settings(out, settings or SETTINGS)
        if plan:
            console.show(plan_table(found, workers or 2))
            return
        found.make(workers or 2, on_terminal(quiet, "cell"))
        board = found.board()
        console.show(board_table(board))
        for page in write_board(board, shlex.join(["caveat", *sys.argv[1:]])):
            typer.echo(f"board: {page}")
