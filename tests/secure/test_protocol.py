"""Secure aggregation between silos and a server: right sums, lost silos, and what a server must not learn."""

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from helpers.secure_silos import SecureFederation, identities, vectors

from caveat.core import DataError, RunError
from caveat.secure.fixed_point import decode, encode, layout_of, sum_in_the_clear
from caveat.secure.masks import digest_of_payload
from caveat.secure.messages import SLOTS, Advert, MasksRemain, Opened, Roster, SecureRefused, TooFewSilos, threshold

FOUR, SEVEN = ["a", "b", "c", "d"], list("abcdefg")


def plain(found: dict[str, np.ndarray], names: Sequence[str]) -> list[int]:
    return [sum(int(found[name][k]) for name in names) % 2**64 for k in range(len(next(iter(found.values()))))]


def test_the_sum_is_right_in_every_slot() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    for slot in range(SLOTS):
        given = vectors(FOUR, seed=slot)
        assert federation.total(given).tolist() == plain(given, FOUR)
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


@pytest.mark.parametrize("phase", ["no_keys", "no_shares", "no_vector", "no_opening"])
@pytest.mark.parametrize("lost", [["a"], ["g"], ["b", "f"]], ids="-".join)
def test_silos_vanish_in_any_phase(phase: str, lost: list[str]) -> None:
    """Two of seven may vanish: five are more than two thirds."""
    federation, given = SecureFederation(SEVEN), vectors(SEVEN)
    early = {phase: lost} if phase in ("no_keys", "no_shares") else {}
    late = {} if early else {phase: lost}
    federation.set_up(**early)
    alive = SEVEN if phase == "no_opening" else [name for name in SEVEN if name not in lost]
    assert federation.total(given, **late).tolist() == plain(given, alive)


def test_one_silo_vanishes_in_each_of_three_phases() -> None:
    names = list("abcdefghij")
    federation, given = SecureFederation(names), vectors(names)
    federation.set_up(no_shares=["a"])
    assert federation.total(given, ["e"], ["j"]).tolist() == plain(given, [n for n in names if n not in "ae"])


@pytest.mark.parametrize("phase", ["no_shares", "no_vector", "no_opening"])
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
    with pytest.raises(SecureRefused, match="2 silos, expected 3 or more"):
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
    late_words = late.mask(0, FOUR, federation.server.sealed["d"], b"request", given["d"])
    for name in "abc":
        with pytest.raises(SecureRefused, match="given before"):
            federation.silos[name].open(0, FOUR)
    pair_only = late_words.copy()
    assert pair_only.tolist() != given["d"].tolist()
    shares_of_seed = [each.seeds.get("d") for (_, slot), each in federation.given.items() if slot == 0]
    assert shares_of_seed == [None] * len(shares_of_seed)


def test_a_slot_masks_one_vector() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    federation.masked("a", 0, vectors(FOUR)["a"])
    with pytest.raises(SecureRefused, match="slot 0 of session 1 is used"):
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
    federation.silos["a"].keep = lambda: seen.append(list(federation.silos["a"].own.masked))
    federation.set_up()
    federation.masked("a", 0, vectors(FOUR)["a"])
    assert seen == [[], [0]]


# What a dishonest server tries.


def test_another_model_for_some_silos_leaves_the_masks() -> None:
    """One silo gets the model that reveals its rows, the others a dull one."""
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    requests = {name: digest_of_payload({"model": {"w": torch.zeros(3)}}) for name in FOUR}
    requests["a"] = digest_of_payload({"model": {"w": torch.tensor([0.0, 0.0, 1e-9])}})
    slot = federation.server.begin()
    sent = {name: federation.masked(name, slot, given[name], requests[name]) for name in FOUR}
    opened = {name: federation.open(name, slot, FOUR) for name in FOUR}
    for seen in requests.values():
        with pytest.raises(MasksRemain, match="different models"):
            federation.server.unmask(slot, seen, sent, opened)
    # Nor is the silo's own vector found from what it sent and its seed.
    for kept in itertools.combinations(FOUR, 3):
        with pytest.raises(MasksRemain):
            federation.server.unmask(slot, requests["b"], sent, {name: opened[name] for name in kept})


def test_keys_of_another_session_are_refused() -> None:
    first = SecureFederation(FOUR)
    first.set_up()
    second = SecureFederation(FOUR, number=2, before=first.silos)
    adverts = second.adverts() | {"b": Advert.of_text(first.silos["b"].own.sent)}
    roster = Roster("heart", 2, tuple(adverts[name] for name in FOUR))
    with pytest.raises(SecureRefused, match="under the name 'b': an invalid signature"):
        second.silos["a"].share(roster)
    with pytest.raises(SecureRefused, match=r"keys for session 1 .* has seen session 2"):
        SecureFederation(FOUR, number=1, before=second.silos)


