"""`caveat rollback`: a run goes back to one of its last rounds of training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import RunArgument, reported

if TYPE_CHECKING:
    from ..files.schema.small_files import Rollback


def rollback(
    folder: RunArgument,
    to: Annotated[
        int | None, typer.Option(min=1, metavar="ROUND", help="The round of training to go back to [lists them].")
    ] = None,
) -> None:
    """Have a run go back to one of its last rounds of training.

    It continues after that round, as if what came then had not been; a finished run has no result any more. Without
    --to the rounds are listed, and nothing is changed. How many are kept is engine.checkpoints: 5 of a federation on
    Flower, for which the command is given on the machine of the server; none beside the newest of a run on one machine,
    unless the key says so. RUN/beside/NAME goes back for a method that ran beside.
    """
    with reported(named=True):
        from ..core import ConfigurationError
        from ..html.text import escaped

        beside = folder.absolute().parent.name == "beside"
        run = folder.absolute().parent.parent if beside else folder
        if not (folder / "state").is_dir():
            raise ConfigurationError(f"{folder}: no run that has begun; expected the folder of one")
        federated = _is_federated(run)
        if to is None:
            for line in _kept(folder):
                typer.echo(escaped(line))
            return
        from ..files.rollback import roll_back

        with _alone(run, folder, federated):
            back = roll_back(folder, to)
            told = _told(folder, back)
            if federated:
                from ..federation.log import say

                say(run, told)
        typer.echo(escaped(told))
        typer.echo(escaped(_how_to_go_on(run, federated)))


def _is_federated(run: Path) -> bool:
    from ..config import reading
    from ..runs.configured import load_config

    if not (run / "config.toml").exists():
        return False  # of a call in Python
    with reading():
        return load_config(run).engine.name == "flower"


@contextmanager
def _alone(run: Path, folder: Path, federated: bool) -> Iterator[None]:
    """While nobody else carries out the run. Raises RunError where somebody does."""
    from ..files.locks import held, locked
    from ..files.owner_only import owner_only

    with ExitStack() as stack:
        if federated:
            from ..federation.log import lock_of

            stack.enter_context(held(lock_of(run), f"{run} is being run by another process"))
            stack.enter_context(owner_only())
        for each in dict.fromkeys((run, folder)):
            stack.enter_context(locked(each / "state"))
        yield


def _kept(folder: Path) -> Iterator[str]:
    """A line for each round that a run can go back to: when it was written, and whose updates were noted in it."""
    from ..files.checkpoints import kept_place
    from ..files.rollback import kept_rounds
    from ..files.run_folder import read_rows

    noted = dict[int, list[str]]()
    for row in read_rows(folder / "rounds.jsonl")[2]:
        noted.setdefault(row.round, []).append(row.silo)
    if not (kept := kept_rounds(folder)):
        yield f"{folder} keeps no round to go back to: engine.checkpoints says how many are kept"
        return
    yield f"{'round':>6}  {'counted':<16}  unlike the others"
    for each in kept:
        when = time.localtime((folder / "state" / kept_place(each.t)).stat().st_mtime)
        silos = ", ".join(dict.fromkeys(noted.get(each.number, ["nobody"])))
        yield f"{each.number:>6}  {time.strftime('%Y-%m-%d %H:%M', when)}  {silos}"
    yield f"`caveat rollback {folder} --to ROUND` has the run go on after one of them"


def _told(folder: Path, back: Rollback) -> str:
    """What was done."""
    from ..files.rollback import UNDONE

    if back.undone == back.to:
        what = "what came after training is undone"
    elif back.undone == back.to + 1:
        what = f"round {back.undone} of training is undone"
    else:
        what = f"rounds {back.to + 1} to {back.undone} of training are undone"
    return f"{folder} went back to round {back.to}: {what}; rows and ledger of that are in {folder / UNDONE}"


def _how_to_go_on(run: Path, federated: bool) -> str:
    if not (run / "config.toml").exists():
        return "the same call of caveat.run goes on with it"
    if federated:
        return (
            f"the same run.sh, or `caveat resume {run} --project DIR`, goes on with it; a silo that is to take no part "
            "any more is left out first, and waited for during federation.patience (docs/robust.md)"
        )
    return f"`caveat resume {run}` goes on with it"
