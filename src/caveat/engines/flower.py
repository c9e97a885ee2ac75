"""Silos behind Flower's Grid: a transport for the server's loop, and the app that does a silo's work.

Nothing is kept in Flower's context: private state is on the silo's own disk, which drops what was never counted.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..core import Method, Payload, Replies, Round, RunError, SiloId, Update, Weights, keep
from ..core.silo import SiloInfo
from ..files.schema import NO_PART, KeptState, StackedRecord
from .allocator import keep_freed_memory, use_huge_pages
from .checks import VARIANCES, impossible_sums, left_out, left_out_measuring, miscounted
from .flower_messages import NEVER, GridMessages, Order, Words, comes_after, legible, pack, unpack, words_of
from .norms import Admission

LATE = "no reply in time"


class Membership(Protocol):
    """The silos that take part, and their nodes, as the server's loop has to know them."""

    @property
    def nodes(self) -> Mapping[SiloId, int]:
        """The node of each silo that has been met."""

    @property
    def silos(self) -> Sequence[SiloId]:
        """All that take part, by name."""

    @property
    def most(self) -> Mapping[SiloId, int]:
        """The examples that each silo may speak for."""

    @property
    def cards(self) -> Mapping[SiloId, SiloInfo]:
        """What each silo says to have."""

    @property
    def terms_text(self) -> str:
        """What every order says beside the work."""

    def hear(self, silo: SiloId, words: Words) -> None:
        """Take over what an answer to an order says beside the work. Raises for what cannot be so."""

    def meet(self, wire: GridMessages, until: float) -> None:
        """Greet nodes that are not known yet, until a point of time: silos may join and come back at any time."""

    def close(self) -> None:
        """Admit no silo from now on that has not joined before."""

    @property
    def late(self) -> Collection[SiloId]:
        """The silos that have come since then, and take no part."""


def accept_any(split: str, silo: SiloId, payload: Payload) -> None:
    """A `Flower.read` that reads nothing, so that no silo is left out for what its measurements say."""


def silent(text: str) -> None:
    """A `FlowerEngine.tell` that says nothing."""


