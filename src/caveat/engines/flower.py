"""The engine on Flower: a transport through Flower's Grid, and the app that runs client tasks at a silo.

Nothing is stored in Flower's context: silos store their states on disk, and discard those that were not aggregated.
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
from ..files.schema import NO_PART, KeptState, VectorizedRecord
from .allocator import keep_freed_memory, use_huge_pages
from .checks import VARIANCES, impossible_sums, left_out, left_out_measuring, miscounted
from .flower_messages import NEVER, GridMessages, Order, Words, comes_after, legible, pack, unpack, words_of
from .norms import Admission

LATE = "no reply in time"


class Membership(Protocol):
    """The silos that take part, and their nodes."""

    @property
    def nodes(self) -> Mapping[SiloId, int]:
        """The node of each silo that has joined."""

    @property
    def silos(self) -> Sequence[SiloId]:
        """All silos that take part, by name."""

    @property
    def most(self) -> Mapping[SiloId, int]:
        """The maximum weight of each silo's update."""

    @property
    def cards(self) -> Mapping[SiloId, SiloInfo]:
        """The metadata that each silo reported."""

    @property
    def terms_text(self) -> str:
        """The terms of the federation, which are part of every request."""

    def hear(self, silo: SiloId, words: Words) -> None:
        """Process the contents of a silo's reply other than the update. Raises for invalid contents."""

    def meet(self, wire: GridMessages, until: float) -> None:
        """Register new nodes until a point in time: silos may join and come back at any time."""

    def close(self) -> None:
        """Stop accepting new silos."""

    @property
    def late(self) -> Collection[SiloId]:
        """The silos that connected after that; they take no part."""


def accept_any(split: str, silo: SiloId, payload: Payload) -> None:
    """Accept any measurements, as `FlowerEngine.read`."""


def silent(text: str) -> None:
    """Ignore a message, as `FlowerEngine.tell`."""


