"""Which rounds need sums of replies alone: what is declared is what aggregation does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import METHODS, WRAPPED, Federation, assert_same, flat, kept_state

from caveat.core import Method, Payload, Replies, Round, Tensors
from caveat.methods import FedAvg
from caveat.wrappers.privacy import Private

EVERY = [*METHODS, *WRAPPED, Private(FedAvg(rounds=2), clip_norm=1.0, noise_multiplier=1.0, silos=3)]


class Sums:
    """Replies of which an aggregator says no more than the n_k-weighted mean, and how many there are."""

    def __init__(self, replies: Replies) -> None:
        self.population, self.mean_of = replies.population, replies.mean
        self.count = len(replies)

    def __len__(self) -> int:
        return self.count

    def mean(self, group: str, weights: None = None) -> Tensors:
        assert weights is None
        return self.mean_of(group)


def carried_out(federation: Federation) -> list[tuple[Round, Payload, Replies]]:
    """Every round of the method, the server's state before it, and the replies."""
    rounds = []
    server, place = federation.server, federation.place
    for t, step in enumerate(federation.method.schedule()):
        if not step.when(server):
            continue
        torch.manual_seed(t)
        updates = {}
        for name in place.silos:
            updates[name], after = step.task(
                step.broadcast(server), kept_state(place, name, t - 1), place.context(name, t)
            )
            place.states.begin()
            place.states.save(name, t, after)
        replies = Replies(updates, len(updates))
        rounds.append((step, server, replies))
        server = step.aggregate(server, replies, federation.context)
    return rounds


def from_sums(step: Round, server: Payload, replies: Replies, federation: Federation) -> Payload | None:
    """What aggregation makes of sums; None if they are not enough for it."""
    try:
        return step.aggregate(server, Sums(replies), federation.context)  # type: ignore[arg-type]
    except (AttributeError, AssertionError):
        return None


@pytest.mark.parametrize("method", EVERY, ids=lambda method: type(method).__name__)
def test_sums_are_enough_for_the_rounds_that_say_so_and_for_no_others(method: Method, tmp_path: Path) -> None:
    federation = Federation(method, tmp_path)
    rounds = carried_out(federation)
    assert rounds
    for step, server, replies in rounds:
        real, summed = step.aggregate(server, replies, federation.context), from_sums(step, server, replies, federation)
        if step.linear:
            assert summed is not None, step.name
            assert_same(real, summed)
        elif summed is not None:
            one, other = flat(real), flat(summed)
            assert any(not torch.equal(one[name], other[name]) for name in one), step.name


def test_an_average_that_is_overridden_is_not_taken_for_a_mean() -> None:
    class Median(FedAvg):
        def aggregate(self, server, replies, context):  # type: ignore[no-untyped-def]
            return {"model": {name: replies.stack("model", name).median(0).values for name in server["model"]}}

    assert all(step.linear for step in FedAvg().schedule())
    assert not any(step.linear for step in Median().schedule())
