"""What a silo keeps on its own disk: its states, the ledger of its messages, its runs; and how rows are deleted."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from ...config import load_kept
from ...core import ConfigurationError, DataError, Payload, RunError, SiloId, State, Update
from ...core.silo_info import FederationInfo, SiloInfo
from ...engines.executor import Executor
from ...engines.flower_messages import NEVER, Order
from ...files.checkpoints import SiloStore, StateLost
from ...files.payloads import read_payload, to_bytes
from ...files.reading import Manifest, read, record_of, sum_of, sum_of_bytes
from ...files.schema.record import SCHEMA
from ...files.schema.small_files import FileSum, KeptState, OwnState
from ...files.writing import privately, refuse_link, write_bytes, write_record
from ...runs.answering import AnsweringRun, KeptRun
from ...runs.initial_model import MODEL
from ...runs.local import LocalRun
from ...runs.prepared import PREPARATION
from ...runs.spec import RunSpec
from ...wrappers.evaluation import Evaluated
from ...wrappers.familiar import GROUP, INPUTS, distances_alone
from ...wrappers.joining import Joining

KEPT = "kept.json"
LedgerSum = FileSum | None
"""What a silo's ledger comes to; None where the server's is the only one, as in a simulation."""


@dataclass
class OwnBooks:
    """The books in the folder of one method of a federation."""

    folder: Path

    def read(self) -> OwnState | None:
        """What was written last. Raises DataError if it is damaged."""
        return record_of(self.folder / KEPT, OwnState)

    def write(self, own: OwnState) -> None:
        """Replace the books, and wait until they are on the disk."""
        self.folder.mkdir(exist_ok=True)  # in a simulation, of a silo that has kept no state
        write_record(self.folder / KEPT, own.model_copy(update={"schema_version": SCHEMA}), lasting=True)

    def perform(
        self,
        executor: Executor,
        order: Order,
        payload: Payload,
        record: Callable[[Update, LedgerSum], LedgerSum],
        checkpoints: int = 1,
    ) -> Update:
        """Carry out an order from the state of the round that was counted last, and write down what is kept.

        The states of so many `keep_checkpoints` of the server, of its last rounds of training, stay. `record` adds what
        is sent to the ledger that was known, and returns what that comes to. Raises StateLost.
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
        # Those of rounds that were never counted, or that the run has gone back from, have just been forgotten.
        states = earlier + ([] if kept is None else [kept])
        stay = _last(executor, [*states, KeptState(silo=order.silo, t=order.t)], checkpoints)
        update, after = executor.perform(order.t, order.task, payload, order.silo, kept, [each.t for each in stay])
        if lost and after is not None:
            executor.states.forget(order.silo, order.t - 1)  # the one that this work has left
            raise self._lost(order)
        now = {"ledger": record(update, known.ledger), "rollbacks": max(known.rollbacks, order.rollbacks)}
        if evaluates:
            # The round that is measured may not be in the server's checkpoint yet: it then goes on from the one before.
            self.write(known.model_copy(update={"states": states, **now}))
            return update
        if after is not None:
            executor.states.sync(after)
        new = KeptState(silo=order.silo, t=order.t, sha256=None if after is None else after.sha256)
        self.write(known.model_copy(update={"states": [*stay[:-1], new], "afresh": False, **now}))
        return update

    def goes_back(self, order: Order) -> bool:
        """Whether an order is one of a run that has gone back to an earlier round since this silo was asked last."""
        own = self.read()
        return order.rollbacks > (0 if own is None else own.rollbacks)

    def keep_files(self, *places: str) -> None:
        """Write down what files of the folder hold."""
        known = self.read() or OwnState()
        files = {place: sum_of(self.folder / place) for place in places}
        self.write(known.model_copy(update={"files": files}))

    def check_place(self) -> None:
        """Raises ConfigurationError unless a silo keeps what it has of a federation's method in the folder."""
        home = self.folder.absolute().parent / "config.toml"
        config = load_kept(home) if home.is_file() else None
        named = config is not None and self.folder.absolute().name in (config.method.name, *config.baselines)
        if not named and not (self.folder / KEPT).is_file():
            raise ConfigurationError(
                f"{self.folder}: nothing that a silo keeps of a federation; expected STATE/FEDERATION/METHOD"
            )

    def begin_afresh(self) -> None:
        """Have the silo go on without the state that it lost, and without these books where they are damaged."""
        try:
            known = self.read() or OwnState()
        except DataError:
            known = OwnState()
        self.write(known.model_copy(update={"states": [], "afresh": True}))

    def _counted(self, order: Order, own: OwnState | None) -> tuple[KeptState | None, bool]:
        """The state of the round that was counted last; and whether there should be one, but nothing is known of it."""
        if order.counted == NEVER:
            return None, False
        if own is None:
            return None, True
        found = next((each for each in own.states if each.t == order.counted), None)
        return found, found is None and not own.afresh

    def _lost(self, order: Order) -> RunError:
        return StateLost(
            f"silo {order.silo!r}: the federation has counted its round {order.counted} of the schedule, but nothing "
            f"that was kept of that round is in {self.folder}; put the folder back from a copy, or "
            f"`caveat flower reset {self.folder}` has the silo begin afresh",
            order.silo,
        )


