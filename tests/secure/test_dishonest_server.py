"""What a dishonest server tries in secure aggregation, and what silos refuse."""

import numpy as np
import pytest
import torch
from helpers.secure_silos import SecureFederation, identities, summed, vectors

from caveat.core import DataError, RunError
from caveat.secure.fixed_point import threshold
from caveat.secure.messages import (
    Advert,
    MasksRemain,
    Opened,
    Roster,
    SecureRefused,
    TooFewSilos,
    agreement,
    signed_agreement,
)
from caveat.secure.primitives import digest_of_payload
from caveat.secure.silo import begun

FOUR, SEVEN = ["a", "b", "c", "d"], list("abcdefg")


def test_another_model_for_some_silos_leaves_the_masks() -> None:
    """One silo gets the model that reveals its rows, the others a dull one."""
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    requests = {name: digest_of_payload({"model": {"w": torch.zeros(3)}}) for name in FOUR}
    requests["a"] = digest_of_payload({"model": {"w": torch.tensor([0.0, 0.0, 1e-9])}})
    slot = federation.server.begin()
    sent = {name: federation.masked(name, slot, given[name], requests[name]) for name in FOUR}
    signatures = federation.signed(slot, FOUR)
    with pytest.raises(SecureRefused, match=r"1 of 4 silos signed the sum of slot 0 .* expected 3.*different model"):
        federation.open("a", slot, FOUR, signatures)
    opened = {name: federation.open(name, slot, FOUR, signatures) for name in "bcd"}
    for seen in requests.values():
        with pytest.raises(MasksRemain, match="different models"):
            federation.server.unmask(slot, seen, sent, opened)


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
    known = second.silos["a"]
    with pytest.raises(SecureRefused, match=r"session 3 of lung: .* session 2 of heart, expected a later session of"):
        begun("lung", 3, "a", known.identity, known.own)


def test_a_second_list_of_keys_is_refused() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    with pytest.raises(SecureRefused, match="already received the keys of session 1"):
        federation.silos["a"].share(federation.server.roster)


def test_a_silo_under_two_names_is_refused() -> None:
    federation = SecureFederation(FOUR)
    adverts = federation.adverts()
    twice = Roster("heart", 1, (*(adverts[name] for name in "abc"), adverts["c"]))
    with pytest.raises(SecureRefused, match="has a silo twice"):
        federation.silos["a"].share(twice)
    identity = federation.silos["c"].identity
    double = adverts["d"]._replace(key=identity.sign(b"")[0])
    with pytest.raises(SecureRefused, match="two names have the same key"):
        federation.silos["a"].share(Roster("heart", 1, (*(adverts[name] for name in "abc"), double)))


def test_keys_of_another_federation_are_refused() -> None:
    federation = SecureFederation(FOUR)
    other = Roster("lung", 1, tuple(federation.adverts()[name] for name in FOUR))
    told = "it sent keys for session 1 of heart, but the list has keys for session 1 of lung"
    with pytest.raises(SecureRefused, match=told):
        federation.silos["a"].share(other)


def test_shares_of_both_kinds_are_refused() -> None:
    federation = SecureFederation(SEVEN)
    federation.set_up()
    federation.total(vectors(SEVEN))
    with pytest.raises(SecureRefused, match="already sent the shares"):
        federation.open("b", 0, [name for name in SEVEN if name != "a"], {})


def test_two_sets_of_survivors_are_not_both_opened() -> None:
    """The server tells half of the silos that `a` is lost, and the others that it is not."""
    federation, given = SecureFederation(SEVEN), vectors(SEVEN)
    federation.set_up()
    slot = federation.server.begin()
    for name in SEVEN:
        federation.masked(name, slot, given[name])
    gone = [name for name in SEVEN if name != "a"]
    told = {name: gone if name in "bdf" else SEVEN for name in SEVEN}
    signatures = {name: federation.silos[name].agree(slot, told[name]) for name in SEVEN}
    for name in SEVEN:
        with pytest.raises(SecureRefused, match=r"[34] of 7 silos signed the sum of slot 0"):
            federation.open(name, slot, told[name], signatures)
        with pytest.raises(SecureRefused, match="already signed a sum over other silos"):
            federation.silos[name].agree(slot, [each for each in SEVEN if each != ("g" if name != "g" else "f")])


