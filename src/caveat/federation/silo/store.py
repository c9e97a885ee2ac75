"""A silo's files: its states, the ledger of its messages and its runs; and the deletion of rows."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from ...config import load_kept
from ...core import ConfigurationError, DataError, Payload, RunError, SiloId, State, Update
from ...core.silo import FederationInfo, SiloInfo
from ...engines.executor import Executor
from ...engines.flower_messages import NEVER, Order
from ...files import (
    Manifest,
    SiloStore,
    StateLost,
    privately,
    read,
    read_payload,
    record_of,
    refuse_link,
    sum_of,
    sum_of_bytes,
    to_bytes,
    write_bytes,
    write_record,
)
from ...files.schema import SCHEMA, DataFile, FileSum, KeptState, OwnState, PreparationFile
from ...runs.answering import AnsweringRun, KeptRun
from ...runs.fingerprints import MODEL
from ...runs.local_run import LocalRun
from ...runs.spec import RunSpec
from ...runs.stored_preparation import PREPARATION, without_references
from ...wrappers.alarms import GROUP, INPUTS, distances_alone
from ...wrappers.joining import Joining

KEPT = "kept.json"
LedgerSum = FileSum | None
"""Checksum of a silo's ledger; None if only the server has a ledger, as in a simulation."""


@dataclass
class OwnBooks:
    """The records in the folder of one method of a federation."""

    folder: Path

    def read(self) -> OwnState | None:
        """Return the last records. Raises DataError if they are damaged."""
        return record_of(self.folder / KEPT, OwnState)

    def write(self, own: OwnState) -> None:
        """Replace the records, and wait until they are on disk."""
        self.folder.mkdir(exist_ok=True)  # it may be missing for a simulated silo without a state
        write_record(self.folder / KEPT, own.model_copy(update={"schema_version": SCHEMA}), lasting=True)

    def perform(
        self,
        executor: Executor,
        order: Order,
        payload: Payload,
        record: Callable[[Update, LedgerSum], LedgerSum],
        checkpoints: int = 1,
    ) -> Update:
        """Run a request from the state of the last aggregated round, and record what is stored.

        The states of the last `checkpoints` training rounds are kept. `record` adds the message to the known ledger,
        and returns its new checksum. Raises StateLost.
        """
        executor.states.begin()
        own = self.read()
        known = own or OwnState()
        kept, lost = self._counted(order, own)
        evaluates = order.task in executor.method.evaluations
        if lost and evaluates:
            raise self._lost(order)
        executor.states.forget(order.silo, order.counted)
        earlier = [each for each in known.states if each.t < order.counted]
        # States of rounds that were not aggregated, or were rolled back, have just been deleted.
        states = earlier + ([] if kept is None else [kept])
        stay = _last(executor, [*states, KeptState(silo=order.silo, t=order.t)], checkpoints)
        update, after = executor.perform(order.t, order.task, payload, order.silo, kept, [each.t for each in stay])
        if lost and after is not None:
            executor.states.forget(order.silo, order.t - 1)  # the state that this task stored
            raise self._lost(order)
        now = {"ledger": record(update, known.ledger), "rollbacks": max(known.rollbacks, order.rollbacks)}
        if evaluates:
            # The evaluated round may not be in the server's checkpoint yet.
            self.write(known.model_copy(update={"states": states, **now}))
            return update
        if after is not None:
            executor.states.sync(after)
        new = KeptState(silo=order.silo, t=order.t, sha256=None if after is None else after.sha256)
        self.write(known.model_copy(update={"states": [*stay[:-1], new], "afresh": False, **now}))
        return update

    def goes_back(self, order: Order) -> bool:
        """Return whether a request's run was rolled back since the silo's last request."""
        own = self.read()
        return order.rollbacks > (0 if own is None else own.rollbacks)

    def keep_files(self, *places: str) -> None:
        """Record checksums of files of the folder."""
        known = self.read() or OwnState()
        files = {place: sum_of(self.folder / place) for place in places}
        self.write(known.model_copy(update={"files": files}))

    def check_place(self) -> None:
        """Raise ConfigurationError unless the folder belongs to a method of a silo's federation."""
        home = self.folder.absolute().parent / "config.toml"
        config = load_kept(home) if home.is_file() else None
        named = config is not None and self.folder.absolute().name in (config.method.name, *config.baselines)
        if not named and not (self.folder / KEPT).is_file():
            raise ConfigurationError(
                f"{self.folder}: not a silo's folder of a federation; expected STATE/FEDERATION/METHOD"
            )

    def begin_afresh(self) -> None:
        """Let the silo continue without its lost state, and without these records if they are damaged."""
        try:
            known = self.read() or OwnState()
        except DataError:
            known = OwnState()
        self.write(known.model_copy(update={"states": [], "afresh": True}))

    def _counted(self, order: Order, own: OwnState | None) -> tuple[KeptState | None, bool]:
        """Return the state of the last aggregated round, and whether it should exist but is lost."""
        if order.counted == NEVER:
            return None, False
        if own is None:
            return None, True
        found = next((each for each in own.states if each.t == order.counted), None)
        return found, found is None and not own.afresh

    def _lost(self, order: Order) -> RunError:
        return StateLost(
            f"silo {order.silo!r}: the federation aggregated its round {order.counted} of the schedule, but "
            f"{self.folder} has no state of that round; restore the folder from a copy, or let the silo start without "
            f"it: `caveat flower reset {self.folder}`",
            order.silo,
        )


