"""Deletion of the rows that a silo stored for a federation; its models and predictions do not change."""

from collections.abc import Iterator
from pathlib import Path

from ...core import ConfigurationError, RunError, State
from ...files import (
    SiloStore,
    privately,
    read,
    read_payload,
    refuse_link,
    sum_of,
    sum_of_bytes,
    to_bytes,
    write_bytes,
    write_record,
)
from ...files.schema import DataFile, KeptState, PreparationFile
from ...runs.initial_model import MODEL
from ...runs.stored_preparation import PREPARATION, without_references
from ...wrappers.alarms import GROUP, INPUTS, distances_alone
from .store import KEPT, OwnBooks


def delete_data(folder: Path) -> list[str]:
    """Delete the rows that a silo stored for a federation, or for every federation in a folder; return a line per file.

    The preprocessing of inputs is kept without values of columns. The model and the silo's state are kept, with
    distances in place of the features of calibration inputs: predictions stay bit-identical. If no model is stored yet,
    the state is deleted, too. Raises ConfigurationError for any other folder, RunError for one with links, DataError
    for damaged files.
    """
    federations = [folder] if _of_a_federation(folder) else list(filter(_of_a_federation, _folders(folder)))
    if not federations:
        raise ConfigurationError(
            f"{folder}: no stored data of a federation; expected STATE/FEDERATION, or STATE for all"
        )
    for each in federations:
        refuse_link(each)
    return [line for each in federations for line in _forget_one(each)]


def _of_a_federation(folder: Path) -> bool:
    return (folder / "config.toml").is_file() and any(folder.glob("data-*.json"))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir())


def _forget_one(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("data-*.safetensors")):
        _delete(path)
        yield f"{path}: deleted"
    for path in sorted(folder.glob("data-*.json")):
        known = read(path, DataFile)
        if (less := without_references(known.preparation)) != known.preparation:
            write_record(path, known.model_copy(update={"preparation": less}), lasting=True, opener=privately)
            yield f"{path}: values of the columns deleted"
    for method in _folders(folder):
        if (method / KEPT).is_file():
            refuse_link(method)
            yield from _forget_values(method)
            yield from _forget_numbers(method)


def _forget_values(folder: Path) -> Iterator[str]:
    """Delete the values of calibration rows from the preprocessing of new inputs."""
    path, books = folder / PREPARATION, OwnBooks(folder)
    own = books.read()
    if own is None or PREPARATION not in own.files:
        return
    known = read(path, PreparationFile)
    if (less := without_references(known)) != known:
        write_record(path, less)
        yield f"{path}: values of the columns deleted"
    # A killed deletion may have written the file but not the records.
    if (now := sum_of(path)) != own.files[PREPARATION]:
        books.write(own.model_copy(update={"files": {**own.files, PREPARATION: now}}))


def _forget_numbers(folder: Path) -> Iterator[str]:
    """Replace the states of one method that contain features of calibration inputs."""
    books = OwnBooks(folder)
    own = books.read()
    states = [] if own is None else own.states
    known = {(each.silo, each.t): each for each in states}
    store = SiloStore(folder / "state" / "silos")
    for silo in store.silos():
        refuse_link(store.root / silo)
        for t in store.versions(silo):
            path = store.root / silo / f"{t:06d}.safetensors"
            kept = known.get((silo, t))
            state = read_payload(path)
            if not any(name.endswith(INPUTS) for name in state.get(GROUP, {})):
                # A killed deletion may have written the file but not the records.
                if kept is not None and sum_of_bytes(path.read_bytes()).sha256 != kept.sha256:
                    known[silo, t] = _replaced(path, kept, state)
                continue
            if kept is None or not (folder / MODEL).is_file():
                _delete(path)
                known.pop((silo, t), None)
                yield f"{path}: deleted, with the silo's private state: no model for predictions is stored yet"
                continue
            state = {**state, GROUP: distances_alone(state[GROUP], read_payload(folder / MODEL).get(GROUP, {}))}
            known[silo, t] = _replaced(path, kept, state)
            yield f"{path}: features of calibration inputs replaced by distances, those of training inputs deleted"
    now = [known[each.silo, each.t] for each in states if (each.silo, each.t) in known]
    if own is not None and now != states:
        books.write(own.model_copy(update={"states": now, "afresh": own.afresh or not now}))


def _replaced(path: Path, kept: KeptState, state: State) -> KeptState:
    data = to_bytes(state)
    write_bytes(path, data, lasting=True, opener=privately)
    return kept.model_copy(update={"sha256": sum_of_bytes(data).sha256})


def _delete(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise RunError(f"cannot delete {path}: {error.strerror}") from error