@dataclass
class FlowerEngine:
    """A transport to silos through a Grid.

    A silo that is late, is disconnected, fails, or sends an invalid update is excluded from a round. The round
    continues if `quorum` silos are left (or all that were asked, if fewer). Otherwise, the missing silos are asked
    again for up to `start_timeout` seconds, and then RunError is raised.
    """

    method: Method
    wire: GridMessages
    members: Membership
    quorum: int = 1
    round_timeout: float = 600.0
    """Time limit of a round in seconds."""
    start_timeout: float = 600.0
    """Seconds that a round waits for its quorum after its time limit."""
    pause: float = 5.0
    """Seconds before silos without a valid reply are asked again."""
    variances: frozenset[str] = VARIANCES
    """Name parts of tensors that must not be negative."""
    read: Callable[[str, SiloId, Payload], object] = accept_any
    """Reads a silo's measurements on a split; the silo is excluded if this raises anything."""
    tell: Callable[[str], None] = silent
    """Receives messages about the silos that are asked or awaited."""
    joining: bool = False
    """Whether the federation is finished, and silos run tasks only for themselves."""
    draws: bool = False
    """Whether a training round asks only some of the silos, so a silo may never train."""
    counted: dict[SiloId, int] = field(default_factory=dict)
    """The last round in which each silo's update was aggregated."""
    rollbacks: int = 0
    """Number of rollbacks to an earlier round."""
    untrained: frozenset[SiloId] = field(default=frozenset(), init=False)
    """Silos that had joined when training ended, but without any aggregated update."""
    vectorized: dict[str, VectorizedRecord] = field(default_factory=dict, init=False)
    """Empty: silos are not batched."""

    @property
    def silos(self) -> Sequence[SiloId]:
        return self.members.silos

    def begin(
        self, t: int, counted: Mapping[SiloId, int], kept: Mapping[SiloId, KeptState], rollbacks: int = 0
    ) -> None:
        """Start at round t; silos discard states of rounds that were not aggregated."""
        self.counted, self.rollbacks = dict(counted), rollbacks

    def kept(self) -> Sequence[KeptState]:
        """Return nothing, because silos store their states themselves."""
        return ()

    def keep(self, rounds: Sequence[int]) -> None:
        """Do nothing, because silos keep the states that may be needed."""

    def end_training(self) -> None:
        """From now on, ask only silos that took part in training, because others lack local parameters."""
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
        """Let the silos of the cohort run the task; the replies name the excluded silos, with reasons. Replies of
        linear rounds are stored too, because each is compared with the others before it is aggregated."""
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
                bad = self._invalid(t, updates, payload)
            updates = {silo: update for silo, update in updates.items() if silo not in bad}
            reasons = {silo: legible(why) for silo, why in (reasons | bad).items()}
            if len(updates) >= least or time.monotonic() >= end:
                break
            time.sleep(min(self.pause, max(0.0, end - time.monotonic())))
            until = min(time.monotonic() + self.round_timeout, end)
            self.members.meet(self.wire, until)
        if len(updates) < least or not updates:
            lines = [f"{silo}: {why}" for silo, why in sorted(reasons.items())]
            what = f"round {t}, task {address!r}: {len(updates)} of {len(cohort)} silos, fewer than the quorum"
            longer = [self._remedy] if LATE in reasons.values() else []
            raise RunError("\n".join([what, *lines, *longer]))
        if not measures:
            self.counted |= dict.fromkeys(updates, t)
        if admission is not None:
            updates = admission.admit(dict(sorted(updates.items())))
        late = dict.fromkeys(sorted(self.untrained.union(self.members.late)), NO_PART)
        return Replies(updates, len(self.silos), reasons | late)

    def _invalid(self, t: int, updates: Mapping[SiloId, Update], sent: Payload) -> dict[SiloId, str]:
        step = next(islice(self.method.schedule(), t, None), None)
        wrong: dict[SiloId, str] = {}
        if step is not None and not self.joining:  # a joining silo sends no update
            wrong = miscounted(step, updates, self.members.cards)
            rest = {silo: update for silo, update in updates.items() if silo not in wrong}
            wrong |= impossible_sums(step, rest, self.members.cards)
            updates = {silo: update for silo, update in rest.items() if silo not in wrong}
        return wrong | self._compared(step, updates, sent)

    def _compared(self, step: Round | None, updates: Mapping[SiloId, Update], sent: Payload) -> dict[SiloId, str]:
        reasons = left_out(updates, sent, self.members.most, self.variances)
        sending = {silo: update for silo, update in updates.items() if update.payload}
        # If all parameters stay at the silos, an empty update is valid.
        if not sending or sending.keys() - reasons.keys() or step is None or step.aggregate is keep:
            return reasons
        empty = dict.fromkeys(updates.keys() - sending.keys(), "sends nothing")
        return empty | left_out(sending, sent, self.members.most, self.variances)

    def _ask(
        self, t: int, address: str, payload: Payload, silos: Sequence[SiloId], until: float
    ) -> tuple[dict[SiloId, Update], dict[SiloId, str]]:
        nodes, online, terms = dict(self.members.nodes), self.wire.online(), self.members.terms_text
        more = ({"joins": 1} if self.joining else {}) | ({"rollbacks": self.rollbacks} if self.rollbacks else {})
        requests = {
            nodes[silo]: pack(
                payload, t=t, task=address, counted=self.counted.get(silo, NEVER), silo=silo, terms=terms, **more
            )
            for silo in silos
            if nodes.get(silo) in online
        }  # fmt: skip
        names = {nodes[silo]: silo for silo in silos if silo in nodes}

        label = f"step {t + 1}, {address.rpartition('.')[2]}"

        def waiting(missing: Collection[int]) -> None:
            self.tell(f"{label}: waiting for {_listed(names[node] for node in missing)}")

        away = _listed(silo for silo in silos if nodes.get(silo) not in requests)
        asked = _listed(names[node] for node in requests)
        self.tell(f"{label}: {asked or 'none'} asked{f'; not connected: {away}' if away else ''}")
        answers, errors = self.wire.ask(requests, "train", until, waiting)
        updates: dict[SiloId, Update] = {}
        reasons: dict[SiloId, str] = {}
        for silo in silos:
            node = nodes.get(silo, NEVER)
            if (records := answers.get(node)) is None:
                reasons[silo] = errors.get(node, LATE if node in requests else "not connected")
                continue
            try:
                update = Update(unpack(records), int(words_of(records)["examples"]))
                self.members.hear(silo, words_of(records))
                updates[silo] = update
            except Exception as error:  # a malicious reply may make Flower or torch raise anything
                reasons[silo] = f"unreadable reply: {type(error).__name__}: {error}"
        if late := _listed(silo for silo, why in reasons.items() if why == LATE):
            self.tell(f"{label}: {LATE} from {late}; {self._remedy}")
        return updates, reasons

    @property
    def _remedy(self) -> str:
        """Return a remedy for late silos."""
        return (
            f"increase federation.round_timeout = {self.round_timeout:g} (seconds) if they are only slow, and restart"
        )


def _listed(silos: Iterable[SiloId]) -> str:
    return ", ".join(sorted(silos))


class SiloHandler(Protocol):
    """The interface between a node's app and its silo."""

    def greet(self, context: Context, question: Words) -> Words:
        """Answer the server's questions before any task."""

    def perform(self, context: Context, order: Order, terms: str, payload: Payload) -> Update:
        """Run a task, and store the state."""

    def says(self, context: Context, terms: str) -> Words:
        """Return the contents to send with the reply to a request: updated metadata, if rows were dropped."""


def silo_app_of(handler: SiloHandler) -> ClientApp:
    """Return the app of a node; `handler` answers its messages. Every message may arrive in a new process."""
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
        reply = handler.says(context, str(words["terms"]))
        return Message(pack(update.payload, **{**reply, "examples": update.examples}), reply_to=message)

    return app