@pytest.mark.parametrize(("silos", "liars", "dropped", "rest"), [(7, 2, 2, 2), (10, 2, 4, 3), (13, 3, 6, 3)])
def test_a_server_with_colluding_silos_does_not_isolate_one(silos: int, liars: int, dropped: int, rest: int) -> None:
    """The server tells one silo of few members and of another model, and the others that changing silos vanished, to
    collect the seed of the first and the keys of those that it masks with."""
    names = [f"s{k:02}" for k in range(silos)]
    federation, given = SecureFederation(names), vectors(names)
    federation.set_up()
    victim, lost, others, bad = names[0], names[1 : 1 + dropped], names[1 + dropped : -liars], names[-liars:]
    assert len(others) == rest
    sealed, few = federation.server.sealed, sorted([victim, *lost, *bad])
    federation.silos[victim].mask(0, few, sealed[victim], b"for the victim", given[victim], "work 0")
    for name in (*lost, *others, *bad):
        federation.silos[name].mask(0, names, sealed[name], b"for all", given[name], "work 0")
    needed = threshold(silos) - liars - 1 - rest
    signatures, told = dict[str, str](), {}
    for k, name in enumerate((*lost, *others)):
        fill = [name] if name in lost else []
        spare = [each for each in (*lost[k % dropped :], *lost[: k % dropped]) if each not in fill]
        told[name] = sorted({victim, *others, *bad, *fill, *spare[: max(0, needed - len(fill))]})
        signatures[name] = federation.silos[name].agree(0, told[name])
    for name, survivors in told.items():
        # Colluding silos sign whatever the server wants.
        about = agreement(bytes.fromhex(federation.silos[name].own.used[0].context), survivors)
        lies = {
            each: federation.silos[each].identity.sign(signed_agreement("heart", 1, each, about))[1] for each in bad
        }
        with pytest.raises(SecureRefused, match="silos signed the sum of slot 0"):
            federation.open(name, 0, survivors, signatures | lies)


def test_a_signature_counts_once_and_only_for_its_silo_slot_and_session() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    for slot in (0, 1):
        for name in FOUR:
            federation.masked(name, slot, vectors(FOUR)[name])
    first, second = federation.signed(0, FOUR), federation.signed(1, FOUR)
    wrong = [dict.fromkeys(FOUR, first["a"]), second, {"a": first["a"], "b": first["b"], "c": "00", "x": first["c"]}]
    for signatures in wrong:
        with pytest.raises(SecureRefused, match=r"[012] of 4 silos signed the sum of slot 0"):
            federation.open("a", 0, FOUR, signatures)
    with pytest.raises(SecureRefused, match="has not signed this sum"):
        federation.open("a", 0, ["a", "b", "c"], first)
    assert federation.open("a", 0, FOUR, first).keys == {}


def test_a_work_is_summed_once_in_all_slots_and_sessions() -> None:
    """The difference between two sums of one work, over silos that differ by one, is the numbers of that silo."""
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    for slot in (0, 1):  # both before one is opened
        for name in FOUR:
            federation.masked(name, slot, given[name], work="round 3")
    signatures = federation.signed(0, FOUR)
    for name in FOUR:
        federation.open(name, 0, FOUR, signatures)
    with pytest.raises(SecureRefused, match="already sent shares for a sum of round 3"):
        federation.signed(1, ["a", "b", "c"])
    again = SecureFederation(FOUR, number=2, before=federation.silos)
    again.set_up(no_keys=["d"])
    with pytest.raises(SecureRefused, match="already sent shares for a sum of round 3"):
        again.masked("a", 0, given["a"], request=b"another model", work="round 3")
    again.masked("a", 0, given["a"], work="round 4")