@dataclass
class FlowerEngine:
    """A transport to silos behind a Grid.

    A silo that is late, gone, raises, or sends what cannot be counted is left out of a round, which goes on if `quorum`
    silos are left (all that were asked, if those are fewer). Otherwise those missing are asked again until
    `start_timeout` seconds have passed, and then RunError is raised.
    """

    method: Method
    wire: GridMessages
    members: Membership
    quorum: int = 1
    round_timeout: float = 600.0
    """Seconds that silos have for a round."""
    start_timeout: float = 600.0
    """Seconds after the deadline that a round waits for its quorum."""
    pause: float = 5.0
    """Seconds before silos that did not answer, or not well, are asked again."""
    variances: frozenset[str] = VARIANCES
    """Parts of the names of tensors in which a negative number is a fault."""
    read: Callable[[str, SiloId, Payload], object] = accept_any
    """Reads a silo's measurements on a split; a silo is left out if reading its measurements raises anything."""
    tell: Callable[[str], None] = silent
    """Is told who is asked, and who is waited for."""
    joining: bool = False
    """Whether the federation is finished, and silos work for themselves alone."""
    draws: bool = False
    """Whether rounds of training ask some of the silos, so that one may be there and never train."""
    counted: dict[SiloId, int] = field(default_factory=dict)
    """The last round of which each silo's reply was counted."""
    rollbacks: int = 0
    """How often the run has gone back to an earlier round, by command."""
    untrained: frozenset[SiloId] = field(default=frozenset(), init=False)
    """Silos that had joined when training ended, and of which no round was counted."""
    stacked: dict[str, StackedRecord] = field(default_factory=dict, init=False)
    """None: each silo is by itself."""

    @property
    def silos(self) -> Sequence[SiloId]:
        return self.members.silos

    def begin(
        self, t: int, counted: Mapping[SiloId, int], kept: Mapping[SiloId, KeptState], rollbacks: int = 0
    ) -> None:
        """Silos will forget what they kept of later rounds than those counted."""
        self.counted, self.rollbacks = dict(counted), rollbacks

    def kept(self) -> Sequence[KeptState]:
        """None that is known here: each silo keeps its own books."""
        return ()

    def keep(self, rounds: Sequence[int]) -> None:
        """Nothing to be done: silos keep the states that an order may still ask for."""

    def end_training(self) -> None:
        """Ask no silo from now on that has had no part in training: it lacks what the others have of their own."""
        self.members.close()
        if self.counted and not self.draws:
            before, self.untrained = self.untrained, frozenset(self.silos) - self.counted.keys()
            for silo in sorted(self.untrained - before):
                self.tell(comes_after(silo))

    def exchange(
        self,
        t: int,
        address: str,
        payload: Payload,
        cohort: Sequence[SiloId],
        linear: Weights | None = None,
        admission: Admission | None = None,
    ) -> Replies:
        """Have the silos of the cohort carry out the work; the replies say who was left out, and why.

        Replies of linear rounds are kept too, since each is compared with the others before it counts.
        """
        measures = address in self.method.evaluations
        updates: dict[SiloId, Update] = {}
        reasons: dict[SiloId, str] = {}
        cohort = [silo for silo in cohort if silo not in self.untrained]
        least = min(self.quorum, len(cohort))
        until = time.monotonic() + self.round_timeout
        end = until + self.start_timeout
        self.members.meet(self.wire, until)
        while True:
            missing = [silo for silo in cohort if silo not in updates]
            found, reasons = self._ask(t, address, payload, missing, until)
            updates |= found
            if measures:
                bad = left_out_measuring(updates, self.members.most, partial(self.read, address))
            else:
                bad = self._not_counted(t, updates, payload)
            updates = {silo: update for silo, update in updates.items() if silo not in bad}
            reasons = {silo: legible(why) for silo, why in (reasons | bad).items()}
            if len(updates) >= least or time.monotonic() >= end:
                break
            time.sleep(min(self.pause, max(0.0, end - time.monotonic())))
            until = min(time.monotonic() + self.round_timeout, end)
            self.members.meet(self.wire, until)
        if len(updates) < least or not updates:
            told = [f"{silo}: {why}" for silo, why in sorted(reasons.items())]
            what = f"round {t}, work {address!r}: {len(updates)} of {len(cohort)} silos, fewer than the quorum"
            longer = [self._longer] if LATE in reasons.values() else []
            raise RunError("\n".join([what, *told, *longer]))
        if not measures:
            self.counted |= dict.fromkeys(updates, t)
        if admission is not None:
            updates = admission.admit(dict(sorted(updates.items())))
        late = dict.fromkeys(sorted(self.untrained.union(self.members.late)), NO_PART)
        return Replies(updates, len(self.silos), reasons | late)

    def _not_counted(self, t: int, updates: Mapping[SiloId, Update], sent: Payload) -> dict[SiloId, str]:
        step = next(islice(self.method.schedule(), t, None), None)
        wrong: dict[SiloId, str] = {}
        if step is not None and not self.joining:  # of a silo that joins, nothing is sent, and nothing weighs
            wrong = miscounted(step, updates, self.members.cards)
            rest = {silo: update for silo, update in updates.items() if silo not in wrong}
            wrong |= impossible_sums(step, rest, self.members.cards)
            updates = {silo: update for silo, update in rest.items() if silo not in wrong}
        return wrong | self._unlike(step, updates, sent)

    def _unlike(self, step: Round | None, updates: Mapping[SiloId, Update], sent: Payload) -> dict[SiloId, str]:
        reasons = left_out(updates, sent, self.members.most, self.variances)
        told = {silo: update for silo, update in updates.items() if update.payload}
        # Where all is kept at the silos, sending nothing is right whatever others send.
        if not told or told.keys() - reasons.keys() or step is None or step.aggregate is keep:
            return reasons
        empty = dict.fromkeys(updates.keys() - told.keys(), "sends nothing")
        return empty | left_out(told, sent, self.members.most, self.variances)

    def _ask(
        self, t: int, address: str, payload: Payload, silos: Sequence[SiloId], until: float
    ) -> tuple[dict[SiloId, Update], dict[SiloId, str]]:
        nodes, online, terms = dict(self.members.nodes), self.wire.online(), self.members.terms_text
        more = ({"joins": 1} if self.joining else {}) | ({"rollbacks": self.rollbacks} if self.rollbacks else {})
        orders = {
            nodes[silo]: pack(
                payload, t=t, task=address, counted=self.counted.get(silo, NEVER), silo=silo, terms=terms, **more
            )
            for silo in silos
            if nodes.get(silo) in online
        }  # fmt: skip
        names = {nodes[silo]: silo for silo in silos if silo in nodes}

        about = f"step {t + 1}, {address.rpartition('.')[2]}"

        def still(waiting: Collection[int]) -> None:
            self.tell(f"{about}: still waiting for {_listed(names[node] for node in waiting)}")

        away = _listed(silo for silo in silos if nodes.get(silo) not in orders)
        asked = _listed(names[node] for node in orders)
        self.tell(f"{about}: {asked or 'nobody'} asked{f'; not connected: {away}' if away else ''}")
        answers, errors = self.wire.ask(orders, "train", until, still)
        updates: dict[SiloId, Update] = {}
        reasons: dict[SiloId, str] = {}
        for silo in silos:
            node = nodes.get(silo, NEVER)
            if (records := answers.get(node)) is None:
                reasons[silo] = errors.get(node, LATE if node in orders else "not connected")
                continue
            try:
                update = Update(unpack(records), int(words_of(records)["examples"]))
                self.members.hear(silo, words_of(records))
                updates[silo] = update
            except Exception as error:  # whatever a hostile reply makes Flower or torch raise
                reasons[silo] = f"a reply that cannot be read: {type(error).__name__}: {error}"
        if late := _listed(silo for silo, why in reasons.items() if why == LATE):
            self.tell(f"{about}: {LATE} from {late}; {self._longer}")
        return updates, reasons

    @property
    def _longer(self) -> str:
        """What to do about silos that are late, at the end of a sentence."""
        return (
            f"they had federation.round_timeout = {self.round_timeout:g} s: set it to more where they are only slow, "
            "when the run is started again"
        )


