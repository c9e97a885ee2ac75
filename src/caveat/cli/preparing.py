"""`caveat list`, `caveat config` and `caveat data` show the available settings and data, `caveat new` writes templates,
and `caveat plan` estimates the cost of a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from .. import recipes as recipe_files
from ..core.text import cut, duration, plural, size
from . import console, options

if TYPE_CHECKING:
    from ..data.tables.declarations import DictionaryColumn
    from ..federation.silo.start_checks import JoiningCheck
    from ..runs.plan.estimate import MethodCost, Needs, PhaseCost, Plan, Span

Named = Iterator[tuple[str, str]]
MODELS = {
    "auto": "The default, which is residual for images and mlp for other inputs.",
    "lenet5": "LeNet-5 without BatchNorm up to its last hidden layer; one token of `features` (84 in the original).",
    "residual": "UEFL's encoder of three residual blocks, each after a convolution and before 2x2 pooling.",
    "cnn": "Two 3x3 convolutions, each with ReLU and 2x2 pooling, like FMLU's CNN; 28x28 images become 49 tokens.",
    "normed": "Three 5x5 convolutions with BatchNorm, as in FedBN for digits; 28x28 images become 49 tokens.",
    "mlp": "Two layers for features and tables; one token of `features`.",
    "linear": "Logistic regression with dropout of inputs; logits are linear in the inputs.",
    "encoder": "A custom encoder with a head, pretrained or frozen; model.encoder names the code of the encoder.",
    "own": "A custom model; model.factory names its code.",
}


class Kind(StrEnum):
    """The lists of `caveat list`."""

    methods = "methods"
    datasets = "datasets"
    models = "models"
    recipes = "recipes"


def methods() -> Named:
    from ..methods import METHODS
    from ..methods.plugins import about, installed

    for name in METHODS:
        yield name, METHODS.about(name)
    for name, point in installed().items():
        if name not in METHODS:
            yield name, about(point)


def models() -> Named:
    yield from MODELS.items()


def recipes() -> Named:
    for name in recipe_files.recipes():
        yield name, recipe_files.description(name)


def datasets() -> Named:
    """Yield every kind of data source, then the files in $CAVEAT_DATA."""
    from ..data.sources import JOIN, SOURCES, kind_of

    for source in SOURCES.values():
        yield source.form, source.about
    yield (JOIN.join(("SOURCE", "SOURCE")), "several of these as domains, except tables; data.size resizes images")
    folder = os.environ.get("CAVEAT_DATA")
    if folder and Path(folder).is_dir():
        for path in sorted(Path(folder).iterdir()):
            if (kind := kind_of(path)) is not None:
                size = "folder" if path.is_dir() else f"{path.stat().st_size / 1e6:.1f} MB"
                yield f"{kind.name}:{path.name}", f"{size} in $CAVEAT_DATA"


LISTS = {Kind.methods: methods, Kind.datasets: datasets, Kind.models: models, Kind.recipes: recipes}


def list_(
    kind: Annotated[Kind, typer.Argument(help="Kind of entries to list.", show_choices=True)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object that maps names to descriptions.")
    ] = False,
    plugins: options.Plugins = None,
) -> None:
    """List the available methods, data sources, models or recipes."""
    with console.reported():
        from ..core.text import escaped

        rows = list(LISTS[kind]())
        if as_json:
            typer.echo(json.dumps(dict(rows), indent=1))
            return
        width = max(len(name) for name, _ in rows)
        for name, about in rows:
            typer.echo(escaped(f"{name:<{width}}  {about}".rstrip()))


def config_(
    config: options.ConfigArgument = None, sets: options.SetOptions = None, plugins: options.Plugins = None
) -> None:
    """Print a complete configuration.

    The output contains every key with its value and meaning. You can edit it and use it as a configuration file.
    """
    with console.reported():
        from ..config import dump, load

        typer.echo(dump(load(config, sets or ())), nl=False)


def data(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Files, a folder, a source such as npz:a.npz,b.npz, or a silo's silo.toml."
        ),
    ],
    target: options.Target = None,
    silo_column: options.SiloColumn = None,
    groups: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the group of each row, such as a patient (tables only)."),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the time of each row (tables only).")
    ] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Categorical column (tables only). Repeatable.")
    ] = None,
    numeric: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Numeric column (tables only). Repeatable.")
    ] = None,
    decimal: Annotated[str, typer.Option(metavar="MARK", help="Decimal mark (tables only).")] = ".",
    separator: Annotated[
        str | None,
        typer.Option(metavar="CHAR", help="Separator of columns (csv files only).  [default: guessed from the header]"),
    ] = None,
    thousands: Annotated[str | None, typer.Option(metavar="MARK", help="Thousands separator (tables only).")] = None,
    missing: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Text or number that means a missing value (tables only). Repeatable."),
    ] = None,
    dictionary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Data dictionary to check the table against.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="PIXELS", help="Height and width to resize images to.")
    ] = None,
    sets: options.SetOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The federation's config.toml, for all checks before joining; only with a silo.toml."
        ),
    ] = None,
    plugins: options.Plugins = None,
) -> None:
    """Show the content of a data source.

    The command prints the number of samples per silo or domain and per class. For a table, it also prints how each
    column is encoded, and its values at each silo. It marks silos that differ from the others, for example in their
    units. For a silo.toml, the command reads the silo's data as the federation would, runs the checks that are made
    when a silo joins, and lists what could not be checked. It writes and sends nothing.
    """
    with console.reported(named=True):
        from ..config.load import data_keys
        from ..core import ConfigurationError, DataError
        from ..data import survey
        from ..data.sources import guess
        from .survey_output import column_table, refusals, silo_table, survey_table

        given: dict[str, Any] = {
            "target": target, "silo_column": silo_column, "groups": groups, "time": time,
            "categorical": tuple(categorical or ()),
            "numeric": tuple(numeric or ()), "thousands": thousands, "missing": tuple(missing or ()),
            "decimal": decimal if decimal != "." else None, "separator": separator and separator.replace("\\t", "\t"),
            "size": size,
        }  # fmt: skip
        declared = {key: value for key, value in given.items() if value} | data_keys(sets or ())
        joining, path = None, paths[0] if len(paths) == 1 else guess(*paths)
        if path.endswith(".toml"):
            options = [f"--{key.replace('_', '-')}" for key, value in given.items() if value]
            joining = _joining(Path(path), [*options, *(f"--set {each}" for each in sets or ())], dictionary, config)
        elif config is not None:
            raise ConfigurationError(f"--config {config} needs the silo.toml of a silo; {path} is not a TOML file")
        found = survey(path, **{"dictionary": _columns(dictionary)} | declared) if joining is None else joining.survey()
        tables = [] if as_json else [survey_table(found)]
        if "columns" in found and not as_json:
            tables += filter(None, [column_table(found), silo_table(found)])
        for i, table in enumerate(tables):
            typer.echo(nl=i > 0)
            console.show(table)
        if as_json:
            typer.echo(json.dumps(found, indent=1))
        if "columns" in found and (refused := refusals(found)):
            raise DataError(refused)
        if joining is not None:
            unknown = joining.check(found)
            typer.echo("all checks of joining a federation passed")
            for line in unknown:
                typer.echo(f"not checked: {line}")


def _joining(path: Path, options: Sequence[str], dictionary: Path | None, config: Path | None) -> JoiningCheck:
    from ..core import ConfigurationError
    from ..federation.silo.silo_file import read_silo_file
    from ..federation.silo.start_checks import JoiningCheck, federation_of

    file = read_silo_file(path)
    if options:
        raise ConfigurationError(f"{options[0]}: {path} already describes its table; remove the option")
    if file.dictionary is not None and dictionary is not None:
        raise ConfigurationError(f"--dictionary {dictionary}: {path} already names a dictionary; remove the option")
    if config is not None and dictionary is not None:
        raise ConfigurationError(f"--dictionary {dictionary}: {config} already has the dictionary; remove the option")
    return JoiningCheck(file, None if config is None else federation_of(config), _columns(dictionary))


def _columns(dictionary: Path | None) -> tuple[DictionaryColumn, ...]:
    from ..config import read_dictionary

    return () if dictionary is None else read_dictionary(dictionary)


new = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Write files to start from.")


@new.callback()
def _several() -> None:
    """Write files to start from."""


@new.command()
def method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the method, of lower-case letters and digits.")],
    base: Annotated[str, typer.Option("--from", metavar="METHOD", help="Method to start from.")] = "fedavg",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the three files.")] = Path(),
) -> None:
    """Write a custom method with its manifest and a test.

    NAME.py adds a loss term to the method given by --from, and is ready to run. NAME.toml lists what leaves a silo.
    test_NAME.py tests the contract of all methods. Existing files are not overwritten.
    """
    with console.reported():
        from ..testing.contract import write_method

        for path in write_method(name, base, out):
            typer.echo(path)
        file = out / f"{name}.py"
        typer.echo(f"try it: caveat compare digits --methods {base},{name} --plugin {file}", err=True)
        typer.echo(f"check it: caveat bench --lite --rows {name} --plugin {file} --plan --out DIR", err=True)


PLAN_HEADERS = ("phase", "rounds", "silos", "steps", "to a silo", "from a silo", "time")


def plan(
    given: options.DataArgument = None,
    target: options.Target = None,
    silo_column: options.SiloColumn = None,
    sets: options.SetOptions = None,
    plugins: options.Plugins = None,
    workers: options.Workers = None,
    device: options.Device = None,
    vectorized: options.Vectorized = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Estimate the time, memory and traffic of a run in advance.

    The command executes a few steps of the run. It prints the numbers of rounds, optimizer steps and bytes, the
    required memory and the expected time. It writes no files.
    """
    with console.reported():
        from ..config import load
        from ..runs.plan.estimate import plan_configured
        from ..runs.user_code import import_named

        config, sets = options.chosen(given, sets, target=target, silo_column=silo_column)
        settings = load(config, options.with_engine(sets, workers=workers, device=device, vectorized=vectorized))
        import_named(settings)
        found = plan_configured(settings)
        if as_json:
            typer.echo(json.dumps(found.as_dict(), indent=1))
            return
        for each in plan_lines(found):
            console.show(each) if not isinstance(each, str) else typer.echo(each)


