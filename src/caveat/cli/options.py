"""Arguments and options that several commands share, and the code that they import."""

from __future__ import annotations

import re
from os.path import exists  # unlike Path.exists, it does not raise for a long name
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    pass
from .console import reported


def _import_plugins(named: list[str] | None) -> list[str] | None:
    """Import the files and modules that `--plugin` names, before the command looks up methods."""
    if named:
        with reported():
            from ..methods.plugins import use

            for each in named:
                use(each)
    return named


def import_typed(given: Any) -> Any:
    """Import the installed packages of the methods that the user typed in --set, --methods or --variant.

    Methods named in files and folders are not imported.
    """
    texts = [given] if isinstance(given, str) else given or ()
    if names := [name for text in texts for name in _typed(text)]:
        with reported():
            from ..methods.plugins import use_typed

            for name in names:
                use_typed(name)
    return given


def _typed(text: str) -> list[str]:
    """Return the names of methods in the value of an option, which is "a,b", "method.name=a", 'baselines=["a"]' or
    "ROW: method.name=a ..."."""
    if "=" not in text:
        return [name.strip() for name in text.split(",")]
    if text.partition("=")[0].strip() == "baselines":
        return re.findall(r"\w+", text.partition("=")[2])
    return re.findall(r"""method\.name\s*=\s*["']?(\w+)""", text)


ConfigArgument = Annotated[
    str | None,
    typer.Argument(metavar="[CONFIG.toml|RECIPE]", help="Configuration file, or name of a recipe.  [default: digits]"),
]
DataArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.toml|RECIPE|DATA...]",
        help="Configuration file, name of a recipe, or data (tables, a folder of images or an npz file).  "
        "[default: digits]",
    ),
]
Target = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column to predict (tables only).")]
SiloColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Column with the name of the silo (tables only).  [default: each file is a silo]"
    ),
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", callback=import_typed, help="Override a configuration key. Repeatable."
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="FILE.py|MODULE", callback=_import_plugins, is_eager=True,
        help="Import this file or module first, for example to register your own method. Repeatable.",
    ),
]  # fmt: skip
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of worker processes, which does not change the result."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Device: cpu, cuda, cuda:N, mps, or auto (a GPU if one is available).  [default: cpu]"
    ),
]
Vectorized = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="Whether to train several silos as one batched model: on, off, or auto (on if there are many silos with "
        "small steps). Results differ only by rounding.  [default: off]",
    ),
]
PlanOnly = Annotated[
    bool, typer.Option("--plan", help="Only estimate the time of the missing runs, from a few steps of each row.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not show progress.")]
Trackers = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker",
        metavar="NAME[:PLACE]",
        help="Log metrics with tensorboard, mlflow or wandb. Nothing is sent over the network unless you configure the "
        "tracker to do so. PLACE is a folder, or for mlflow also an address. Repeatable.",
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODULE:NAME",
        help="Code of the run's custom model, which is executed only if you name it. Repeatable.",
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]


def with_engine(sets: list[str] | None, **options: object) -> list[str]:
    """Return the `--set` options together with the command's options that are keys of `[engine]`."""
    return [*(sets or ()), *(f"engine.{key}={value}" for key, value in options.items() if value is not None)]


def chosen(given: list[str] | None, sets: list[str] | None, **keys: str | None) -> tuple[str | None, list[str]]:
    """Return the configuration of a command, and its overrides including `keys` of [data]. If data are given instead of
    a configuration, the configuration is the recipe "own-data"."""
    from ..config.toml import toml
    from ..data.sources import SOURCES, guess, kind_of
    from ..recipes import OWN_DATA, recipes

    sets = [*(f"data.{key}={toml(value)}" for key, value in keys.items() if value is not None), *(sets or ())]
    if not given:
        return None, sets
    first = given[0]
    named = first.partition(":")[0] in SOURCES or (exists(first) and kind_of(Path(first)) is not None)
    if len(given) == 1 and (first in recipes() or not named):
        return first, sets
    return OWN_DATA, [f"data.source={toml(guess(*given))}", *sets]
