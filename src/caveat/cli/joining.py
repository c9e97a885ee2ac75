"""`caveat join`: a silo joins a finished federation."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import ModelOptions, Plugins, Quiet, RunArgument, reported

SHOWN = ("accuracy", "nll", "ece", "entropy", "epistemic", "unfamiliar")
"""The figures of a silo before and after."""


def join(
    folder: RunArgument,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="The silo's own, as data.source is written [federation.newcomers]."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder [RUN-joined].")] = None,
    silo: Annotated[str | None, typer.Option(metavar="NAME", help="What it is called [its file's name].")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=0, max=1_000_000, help="Of training, at the silo [5, or as many as RUN made].")
    ] = None,
    model: ModelOptions = None,
    plugins: Plugins = None,
    quiet: Quiet = False,
) -> None:
    """Add a silo to a finished federation. The run does not change, and the silo sends nothing.

    What the method keeps at a silo, temperature, familiarity and thresholds are fitted on the silo's own splits. DIR
    is a run's folder with the silo alone: predict, evaluate, export and report take it. The same command goes on with
    what was interrupted.
    """
    with reported(named=True):
        import json

        from ..api import join as join_silos
        from ..api import load
        from ..html.run.page import write_report
        from ..runs.joining import JOINED, name_of, own_silos_of
        from ..runs.progress import on_terminal

        run = load(folder, model=model)
        silos = None if source is None else own_silos_of(run, source, silo or name_of(source))
        place = out or folder.with_name(f"{folder.name}-joined")
        joined = join_silos(run, silos, rounds=rounds, out=place, progress=on_terminal(quiet))
        before = json.loads((place / JOINED).read_text())["before"]
        for line in _lines(before, joined.summary):
            typer.echo(line)
        typer.echo(f"run:    {place}\nreport: {write_report(place)}")


def _lines(before: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    """A line per silo and figure, before and after."""
    from ..core.text import escaped

    names = {each["name"]: each["test"] for each in summary["silos"]}
    lines = [f"{'silo':<20} {'figure':<11} {'before':>8} {'after':>8}"]
    for name, after in names.items():
        for figure in SHOWN:
            was, now = before[name].get(figure), after.get(figure)
            if was is not None and now is not None:
                lines.append(escaped(f"{name:<20} {figure:<11} {was:>8.3f} {now:>8.3f}"))
    return lines