def _last(executor: Executor, states: Sequence[KeptState], checkpoints: int) -> list[KeptState]:
    """The states, oldest first, that may still be asked for where the server can go back to so many rounds of training.

    A silo that took no part in some of these needs the state before them, and the last one may never be counted.
    """
    if checkpoints == 1:
        return list(states[-2:])

    def trains(t: int) -> bool:  # a silo may know of fewer rounds than its server has
        return t >= len(executor.schedule) or executor.schedule[t].trains

    trained = [i for i, each in enumerate(states) if trains(each.t)]
    since = list(states[trained[-checkpoints - 1] :] if len(trained) > checkpoints else states)
    # What comes after training has no checkpoint that is gone back to.
    last = since[-2:]
    return [a for a, b in pairwise(since[:-1]) if any(map(trains, range(a.t, b.t)))] + last


@dataclass(frozen=True, kw_only=True)
class ByOwnBooks(AnsweringRun):
    """A run of which a silo's own books say what belongs to it."""

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
    """A run as one silo knows it: the data of one silo, the names of all."""

    names: tuple[SiloId, ...]
    secret: int

    @cached_property
    def info(self) -> FederationInfo:
        own = FederationInfo.of(
            self.silos.by_name, self.silos.names, self.silos.shape, self.silos.classes, self.silos.dtype
        ).silo_infos
        return FederationInfo(
            self.silos.shape, self.silos.classes, unknown(self.names) | dict(own), dtype=self.silos.dtype,
            positive=self.silos.positive,
        )  # fmt: skip

    def executor(self) -> Executor:
        return replace(super().executor(), secret=secret_of(self.secret, self.spec, len(self.names)))

    @property
    def joining(self) -> Executor:
        """What carries out works for a federation that is finished: the silo keeps its part and sends nothing."""
        return replace(self.executor(), method=Evaluated(Joining(self.complete_method, 0), self.spec.known_metrics))


@dataclass(frozen=True, kw_only=True)
class KeptSiloRun(ByOwnBooks, KeptRun):
    """A run as one silo has kept it, without its data."""

    names: tuple[SiloId, ...]
    positive_class: str | None = None
    """Which of two classes figures are of, as the federation's configuration says."""

    @cached_property
    def info(self) -> FederationInfo:
        prepares = self.prepares
        return FederationInfo(
            prepares.shape, prepares.classes, unknown(self.names), dtype=prepares.dtype, positive=self.positive_class
        )


def secret_of(secret: int, spec: RunSpec, silos: int) -> int:
    """What noise is drawn from: another number for each size of the noise among silos, by the same secret of one.

    Of one draw in two sizes, as two federations could ask for it, the update is what is left when it is taken away.
    """
    about = (secret, spec.privacy.clip_norm, spec.privacy.noise_multiplier, spec.cohort_size(silos))
    return int.from_bytes(hashlib.sha256(repr(about).encode()).digest()[:16], "big")


def unknown(names: Sequence[SiloId]) -> dict[SiloId, SiloInfo]:
    """Silos of which no more than their names is known."""
    return {name: SiloInfo(name, "", {}, ()) for name in names}


def own_manifest(folder: Path) -> Manifest:
    """What a silo's own books say of its files. Raises DataError where they are missing, damaged or older than its
    model.
    """
    own = read(folder / KEPT, OwnState)
    for place, what in (("silo.json", "the model"), (PREPARATION, PREPARATION)):
        if (folder / place).exists() and place not in own.files:
            raise DataError(f"{folder / KEPT} does not know of {what} beside it: put it back from a copy")
    return Manifest(folder, own.files, finished=False)


def delete_data(folder: Path) -> list[str]:
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
            if not any(name.endswith(INPUTS) for name in state.get(GROUP, {})):
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


def _replaced(path: Path, kept: KeptState, state: State) -> KeptState:
    data = to_bytes(state)
    write_bytes(path, data, lasting=True, opener=privately)
    return kept.model_copy(update={"sha256": sum_of_bytes(data).sha256})


def _delete(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise RunError(f"cannot delete {path}: {error.strerror}") from error
