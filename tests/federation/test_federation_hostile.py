"""A federation whose silos, or whose server, do not keep to what was agreed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import assert_same
from flwr.app import Message
from google.protobuf.message import DecodeError
from hospitals import Federation, losing, summary

from caveat.config import load
from caveat.core import DataError, Payload, RunError, Update
from caveat.engines.flower import silo_app_of
from caveat.engines.flower_messages import pack, unpack, words_of
from caveat.federation.silo.app import NodeHandler
from caveat.files import read_ledger, read_payload
from caveat.files.schema import NO_PART
from caveat.methods import FedAvg

pytestmark = pytest.mark.long


def nan(reply: Message) -> Message:
    payload = unpack(reply.content)
    for tensors in payload.values():
        for tensor in tensors.values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
    reply.content = pack(payload, examples=38)
    return reply


def test_a_hostile_silo_is_named_and_the_others_are_as_without_it(tmp_path: Path) -> None:
    hostile, without = Federation(tmp_path / "a", "fedavg"), Federation(tmp_path / "b", "fedavg")
    hostile.grid.tamper[hostile.node["hill"]] = nan
    without.grid.tamper[without.node["hill"]] = losing(0)
    runs = [federation.serve() for federation in (hostile, without)]
    assert_same(*(read_payload(run / "model" / "model.safetensors") for run in runs))
    assert summary(runs[0]) == summary(runs[1])
    rows = [json.loads(line) for line in (runs[0] / "rounds.jsonl").read_text().splitlines()]
    named = {(row["round"], row.get("split", "train")) for row in rows if "left_out" in row and row["silo"] == "hill"}
    assert named >= {(1, "train"), (2, "train"), (3, "train"), (3, "test")}
    told = ("is not finite", "has weight 38, expected 1, the number of examples that the silo reported", NO_PART)
    assert all(any(each in row["left_out"] for each in told) for row in rows if "left_out" in row)
    assert all(row["left_out"] == NO_PART for row in rows if row.get("split") == "test" and "left_out" in row)
    assert any("without hill" in note and "is not finite" in note for note in hostile.notes)


def test_nobody_is_believed_to_be_a_silo_that_is_connected(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    federation.grid.apps[99] = silo_app_of(NodeHandler())
    federation.grid.node_config[99] = federation.grid.node_config[federation.node["hill"]]
    federation.serve()
    assert any("node 99 is refused" in note and "another connected node is" in note
               for note in federation.notes)  # fmt: skip
    # None of them has a key, which the operator is told.
    assert sum("its name is not bound to a key" in note for note in federation.notes) == 3
    assert "keys" not in json.loads((federation.run / "federation.json").read_text())


class Nonsense:
    def greet(self, context: Any, question: Any) -> dict[str, Any]:
        return {"silo": "x", "sketch": '{"labels": [1, 2, {"a": null}], "shape": "wide"}'}

    def perform(self, *args: Any) -> Any:
        raise NotImplementedError


def test_a_greeting_that_makes_no_sense_stops_nobody(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    federation.grid.apps[1] = silo_app_of(Nonsense())
    run = federation.serve()
    assert len(summary(run)["silos"]) == 3
    assert any(note.startswith("node 1 is refused: introduce: DataError") for note in federation.notes)


def interrupted(folder: Path) -> Federation:
    """A federation that has lost a silo in its second round, and waits to be continued."""
    federation = Federation(folder, "fedavg", quorum=3, start_timeout=2)
    federation.grid.tamper[federation.node["hill"]] = losing(1)
    with pytest.raises(RunError, match="fewer than the quorum"):
        federation.serve()
    federation.grid.tamper.clear()
    return federation


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found["silos"].update({".x.part": found["silos"]["hill"]}),
        lambda found: found["silos"].update({"moor": found["silos"]["hill"]}),
        lambda found: found["silos"]["hill"]["card"].update(examples={"train": -1}),
        lambda found: found["agreement"].update(classes=["ill"]),
        lambda found: found["sketches"]["hill"].update(labels=[]),
        lambda found: found.update(agreement=None),
    ],
)
def test_a_damaged_federation_json_is_named(tmp_path: Path, damage: Callable[[dict[str, Any]], None]) -> None:
    federation = interrupted(tmp_path)
    path = federation.run / "federation.json"
    found = json.loads(path.read_text())
    damage(found)
    path.write_text(json.dumps(found))
    with pytest.raises(DataError) as refused:
        federation.serve()
    assert str(refused.value).startswith(f"{path}: ")


def test_a_changed_table_is_refused_when_the_run_continues(tmp_path: Path) -> None:
    federation = interrupted(tmp_path)
    home = federation.homes["hill"]
    table = (home / "hill.csv").read_text().splitlines()
    (home / "hill.csv").write_text("\n".join([table[0], *table[2:]]) + "\n")
    for path in home.glob("state/*/data-*"):
        path.unlink()
    with pytest.raises(RunError, match="3 silos are needed"):
        federation.serve()
    assert any("hill" in note and "its data changed after it joined" in note for note in federation.notes)


# What silos send


def measuring(change: Callable[[Payload], Payload]) -> Callable[[Message], Message]:
    """Measurements as if a silo had sent something else."""

    def tamper(reply: Message) -> Message:
        payload = unpack(reply.content)
        if "sums" in payload:
            reply.content = pack(change(payload), examples=int(words_of(reply.content)["examples"]))
        return reply

    return tamper


def without_scores(payload: Payload) -> Payload:
    return payload | {"sums": {name: t for name, t in payload["sums"].items() if not name.startswith("score.")}}


def doubled_classes(payload: Payload) -> Payload:
    sums = payload["sums"]
    return payload | {"sums": sums | {n: torch.cat([t, t]) for n, t in sums.items() if n.startswith("class_")}}


def unasked(payload: Payload) -> Payload:
    return payload | {"junk.zzz": {f"t{i}": torch.zeros(100) for i in range(100)}}


@pytest.mark.parametrize("change", [without_scores, doubled_classes, unasked])
def test_one_of_two_silos_with_measurements_that_cannot_be_read_is_left_out(
    change: Callable[[Payload], Payload], tmp_path: Path
) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1, quorum=1)
    del federation.grid.apps[federation.node["valley"]]
    federation.grid.tamper[federation.node["coast"]] = measuring(change)
    found = summary(federation.serve(load(str(tmp_path / "config.toml"), ["federation.min_available_silos=2"])))
    assert [silo["name"] for silo in found["silos"]] == ["hill"]


def test_a_reply_that_flower_cannot_decode_is_left_out_alone(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    pull = federation.grid.pull_messages

    def pulled(names: Any) -> list[Message]:
        found = pull(names)
        if any(m.metadata.src_node_id == federation.node["hill"] and m.metadata.message_type == "train" for m in found):
            raise DecodeError("Error parsing message")
        return found

    federation.grid.pull_messages = pulled  # type: ignore[method-assign]
    assert [silo["name"] for silo in summary(federation.serve())["silos"]] == ["coast", "valley"]
    assert "round 1, train: without hill: Flower cannot decode the reply: DecodeError" in federation.notes


def test_negative_second_moments_are_left_out(tmp_path: Path) -> None:
    def negative(reply: Message) -> Message:
        payload = unpack(reply.content)
        for tensor in payload.get("moments", {}).values():
            tensor.neg_()
        reply.content = pack(payload, examples=int(words_of(reply.content)["examples"]))
        return reply

    federation = Federation(tmp_path, "fedpn", rounds=2)
    federation.grid.tamper[federation.node["hill"]] = negative
    run = federation.serve()
    assert all(
        tensor.isfinite().all() for tensor in read_payload(run / "model" / "model.safetensors")["model"].values()
    )
    assert any("without hill" in note and "has a negative entry" in note for note in federation.notes)


def test_a_state_that_is_not_finite_does_not_replace_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    average, calls = FedAvg.aggregate, list[int]()

    def broken(self: FedAvg, *args: Any) -> Payload:
        after = average(self, *args)
        calls.append(1)
        if len(calls) > 1:
            next(iter(after["model"].values())).fill_(torch.nan)
        return after

    monkeypatch.setattr(FedAvg, "aggregate", broken)
    federation = Federation(tmp_path, "fedavg", rounds=3)
    with pytest.raises(RunError, match=r"round 2, train: the server's model/.* is not finite"):
        federation.serve()
    assert json.loads((federation.run / "state" / "checkpoint.json").read_text())["t"] == 0


class Telling(NodeHandler):
    """Answers as a silo does, with changes."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def greet(self, context: Any, question: Any) -> Any:
        words = dict(super().greet(context, question))
        card = {key: value for key, value in self.changes.items() if key not in words}
        if "card" in words:
            words |= self.changes if not card else {"card": json.dumps(json.loads(str(words["card"])) | card)}
        return words


