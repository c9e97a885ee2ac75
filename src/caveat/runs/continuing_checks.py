"""Checks of a folder before its run is continued: specification, initial model, files and data are the same."""

from pathlib import Path

from .. import data
from ..core import ConfigurationError, DataError
from ..core.errors import RunChanged
from ..files import RUN, manifest_of, read_plain, record_of
from ..files.schema import RunFile
from .fingerprints import check_data, initial_model_fingerprint
from .spec import RunSpec
from .spec_file import after_json, deciding, described, differences, read_run_file


def check_spec(folder: Path, record: RunFile, spec: RunSpec) -> None:
    """Raise ConfigurationError, with key and values, unless the run in a folder has this specification. Baselines
    follow the rounds of their run."""
    followed = {"rounds"} if folder.parent.name == "baselines" else set[str]()
    found = differences(deciding(record.spec), deciding(described(spec)))
    for key, was, now in (each for each in found if each.key not in followed):
        finished = (folder / "summary.json").exists()
        state, aim = ("a finished", "load it") if finished else ("an interrupted", "continue it")
        again = f"make the same call to {aim}" if spec.data is None else f"restore {key}"
        raise ConfigurationError(
            f"{folder} has {state} run with {key} = {was!r}, not {now!r}; {again}, or choose a new folder", key
        )


def check_initial_model(folder: Path, init: str | None) -> None:
    """Raise RunError if the model of `init_from` has changed since the run in a folder, or its main run, started. A run
    that has trained does not need that model any more."""
    if init is None or (folder / "state" / "checkpoint.json").exists():
        return
    now = initial_model_fingerprint(init)
    for part in (folder, folder.parent.parent) if folder.parent.name == "baselines" else (folder,):
        record = read_run_file(part)
        if record is not None and record.init_model != now:
            raise RunChanged(
                f"{folder}: init_from = {init!r} has a different model than when {part} started; restore it, or start "
                "a new run"
            )


def check_begun(folder: Path) -> None:
    """Raise DataError if files from the start of a run are damaged."""
    check_files(folder, RUN, "splits.json")
    read_run_file(folder)  # before the first checkpoint, nothing else checks it


def check_files(folder: Path, *places: str) -> None:
    """Raise DataError for a file that differs from its hash in the newest checkpoint."""
    try:
        manifest = manifest_of(folder)
    except DataError:
        if (folder / "summary.json").exists():
            raise
        return  # the checkpoint is damaged; an older one may be usable
    manifest.check(*places)


def check_same_data(folder: Path, silos: data.Silos) -> None:
    """Raise RunError if a run started with other data, DataError if its files are damaged."""
    splits = folder / "splits.json"
    check_files(folder, RUN, "splits.json")
    if not splits.exists():
        return
    begun = read_plain(splits)  # of the evaluated silos
    if not isinstance(begun, dict) or not begun:
        raise DataError(f"{splits}: not a valid record of splits")
    same = [silos.named(name) for name in begun if name in silos.by_name]
    if len(same) < len(begun) or begun != after_json(data.splits_record(same)):
        raise RunChanged(f"{splits}: the data have changed since the run started")
    if (record := record_of(folder / RUN, RunFile)) is not None:
        check_data(folder, record.data, silos, begun.keys())
