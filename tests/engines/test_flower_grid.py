"""A reply whose sender was killed while it sent it: the others' replies are not lost with it, nor held up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Timer

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from caveat.engines import flower_grid
from caveat.engines.flower_grid import GridMessages
from caveat.engines.flower_messages import pack, words_of


class Stuck:
    """Two nodes: the reply of 2 comes while Flower waits for the rest of that of 1, which never comes."""

    def __init__(self, seconds: float) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # which Flower's messages ask for
        self.seconds, self.sent = seconds, dict[str, Message]()
        self.gave_up = self.gone = False

    def get_node_ids(self) -> list[int]:
        return [2] if self.gone else [1, 2]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.sent = {str(message.metadata.dst_node_id): message for message in messages}
        return list(self.sent)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        (node,) = message_ids
        if node == "1":
            time.sleep(self.seconds)
            self.gave_up = True
            return []
        return [Message(pack({}, said="here"), reply_to=self.sent[node])] if self.gave_up else []


def test_a_reply_that_came_while_another_was_waited_for_counts() -> None:
    wire = GridMessages(Stuck(0.3))  # type: ignore[arg-type]
    contents = {2: RecordDict(), 1: RecordDict()}  # that of 2 is looked for first
    answers, errors = wire.ask(contents, "train", time.monotonic() + 0.1)
    assert words_of(answers[2])["said"] == "here"
    assert 1 not in answers
    assert errors == {}


def test_a_sender_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower would have it waited for three minutes, since it keeps a part of a reply for so long."""
    monkeypatch.setattr(flower_grid, "HASTE", 0.05)
    monkeypatch.setattr(flower_grid, "ONLINE", 0.1)
    grid = Stuck(60)
    wire = GridMessages(grid)  # type: ignore[arg-type]
    grid.gave_up = True  # the other's reply is there at once
    began = time.monotonic()
    Timer(0.5, lambda: setattr(grid, "gone", True)).start()
    answers, errors = wire.ask({1: RecordDict(), 2: RecordDict()}, "train", began + 30)
    assert 0.5 < time.monotonic() - began < 10
    assert words_of(answers[2])["said"] == "here"
    assert errors == {1: "disconnected while sending its reply"}


def test_the_rest_of_a_reply_is_waited_for_while_its_sender_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow line a reply may take longer than what is left of a round."""
    monkeypatch.setattr(flower_grid, "HASTE", 0.05)
    grid = Stuck(0)
    monkeypatch.setattr(grid, "pull_messages", slowly(grid.pull_messages, 1.0))
    grid.gave_up = True
    wire = GridMessages(grid)  # type: ignore[arg-type]
    answers, _ = wire.ask({2: RecordDict()}, "train", time.monotonic() + 0.2)
    assert words_of(answers[2])["said"] == "here"


def test_what_a_look_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Stuck(0)

    def lost(message_ids: Iterable[str]) -> list[Message]:
        raise ConnectionError("the server's line")

    monkeypatch.setattr(grid, "pull_messages", lost)
    with pytest.raises(ConnectionError, match="the server's line"):
        GridMessages(grid).ask({2: RecordDict()}, "train", time.monotonic() + 5)  # type: ignore[arg-type]


def slowly(pull: Callable[[Iterable[str]], list[Message]], seconds: float) -> Callable[[Iterable[str]], list[Message]]:
    def pulled(message_ids: Iterable[str]) -> list[Message]:
        time.sleep(seconds)
        return pull(message_ids)

    return pulled
