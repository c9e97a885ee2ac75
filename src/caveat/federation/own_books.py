"""A silo's own books: which state it has kept of which round, what it has sent, which model it was measured with.

The server knows nothing of them. Its orders say which round of the silo's it counted last, and a silo that has not
kept what belongs to that round says no more than that its state is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..config import load_kept
from ..core import ConfigurationError, DataError, Payload, RunError, Update
from ..engines.executor import Executor
from ..engines.flower_messages import NEVER, Order
from ..files.checkpoints import StateLost
from ..files.reading import record_of, sum_of
from ..files.schema.record import SCHEMA
from ..files.schema.small_files import FileSum, KeptState, OwnState
from ..files.writing import write_record

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

        The states of so many `checkpoints` of the server, of its last rounds of training, stay. `record` adds what is
        sent to the ledger that was known, and returns what that comes to. Raises StateLost.
        """
        executor.states.begin()
        own = self.read()
        known = own or OwnState()
        kept, lost = self._counted(order, own)
        evaluates = order.work in executor.method.evaluations
        if lost and evaluates:
            raise self._lost(order)
        executor.states.forget(order.silo, order.counted)
        earlier = [each for each in known.states if each.t < order.counted]
        # Those of rounds that were never counted, or that the run has gone back from, have just been forgotten.
        states = earlier + ([] if kept is None else [kept])
        stay = _last(executor, [*states, KeptState(silo=order.silo, t=order.t)], checkpoints)
        update, after = executor.perform(order.t, order.work, payload, order.silo, kept, [each.t for each in stay])
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
        named = config is not None and self.folder.absolute().name in (config.method.name, *config.beside)
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