def _listed(silos: Iterable[SiloId]) -> str:
    return ", ".join(sorted(silos))


class SiloHandler(Protocol):
    """What a node's app asks of the silo that the node speaks for."""

    def greet(self, context: Context, question: Words) -> Words:
        """Answer what the server asks before any work."""

    def perform(self, context: Context, order: Order, terms: str, payload: Payload) -> Update:
        """Carry out a work, and keep the state it leaves."""

    def says(self, context: Context, terms: str) -> Words:
        """What goes along with the answer to an order: of data that rows have left, what is left."""


def silo_app_of(handler: SiloHandler) -> ClientApp:
    """The app of a node, whose messages a handler answers. Every message may come to a new process."""
    app = ClientApp()

    @app.query()
    def greet(message: Message, context: Context) -> Message:
        return Message(pack({}, **handler.greet(context, words_of(message.content))), reply_to=message)

    @app.train()
    def task(message: Message, context: Context) -> Message:
        use_huge_pages()
        keep_freed_memory()
        words = words_of(message.content)
        order = Order(
            int(words["t"]),
            str(words["task"]),
            int(words["counted"]),
            str(words["silo"]),
            bool(words.get("joins")),
            int(words.get("rollbacks", 0)),
        )
        update = handler.perform(context, order, str(words["terms"]), unpack(message.content))
        said = handler.says(context, str(words["terms"]))
        return Message(pack(update.payload, **{**said, "examples": update.examples}), reply_to=message)

    return app
