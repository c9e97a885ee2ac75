"""A reply whose sender was killed while it sent it: the others' replies are not lost with it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from caveat.engines.flower_messages import GridMessages, pack, words_of


class Stuck:
    """Two nodes: the reply of 2 comes while Flower waits for the rest of that of 1, which never comes."""

    def __init__(self, seconds: float) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # which Flower's messages ask for
        self.seconds, self.sent = seconds, dict[str, Message]()
        self.gave_up = False

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
