"""The command line. Results go to standard output, and progress and errors go to standard error.

Modules that need torch are imported inside the commands, so `caveat --help` starts fast.
"""

import shlex
from collections.abc import Iterator
from typing import Annotated, Any

import click
import typer
import typer.core

from .._version import __version__
from ..engines.allocator import use_huge_pages
from .console import check_written, outlets
from .finished import evaluate, export, join, predict, report
from .flower import flower
from .many_runs import audit, bench, compare, ood, reproduce
from .preparing import config_, data, list_, new, plan
from .running import resume, rollback, run
from .serving import card, serve, watch

KEYS = ("groups", "time", "decimal", "separator", "thousands", "dictionary")
"""Options of `caveat data` that are keys of `[data]` with one value."""
LISTS = ("categorical", "numeric", "missing")
"""Options of `caveat data` that are keys of `[data]` with several values."""


class CommandLine(typer.core.TyperGroup):
    """The commands. Only this class changes process-wide settings, because the process belongs to caveat."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # Typer 0.20 escapes brackets for rich even in plain help, and then shows backslashes.
        typer.core.HAS_RICH = False
        for each in parameters(self):
            each.show_envvar = False  # otherwise, errors end with "(env var: 'None')"
        use_huge_pages()
        with outlets() as results:
            try:
                return super().main(*args, **kwargs)
            finally:
                check_written(results)


def parameters(command: click.Command) -> Iterator[Any]:
    """Yield the parameters of a command and of its subcommands."""
    yield from command.params
    for each in getattr(command, "commands", {}).values():
        yield from parameters(each)


class DataCommand(typer.core.TyperCommand):
    """A command with `--set` for keys of `[data]`. If an option of `caveat data` is passed, the error suggests the
    corresponding key with `--set`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = error.option_name.removeprefix("--")
            if key not in (*KEYS, *LISTS):
                raise
            from ..data.setting_lines import assignment

            named = next(i for i, each in enumerate(given) if each.partition("=")[0] == error.option_name)
            value = given[named].partition("=")[2] or next(iter(given[named + 1 :]), "VALUE")
            option = shlex.quote(assignment(key, [value] if key in LISTS else value))
            raise click.UsageError(f"No such option: {error.option_name}; use --set {option}", ctx) from None


app = typer.Typer(
    name="caveat",
    cls=CommandLine,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"caveat {__version__}")
        raise typer.Exit


@app.callback()
def caveat(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning over heterogeneous data silos, with models that report how uncertain they are."""


app.command(
    cls=DataCommand,
    epilog="See also: caveat config RECIPE (print every key), caveat plan (estimate the cost first), caveat compare "
    "(several methods and seeds).",
)(run)
app.command(cls=DataCommand)(plan)
app.command()(resume)
app.command()(rollback)
app.command()(join)
app.command()(predict)
app.command()(evaluate)
app.command()(export)
app.command()(serve)
app.command()(watch)
app.command()(card)

app.command()(report)
app.command()(audit)
app.command("list")(list_)
app.command("config")(config_)
app.command()(data)
app.command(cls=DataCommand)(compare)
app.command()(reproduce)
app.command()(ood)
app.command()(bench)
app.add_typer(flower, name="flower")
app.add_typer(new, name="new")


def main() -> None:
    app(prog_name="caveat")


if __name__ == "__main__":
    main()
