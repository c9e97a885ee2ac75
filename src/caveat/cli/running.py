"""`caveat run` and `caveat resume`: carry out a configuration, and go on with what was begun."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from .console import (
    ConfigArgument,
    Device,
    ModelOptions,
    Plugins,
    Quiet,
    RunArgument,
    SetOptions,
    Stacked,
    Trackers,
    Workers,
    reported,
    show,
    with_engine,
)

NO_RESET = {
    "single_machine": "the run is finished, and its model was trained with that state: put it back from a copy",
    "flower": "the silo keeps its own state: `caveat flower reset` there has it begin afresh",
}


def run(
    config: ConfigArgument = None,
    sets: SetOptions = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Run folder to create; must not exist.  [default: runs/RECIPE-METHOD-seedSEED]",
        ),
    ] = None,
    plugins: Plugins = None,
    workers: Workers = None,
    device: Device = None,
    vectorized: Stacked = None,
    trackers: Trackers = None,
    quiet: Quiet = False,
) -> None:
    """Train a federated model and write an HTML report.

    CONFIG.toml is a configuration file; RECIPE is the name of a built-in one (list them with `caveat list recipes`).
    Default: the recipe "digits".

    The run folder keeps the configuration, the checkpoints, the model and report.html. The report is written even if
    the run fails. If the run is interrupted, continue it with `caveat resume RUN`: the result is the same.

    \b
    Examples:
      caveat run
      caveat run digits --set method.name=fedavg --set training.lr=0.001
      caveat run my.toml --out runs/first --workers 2
    """
    with reported() as reporter:
        from ..config import find, load
        from ..files.schema.run import GivenConfiguration
        from ..recipes import DEFAULT
        from ..runs.callbacks import Told
        from ..runs.progress import on_terminal
        from ..runs.start import start
        from ..runs.user_code import codes_of, import_named
        from ..trackers import tracker_of

        told = [tracker_of(each) for each in trackers or ()]
        sets = with_engine(sets, workers=workers, device=device, vectorized=vectorized)
        settings = load(config, sets)
        import_named(settings)
        stem = f"{find(config).stem}-{settings.method.name}-seed{settings.seed}"
        reporter.run, reporter.models = out or Path("runs") / stem, codes_of(settings)
        with _reported_failure(reporter.run):
            given = GivenConfiguration(source=config or DEFAULT, sets=sets)
            start(settings, reporter.run, Told(on_terminal(quiet), told), given=given)
        _show_result(reporter.run)


def resume(
    folder: RunArgument,
    reset: Annotated[
        list[str] | None,
        typer.Option(metavar="SILO", help="Silo whose saved state is lost: restart it from scratch. Repeatable."),
    ] = None,
    project: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of a federation's run: the project whose run.sh continues it.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="data.source, if data have moved, or of [engine]; repeatable."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Total number of training rounds; also extends a finished run."),
    ] = None,
    model: ModelOptions = None,
    plugins: Plugins = None,
    workers: Workers = None,
    device: Device = None,
    trackers: Trackers = None,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run to the same result, or extend a run by more rounds.

    Nothing that the folder names is started: the run of a federation is continued by the project that --project names.
    """
    with reported() as reporter:
        from ..config import reading
        from ..core import ConfigurationError
        from ..runs.callbacks import Told
        from ..runs.progress import on_terminal
        from ..runs.resume import resumable, resume
        from ..runs.user_code import allow
        from ..trackers import tracker_of

        told = [tracker_of(each) for each in trackers or ()]
        record = resumable(folder)
        allow(record.codes, model or ())
        federation = record.federated
        if reset and ((folder / "summary.json").exists() or federation):
            raise ConfigurationError(f"--reset {reset[0]}: {NO_RESET['flower' if federation else 'single_machine']}")
        if project is not None and not federation:
            raise ConfigurationError(
                f"--project {project}: {folder} is no federation's run; `caveat resume {folder}` continues it"
            )
        if device is not None and federation:
            raise ConfigurationError(f"--device {device}: {folder} is of a federation, whose silos compute elsewhere")
        if rounds is not None and federation:
            raise ConfigurationError(f"--rounds {rounds}: {folder} is of a federation, whose silos keep their states")
        parts = [folder, *(folder / "baselines" / name for name in record.spec["baselines"])]
        if rounds is None and all((part / "summary.json").exists() for part in parts):
            typer.echo(f"{folder}: nothing is left of the run itself", err=True)
        elif federation:
            from ..federation.project import resume_federation

            with reading():
                resume_federation(folder, project)
        reporter.run, reporter.models = folder, model or ()
        if not federation:
            with _reported_failure(folder):
                told_by = Told(on_terminal(quiet), told)
                resume(
                    folder, told_by, workers, reset=reset or (), rounds=rounds, device=device, sets=sets or ()
                )  # fmt: skip
        _show_result(folder)


@contextmanager
def _reported_failure(folder: Path) -> Iterator[None]:
    """Writes the page of a run that fails on the way, which says of what."""
    try:
        yield
    except Exception:
        from ..core import CaveatError
        from ..files.run_folder import FAILURE
        from ..html.pages.run.page import write_report

        if any(folder.glob(FAILURE)) or any(folder.glob(f"baselines/*/{FAILURE}")):
            with suppress(CaveatError, OSError):  # the run's own error is what is told
                write_report(folder)
        raise


def _show_result(folder: Path) -> None:
    from ..core.text import escaped
    from ..files.run_folder import read_run
    from ..html.pages.run.guarantee import guarantee_lines
    from ..html.pages.run.incidents import afresh
    from ..html.pages.run.page import write_report
    from ..terminal.run import class_table, model_table, result_table

    page = write_report(folder)
    finished = read_run(folder)
    show(result_table(finished))
    for more in (class_table(finished), model_table(finished)):
        if more:
            typer.echo()
            show(more)
    for line in guarantee_lines(finished):
        typer.echo(escaped(line))
    if began := afresh(finished):
        typer.echo(escaped(f"restarted, because their states were lost: {began}"))
    typer.echo(f"run:    {folder}\nreport: {page}")
