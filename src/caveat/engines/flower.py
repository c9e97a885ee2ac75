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
from ..secure.messages import MasksRemain, TooFewSilos, bound_request
from ..secure.primitives import digest, digest_of_payload
from .allocator import keep_freed_memory, use_huge_pages
from .flower_grid import GridMessages
from .flower_messages import NEVER, Order, Words, comes_after, legible, pack, unpack, words_of
from .flower_secure import (
    GROUP,
    OpenedSum,
    SecureServer,
    alike,
    check_measured,
    check_quorum,
    request_digest,
    told,
    work_of,
)
from .measurement_checks import left_out_measuring
from .norm_bounding import Admission
from .secure_sums import weight_in, weights_of
from .update_checks import VARIANCES, impossible_sums, left_out, miscounted

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
        """The silos that connected after `close`; they take no part."""


def accept_any(split: str, silo: SiloId, payload: Payload) -> None:
    """Accept any measurements; the default of `FlowerEngine.read`."""


def silent(text: str) -> None:
    """Ignore a message; the default of `FlowerEngine.tell`."""


@dataclass
class FlowerEngine:
    """A transport to silos through a Grid.

    A silo that is late, is disconnected, fails, or sends an invalid update is excluded from a round. The round
    continues if `quorum` silos remain (or all that were asked, if fewer). Otherwise, the missing silos are asked
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
    """Parts of names of tensors whose numbers must not be negative."""
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
    secure: SecureServer | None = None
    """The sessions of secure aggregation, if the federation has it."""
    untrained: frozenset[SiloId] = field(default=frozenset(), init=False)
    """Silos that had joined when training ended, but without any aggregated update."""
    vectorized: dict[str, VectorizedRecord] = field(default_factory=dict, init=False)
    """Empty, because silos are not batched."""

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
        """Delete opened sums that no continued run needs. Silos keep their states themselves."""
        if self.secure is not None and rounds:
            self.secure.forget(min(rounds))

    def end_training(self) -> None:
        """From now on, ask only silos that took part in training, because other silos lack local parameters."""
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
        weights = weights_of(self.method, t, address)
        if self.secure is not None and weights is not None:
            return self._exchange_securely(self.secure, t, address, payload, cohort, weights)
        least = min(self.quorum, len(cohort))
        until = time.monotonic() + self.round_timeout
        end = until + self.start_timeout
        self.members.meet(self.wire, until)
        while True:
            missing = [silo for silo in cohort if silo not in updates]
            found, reasons = self._ask(t, address, payload, missing, until)
            updates |= found
            if measures:  # a joining silo may keep its measurements, because no sum would hide them
                sent = {silo: each for silo, each in updates.items() if each.payload or not self.joining}
                bad = left_out_measuring(sent, self.members.most, partial(self.read, address))
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
            what = f"round {t + 1} of the schedule, task {address!r}: valid replies of {len(updates)} of "
            what += f"{len(cohort)} silos, fewer than the quorum"
            longer = [self._remedy] if LATE in reasons.values() else []
            raise RunError("\n".join([what, *lines, *longer]))
        admitted = updates if admission is None else admission.admit(dict(sorted(updates.items())))
        return self._replies(t, admitted, reasons, measures)

    def _exchange_securely(
        self, secure: SecureServer, t: int, address: str, payload: Payload, cohort: Sequence[SiloId], weights: Weights
    ) -> Replies:
        """Let the silos of the cohort run the task; the replies have only their sum. The sum leaves out silos that
        vanish if more than two thirds remain; otherwise, the task is repeated for up to `start_timeout` seconds."""
        until = time.monotonic() + self.round_timeout
        end = until + self.start_timeout
        about = digest(sent := digest_of_payload(payload), self.rollbacks)
        while True:
            try:
                if (stored := secure.stored(t, address, about)) is not None:
                    return self._opened(t, address, stored, weights)
                self.members.meet(self.wire, until)
                found = self._sum(secure, t, address, payload, sent, cohort, until)
                if isinstance(found, OpenedSum):
                    secure.store(t, address, about, found)
                    return self._opened(t, address, found, weights)
                return found
            except (TooFewSilos, MasksRemain) as error:
                secure.session = None  # the secrets of its slots may be partly known
                why = legible(f"{work_of(t, address)}: {error}")
                self.tell(f"no sum: {why}")
                final = isinstance(error, MasksRemain)  # silos have given their shares, and do not give them again
            if final or time.monotonic() >= end:
                raise RunError(why)
            time.sleep(min(self.pause, max(0.0, end - time.monotonic())))
            until = min(time.monotonic() + self.round_timeout, end)

    def _sum(
        self, secure: SecureServer, t: int, address: str, payload: Payload, sent: bytes, cohort: Sequence[SiloId],
        until: float,
    ) -> OpenedSum | Replies:  # fmt: skip
        """Return the sum, or replies without tensors if there is nothing to add. `sent` is the payload's digest."""
        online, terms = self.wire.online(), self.members.terms_text
        nodes = {silo: node for silo in cohort if (node := self.members.nodes.get(silo, NEVER)) in online}
        session, lost = secure.ready(nodes, terms, until)
        slot, members = session.begin(), list(session.members)
        slots = {silo: secure.slot_of(session, silo, slot) for silo in members}
        updates, reasons = self._ask(t, address, payload, members, until, slots)
        step = None if address in self.method.evaluations else next(islice(self.method.schedule(), t, None))
        if step is not None:
            reasons |= miscounted(step, updates, self.members.cards)
        updates = {silo: update for silo, update in updates.items() if silo not in reasons}
        away = {silo: "not connected" for silo in cohort if silo not in nodes}
        if updates and not any(update.payload.get(GROUP) for update in updates.values()):
            form = next(iter(updates.values())).payload
            check_quorum(updates, min(self.quorum, len(cohort)))
            return self._replies(t, updates, away | lost | reasons, step is None, dict(form), dict(form))
        layout, vectors, other = alike(updates)
        left = away | lost | reasons | other
        with told(reasons | other):
            kept = session.survivors(vectors)
            check_quorum(kept, min(self.quorum, len(cohort)))
        request = request_digest(Order(t, address, NEVER, "", rollbacks=self.rollbacks), terms, sent)
        about = bound_request(request, layout, len(members))
        words = secure.total(session, slot, about, kept, nodes, terms, until)
        for silo, dealers in session.misfits.items():
            shares = f"the shares that silo {silo!r} gave of the secrets of {_listed(dealers)}"
            self.tell(f"{work_of(t, address)}: {shares} do not fit those of the other silos; the sum is without them")
        late = {silo: LATE for silo in members if silo not in kept}
        return OpenedSum(layout, words, {silo: updates[silo].examples for silo in kept}, late | left)

    def _opened(self, t: int, address: str, opened: OpenedSum, weights: Weights) -> Replies:
        """Return the replies of a sum. Raises MasksRemain, and RunError for an impossible sum."""
        layout, measures = opened.layout, address in self.method.evaluations
        found = {silo: Update(layout.form(), examples) for silo, examples in opened.examples.items()}
        total = opened.total(sum(weight_in(each, weights) for each in found.values()))
        if measures:
            check_measured(total, [self.members.cards[silo] for silo in found])
        return self._replies(t, found, opened.left_out, measures, total.means(layout), total.sums)

    def _replies(
        self, t: int, found: Mapping[SiloId, Update], left_out: Mapping[SiloId, str], measures: bool,
        means: Payload | None = None, totals: Payload | None = None,
    ) -> Replies:  # fmt: skip
        if not measures:
            self.counted |= dict.fromkeys(found, t)
        reasons = {silo: legible(why) for silo, why in left_out.items() if silo not in found}
        late = dict.fromkeys(sorted(self.untrained.union(self.members.late)), NO_PART)
        return Replies(found, len(self.silos), reasons | late, means, totals)

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
        self, t: int, address: str, payload: Payload, silos: Sequence[SiloId], until: float,
        slots: Mapping[SiloId, str] | None = None,
    ) -> tuple[dict[SiloId, Update], dict[SiloId, str]]:  # fmt: skip
        nodes, online, terms = dict(self.members.nodes), self.wire.online(), self.members.terms_text
        more = ({"joins": 1} if self.joining else {}) | ({"rollbacks": self.rollbacks} if self.rollbacks else {})
        requests = {
            nodes[silo]: pack(
                payload, t=t, task=address, counted=self.counted.get(silo, NEVER), silo=silo, terms=terms, **more,
                **({"secure": slots[silo]} if slots else {}),
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
            f"if these silos are only slow, increase federation.round_timeout = {self.round_timeout:g} (seconds), and "
            "restart"
        )


def _listed(silos: Iterable[SiloId]) -> str:
    return ", ".join(sorted(silos))


class SiloHandler(Protocol):
    """The interface between a node's app and its silo."""

    def greet(self, context: Context, question: Words) -> Words:
        """Answer the server's questions before any task."""

    def perform(self, context: Context, order: Order, terms: str, payload: Payload) -> Update:
        """Run a task, and store the state."""

    def secure(self, context: Context, question: Words) -> Words:
        """Answer a question of secure aggregation: about keys, shares, agreement on a sum, or the shares that unmask
        it."""

    def says(self, context: Context, terms: str) -> Words:
        """Return the contents to send with the reply to a request: updated metadata, if rows were dropped."""


def silo_app_of(handler: SiloHandler) -> ClientApp:
    """Return the app of a node; `handler` answers its messages. Every message may arrive in a new process."""
    app = ClientApp()

    @app.query()
    def greet(message: Message, context: Context) -> Message:
        return Message(pack({}, **handler.greet(context, words_of(message.content))), reply_to=message)

    @app.evaluate()
    def secure(message: Message, context: Context) -> Message:
        return Message(pack({}, **handler.secure(context, words_of(message.content))), reply_to=message)

    @app.train()
    def task(message: Message, context: Context) -> Message:
        use_huge_pages()
        keep_freed_memory()
        words = words_of(message.content)
        update = handler.perform(context, Order.of_words(words), str(words["terms"]), unpack(message.content))
        reply = handler.says(context, str(words["terms"]))
        return Message(pack(update.payload, **{**reply, "examples": update.examples}), reply_to=message)

    return app
