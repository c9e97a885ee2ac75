"""`caveat plan`: the estimated cost of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..core.text import cut, duration, plural, size
from .console import (
    DataArgument,
    Device,
    Plugins,
    SetOptions,
    SiloColumn,
    Target,
    Vectorized,
    Workers,
    chosen,
    reported,
    show,
    with_engine,
)

if TYPE_CHECKING:
    from ..runs.plan.estimate import MethodCost, Needs, PhaseCost, Plan, Span

HEADERS = ("phase", "rounds", "silos", "steps", "to a silo", "from a silo", "time")


def plan(
    given: DataArgument = None,
    target: Target = None,
    silo_column: SiloColumn = None,
    sets: SetOptions = None,
    plugins: Plugins = None,
    workers: Workers = None,
    device: Device = None,
    vectorized: Vectorized = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Estimate the time, memory and traffic of a run before you start it.

    Tries a few steps. Prints rounds, optimizer steps, bytes, memory and expected time. Writes no files.
    """
    with reported():
        from ..config import load
        from ..runs.plan.estimate import plan_configured
        from ..runs.user_code import import_named

        config, sets = chosen(given, sets, target=target, silo_column=silo_column)
        settings = load(config, with_engine(sets, workers=workers, device=device, vectorized=vectorized))
        import_named(settings)
        found = plan_configured(settings)
        if as_json:
            typer.echo(json.dumps(found.as_dict(), indent=1))
            return
        for each in lines(found):
            show(each) if not isinstance(each, str) else typer.echo(each)


def lines(found: Plan) -> Iterator[Table | str]:
    """Yield a table per method, 80 columns wide, and lines of text."""
    for i, each in enumerate(found.methods):
        if i:
            yield ""
        yield table(each)
        yield from about(each)
    if len(found.methods) > 1:
        names = " and ".join(each.method for each in found.methods)
        yield ""
        yield f"{names} together: {seconds(found.seconds)}"


def table(cost: MethodCost) -> Table:
    """Return a table with a row per phase, and the totals."""
    made = Table(title=Text(title(cost)), title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for header in HEADERS:
        made.add_column(header, justify="left" if header == "phase" else "right", no_wrap=True)
    for i, each in enumerate(cost.phases):
        made.add_row(*map(Text, row(each)), end_section=i == len(cost.phases) - 1)
    totals = (cost.total("total_steps"), cost.total("total_down"), cost.total("total_up"))
    steps, down, up = counts(totals[0]), bytes_of(totals[1]), bytes_of(totals[2])
    made.add_row("total", "", "", steps, down, up, seconds(cost.seconds))
    return made


def title(cost: MethodCost) -> str:
    least, middle, most = cost.examples
    each = f"{middle:,}" if least == most else f"{least:,} / {middle:,} / {most:,}"
    seen = "" if cost.looked_at == cost.silos else f" (of {cost.looked_at} inspected)"
    return (
        f"{cut(cost.method, 20)}: {plural(cost.silos, 'silo')}, {each} training examples each{seen},\n"
        f"{cost.parameters:,} parameters, {plural(cost.workers, 'worker')}"
    )


def row(phase: PhaseCost) -> tuple[str, ...]:
    steps = phase.steps
    of_silo = "" if steps is None else f"{steps.median:,}"
    if steps is not None and steps.least < steps.most:
        of_silo = f"{steps.least:,} / {steps.median:,} / {steps.most:,}"
    return (
        cut(phase.name, 18), counts(phase.rounds), f"{phase.silos:,}", of_silo, size(phase.bytes_down),
        size(phase.bytes_up), seconds(phase.seconds),
    )  # fmt: skip


def about(cost: MethodCost) -> Iterator[str]:
    """Yield lines of traffic, time and memory."""
    measured = cost.total("total_up", "evaluation")
    yield f"bytes   {bytes_of(cost.total('total_up'))} from the silos, {bytes_of(measured)} of it metrics"
    line = f"time    {duration(cost.seconds_other)} of it for the start, the gallery and files"
    if cost.seconds_encoding > 0:
        line += f", {duration(cost.seconds_encoding)} for encoding inputs once"
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