def plan_lines(found: Plan) -> Iterator[Table | str]:
    """Yield a table per method, 80 columns wide, and lines of text."""
    for i, each in enumerate(found.methods):
        if i:
            yield ""
        yield plan_table(each)
        yield from plan_about(each)
    if len(found.methods) > 1:
        names = " and ".join(each.method for each in found.methods)
        yield ""
        yield f"{names} together: {seconds(found.seconds)}"


def plan_table(cost: MethodCost) -> Table:
    """Return a table with a row per phase, and the totals."""
    made = Table(title=Text(plan_title(cost)), title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for header in PLAN_HEADERS:
        made.add_column(header, justify="left" if header == "phase" else "right", no_wrap=True)
    for i, each in enumerate(cost.phases):
        made.add_row(*map(Text, plan_row(each)), end_section=i == len(cost.phases) - 1)
    totals = (cost.total("total_steps"), cost.total("total_down"), cost.total("total_up"))
    steps, down, up = counts(totals[0]), bytes_of(totals[1]), bytes_of(totals[2])
    made.add_row("total", "", "", steps, down, up, seconds(cost.seconds))
    return made


def plan_title(cost: MethodCost) -> str:
    least, middle, most = cost.examples
    each = f"{middle:,}" if least == most else f"{least:,} / {middle:,} / {most:,}"
    seen = "" if cost.looked_at == cost.silos else f" (of {cost.looked_at} inspected)"
    return (
        f"{cut(cost.method, 20)}: {plural(cost.silos, 'silo')}, {each} training examples each{seen},\n"
        f"{cost.parameters:,} parameters, {plural(cost.workers, 'worker')}"
    )


def plan_row(phase: PhaseCost) -> tuple[str, ...]:
    steps = phase.steps
    of_silo = "" if steps is None else f"{steps.median:,}"
    if steps is not None and steps.least < steps.most:
        of_silo = f"{steps.least:,} / {steps.median:,} / {steps.most:,}"
    return (
        cut(phase.name, 18), counts(phase.rounds), f"{phase.silos:,}", of_silo, size(phase.bytes_down),
        size(phase.bytes_up), seconds(phase.seconds),
    )  # fmt: skip


def plan_about(cost: MethodCost) -> Iterator[str]:
    """Yield lines on traffic, time and memory."""
    measured = cost.total("total_up", "evaluation")
    yield f"bytes   {bytes_of(cost.total('total_up'))} from the silos, of which {bytes_of(measured)} are metrics"
    line = f"time    includes {duration(cost.seconds_other)} for the start, the gallery and files"
    if cost.seconds_encoding > 0:
        line += f", and {duration(cost.seconds_encoding)} for encoding inputs once"
    yield line
    if cost.gain is not None:
        yield f"vectorized training rounds are {cost.gain:.1f} times as fast, measured on a few steps"
    yield memory(cost.needs)


def memory(needs: Needs) -> str:
    disk = f"{size(needs.disk)} of states on disk"
    if needs.total is None or needs.parent is None:
        return f"memory  unknown on this system; {disk}"
    workers = f", {size(needs.worker)} in each of {needs.workers} workers" if needs.worker and needs.workers else ""
    more = f"{size(needs.data)} of data, {size(needs.replies)} of replies and rows,\n        {disk}"
    return f"memory  {size(needs.total)}: {size(needs.parent)} in this process{workers},\n        {more}"


def counts(span: Span) -> str:
    return _spanned(f"{round(span.least):,}", f"{round(span.most):,}")


def bytes_of(span: Span) -> str:
    return _spanned(size(span.least), size(span.most))


def seconds(span: Span) -> str:
    return _spanned(duration(span.least), duration(span.most))


def _spanned(least: str, most: str) -> str:
    if least == most:
        return most
    number, _, unit = least.partition(" ")
    return (
        f"{number}-{most}" if unit == most.partition(" ")[2] else f"{least}-{most}"
    )  # spaces would make the table too wide
