"""Flower as an engine: the bits of the single-machine one, and silos that are late, gone, broken or hostile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from federations import ADAM, FAST, METHODS, WRAPPED, Federation, assert_same, assert_same_states
from flower_grid import Silos
from flwr.app import Message
from sampled import sampled

from caveat.core import Method, Payload, RunError
from caveat.engines.flower_messages import pack, unpack
from caveat.engines.rounds import Participation
from caveat.methods import SCAFFOLD, FedAvg
from caveat.testing.federation import newest_state

EVERY = METHODS + WRAPPED
names = [type(method).__name__ for method in EVERY]


def run(silos: Silos, **bounds: int) -> Payload:
    return silos.federation.run(engine=nullcontext(silos.transport), **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", sampled(EVERY), ids=[name + "-options" * names[:i].count(name) for i, name in enumerate(names)]
)
def test_flower_gives_the_bits_of_the_embedded_engine(method: Method, tmp_path: Path) -> None:
    embedded, flower = Federation(method, tmp_path / "embedded"), Silos(method, tmp_path / "flower")
    assert_same(embedded.run(), run(flower))
    assert_same_states(embedded.states(), flower.states())
    down = method.broadcast(embedded.server)
    for name in embedded.place.silos:
        here = embedded.place.perform(10**6, "test", down, name, newest_state(embedded.place.states, name)).update
        there = flower.transport.exchange(10**6, "test", down, [name]).updates[name]
        assert_same(here.payload, there.payload)


def test_a_payload_survives_the_way_with_types_shapes_and_empty_groups() -> None:
    payload = {
        "a": {"float64": torch.tensor(1 / 3, dtype=torch.float64), "int": torch.tensor([3, 4])},
        "empty": {},
        "b": {"bool": torch.tensor([[True], [False]]), "none": torch.zeros(0, 3), "float": torch.randn(2, 3).T},
    }
    there = unpack(pack(payload, t=1))
    assert list(there) == list(payload)
    assert_same(payload, there)
    assert all(there[g][n].dtype == t.dtype for g, group in payload.items() for n, t in group.items())


# Silos that do not answer


def losing(times: list[int]) -> Callable[[Message], Message | None]:
    """Lose the replies of those calls."""
    calls = iter(range(10**6))
    return lambda reply: None if next(calls) in times else reply


def absent(method: Method, folder: Path, rounds: list[int], silo: str = "silo-1") -> Federation:
    """The embedded federation in which a silo is not asked in those rounds."""

    class Without(Participation):
        def cohort(self, t, step, silos):  # type: ignore[no-untyped-def]
            return [s for s in silos if s != silo or t not in rounds]

    federation = Federation(method, folder)
    federation.run(participation=Without(0))
    return federation


@pytest.mark.parametrize("method", [FedAvg(rounds=4, training=ADAM), SCAFFOLD(rounds=4, training=FAST)])
def test_a_lost_reply_leaves_a_silo_where_the_server_thinks_it_is(method: Method, tmp_path: Path) -> None:
    """It has worked, and its state is a round ahead of what was counted: it drops that."""
    flower = Silos(method, tmp_path / "flower")
    flower.grid.tamper[flower.node["silo-1"]] = losing([1, 2])
    server = run(flower)
    expected = absent(method, tmp_path / "embedded", [1, 2])
    assert_same(server, expected.server)
    assert_same_states(flower.states(), expected.states())
    reasons = [done.replies.left_out for done in flower.federation.done]
    assert reasons == [{}, *[{"silo-1": "no reply in time"}] * 2, {}]


def test_a_silo_that_raises_is_named_with_what_it_said(tmp_path: Path) -> None:
    flower = Silos(FedAvg(rounds=2, training=ADAM), tmp_path)
    del flower.places["silo-2"]
    run(flower)
    assert all("KeyError" in done.replies.left_out["silo-2"] or "silo-2" in done.replies.left_out["silo-2"]
               for done in flower.federation.done)  # fmt: skip
    assert all(set(done.replies.updates) == {"silo-0", "silo-1"} for done in flower.federation.done)


def test_without_its_quorum_a_run_ends_and_names_who_is_missing(tmp_path: Path) -> None:
    flower = Silos(FedAvg(rounds=3, training=ADAM), tmp_path)
    flower.transport.quorum = 3
    flower.grid.tamper[flower.node["silo-0"]] = losing([1, *range(2, 50)])
    with pytest.raises(
        RunError,
        match=r"round 2 of the schedule, task 'base.train': valid replies of 2 of 3 silos, fewer than the "
        r"quorum\nsilo-0: no reply",
    ):
        run(flower)
    assert [done.t for done in flower.federation.done] == [0]


def test_a_quorum_is_not_waited_for_without_end(tmp_path: Path) -> None:
    flower = Silos(FedAvg(rounds=1, training=ADAM), tmp_path)
    flower.transport.quorum, flower.transport.start_timeout = 3, 1
    flower.grid.tamper[flower.node["silo-0"]] = losing(list(range(10**4)))
    with pytest.raises(RunError, match="2 of 3 silos, fewer than the quorum"):
        run(flower)


def test_a_quorum_may_be_reached_by_asking_again(tmp_path: Path) -> None:
    flower = Silos(FedAvg(rounds=3, training=ADAM), tmp_path / "flower")
    flower.transport.quorum, flower.transport.start_timeout = 3, 30
    flower.grid.tamper[flower.node["silo-0"]] = losing([1, 2])
    whole = Federation(FedAvg(rounds=3, training=ADAM), tmp_path / "embedded")
    assert_same(run(flower), whole.run())


def test_a_federation_continues_after_its_server_was_killed(tmp_path: Path) -> None:
    method = SCAFFOLD(rounds=4, training=FAST)
    flower = Silos(method, tmp_path / "flower")
    run(flower, stop=2)
    before, counted = flower.federation.server, dict(flower.transport.counted)
    run(flower, start=2, stop=3)  # was never saved
    flower.federation.server = before
    flower.connect()
    flower.transport.begin(2, counted, {})
    whole = Federation(method, tmp_path / "embedded")
    assert_same(run(flower, start=2), whole.run())
    assert_same_states(flower.states(), whole.states())


def test_a_silo_may_join_a_running_federation(tmp_path: Path) -> None:
    method = FedAvg(rounds=4, training=ADAM)
    flower = Silos(method, tmp_path)
    late = {node: flower.grid.apps.pop(node) for node in [flower.node["silo-2"]]}
    flower.connect()
    run(flower, stop=2)
    flower.grid.apps |= late
    run(flower, start=2)
    # It is greeted in the first round that finds it there, and asked from the next one on.
    assert [len(done.replies) for done in flower.federation.done] == [2, 2, 2, 3]


# Hostile silos


def rewritten(change: Callable[[Payload], Payload], examples: int | None = None) -> Callable[[Message], Message]:
    """Replies as if a silo had sent something else."""

    def tamper(reply: Message) -> Message:
        order = reply.content.config_records["order"]
        n = int(order["examples"]) if examples is None else examples  # type: ignore[arg-type]
        reply.content = pack(change(unpack(reply.content)), examples=n)
        return reply

    return tamper


def each(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Payload], Payload]:
    return lambda payload: {
        group: {name: function(t) if t.is_floating_point() else t for name, t in tensors.items()}
        for group, tensors in payload.items()
    }


HOSTILE: dict[str, tuple[Callable[[Message], Message], str]] = {
    "nan": (rewritten(each(lambda t: t * torch.nan)), "not finite"),
    "wrong shape": (rewritten(each(lambda t: t[None])), "expected .* as sent"),
    "wrong names": (
        rewritten(lambda p: {"model": {f"x.{n}": t for n, t in p["model"].items()}}),
        "as in the updates of most silos",
    ),
    "a group more": (
        rewritten(lambda p: p | {"labels": {"y": torch.zeros(9)}}),
        "is missing in the updates of most silos",
    ),
    "nothing": (rewritten(lambda p: {}), "missing, expected "),
    "1e30": (rewritten(each(lambda t: torch.full_like(t, 1e30))), "an entry of 1e\\+30"),
    "ten times the size": (
        rewritten(lambda p: p | {"more": {n: torch.cat([t.flatten()] * 10) for n, t in p["model"].items()}}),
        "is missing in the updates of most silos",
    ),
    "float64": (rewritten(each(lambda t: t.double())), "float64, expected .* torch.float32 as sent"),
    "too many examples": (rewritten(lambda p: p, examples=10**9), "has weight 1,000,000,000"),
}


@pytest.mark.parametrize("what", list(HOSTILE))
def test_what_a_hostile_silo_sends_is_left_out_and_changes_nothing(what: str, tmp_path: Path) -> None:
    method = FedAvg(rounds=3, training=ADAM)
    tamper, said = HOSTILE[what]
    flower = Silos(method, tmp_path / "flower")
    flower.grid.tamper[flower.node["silo-0"]] = tamper
    server = run(flower)
    for done in flower.federation.done:
        assert set(done.replies.left_out) == {"silo-0"}
        with pytest.raises(ValueError, match=said):
            raise ValueError(done.replies.left_out["silo-0"])
    assert_same(server, absent(method, tmp_path / "embedded", [0, 1, 2], "silo-0").server)
