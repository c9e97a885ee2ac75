"""`caveat plan`: what a run will cost, before it is paid."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import ConfigArgument, Device, Plugins, SetOptions, Stacked, Workers, reported, show, with_engine


def plan(
    config: ConfigArgument = None,
    sets: SetOptions = None,
    plugins: Plugins = None,
    workers: Workers = None,
    device: Device = None,
    stacked: Stacked = None,
    json: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
) -> None:
    """Say what a run will cost, before it is paid.

    Rounds, steps, bytes, memory, expected time, and what would make it cheaper, from a rehearsal of a few steps.
    """
    with reported():
        from ..config import load
        from ..runs.own_code import import_named
        from ..runs.plan.configured import plan_configured
        from .plan_text import dumps, lines

        settings = load(config, with_engine(sets, workers=workers, device=device, stacked=stacked))
        import_named(settings)
        found = plan_configured(settings)
        if json:
            typer.echo(dumps(found))
            return
        for each in lines(found):
            show(each) if not isinstance(each, str) else typer.echo(each)