def test_a_second_list_of_keys_is_refused() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    with pytest.raises(SecureRefused, match="received the keys of session 1 before"):
        federation.silos["a"].share(federation.server.roster)


def test_a_silo_under_two_names_is_refused() -> None:
    federation = SecureFederation(FOUR)
    adverts = federation.adverts()
    twice = Roster("heart", 1, (*(adverts[name] for name in "abc"), adverts["c"]))
    with pytest.raises(SecureRefused, match="one silo twice"):
        federation.silos["a"].share(twice)
    identity = federation.silos["c"].identity
    double = adverts["d"]._replace(key=identity.sign(b"")[0])
    with pytest.raises(SecureRefused, match="one key under two names"):
        federation.silos["a"].share(Roster("heart", 1, (*(adverts[name] for name in "abc"), double)))


def test_shares_of_both_kinds_are_refused() -> None:
    federation = SecureFederation(SEVEN)
    federation.set_up()
    federation.total(vectors(SEVEN))
    with pytest.raises(SecureRefused, match="given before"):
        federation.open("b", 0, [name for name in SEVEN if name != "a"])


def test_two_sets_of_survivors_do_not_give_both_kinds_of_shares() -> None:
    """The server tells half of the silos that `a` is lost, and the others that it is not."""
    federation, given = SecureFederation(SEVEN), vectors(SEVEN)
    federation.set_up()
    slot = federation.server.begin()
    sent = {name: federation.masked(name, slot, given[name]) for name in SEVEN}
    gone = [name for name in SEVEN if name != "a"]
    opened = {name: federation.open(name, slot, gone if k % 2 else SEVEN) for k, name in enumerate(SEVEN)}
    for vectors_ in (sent, {name: sent[name] for name in gone}):
        with pytest.raises(TooFewSilos, match="gave shares"):
            federation.server.unmask(slot, b"request", vectors_, opened)
    assert sum("a" in each.seeds for each in opened.values()) < threshold(7)
    assert sum("a" in each.keys for each in opened.values()) < threshold(7)


def test_a_forged_signature_is_refused() -> None:
    """The server puts its own keys in place of a silo's, to read its messages."""
    federation = SecureFederation(FOUR)
    adverts = federation.adverts()
    forged = SecureFederation(FOUR).adverts()["b"]  # signed with another key
    for fake in (forged, forged._replace(key=adverts["b"].key), adverts["b"]._replace(masks=forged.masks)):
        roster = Roster("heart", 1, tuple(fake if name == "b" else adverts[name] for name in FOUR))
        with pytest.raises(SecureRefused, match="under the name 'b'"):
            federation.silos["a"].share(roster)


@pytest.mark.parametrize(
    ("survivors", "why"),
    [(["b", "c", "d"], "not in the sum"),
     (["a", "b"], "a sum over 2 of 4"), (["a"], "a sum over 1 of 4"), (["a", "b", "c", "x"], "do not mask"),
     (["a", "a", "b"], "one twice")],
)  # fmt: skip
def test_a_wrong_set_of_survivors_is_refused(survivors: list[str], why: str) -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    federation.masked("a", 0, vectors(FOUR)["a"])
    with pytest.raises(SecureRefused, match=why):
        federation.silos["a"].open(0, survivors)


def test_fewer_members_than_the_threshold_are_refused() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    inbox = federation.server.sealed["a"]
    for members, why in ((["a", "b"], "2 of 4 silos"), (["b", "c", "d"], "not in the session's"), (["a"], "1 of 4")):
        with pytest.raises(SecureRefused, match=why):
            federation.silos["a"].mask(0, members, inbox, b"", vectors(FOUR)["a"])


def test_shares_from_somebody_else_are_refused() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    inbox = federation.server.sealed["a"]
    swapped = inbox | {"b": inbox["c"]}
    with pytest.raises(SecureRefused, match="shares of silo 'b' are missing or not from it"):
        federation.silos["a"].mask(0, FOUR, swapped, b"", vectors(FOUR)["a"])


def test_different_lists_of_silos_leave_the_masks() -> None:
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    sealed, three = federation.server.sealed, ["a", "b", "c"]
    sent = {name: federation.silos[name].mask(0, FOUR, sealed[name], b"request", given[name]) for name in "abd"}
    sent["c"] = federation.silos["c"].mask(0, three, sealed["c"], b"request", given["c"])
    opened = {name: federation.open(name, 0, FOUR) for name in "abd"}
    with pytest.raises(MasksRemain):
        federation.server.unmask(0, b"request", sent, opened)