def test_a_work_that_was_not_opened_is_repeated() -> None:
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    with pytest.raises(TooFewSilos):
        federation.total(given, no_signature=["a", "b"], work="round 3")
    again = SecureFederation(FOUR, number=2, before=federation.silos)
    again.set_up(no_keys=["d"])
    assert again.total(given, work="round 3").tolist() == summed(given, ["a", "b", "c"])


def test_a_server_does_not_choose_few_of_the_silos() -> None:
    """Of ten silos it enrols three, of which two give it their numbers."""
    names = [f"s{k}" for k in range(10)]
    federation = SecureFederation(names)
    adverts = federation.adverts()
    with pytest.raises(TooFewSilos, match="3 of 10 silos sent keys, but secure sums need 7"):
        federation.server.enrol({name: adverts[name] for name in ("s0", "s8", "s9")})
    roster = Roster("heart", 1, tuple(adverts[name] for name in ("s0", "s8", "s9")))
    with pytest.raises(SecureRefused, match="3 of 10 silos, expected 7 or more"):
        federation.silos["s0"].share(roster)
    few = Roster("heart", 1, tuple(each._replace(known=3) for each in roster.adverts))
    with pytest.raises(SecureRefused, match="the list of keys lacks its own keys, or has other keys under its name"):
        federation.silos["s0"].share(few)


def test_a_vector_of_another_length_or_of_no_member_counts_as_vanished() -> None:
    federation, given = SecureFederation(SEVEN), vectors(SEVEN)
    federation.set_up()
    sent = {name: federation.masked(name, 0, given[name]) for name in SEVEN} | {"x": given["a"]}
    sent |= {"a": sent["a"][:1], "b": np.append(sent["b"], np.uint64(0))}
    alive = list("cdefg")
    kept = federation.server.survivors(sent)
    assert list(kept) == alive
    signatures = federation.signed(0, alive)
    opened = {name: federation.open(name, 0, alive, signatures) for name in alive}
    assert federation.server.unmask(0, b"request", kept, opened).tolist() == summed(given, alive)


def test_secrets_are_not_printed_and_channel_keys_are_erased() -> None:
    federation = SecureFederation(FOUR)
    own = federation.silos["a"].own
    federation.set_up()
    shown = repr(federation.silos["a"])
    secret = [own.channel, *own.keys, *own.seeds, *own.held["a"]]
    assert not [each for each in secret if each in shown]
    federation.total(vectors(FOUR))
    assert {silo.own.channel for silo in federation.silos.values()} == {""}


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
     (["a", "b"], "sum is over 2 of 4"), (["a"], "sum is over 1 of 4"), (["a", "b", "c", "x"], "does not take part"),
     (["a", "a", "b"], "listed twice")],
)  # fmt: skip
def test_a_wrong_set_of_survivors_is_refused(survivors: list[str], why: str) -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    federation.masked("a", 0, vectors(FOUR)["a"])
    with pytest.raises(SecureRefused, match=why):
        federation.silos["a"].agree(0, survivors)


def test_fewer_members_than_the_threshold_are_refused() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    inbox = federation.server.sealed["a"]
    for members, why in ((["a", "b"], "2 of 4 silos"), (["b", "c", "d"], "not in the session's"), (["a"], "1 of 4")):
        with pytest.raises(SecureRefused, match=why):
            federation.silos["a"].mask(0, members, inbox, b"", vectors(FOUR)["a"], "work 0")


def test_shares_from_somebody_else_are_refused() -> None:
    federation = SecureFederation(FOUR)
    federation.set_up()
    inbox = federation.server.sealed["a"]
    swapped = inbox | {"b": inbox["c"]}
    with pytest.raises(SecureRefused, match="shares of silo 'b' are missing, or were not sent by this silo"):
        federation.silos["a"].mask(0, FOUR, swapped, b"", vectors(FOUR)["a"], "work 0")


