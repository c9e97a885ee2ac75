"""A silo's files: its states, the ledger of its messages, and its runs."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from ...config import load_kept
from ...core import ConfigurationError, DataError, Payload, RunError, SiloId, Update
from ...core.silo import FederationInfo, SiloInfo
from ...engines.executor import Executor
from ...engines.flower_messages import NEVER, Order
from ...files import (
    Manifest,
    StateLost,
    read,
    record_of,
    sum_of,
    write_record,
)
from ...files.schema import SCHEMA, FileSum, KeptState, OwnState
from ...runs.answering import AnsweringRun, KeptRun
from ...runs.local_run import LocalRun
from ...runs.spec import RunSpec
from ...runs.stored_preparation import PREPARATION
from ...wrappers.joining import Joining

KEPT = "kept.json"
LedgerSum = FileSum | None
"""Checksum of a silo's ledger; None if only the server has a ledger, as in a simulation."""


@dataclass
class OwnBooks:
    """The records in the folder of one method of a federation."""

    folder: Path

    def read(self) -> OwnState | None:
        """Return the last records; None if there are none. Raises DataError if they are damaged."""
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
        and returns its new checksum. Raises StateLost if the state is missing or damaged.
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
            f"silo {order.silo!r}: the federation aggregated its update of round {order.counted + 1} of the schedule, "
            f"but {self.folder} has no state of that round; restore the folder from a copy, or let the silo start "
            f"without the state: `caveat flower reset {self.folder}`",
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
    """Return the checksums in a silo's own records. Raises DataError if these are missing, damaged or older than its
    model."""
    own = read(folder / KEPT, OwnState)
    for place, what in (("silo.json", "the model"), (PREPARATION, PREPARATION)):
        if (folder / place).exists() and place not in own.files:
            raise DataError(f"{folder / KEPT} does not list {what} next to it: restore it from a copy")
    return Manifest(folder, own.files, finished=False)