def test_shares_that_do_not_fit_are_found() -> None:
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    slot = federation.server.begin()
    sent = {name: federation.masked(name, slot, given[name]) for name in "abc"}
    opened = {name: federation.open(name, slot, ["a", "b", "c"]) for name in "abc"}
    opened["a"] = Opened(opened["a"].seeds, {"d": bytes(32) + b"\x01"})
    with pytest.raises(MasksRemain, match="of silo 'd' do not fit"):
        federation.server.unmask(slot, b"request", sent, opened)


def test_a_vector_that_is_not_masked_is_found() -> None:
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    slot = federation.server.begin()
    sent = {name: federation.masked(name, slot, given[name]) for name in FOUR} | {"b": given["b"]}
    opened = {name: federation.open(name, slot, FOUR) for name in FOUR}
    with pytest.raises(MasksRemain):
        federation.server.unmask(slot, b"request", sent, opened)


def test_canary_values_do_not_reach_the_server() -> None:
    """Neither in the bytes of what it receives, nor as numbers of any of them, shares and sealed texts included."""
    federation, canary = SecureFederation(FOUR), 0x1D3CAFE5EC12E7A9
    given = {name: np.full(64, canary, np.uint64) for name in FOUR}
    for each in given.values():
        each[0] = 1
    secrets = [bytes.fromhex(s) for silo in federation.silos.values() for s in (*silo.own.keys, silo.own.channel)]
    federation.set_up()
    assert federation.total(given)[1:].tolist() == [4 * canary % 2**64] * 63
    everything = b"".join(federation.received)
    for hidden in (canary.to_bytes(8, "little"), canary.to_bytes(8), b"%x" % canary, *secrets):
        assert hidden not in everything
        assert hidden.hex().encode() not in everything
    masked = [np.frombuffer(each, np.uint64) for each in federation.received if len(each) == 8 * 64]
    assert len(masked) == 4
    assert len({int(word) for each in masked for word in each}) == 4 * 64  # equal numbers have different masks


@pytest.mark.parametrize("cls", [Advert, Roster, Opened])
@pytest.mark.parametrize("text", ["", "null", "[1, 2]", '["a", ["zz"], "", ""]', '[["a"], "b"]', '["f", 1, ["x"]]'])
def test_messages_that_are_none_are_refused(cls: type[Advert | Roster | Opened], text: str) -> None:
    with pytest.raises(DataError, match=r"invalid .* of secure aggregation"):
        cls.of_text(text)


@pytest.mark.parametrize("public", [bytes(32), (1).to_bytes(32, "little")], ids=["0", "1"])
def test_a_key_of_small_order_is_refused(public: bytes) -> None:
    """Everybody knows the secret that such a key agrees on."""
    federation = SecureFederation(FOUR)
    adverts = federation.adverts()
    identity = federation.silos["b"].identity
    weak = adverts["b"]._replace(channel=public)
    key, signature = identity.sign(weak.signed_text("heart", 1))
    roster = Roster("heart", 1, tuple(weak._replace(key=key, signature=signature) if n == "b" else adverts[n]
                                      for n in FOUR))  # fmt: skip
    with pytest.raises(SecureRefused, match="'b' is not a point of large order"):
        federation.silos["a"].share(roster)


def test_the_digest_of_a_payload_depends_on_every_bit_and_not_on_the_order() -> None:
    one = {"model": {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}, "empty": {}}
    same = {"empty": {}, "model": {"n": torch.tensor(3), "w": torch.tensor([1.0, 2.0])}}
    others = [
        {"model": {"w": torch.tensor([1.0, -2.0]), "n": torch.tensor(3)}, "empty": {}},
        {"model": {"w": torch.tensor([[1.0, 2.0]]), "n": torch.tensor(3)}, "empty": {}},
        {"model": {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}},
        {"model": {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3, dtype=torch.int32)}, "empty": {}},
    ]
    assert digest_of_payload(one) == digest_of_payload(same)
    assert len({digest_of_payload(each) for each in (one, *others)}) == 5


def test_identities_know_each_other() -> None:
    found = identities(FOUR)
    key, signature = found["a"].sign(b"text")
    assert found["b"].check("a", key, signature, b"text") == ""
    assert found["b"].check("c", key, signature, b"text") == "an unknown key"
    assert issubclass(SecureRefused, RunError)