@pytest.mark.parametrize(
    "changes",
    [
        {"record": "NaN"}, {"record": '{"a": NaN}'}, {"record": "[" * 900 + "]" * 900}, {"card": "7"},
        {"record": json.dumps({"a": "b" * 1_000_000})}, {"domain": "d" * 501}, {"domain": "a\x1b[31m"},
        {"class_counts": [10**10, 1]}, {"class_counts": [0, 0]}, {"examples": {"train": 52}},
        {"silo": ".x.part"}, {"silo": "../hill"}, {"silo": "hi\u202ell"}, {"silo": "h" * 201},
    ],
    ids=lambda changes: f"{next(iter(changes))}={next(iter(changes.values()))}"[:30],
)  # fmt: skip
def test_a_card_or_record_that_makes_no_sense_admits_nobody(changes: dict[str, Any], tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    federation.grid.apps[federation.node["hill"]] = silo_app_of(Telling(**changes))
    run = federation.serve(load(str(tmp_path / "config.toml"), ["federation.min_available_silos=2"]))
    assert [silo["name"] for silo in summary(run)["silos"]] == ["coast", "valley"]
    assert any("is refused: join:" in note and len(note) < 600 for note in federation.notes)


def test_another_card_is_refused_when_the_run_continues(tmp_path: Path) -> None:
    federation = interrupted(tmp_path)
    federation.grid.apps[federation.node["hill"]] = silo_app_of(Telling(domain="elsewhere"))
    with pytest.raises(RunError, match="3 silos are needed"):
        federation.serve()
    assert any("its data changed after it joined" in note for note in federation.notes)


def test_what_a_silo_says_does_not_reach_the_terminal_as_it_is(tmp_path: Path) -> None:
    class Shouting(NodeHandler):
        def perform(self, *args: Any) -> Update:
            raise ValueError("\x1b]0;owned\x07\x1b[2J" + 10_000 * "x")

    federation = Federation(tmp_path, "fedavg", rounds=1)
    federation.grid.apps[federation.node["hill"]] = silo_app_of(Shouting())
    federation.serve()
    notes = [note for note in federation.notes if "without hill" in note]
    assert notes
    assert all(note.isprintable() and len(note) < 600 for note in notes)


def test_a_node_that_became_another_silo_is_not_taken_for_the_former(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=2)

    def swap(reply: Message) -> Message:
        federation.grid.node_config[federation.node["hill"]] = {"silo": str(federation.homes["coast"] / "silo.toml")}
        return reply

    federation.grid.tamper[federation.node["hill"]] = swap
    assert [silo["name"] for silo in summary(federation.serve())["silos"]] == ["coast", "valley"]
    own = read_ledger(federation.kept("coast") / "ledger.jsonl").messages
    assert [message.t for message in own if message.task.endswith("train")] == [0, 1]
