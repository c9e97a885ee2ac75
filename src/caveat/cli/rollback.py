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
    from ..files.schema import Rollback


def rollback(
    folder: RunArgument,
    to: Annotated[
        int | None, typer.Option(min=1, metavar="ROUND", help="The round of training to go back to [lists them].")
    ] = None,
) -> None:
    """Roll a run back to a recent training round.

    It continues after that round, as if what came then had not been; a finished run has no result any more. Without
    --to the rounds are listed, and nothing is changed. How many are kept is engine.keep_checkpoints: 5 of a federation
    on Flower, for which the command is given on the machine of the server; none beside the newest of a run on one
    machine, unless the key says so. RUN/baselines/NAME goes back for a method that ran beside.
    """
    with reported(named=True):
        from ..core import ConfigurationError
        from ..core.text import escaped

        beside = folder.absolute().parent.name == "baselines"
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
                from ..federation.server.log import say

                say(run, told)
        typer.echo(escaped(told))
        typer.echo(escaped(_how_to_go_on(run, federated)))


def _is_federated(run: Path) -> bool:
    from ..runs.spec_file import run_file

    return run_file(run).federated


@contextmanager
def _alone(run: Path, folder: Path, federated: bool) -> Iterator[None]:
    """While nobody else carries out the run. Raises RunError where somebody does."""
    from ..files.writing import held, locked, owner_only

    with ExitStack() as stack:
        if federated:
            from ..federation.server.log import lock_of

            stack.enter_context(held(lock_of(run), f"{run} is being run by another process"))
            stack.enter_context(owner_only())
        for each in dict.fromkeys((run, folder)):
            stack.enter_context(locked(each / "state"))
        yield


def _kept(folder: Path) -> Iterator[str]:
    """A line for each round that a run can go back to: when it was written, of how many silos, whose updates were noted
    in it, and who was left out of it.
    """
    from ..engines.checks.norms import FEWEST
    from ..files.checkpoints import kept_place
    from ..files.ledger import read_ledger
    from ..files.rollback import LEDGER, ROWS, kept_rounds
    from ..files.run_folder import read_rows

    if not (kept := kept_rounds(folder)):
        yield f"{folder} keeps no round to go back to: engine.keep_checkpoints says how many are kept"
        return
    _, left_out, noted = read_rows(folder / ROWS)
    sent = [each for each in read_ledger(folder / LEDGER).messages if each.split is None]
    yield f"{'round':>6}  {'counted':<16}  {'silos':>5}  {'unlike the others':<17}  left out"
    for each in kept:
        when = time.localtime((folder / "state" / kept_place(each.t)).stat().st_mtime)
        here = [message for message in sent if message.round == each.number]
        # What comes after training has the number of its last round, and may be without other silos.
        trained = {message.silo for message in here if message.phase == here[0].phase}
        watched = each.norms is not None and len(trained) >= FEWEST
        unlike = [row.silo for row in noted if row.round == each.number] or ["nobody" if watched else "not told"]
        missing = [
            row.silo if here and row.phase == here[0].phase else f"{row.silo} ({row.phase})"
            for row in left_out
            if row.round == each.number and row.split is None
        ] or ["nobody"]
        silos, away = (", ".join(dict.fromkeys(names)) for names in (unlike, missing))
        yield f"{each.number:>6}  {time.strftime('%Y-%m-%d %H:%M', when)}  {len(trained):>5}  {silos:<17}  {away}"
    yield (
        f"`caveat rollback {folder} --to ROUND` has the run go on after one of them; not told: nobody is called far "
        f"from the others among fewer than {FEWEST} silos, or where federation.robust is off"
    )


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
    from ..runs.spec_file import run_file

    if run_file(run).in_python:
        return "the same call of caveat.run goes on with it"
    if federated:
        return (
            f"the same run.sh, or `caveat resume {run} --project DIR`, goes on with it; a silo that is to take no part "
            "any more is left out first, and waited for during federation.start_timeout (docs/byzantine.md)"
        )
    return f"`caveat resume {run}` goes on with it"
