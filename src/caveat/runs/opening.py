"""Finished runs, of the command line or of Python, opened to predict with: by their folder alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

from .. import config as configuration
from .. import data
from ..core import ConfigurationError, DataError
from ..core.devices import find_device
from ..files.reading import RUN, decoded, manifest_of, read
from ..files.run_folder import other_kind
from ..files.schema import SiloKeeps
from ..files.schema.run import RunFile
from ..nn.custom_model import Make
from .answering import KeptRun
from .inputs import PREPARATION, kept_preparation
from .joining import JOINED
from .local import Run
from .spec import RunSpec
from .spec_file import check_files, check_same_data, run_file, spec_in
from .user_code import allow, codes_of


def open_run(folder: Path, device: str = "cpu") -> Run:
    """A finished run, to predict with on a device; its data are read where they are asked for.

    Raises ConfigurationError if it is no finished run, if this process does not know its method, or if there is no such
    device; DataError for a file that is damaged.
    """
    check_files(folder, RUN)
    record = run_file(folder)
    if not (folder / "summary.json").exists():
        raise ConfigurationError(_unfinished(folder, record))
    if not record.in_python and record.spec["data"]["source"] == "silos":
        raise ConfigurationError(f"{folder}: the data are at the silos; each keeps what it takes to predict there")
    manifest_of(folder).check(RUN, "splits.json", PREPARATION)
    spec = spec_in(folder, record)
    run = KeptRun(
        spec=spec, folder=folder, prepares=kept_preparation(folder), read_silos=_reader(folder, spec),
        devices=(find_device(device),),
    )  # fmt: skip
    run.check_code()
    return Run(run)


def _unfinished(folder: Path, record: RunFile) -> str:
    if instead := other_kind(folder):
        return f"{folder} {instead}"
    if record.in_python:
        what = "caveat.join" if (folder / JOINED).exists() else "caveat.run"
        return f"{folder} is not finished; the same call of {what} continues it"
    project = " --project DIR" if record.federated else ""
    return f"{folder} is not finished; `caveat resume {folder}{project}` continues it"


def _reader(folder: Path, spec: RunSpec) -> Callable[[], data.Silos]:
    """A function that reads the data of a finished run again, and raises RunError if they are others."""

    def read_silos() -> data.Silos:
        if spec.data is None:
            whose, what = "who had its silos joined", "join"
            if not (folder / JOINED).exists():
                whose, what = "the program that made this run", "run"
            raise DataError(f"only {whose} has them: the same call of caveat.{what} gives both")
        silos = spec.read_silos()
        check_same_data(folder, silos)
        return silos

    return read_silos


def codes_in(folder: Path) -> list[str]:
    """The names of the user's code in a run's folder, or in what a silo keeps of a federation."""
    if (folder / "silo.json").exists():
        terms = decoded(read(folder / "silo.json", SiloKeeps).terms, str(folder / "silo.json"))
        return codes_of(configuration.loads(str(terms.get("config")), str(folder / "silo.json")))
    return run_file(folder).codes


def allow_code(folders: Sequence[Path], model: Make | str | Sequence[str] | None) -> None:
    """Make known the user's code that folders name: `model` is the code itself, its name, or several names.

    Nothing that a folder names is imported unless the user names it too. Raises ConfigurationError for other code.
    """
    named = [model] if isinstance(model, str) else model if isinstance(model, Sequence) else []
    given = model if callable(model) and not named else None
    allow([code for folder in folders for code in codes_in(folder)], named, given)
