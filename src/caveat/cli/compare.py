"""The commands that carry out many runs: `caveat compare` and `caveat reproduce`."""

import dataclasses
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import ConfigArgument, Device, Plugins, Quiet, Reporter, SetOptions, Workers, import_typed, reported, show


class ScaleOption(StrEnum):
    """The scales of `caveat reproduce`."""

    cpu = "cpu"
    paper = "paper"


def compare(
    config: ConfigArgument = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,...", callback=import_typed, help="[the configuration's]")
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant", metavar="'NAME: KEY=VALUE ...'", callback=import_typed, help="One more row; repeatable."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,...", help="Of splits, weights and batches.")] = "0,1,2",
    sets: SetOptions = None,
    sweeps: Annotated[
        list[str] | None, typer.Option("--sweep", metavar="KEY=V,V,...", help="A column per value; repeatable.")
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=V,V,...", help="Hyperparameter values to try; each row keeps the best one on validation data."
        ),
    ] = None,
    tune_seeds: Annotated[
        int, typer.Option(min=1, show_envvar=False, metavar="N", help="On how many of the seeds values are tried.")
    ] = 1,
    match_rounds: Annotated[
        str | None, typer.Option(metavar="ROW", help="All rows train as many rounds as this one took.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder, or one to continue.")] = None,
    plugins: Plugins = None,
    workers: Workers = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same data, over seeds and settings.

    Tables with intervals, paired tests and costs, and a page; the same command continues what was interrupted.
    """
    with reported() as reporter:
        from ..analysis.compare.options import asked
        from ..config import find

        grid = asked(config, methods, variants or (), seeds, sets or (), sweeps or (), tune, tune_seeds, match_rounds)
        _compare(grid, out or Path("runs") / f"compare-{find(config).stem}", workers, device, quiet, reporter)


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="As --list names it.")] = None,
    list_tables: Annotated[bool, typer.Option("--list", help="All tables, their data and expected time.")] = False,
    scale: Annotated[ScaleOption, typer.Option(help="Two CPU cores, or the paper's own size.")] = ScaleOption.cpu,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, show_envvar=False, metavar="N", help="Repetitions: 3, or the table's own seeds."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder, or one to continue.")] = None,
    workers: Workers = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Make a paper's table again.

    The paper's figures beside ours, and what differs; the same command continues what was interrupted.
    """
    with reported() as reporter:
        from ..analysis import reproduce
        from ..core import ConfigurationError, DataError

        if list_tables:
            show(reproduce.listing())
            return
        if table is None:
            raise ConfigurationError(f"which table? `caveat reproduce --list` shows {len(reproduce.tables())}")
        found = reproduce.named(table)
        if gone := reproduce.missing(found):
            raise DataError(f"{table} needs {', '.join(gone)} in the folder that CAVEAT_DATA names")
        if lacking := reproduce.absent(found):
            text = f"{table} needs {' and '.join(lacking)}, which cannot be imported: pip install 'caveat[pretrained]'"
            raise ConfigurationError(text)
        grid = reproduce.grid(found, reproduce.Scale(scale), reproduce.seeds_of(found, seeds))
        _compare(grid, out or Path("runs") / f"{table}-{scale}", workers, device, quiet, reporter)


def _compare(grid: Any, folder: Path, workers: int | None, device: str | None, quiet: bool, reporter: Reporter) -> None:
    from ..analysis.compare.runner import compare, lacking
    from ..core import RunError
    from ..core.text import escaped
    from ..files import read_comparison
    from ..runs.progress import on_terminal
    from ..terminal.comparison import comparison_table, conclusion

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
