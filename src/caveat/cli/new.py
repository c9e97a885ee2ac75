"""`caveat new`: a file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from .console import reported

new = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Write a file to start from.")


@new.callback()
def _several() -> None:
    """Write a file to start from."""


@new.command()
def method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters and digits only.")],
    base: Annotated[str, typer.Option("--from", metavar="METHOD", help="What it starts from.")] = "fedavg",
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder for its three files.")] = Path(),
) -> None:
    """Write a method of your own, with its test.

    NAME.py runs at once: the method it starts from with one more term. NAME.toml lists what leaves a silo, and
    test_NAME.py holds it to the contract of all methods. Nothing is overwritten.
    """
    with reported():
        from ..testing.scaffold import write_method

        for path in write_method(name, base, out):
            typer.echo(path)
        file = out / f"{name}.py"
        typer.echo(f"it runs: caveat compare digits --methods {base},{name} --plugin {file}", err=True)
