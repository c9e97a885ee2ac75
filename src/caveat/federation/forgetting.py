"""What a silo deletes of its rows by command: splits that it stored, and numbers of calibration inputs in its state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..core import ConfigurationError, RunError, State
from ..files.checkpoints import SiloStore
from ..files.payloads import read_payload, to_bytes
from ..files.reading import sum_of_bytes
from ..files.schema.small_files import KeptState
from ..files.writing import privately, refuse_link, write_bytes
from ..runs.warm import MODEL
from ..wrappers.familiar import GROUP, INPUTS, distances_alone
from .own_books import KEPT, OwnBooks


def forget(folder: Path) -> list[str]:
    """Delete the rows that a silo has stored of a federation, or of each in a folder of such; a line for each file.

    What prepares inputs stays, and so does the model with the silo's state, in which distances take the place of the
    calibration inputs' numbers: it goes on predicting, to the last bit. Where no model is kept yet, the state goes,
    too. Raises ConfigurationError for any other folder, RunError for one with links, DataError for damaged files.
    """
    federations = (
        [folder] if _of_a_federation(folder) else [each for each in _folders(folder) if _of_a_federation(each)]
    )
    if not federations:
        raise ConfigurationError(
            f"{folder}: no data that a silo has stored of a federation; expected STATE/FEDERATION, or STATE for all"
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
    for method in _folders(folder):
        if (method / KEPT).is_file():
            refuse_link(method)
            yield from _forget_numbers(method)


def _forget_numbers(folder: Path) -> Iterator[str]:
    """Of one method's states, replace those that hold numbers of calibration inputs."""
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
            if not holds_inputs(state):
                # A forgetting that was killed may have written the file and not the books.
                if kept is not None and sum_of_bytes(path.read_bytes()).sha256 != kept.sha256:
                    known[silo, t] = _replaced(path, kept, state)
                continue
            if kept is None or not (folder / MODEL).is_file():
                _delete(path)
                known.pop((silo, t), None)
                yield f"{path}: deleted, with what the silo had learnt for itself: no model to predict with is here yet"
                continue
            state = {**state, GROUP: distances_alone(state[GROUP], read_payload(folder / MODEL).get(GROUP, {}))}
            known[silo, t] = _replaced(path, kept, state)
            yield f"{path}: numbers of calibration inputs replaced by distances"
    now = [known[each.silo, each.t] for each in states if (each.silo, each.t) in known]
    if own is not None and now != states:
        books.write(own.model_copy(update={"states": now, "afresh": own.afresh or not now}))


def holds_inputs(state: State) -> bool:
    """Whether a silo's state has numbers of its calibration inputs, from which a row can be told."""
    return any(name.endswith(INPUTS) for name in state.get(GROUP, {}))


def _replaced(path: Path, kept: KeptState, state: State) -> KeptState:
    data = to_bytes(state)
    write_bytes(path, data, lasting=True, opener=privately)
    return kept.model_copy(update={"sha256": sum_of_bytes(data).sha256})


def _delete(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise RunError(f"cannot delete {path}: {error.strerror}") from error
