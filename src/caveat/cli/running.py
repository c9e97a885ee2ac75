"""`caveat run`, `caveat resume` and `caveat rollback`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import console, options

if TYPE_CHECKING:
    from ..files.schema import Rollback

NO_RESET = {
    "single_machine": "the run is finished, and its model was trained with that state; restore the state from a backup",
    "flower": "the silo stores its own state; run `caveat flower reset` on the silo's machine",
}


def run(
    given: options.DataArgument = None,
    target: options.Target = None,
    silo_column: options.SiloColumn = None,
    sets: options.SetOptions = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Run folder to create. It must not exist.  [default: runs/RECIPE-METHOD-seedSEED]"
        ),
    ] = None,
    plugins: options.Plugins = None,
    workers: options.Workers = None,
    device: options.Device = None,
    vectorized: options.Vectorized = None,
    trackers: options.Trackers = None,
    quiet: options.Quiet = False,
) -> None:
    """Train a federated model and write an HTML report.

    CONFIG.toml is a configuration file. RECIPE is the name of a built-in configuration; `caveat list recipes` lists
    the recipes. With DATA, the recipe "own-data" trains FedAvg, and for comparison a model of each silo alone.

    The run folder contains the configuration, the checkpoints, the model and report.html. The report is written even
    if the run fails. If the run is interrupted, continue it with `caveat resume RUN`, which gives the same result.

    \b
    Examples:
      caveat run
      caveat run digits --set method.name=fedavg --set training.lr=0.001
      caveat run north.csv south.csv --target outcome
      caveat run my.toml --out runs/first --workers 2
    """
    with console.reported() as reporter:
        from ..config import find, load
        from ..files.schema import GivenConfiguration
        from ..recipes import DEFAULT
        from ..runs.callbacks import ProgressWithCallbacks
        from ..runs.progress import on_terminal
        from ..runs.start import start
        from ..runs.user_code import codes_of, import_named
        from ..trackers import tracker_of

        callbacks = [tracker_of(each) for each in trackers or ()]
        sets = options.with_engine(sets, workers=workers, device=device, vectorized=vectorized)
        config, sets = options.chosen(given, sets, target=target, silo_column=silo_column)
        settings = load(config, sets)
        import_named(settings)
        stem = f"{find(config).stem}-{settings.method.name}-seed{settings.seed}"
        reporter.run, reporter.models = out or Path("runs") / stem, codes_of(settings)
        with _reported_failure(reporter.run):
            record = GivenConfiguration(source=config or DEFAULT, sets=sets)
            start(settings, reporter.run, ProgressWithCallbacks(on_terminal(quiet), callbacks), given=record)
        _show_result(reporter.run)


def resume(
    folder: options.RunArgument,
    reset: Annotated[
        list[str] | None,
        typer.Option(metavar="SILO", help="Restart a silo whose saved state is lost from scratch. Repeatable."),
    ] = None,
    project: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Project folder of a federation on Flower. Its run.sh is executed."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override data.source, if the data have moved, or a key of [engine]. Repeatable.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1_000_000, metavar="N", help="Total number of training rounds, also for a finished run."
        ),
    ] = None,
    model: options.ModelOptions = None,
    plugins: options.Plugins = None,
    workers: options.Workers = None,
    device: options.Device = None,
    trackers: options.Trackers = None,
    quiet: options.Quiet = False,
) -> None:
    """Continue an interrupted run, or extend a run by more rounds.

    The result of an interrupted run is the same as without the interruption. Code that the run folder names is
    executed only if you name it, too. To continue a run of a federation on Flower, pass the project folder with the
    option --project. The command then executes run.sh in the project folder.
    """
    with console.reported() as reporter:
        from ..config import reading
        from ..core import ConfigurationError
        from ..runs.callbacks import ProgressWithCallbacks
        from ..runs.progress import on_terminal
        from ..runs.resume import resumable, resume
        from ..runs.user_code import allow
        from ..trackers import tracker_of

        callbacks = [tracker_of(each) for each in trackers or ()]
        record = resumable(folder)
        allow(record.codes, model or ())
        federation = record.federated
        if reset and ((folder / "summary.json").exists() or federation):
            raise ConfigurationError(f"--reset {reset[0]}: {NO_RESET['flower' if federation else 'single_machine']}")
        if project is not None and not federation:
            raise ConfigurationError(
                f"--project {project}: {folder} is not a federated run; continue it with `caveat resume {folder}`"
            )
        if device is not None and federation:
            raise ConfigurationError(
                f"--device {device}: {folder} is the run of a federation, whose silos compute on their own machines; "
                "omit --device"
            )
        if rounds is not None and federation:
            raise ConfigurationError(
                f"--rounds {rounds}: {folder} is the run of a federation, whose silos store their own states; "
                "omit --rounds"
            )
        parts = [folder, *(folder / "baselines" / name for name in record.spec["baselines"])]
        if rounds is None and all((part / "summary.json").exists() for part in parts):
            typer.echo(f"{folder}: the run is already finished", err=True)
        elif federation:
            from ..federation.project import resume_federation

            with reading():
                resume_federation(folder, project)
        reporter.run, reporter.models = folder, model or ()
        if not federation:
            with _reported_failure(folder):
                progress = ProgressWithCallbacks(on_terminal(quiet), callbacks)
                resume(folder, progress, workers, reset=reset or (), rounds=rounds, device=device, sets=sets or ())
        _show_result(folder)


@contextmanager
def _reported_failure(folder: Path) -> Iterator[None]:
    """If the run fails, write its report, which names the error."""
    try:
        yield
    except Exception:
        from ..core import CaveatError
        from ..files import FAILURE
        from ..html.run.page import write_report

        if any(folder.glob(FAILURE)) or any(folder.glob(f"baselines/*/{FAILURE}")):
            with suppress(CaveatError, OSError):  # the run's own error is reported instead
                write_report(folder)
        raise


def _show_result(folder: Path) -> None:
    from ..core.text import escaped
    from ..files import read_run
    from ..html.run.guarantee import guarantee_lines
    from ..html.run.incidents import afresh
    from ..html.run.page import write_report
    from ..terminal.results import class_table, model_table, quantity, result_table, run_conclusion, subgroups

    page = write_report(folder)
    finished = read_run(folder)
    tables = [quantity(finished)]
    if not finished.quantity:
        tables = [result_table(finished), class_table(finished), model_table(finished)]
    tables.append(subgroups(finished))
    for number, each in enumerate(filter(None, tables)):
        if number:
            typer.echo()
        console.show(each)
    for line in [*map(escaped, guarantee_lines(finished)), *run_conclusion(finished)]:
        typer.echo(line)
    if began := afresh(finished):
        typer.echo(escaped(f"restarted because their states were lost: {began}"))
    typer.echo(f"run:    {folder}\nreport: {page}")


def rollback(
    folder: options.RunArgument,
    to: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="ROUND", help="Training round to go back to.  [default: list the available rounds]"
        ),
    ] = None,
) -> None:
    """Roll a run back to a recent training round.

    When you continue the run, it starts after the round that you went back to. Later rounds and the result of a
    finished run are moved to RUN/undone. Without the option --to, the command lists the available rounds and changes
    nothing.

    engine.keep_checkpoints sets the number of available rounds: by default 5 for a federation on Flower, and only the
    newest for a run on one machine. For a federation, run the command on the server's machine. To roll back a
    baseline, pass RUN/baselines/NAME.
    """
    with console.reported(named=True):
        from ..core import ConfigurationError
        from ..core.text import escaped
        from ..runs.spec_file import run_file

        is_baseline = folder.absolute().parent.name == "baselines"
        run = folder.absolute().parent.parent if is_baseline else folder
        if not (folder / "state").is_dir():
            raise ConfigurationError(f"{folder}: not the folder of a run that has started")
        federated = run_file(run).federated
        if to is None:
            for line in _checkpoint_lines(folder):
                typer.echo(escaped(line))
            return
        from ..files import roll_back

        with _locked(run, folder, federated):
            message = _message(folder, roll_back(folder, to))
            if federated:
                from ..federation.server.log import say

                say(run, message)
        typer.echo(escaped(message))
        typer.echo(escaped(_how_to_go_on(run, federated)))


@contextmanager
def _locked(run: Path, folder: Path, federated: bool) -> Iterator[None]:
    """Lock the run. Raises RunError if another process has locked it."""
    from ..files import held, locked, owner_only

    with ExitStack() as stack:
        if federated:
            from ..federation.server.log import lock_of

            stack.enter_context(held(lock_of(run), f"{run} is being run by another process"))
            stack.enter_context(owner_only())
        for each in dict.fromkeys((run, folder)):
            stack.enter_context(locked(each / "state"))
        yield


def _checkpoint_lines(folder: Path) -> Iterator[str]:
    """Yield a table with a row per available round: when it was aggregated, the number of silos, silos with unusual
    updates, and silos that were left out. Yield one line without a table if no round is available."""
    from ..engines.norm_bounding import FEWEST
    from ..files import LEDGER, ROWS, kept_place, kept_rounds, read_ledger, read_rows

    if not (kept := kept_rounds(folder)):
        yield f"{folder} has no earlier checkpoint to go back to; engine.keep_checkpoints sets how many are kept"
        return
    _, left_out, noted = read_rows(folder / ROWS)
    sent = [each for each in read_ledger(folder / LEDGER).messages if each.split is None]
    yield f"{'round':>6}  {'aggregated':<16}  {'silos':>5}  {'unlike the others':<17}  left out"
    for each in kept:
        when = time.localtime((folder / "state" / kept_place(each.t)).stat().st_mtime)
        here = [message for message in sent if message.round == each.number]
        # Rounds after training have the number of the last training round, and may involve other silos.
        trained = {message.silo for message in here if message.phase == here[0].phase}
        watched = each.norms is not None and len(trained) >= FEWEST
        unlike = [row.silo for row in noted if row.round == each.number] or ["none" if watched else "not tested"]
        missing = [
            row.silo if here and row.phase == here[0].phase else f"{row.silo} ({row.phase})"
            for row in left_out
            if row.round == each.number and row.split is None
        ] or ["none"]
        silos, away = (", ".join(dict.fromkeys(names)) for names in (unlike, missing))
        yield f"{each.number:>6}  {time.strftime('%Y-%m-%d %H:%M', when)}  {len(trained):>5}  {silos:<17}  {away}"
    yield (
        f'Roll back with `caveat rollback {folder} --to ROUND`. "not tested" means that unusual updates were not '
        f"detected, because the round had fewer than {FEWEST} silos or federation.robust is off"
    )


def _message(folder: Path, back: Rollback) -> str:
    from ..files import UNDONE

    if back.undone == back.to:
        what = "the rounds after training are undone"
    elif back.undone == back.to + 1:
        what = f"round {back.undone} of training is undone"
    else:
        what = f"rounds {back.to + 1} to {back.undone} of training are undone"
    return f"{folder} was rolled back to round {back.to}: {what}; their rows and ledger are in {folder / UNDONE}"


def _how_to_go_on(run: Path, federated: bool) -> str:
    from ..runs.spec_file import run_file

    if run_file(run).in_python:
        return "continue with the same call of caveat.run"
    if federated:
        return (
            f"continue with the same run.sh, or with `caveat resume {run} --project DIR`; the run waits up to "
            "federation.start_timeout for silos that no longer take part, unless you exclude them "
            "(docs/how-to/byzantine.md)"
        )
    return f"continue with `caveat resume {run}`"
