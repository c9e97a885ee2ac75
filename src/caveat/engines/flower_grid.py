"""Messages to nodes through Flower's Grid, and waiting for their replies."""

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Thread

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

POLL = 0.1
"""Seconds between two polls for replies."""
FLOWERS = re.compile(r"<class '[^']*'>:<'(.*)'>$", re.DOTALL)
"""The format in which Flower reports an app's exception."""
SLOW = 30.0
"""Seconds between two messages about silos that have not replied."""
HASTE = 2.0
"""Seconds within which a polled reply usually arrives."""
REST = 180.0
"""Seconds after the time limit to wait for the rest of a reply, for which Flower keeps partial replies."""
ONLINE = 1.0
"""Seconds between two checks of connections while waiting for the rest of a reply."""
GONE = "disconnected while sending its reply"
GRACE = 600.0
"""Seconds for which messages are kept after the time limit, because clocks differ."""
UNREADABLE = (DecodeError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors that Flower raises for a reply that it cannot decode."""


@dataclass
class GridMessages:
    """Messages to nodes and their replies. Flower blocks for minutes on a partial reply whose sender was killed, so
    each reply is polled in its own thread."""

    grid: Grid
    _looks: dict[str, Future[RecordDict | str | None]] = field(default_factory=dict, init=False, repr=False)
    """Running polls, by message."""

    def online(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self.grid.get_node_ids())

    def push(self, contents: Mapping[int, RecordDict], kind: str, seconds: float) -> dict[str, int]:
        """Send messages, to be answered within `seconds`; return the node of each message."""
        ttl = max(seconds, 0.0) + GRACE
        messages = [Message(each, dst_node_id=node, message_type=kind, ttl=ttl) for node, each in contents.items()]
        return dict(zip(self.grid.push_messages(messages), contents, strict=True))

    def pull(self, sent: Sequence[str]) -> tuple[dict[str, RecordDict], dict[str, str]]:
        """Return the complete replies and the errors so far, by message."""
        answers, errors = dict[str, RecordDict](), dict[str, str]()
        for message in sent:
            found = self._looked(message)
            if isinstance(found, str):
                errors[message] = found
            elif found is not None:
                answers[message] = found
        return answers, errors

    def _looked(self, message: str) -> RecordDict | str | None:
        """Return the reply to a message, or its error; None if it has not arrived completely."""
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
            # One by one, because a reply that Flower cannot decode makes the whole pull fail.
            replies = list(self.grid.pull_messages([message]))
        except UNREADABLE as error:
            look.set_result(f"Flower cannot decode the reply: {type(error).__name__}")
        except BaseException as error:  # raised in the waiting thread
            look.set_exception(error)
        else:
            look.set_result(_content(replies[0]) if replies else None)

    def ask(
        self,
        contents: Mapping[int, RecordDict],
        kind: str,
        until: float,
        slow: Callable[[Collection[int]], None] = lambda nodes: None,
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """Return, by node, the replies before the point in time `until`, and errors.

        `slow` is called every `SLOW` seconds with the nodes that have not replied. Partial replies are awaited for up
        to `REST` more seconds, while their sender is connected.
        """
        reported = seen = time.monotonic()
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
            if time.monotonic() - reported > SLOW:
                reported = time.monotonic()
                slow(waiting.values())
            time.sleep(POLL)
        return answers, errors


def _content(reply: Message) -> RecordDict | str:
    """Return the content of a reply, or its error as text."""
    if reply.has_error():
        return f"failed: {_last_line(reply.error.reason) or f'code {reply.error.code}'}"
    content: RecordDict = reply.content
    return content


def _last_line(reason: str | None) -> str:
    """Return the error message at the end of a remote traceback."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    error = FLOWERS.match(reason or "")
    return " ".join(error[1].split()) if error else last