def _last(executor: Executor, states: Sequence[KeptState], checkpoints: int) -> list[KeptState]:
    """Return the states, oldest first, that are needed if the server can roll back `checkpoints` training rounds. A
    silo that missed some of these rounds needs the state before them, and the last state may never be aggregated."""
    if checkpoints == 1:
        return list(states[-2:])

    def trains(t: int) -> bool:  # a silo may know fewer rounds than its server
        return t >= len(executor.schedule) or executor.schedule[t].trains

    trained = [i for i, each in enumerate(states) if trains(each.t)]
    since = list(states[trained[-checkpoints - 1] :] if len(trained) > checkpoints else states)
    # Rounds after training have no checkpoint to roll back to.
    last = since[-2:]
    return [a for a, b in pairwise(since[:-1]) if any(map(trains, range(a.t, b.t)))] + last


@dataclass(frozen=True, kw_only=True)
class ByOwnBooks(AnsweringRun):
    """A run whose files are listed in a silo's own records."""

    @property
    def manifest(self) -> Manifest:
        return own_manifest(self.folder)

    @property
    def positive(self) -> str | None:
        # No summary is kept at a silo.
        return self.info.positive

    def kept(self, silo: SiloId, t: int) -> KeptState | None:
        own = read(self.folder / KEPT, OwnState)
        return next((each for each in reversed(own.states) if each.t <= t), None)


@dataclass(frozen=True, kw_only=True)
class SiloRun(ByOwnBooks, LocalRun):
    """A run as one silo knows it: its own data, and the names of all silos."""

    names: tuple[SiloId, ...]
    secret: int

    @cached_property
    def info(self) -> FederationInfo:
        own = FederationInfo.of(
            self.silos.by_name, self.silos.names, self.silos.shape, self.silos.classes, self.silos.dtype
        ).silo_infos
        return FederationInfo(
            self.silos.shape, self.silos.classes, unknown(self.names) | dict(own), dtype=self.silos.dtype,
            positive=self.silos.positive, subgroups=self.silos.subgroup_names, target=self.silos.target,
        )  # fmt: skip

    def executor(self) -> Executor:
        return replace(super().executor(), secret=secret_of(self.secret, self.spec, len(self.names)))

    @property
    def joining(self) -> Executor:
        """The executor for joining a finished federation: the silo stores its state and sends nothing."""
        count = len(self.info.subgroups)
        evaluated = self.spec.evaluated(Joining(self.complete_method, 0), count)
        return replace(self.executor(), method=evaluated)


@dataclass(frozen=True, kw_only=True)
class KeptSiloRun(ByOwnBooks, KeptRun):
    """A silo's stored copy of a run, without its data."""

    names: tuple[SiloId, ...]
    positive_class: str | None = None
    """The positive class for metrics, from the federation's configuration."""

    @cached_property
    def info(self) -> FederationInfo:
        prepares = self.prepares
        return FederationInfo(
            prepares.shape, prepares.classes, unknown(self.names), dtype=prepares.dtype, positive=self.positive_class,
            subgroups=prepares.subgroup_names, target=prepares.target,
        )  # fmt: skip


def secret_of(secret: int, spec: RunSpec, silos: int) -> int:
    """Return the seed of the noise: a different number for each size of the noise, from the silo's secret. Otherwise,
    two federations with different sizes could request the same draw, and a subtraction would reveal the update."""
    about = (secret, spec.privacy.clip_norm, spec.privacy.noise_multiplier, spec.noise_shares(silos))
    return int.from_bytes(hashlib.sha256(repr(about).encode()).digest()[:16], "big")


def unknown(names: Sequence[SiloId]) -> dict[SiloId, SiloInfo]:
    """Return silos with known names but unknown data."""
    return {name: SiloInfo(name, "", {}, ()) for name in names}


def own_manifest(folder: Path) -> Manifest:
    """Return the checksums in a silo's own records. Raises DataError if missing, damaged or older than its model."""
    own = read(folder / KEPT, OwnState)
    for place, what in (("silo.json", "the model"), (PREPARATION, PREPARATION)):
        if (folder / place).exists() and place not in own.files:
            raise DataError(f"{folder / KEPT} does not list {what} next to it: restore it from a copy")
    return Manifest(folder, own.files, finished=False)


def delete_data(folder: Path) -> list[str]:
    """Delete the rows that a silo stored for a federation, or for every federation in a folder; yield a line per file.

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
