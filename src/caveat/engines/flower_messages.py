"""What passes between a server and its silos by Flower's Grid, and sending it.

A message to a silo is an order (which work of which round, the last round of which its reply was counted, the terms
of the federation) and the groups of the payload as arrays; the reply is the same the other way. Nothing is pickled.
"""

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Thread
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ..core import Payload, SiloId
from ..files.schema import NO_PART

POLL = 0.1
"""Seconds between two looks for replies."""
FLOWERS = re.compile(r"<class '[^']*'>:<'(.*)'>$", re.DOTALL)
"""How Flower writes what an app has raised."""
SLOW = 30.0
"""Seconds after which it is told who has not answered, and again."""
NEVER = -1
"""What stands for the last round that was counted of a silo, where none was yet."""

HASTE = 2.0
"""Seconds in which a reply is usually there as a whole, once it is looked for."""
REST = 180.0
"""Seconds after the deadline for the rest of a reply: so long Flower keeps what has come after its last piece."""
ONLINE = 1.0
"""Seconds between two looks at who is connected, while the rest of a reply is waited for."""
GONE = "gone while it sent its reply"
GRACE = 600.0
"""Seconds after the deadline that a message is still kept for, since clocks differ."""
LONGEST = 500
"""The most characters of a silo's reply that are told in a log."""
UNREADABLE = (DecodeError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What Flower raises for a reply that it cannot decode."""

Words = Mapping[str, str | int]
"""What a message says beside its arrays."""


def comes_after(silo: SiloId) -> str:
    """What is said of a silo that came after training, or was away for all of it."""
    todo = f"`caveat flower deliver RUN --silo {silo}` has it join once the run is complete"
    return f"silo {silo} {NO_PART}, and takes none in what follows: {todo}"


class Order(NamedTuple):
    """What a silo is to do."""

    t: int
    task: str
    """Its address, e.g. "base.train"."""
    counted: int
    """The last round of which the silo's reply was counted."""
    silo: SiloId
    """The silo that is to do it."""
    joins: bool = False
    """Whether the federation is finished, and the silo is to do it for itself: it sends nothing."""
    rollbacks: int = 0
    """How often the run has gone back to an earlier round, by command of who operates the server."""


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
    if len(set(groups)) != len(groups):  # each would be decoded again
        raise ValueError(f"{len(groups)} groups, expected each once")
    return {group: dict(records.array_records[f"group.{group}"].to_torch_state_dict()) for group in map(str, groups)}


def words_of(records: RecordDict) -> dict[str, str | int]:
    """What a message says beside its arrays; empty for a message that `pack` has not made."""
    found: Mapping[str, object] = records.config_records.get("order", {})
    return {key: value for key, value in found.items() if isinstance(value, str | int)}


@dataclass
class GridMessages:
    """Messages to nodes and their replies.

    Flower waits minutes for the rest of a reply whose sender was killed while it sent it. So a thread looks for each
    reply, and none holds up the others.
    """

    grid: Grid
    _looks: dict[str, Future[RecordDict | str | None]] = field(default_factory=dict, init=False, repr=False)
    """The looks that are under way, by message."""

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
        """The answers to those messages that have come so far, and the errors; none of which a part has come."""
        answers, errors = dict[str, RecordDict](), dict[str, str]()
        for message in sent:
            found = self._looked(message)
            if isinstance(found, str):
                errors[message] = found
            elif found is not None:
                answers[message] = found
        return answers, errors

    def _looked(self, message: str) -> RecordDict | str | None:
        """The answer to a message, or the error; None if neither is there yet, or not all of it."""
        look = self._looks.get(message)
        if look is None:
            look = self._looks[message] = Future()
            Thread(target=self._look, args=(message, look), daemon=True).start()
            wait([look], HASTE)
        if not look.done():
            return None
        del self._looks[message]
        return look.result()

    def _look(self, message: str, look: Future[RecordDict | str | None]) -> None:
        try:
            # One by one: a reply that Flower cannot decode takes those that are pulled with it along.
            replies = list(self.grid.pull_messages([message]))
        except UNREADABLE as error:
            look.set_result(f"a reply that Flower cannot read: {type(error).__name__}")
        except BaseException as error:  # raised where the look is waited for
            look.set_exception(error)
        else:
            look.set_result(_said(replies[0]) if replies else None)

    def ask(
        self,
        contents: Mapping[int, RecordDict],
        kind: str,
        until: float,
        slow: Callable[[Collection[int]], None] = lambda nodes: None,
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """By node, the answers that come before the point of time `until`, and the errors that come instead.

        `slow` is called every `SLOW` seconds with the nodes that have not answered yet. The rest of a reply that has
        come in part is waited for beyond that time, for `REST` seconds, and no longer than its sender is connected.
        """
        told = seen = time.monotonic()
        waiting = self.push(contents, kind, until - time.monotonic())
        answers, errors = dict[int, RecordDict](), dict[int, str]()
        while waiting:
            began = time.monotonic()
            found, failed = self.pull(list(waiting))
            answers |= {waiting.pop(message): records for message, records in found.items()}
            errors |= {waiting.pop(message): why for message, why in failed.items()}
            parts = waiting.keys() & self._looks.keys()
            if parts and began - seen > ONLINE:
                seen, online = began, self.online()
                errors |= {waiting.pop(message): GONE for message in parts if waiting[message] not in online}
                parts &= waiting.keys()
            if not waiting or (began > until and not parts) or began > until + REST:
                break
            if time.monotonic() - told > SLOW:
                told = time.monotonic()
                slow(waiting.values())
            time.sleep(POLL)
        return answers, errors


def _said(reply: Message) -> RecordDict | str:
    """What a reply says, or in words which error it is."""
    if reply.has_error():
        return f"failed: {_last_line(reply.error.reason) or f'code {reply.error.code}'}"
    content: RecordDict = reply.content
    return content


def _last_line(reason: str | None) -> str:
    """The line of a remote traceback that says what was wrong."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    told = FLOWERS.match(reason or "")
    return " ".join(told[1].split()) if told else last


def legible(text: str) -> str:
    """The beginning of a text that somebody else has written, without what a terminal would obey, for a log."""
    return "".join(character if character.isprintable() else " " for character in text[:LONGEST])