def test_different_lists_of_silos_leave_the_masks() -> None:
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    sealed, three = federation.server.sealed, ["a", "b", "c"]
    members = {name: three if name == "c" else FOUR for name in FOUR}
    sent = {
        name: federation.silos[name].mask(0, members[name], sealed[name], b"request", given[name], "work 0")
        for name in FOUR
    }
    signatures = federation.signed(0, FOUR, by="abd") | {"c": federation.silos["c"].agree(0, three)}
    opened = {name: federation.open(name, 0, FOUR, signatures) for name in "abd"}
    with pytest.raises(MasksRemain):
        federation.server.unmask(0, b"request", sent, opened)


def test_shares_that_do_not_fit_are_found() -> None:
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    slot = federation.server.begin()
    sent = {name: federation.masked(name, slot, given[name]) for name in "abc"}
    signatures = federation.signed(slot, ["a", "b", "c"])
    opened = {name: federation.open(name, slot, ["a", "b", "c"], signatures) for name in "abc"}
    opened["a"] = Opened(opened["a"].seeds, {"d": bytes(32) + b"\x01"})
    with pytest.raises(MasksRemain, match="of silo 'd' do not match"):
        federation.server.unmask(slot, b"request", sent, opened)


@pytest.mark.parametrize("liar", ["a", "c", "f"])
@pytest.mark.parametrize("kind", ["seed", "seeds", "key"])
def test_wrong_shares_of_one_silo_are_left_out_if_enough_others_gave_theirs(liar: str, kind: str) -> None:
    """Five of seven are needed, and six gave shares."""
    federation, given, alive = SecureFederation(SEVEN), vectors(SEVEN), list("abcdef")
    federation.set_up()
    slot = federation.server.begin()
    sent = {name: federation.masked(name, slot, given[name]) for name in alive}
    signatures = federation.signed(slot, alive)
    opened = {name: federation.open(name, slot, alive, signatures) for name in alive}
    wrong = {"seed": {"b"}, "seeds": set(alive), "key": {"g"}}[kind]
    own = [{name: bytes(32) + b"\x01" if name in wrong else each for name, each in shares.items()}
           for shares in opened[liar]]  # fmt: skip
    opened[liar] = Opened(*own)
    assert federation.server.unmask(slot, b"request", sent, opened).tolist() == summed(given, alive)
    assert federation.server.misfits == {liar: sorted(wrong)}


def test_a_vector_that_is_not_masked_is_found() -> None:
    federation, given = SecureFederation(FOUR), vectors(FOUR)
    federation.set_up()
    slot = federation.server.begin()
    sent = {name: federation.masked(name, slot, given[name]) for name in FOUR} | {"b": given["b"]}
    signatures = federation.signed(slot, FOUR)
    opened = {name: federation.open(name, slot, FOUR, signatures) for name in FOUR}
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


@pytest.mark.parametrize(
    ("public", "why"),
    [(bytes(32), "'b' is not a point"), ((1).to_bytes(32, "little"), "'b' is not a point"),
     (bytes([9] * 31 + [0x89]), "has its highest bit set")],
    ids=["0", "1", "alias"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["channel", "masks"])
def test_a_key_of_small_order_or_with_two_forms_is_refused(public: bytes, why: str, place: str) -> None:
    """Everybody knows the secret that a key of small order agrees on."""
    federation = SecureFederation(FOUR)
    adverts = federation.adverts()
    identity = federation.silos["b"].identity
    masks = (*adverts["b"].masks[:-1], public)
    weak = adverts["b"]._replace(**({"channel": public} if place == "channel" else {"masks": masks}))
    key, signature = identity.sign(weak.signed_text("heart", 1))
    roster = Roster("heart", 1, tuple(weak._replace(key=key, signature=signature) if n == "b" else adverts[n]
                                      for n in FOUR))  # fmt: skip
    with pytest.raises(SecureRefused, match=why):
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


def test_noise_of_more_silos_than_a_sum_has_is_refused() -> None:
    """A server that reports more silos than there are makes each of them add less noise."""
    federation = SecureFederation(FOUR)
    federation.set_up()
    federation.silos["a"].check_noise(threshold(4) - 1)
    with pytest.raises(SecureRefused, match=r"noise of 66 other silos .* a sum over 3 of 4 silos can be opened"):
        federation.silos["a"].check_noise(threshold(100) - 1)
