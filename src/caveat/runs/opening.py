"""Load finished runs from their folder, to predict."""

from collections.abc import Callable, Sequence
from pathlib import Path

from .. import config as configuration
from .. import data
from ..core import ConfigurationError, DataError
from ..core.devices import find_device
from ..files import RUN, decoded, manifest_of, other_kind, read
from ..files.schema import RunFile, SiloKeeps
from ..nn.custom_model import Make
from .answering import KeptRun
from .inputs import PREPARATION, kept_preparation
from .joining import JOINED
from .local import Run
from .spec import RunSpec
from .spec_file import check_files, check_same_data, run_file, spec_in
from .user_code import allow, codes_of


def open_run(folder: Path, device: str = "cpu") -> Run:
    """Open a finished run, to predict on a device; its data are read on access.

    Raises ConfigurationError if the run is not finished, or its method or the device is unknown; DataError for a
    damaged file.
    """
    check_files(folder, RUN)
    record = run_file(folder)
    if not (folder / "summary.json").exists():
        raise ConfigurationError(_unfinished(folder, record))
    if not record.in_python and record.spec["data"]["source"] == "on_site":
        raise ConfigurationError(f"{folder}: the data are at the silos; predict with the copy that each silo stores")
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
        return f"{folder} is not finished; continue with the same call of {what}"
    project = " --project DIR" if record.federated else ""
    return f"{folder} is not finished; continue with `caveat resume {folder}{project}`"


def _reader(folder: Path, spec: RunSpec) -> Callable[[], data.Silos]:
    """Return a function that reads the data of a finished run, and raises RunError if they have changed."""

    def read_silos() -> data.Silos:
        if spec.data is None:
            program = "the program that made this run has them: call caveat.run again"
            if (folder / JOINED).exists():
                program = "the program that joined its silos has them: call caveat.join again"
            raise DataError(f"only {program}")
        silos = spec.read_silos()
        check_same_data(folder, silos)
        return silos

    return read_silos


def codes_in(folder: Path) -> list[str]:
    """Return the names of custom code in a run's folder, or in a silo's stored copy."""
    if (folder / "silo.json").exists():
        terms = decoded(read(folder / "silo.json", SiloKeeps).terms, str(folder / "silo.json"))
        return codes_of(configuration.loads(str(terms.get("config")), str(folder / "silo.json")))
    return run_file(folder).codes


def allow_code(folders: Sequence[Path], model: Make | str | Sequence[str] | None) -> None:
    """Allow the custom code that folders name: `model` is the code itself, its name, or several names.

    Code that a folder names is only imported if the user names it, too. Raises ConfigurationError for other code.
    """
    named = [model] if isinstance(model, str) else model if isinstance(model, Sequence) else []
    given = model if callable(model) and not named else None
    allow([code for folder in folders for code in codes_in(folder)], named, given)
