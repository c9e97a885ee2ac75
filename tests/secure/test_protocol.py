"""Secure aggregation between silos and a server: right sums, lost silos, and what a server must not learn."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

import pytest
import torch
from helpers.secure_silos import SecureFederation, summed, vectors

from caveat.secure.fixed_point import Words, decode, encode, layout_of, sum_in_the_clear, threshold
from caveat.secure.messages import (
    SLOTS,
    Roster,
    SecureRefused,
    TooFewSilos,
)
from caveat.secure.silo import SecureSilo, SiloSecrets, SlotUse

FOUR, SEVEN = ["a", "b", "c", "d"], list("abcdefg")


def test_the_sum_is_right_in_every_slot() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    for slot in range(SLOTS):
        given = vectors(FOUR, seed=slot)
        assert federation.total(given).tolist() == summed(given, FOUR)
    assert federation.server.spent


def test_masked_sums_have_the_bits_of_sums_in_the_clear() -> None:
    draw = torch.Generator().manual_seed(0)
    payloads = {name: {"model": {"w": torch.randn(100, generator=draw)}} for name in FOUR}
    weights = dict(zip(FOUR, (10, 200, 31, 4), strict=True))
    federation = SecureFederation(FOUR)
    federation.set_up()
    total = federation.total({name: encode(each, weights[name], 4) for name, each in payloads.items()})
    layout, clear = sum_in_the_clear(payloads, weights, 4)
    masked = decode(total, layout_of(payloads["a"]))
    assert torch.equal(masked.sums["model"]["w"], clear.sums["model"]["w"])
    assert torch.equal(masked.means(layout)["model"]["w"], clear.means(layout)["model"]["w"])


@pytest.mark.parametrize("phase", ["no_keys", "no_shares", "no_vector", "no_signature", "no_opening"])
@pytest.mark.parametrize("lost", [["a"], ["g"], ["b", "f"]], ids="-".join)
def test_silos_vanish_in_any_phase(phase: str, lost: list[str]) -> None:
    """Two of seven may vanish: five are more than two thirds."""
    federation, given = SecureFederation(SEVEN), vectors(SEVEN)
    early = {phase: lost} if phase in ("no_keys", "no_shares") else {}
    late = {} if early else {phase: lost}
    federation.set_up(**early)
    alive = SEVEN if phase in ("no_signature", "no_opening") else [name for name in SEVEN if name not in lost]
    assert federation.total(given, **late).tolist() == summed(given, alive)


def test_one_silo_vanishes_in_each_of_three_phases() -> None:
    names = list("abcdefghij")
    federation, given = SecureFederation(names), vectors(names)
    federation.set_up(no_shares=["a"])
    assert federation.total(given, ["e"], ["j"]).tolist() == summed(given, [n for n in names if n not in "ae"])


PHASES = ["keys", "shares", "masked sums", "signatures", "unmasking", "unmasked"]


def until(federation: SecureFederation, phase: str, given: Mapping[str, Words], stop: int = 3) -> None:
    """Run a sum of "round 3" up to a phase, which only the first silos answer."""
    names, number = list(federation.names), PHASES.index(phase)
    adverts = federation.adverts(names[stop:] if number == 0 else ())
    if number == 0:
        return
    roster = federation.server.enrol(adverts)
    sealed = {name: federation.silos[name].share(roster) for name in (names[:stop] if number == 1 else names)}
    if number == 1:
        return
    federation.server.collect(sealed)
    for name in names[:stop] if number == 2 else names:
        federation.masked(name, 0, given[name], work="round 3")
    if number == 2:
        return
    signatures = federation.signed(0, names, names[:stop] if number == 3 else names)
    for name in names[: stop if number == 4 else 7] if number > 3 else ():
        federation.open(name, 0, names, signatures)


def check_given(*federations: SecureFederation) -> None:
    """By the messages: nobody gave shares of both kinds of one silo, nor for two sums of a work."""
    for federation in federations:
        for (giver, slot), own in federation.given.items():
            assert not own.seeds.keys() & own.keys.keys()
            others = [each for (_, at), each in federation.given.items() if at == slot]
            assert all(not own.seeds.keys() & each.keys.keys() for each in others), giver
    givers = [{giver for giver, _ in each.given} for each in federations]
    assert not set.intersection(*givers)


@pytest.mark.parametrize("phase", PHASES)
def test_a_server_that_is_killed_in_any_phase_gets_one_sum_of_a_round(phase: str) -> None:
    """It starts again with a new session. A silo is away then, so that a second sum would reveal its numbers."""
    federation, given = SecureFederation(SEVEN), vectors(SEVEN)
    until(federation, phase, given)
    again, there = SecureFederation(SEVEN, number=2, before=federation.silos), list("bcdefg")
    again.set_up(no_keys=["a"])
    if phase == "unmasked":
        with pytest.raises(SecureRefused, match="already sent shares for a sum of round 3"):
            again.total(given, work="round 3")
    elif phase == "unmasking":  # three have given shares, and mask no more
        with pytest.raises(SecureRefused, match="already sent shares for a sum of round 3"):
            again.masked("b", again.server.begin(), given["b"], work="round 3")
        with pytest.raises(TooFewSilos, match="4 of 7 silos sent masked vectors"):
            again.total(given, no_vector=["b", "c"], work="round 3")
    else:
        assert again.total(given, work="round 3").tolist() == summed(given, there)
    check_given(federation, again)


@pytest.mark.parametrize("phase", PHASES[:-1])
@pytest.mark.parametrize("silo", ["a", "g"])
def test_a_silo_that_is_killed_before_its_answer_goes_on_with_what_it_stored(phase: str, silo: str) -> None:
    """It answers nothing twice, and takes part in the next sum if the others know its shares."""
    federation, given = SecureFederation(SEVEN), vectors(SEVEN)
    lost = {"keys": "no_keys", "shares": "no_shares", "masked sums": "no_vector", "signatures": "no_signature",
            "unmasking": "no_opening"}[phase]  # fmt: skip
    early = {lost: [silo]} if phase in PHASES[:2] else {}
    federation.set_up(**early)
    own = federation.silos[silo]
    stored = json.dumps(asdict(own.own))
    if phase == "masked sums":
        own.mask(0, SEVEN, federation.server.sealed[silo], b"request", given[silo], "round 3")
        stored = json.dumps(asdict(own.own))
    there = [name for name in SEVEN if name != silo or phase in PHASES[3:]]
    assert federation.total(given, **({} if early else {lost: [silo]}), work="round 3").tolist() == summed(given, there)
    known = json.loads(stored if phase in PHASES[:3] else json.dumps(asdict(own.own)))
    known["used"] = [SlotUse(**each) for each in known["used"]]
    federation.silos[silo] = SecureSilo(SiloSecrets(**known), own.identity, lambda: None)
    if phase == "masked sums":
        with pytest.raises(SecureRefused, match="slot 0 of session 1 has already been used"):
            federation.masked(silo, 0, given[silo], work="round 3")
    after = SEVEN if not early else there
    asked = {} if not early else {"no_vector": [silo]}
    assert federation.total(given, **asked, work="round 4").tolist() == summed(given, after)
    check_given(federation, SecureFederation(SEVEN))


@pytest.mark.parametrize("phase", ["no_shares", "no_vector", "no_signature", "no_opening"])
def test_below_the_threshold_nothing_is_unmasked(phase: str) -> None:
    federation, lost = SecureFederation(SEVEN), ["a", "b", "c"]
    if phase != "no_shares":
        federation.set_up()
    fails = (
        partial(federation.set_up, no_shares=lost)
        if phase == "no_shares"
        else partial(federation.total, vectors(SEVEN), **{phase: lost})
    )
    with pytest.raises(TooFewSilos, match=r"4 of 7 silos .* need 5, more than two thirds"):
        fails()
    assert all(not each.seeds.keys() & each.keys.keys() for each in federation.given.values())


def test_fewer_than_three_silos_are_refused_by_server_and_silos() -> None:
    federation = SecureFederation(["a", "b"])
    with pytest.raises(TooFewSilos, match="need 3 silos or more, but 2"):
        federation.set_up()
    roster = Roster("heart", 1, tuple(federation.adverts().values()))
    with pytest.raises(SecureRefused, match="2 of 2 silos, expected 3 or more"):
        federation.silos["a"].share(roster)


def test_the_threshold_is_more_than_two_thirds() -> None:
    for n in range(3, 200):
        k = threshold(n)
        assert 3 * k > 2 * n
        # Shares of both kinds of one silo need more than n + c answers of n silos, c of which lie.
        assert 2 * k > n + n // 3 or k == 3


def test_no_answer_of_a_silo_has_both_shares_of_one_peer() -> None:
    federation = SecureFederation(SEVEN)
    federation.set_up()
    federation.total(vectors(SEVEN), ["b"])
    federation.total(vectors(SEVEN), ["c", "d"])
    for each in federation.given.values():
        assert not each.seeds.keys() & each.keys.keys()
        assert each.seeds.keys() | each.keys.keys() == set(SEVEN)


def test_a_late_silo_is_not_unmasked() -> None:
    """Its vector arrives after its key was given: its own mask remains, and nobody gives a share of its seed."""
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    federation.total(given, ["d"])
    late = federation.silos["d"]
    late.mask(0, FOUR, federation.server.sealed["d"], b"request", given["d"], "work 0")
    for name in "abc":
        with pytest.raises(SecureRefused, match="already sent the shares"):
            federation.silos[name].open(0, FOUR, {})
    shares_of_seed = [each.seeds.get("d") for (_, slot), each in federation.given.items() if slot == 0]
    assert shares_of_seed == [None] * len(shares_of_seed)


def test_a_slot_masks_one_vector() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    federation.masked("a", 0, vectors(FOUR)["a"])
    with pytest.raises(SecureRefused, match="slot 0 of session 1 has already been used"):
        federation.masked("a", 0, vectors(FOUR, seed=1)["a"])


def test_a_silo_forgets_the_secrets_of_a_slot_once_it_gave_shares() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    federation.total(vectors(FOUR))
    own = federation.silos["a"].own
    assert own.keys[0] == own.seeds[0] == ""
    assert all(held[:2] == ["", ""] and all(held[2:]) for held in own.held.values())


def test_secrets_are_kept_before_an_answer_leaves() -> None:
    federation = SecureFederation(FOUR)
    seen = []
    federation.silos["a"].keep = lambda: seen.append([use.slot for use in federation.silos["a"].own.used])
    federation.set_up()
    federation.masked("a", 0, vectors(FOUR)["a"])
    assert seen == [[], [0]]
