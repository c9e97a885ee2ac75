"""Silos behind Flower's Grid: a transport for the server's loop, and the app that does a silo's work.

A message to a silo is an order (which work of which round, the last round of which its reply was counted, the terms
of the federation) and the groups of the payload as arrays; the reply is the same the other way. Nothing is pickled,
nothing is kept in Flower's context: private state is on the silo's own disk, which drops what was never counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ..core import Method, Payload, Replies, RunError, SiloId, Update, Weights, keep
from ..files.schema.small_files import KeptState
from .allocator import keep_freed_memory, use_huge_pages
from .checks.measurements import left_out_measuring
from .checks.updates import VARIANCES, left_out

POLL = 0.1
"""Seconds between two looks for replies."""
NEVER = -1
"""What stands for the last round that was counted of a silo, where none was yet."""

GRACE = 600.0
"""Seconds after the deadline that a message is still kept for, since clocks differ."""
LONGEST = 500
"""The most characters of a silo's reply that are told in a log."""
UNREADABLE = (DecodeError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What Flower raises for a reply that it cannot decode."""

Words = Mapping[str, str | int]
"""What a message says beside its arrays."""


class Order(NamedTuple):
    """What a silo is to do."""

    t: int
    work: str
    """Its address, e.g. "base.train"."""
    counted: int
    """The last round of which the silo's reply was counted."""
    silo: SiloId
    """The silo that is to do it."""


def pack(payload: Payload, **words: str | int) -> RecordDict:
    """A payload and words as Flower's records; groups may be empty, and their order is kept."""
    records = RecordDict({"order": ConfigRecord({"groups": list(payload), **words})})
    for group, tensors in payload.items():
        records[f"group.{group}"] = ArrayRecord(torch_state_dict=dict(tensors))
    return records


def unpack(records: RecordDict) -> Payload:
    """The payload that was packed. KeyError or ValueError for records that `pack` did not make."""
    groups = records.config_records["order"]["groups"]
    if not isinstance(groups, list):
        raise ValueError(f"groups = {groups!r}, expected their names")
    return {group: dict(records.array_records[f"group.{group}"].to_torch_state_dict()) for group in map(str, groups)}


def words_of(records: RecordDict) -> dict[str, str | int]:
    """What a message says beside its arrays; empty for a message that `pack` has not made."""
    found: Mapping[str, object] = records.config_records.get("order", {})
    return {key: value for key, value in found.items() if isinstance(value, str | int)}


@dataclass
class GridMessages:
    """Messages to nodes and their replies."""

    grid: Grid

    def online(self) -> set[int]:
        """The nodes that are connected."""
        return set(self.grid.get_node_ids())

    def push(self, contents: Mapping[int, RecordDict], kind: str, seconds: float) -> dict[str, int]:
        """Send, to be answered within so many seconds; return the node of each message."""
        ttl = max(seconds, 0.0) + GRACE
        messages = [
            Message(content, dst_node_id=node, message_type=kind, ttl=ttl) for node, content in contents.items()
        ]
        return dict(zip(self.grid.push_messages(messages), contents, strict=True))

    def pull(self, sent: Sequence[str]) -> tuple[dict[str, RecordDict], dict[str, str]]:
        """The answers to those messages that have come so far, and the errors."""
        answers, errors = dict[str, RecordDict](), dict[str, str]()
        for message in sent:
            try:
                # One by one: a reply that Flower cannot decode takes those that are pulled with it along.
                for reply in self.grid.pull_messages([message]):
                    if reply.has_error():
                        errors[message] = f"failed: {_last_line(reply.error.reason) or f'code {reply.error.code}'}"
                    else:
                        answers[message] = reply.content
            except UNREADABLE as error:
                errors[message] = f"a reply that Flower cannot read: {type(error).__name__}"
        return answers, errors

    def ask(
        self, contents: Mapping[int, RecordDict], kind: str, until: float
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """By node, the answers that come before the point of time `until`, and the errors that come instead."""
        waiting = self.push(contents, kind, until - time.monotonic())
        answers, errors = dict[int, RecordDict](), dict[int, str]()
        while waiting:
            found, failed = self.pull(list(waiting))
            answers |= {waiting.pop(message): records for message, records in found.items()}
            errors |= {waiting.pop(message): why for message, why in failed.items()}
            if not waiting or time.monotonic() > until:
                break
            time.sleep(POLL)
        return answers, errors


def _last_line(reason: str | None) -> str:
    """The line of a remote traceback that says what was wrong."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def legible(text: str) -> str:
    """The beginning of a text that somebody else has written, without what a terminal would obey, for a log."""
    return "".join(character if character.isprintable() else " " for character in text[:LONGEST])


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
    def terms_text(self) -> str:
        """What every order says beside the work."""

    def meet(self, wire: GridMessages, until: float) -> None:
        """Greet nodes that are not known yet, until a point of time: silos may join and come back at any time."""


def accept_any(split: str, silo: SiloId, payload: Payload) -> None:
    """A `Flower.read` that reads nothing, so that no silo is left out for what its measurements say."""


@dataclass
class FlowerEngine:
    """A transport to silos behind a Grid.

    A silo that is late, gone, raises, or sends what cannot be counted is left out of a round, which goes on if `quorum`
    silos are left (all that were asked, if those are fewer). Otherwise those missing are asked again until `patience`
    seconds have passed, and then RunError is raised.
    """

    method: Method
    wire: GridMessages
    members: Membership
    quorum: int = 1
    deadline: float = 600.0
    """Seconds that silos have for a round."""
    patience: float = 600.0
    """Seconds after the deadline that a round waits for its quorum."""
    pause: float = 5.0
    """Seconds before silos that did not answer, or not well, are asked again."""
    variances: frozenset[str] = VARIANCES
    """Parts of the names of tensors in which a negative number is a fault."""
    read: Callable[[str, SiloId, Payload], object] = accept_any
    """Reads a silo's measurements on a split; a silo is left out if reading its measurements raises anything."""
    counted: dict[SiloId, int] = field(default_factory=dict)
    """The last round of which each silo's reply was counted."""

    @property
    def silos(self) -> Sequence[SiloId]:
        return self.members.silos

    def begin(self, t: int, counted: Mapping[SiloId, int], kept: Mapping[SiloId, KeptState]) -> None:
        """Silos will forget what they kept of later rounds than those counted."""
        self.counted = dict(counted)

    def kept(self) -> Sequence[KeptState]:
        """None that is known here: each silo keeps its own books."""
        return ()

    def keep(self, t: int) -> None:
        """Nothing to be done: silos keep the states that an order may still ask for."""

    def exchange(
        self, t: int, address: str, payload: Payload, cohort: Sequence[SiloId], linear: Weights | None = None
    ) -> Replies:
        """Have the silos of the cohort carry out the work; the replies say who was left out, and why.

        Replies of linear rounds are kept too, since each is compared with the others before it counts.
        """
        measures = address in self.method.evaluations
        updates: dict[SiloId, Update] = {}
        reasons: dict[SiloId, str] = {}
        least = min(self.quorum, len(cohort))
        until = time.monotonic() + self.deadline
        end = until + self.patience
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
            until = min(time.monotonic() + self.deadline, end)
            self.members.meet(self.wire, until)
        if len(updates) < least or not updates:
            told = "; ".join(f"{silo}: {why}" for silo, why in sorted(reasons.items()))
            raise RunError(
                f"round {t}, work {address!r}: {len(updates)} of {len(cohort)} silos, fewer than the quorum; {told}"
            )
        if not measures:
            self.counted |= dict.fromkeys(updates, t)
        return Replies(updates, len(self.silos), reasons)

    def _not_counted(self, t: int, updates: Mapping[SiloId, Update], sent: Payload) -> dict[SiloId, str]:
        reasons = left_out(updates, sent, self.members.most, self.variances)
        step = next(islice(self.method.schedule(), t, None), None)
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
        orders = {
            nodes[silo]: pack(
                payload, t=t, work=address, counted=self.counted.get(silo, NEVER), silo=silo, terms=terms
            )
            for silo in silos
            if nodes.get(silo) in online
        }  # fmt: skip
        answers, errors = self.wire.ask(orders, "train", until)
        updates: dict[SiloId, Update] = {}
        reasons: dict[SiloId, str] = {}
        for silo in silos:
            node = nodes.get(silo, NEVER)
            if (records := answers.get(node)) is None:
                reasons[silo] = errors.get(node, "no reply in time" if node in orders else "not connected")
                continue
            try:
                updates[silo] = Update(unpack(records), int(words_of(records)["examples"]))
            except Exception as error:  # whatever a hostile reply makes Flower or torch raise
                reasons[silo] = f"a reply that cannot be read: {type(error).__name__}: {error}"
        return updates, reasons


class SiloHandler(Protocol):
    """What a node's app asks of the silo that the node speaks for."""

    def greet(self, context: Context, question: Words) -> Words:
        """Answer what the server asks before any work."""

    def perform(self, context: Context, order: Order, terms: str, payload: Payload) -> Update:
        """Carry out a work, and keep the state it leaves."""


def silo_app_of(handler: SiloHandler) -> ClientApp:
    """The app of a node, whose messages a handler answers. Every message may come to a new process."""
    app = ClientApp()

    @app.query()
    def greet(message: Message, context: Context) -> Message:
        return Message(pack({}, **handler.greet(context, words_of(message.content))), reply_to=message)

    @app.train()
    def work(message: Message, context: Context) -> Message:
        use_huge_pages()
        keep_freed_memory()
        words = words_of(message.content)
        order = Order(int(words["t"]), str(words["work"]), int(words["counted"]), str(words["silo"]))
        update = handler.perform(context, order, str(words["terms"]), unpack(message.content))
        return Message(pack(update.payload, examples=update.examples), reply_to=message)

    return app
