"""A silo in secure aggregation: its messages in each phase, and the requests that it refuses.

A silo answers each request once. It gives the share of a peer's seed or of its key, never both, and forgets both after
that. It gives them only for a sum that more than two thirds of the silos signed, and once for each work (round and
task), in all sessions. Everything that it must remember between two requests is in `SiloSecrets`, which a silo stores
before it answers.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..core import SiloId
from . import shares
from .fixed_point import Words
from .messages import (
    SLOTS,
    Advert,
    Opened,
    Roster,
    SecureRefused,
    agreement,
    mask_context,
    signed_agreement,
)
from .primitives import add_mask, agreed, derived, joined, new_private, public_of, seal, unseal


class Identity(Protocol):
    """A silo's key for signatures, and the keys of the other silos."""

    def sign(self, text: bytes) -> tuple[str, str]:
        """Return the silo's public key and its signature of a text."""

    def check(self, silo: SiloId, key: str, signature: str, text: bytes) -> str:
        """Return why `signature` is not a signature of `text` by `silo`; "" if it is."""

    def count(self) -> int:
        """Return the number of silos whose keys the silo knows, including itself."""


@dataclass
class SlotUse:
    """One slot that a silo has used. Digests are hexadecimal."""

    slot: int
    work: str
    """The round and task whose result the silo masked."""
    context: str
    """The context on which the masks depend, see `mask_context`."""
    agreed: str = ""
    """The sum that the silo signed, see `agreement`."""
    opened: bool = False
    """Whether the silo has given shares."""


@dataclass
class SiloSecrets:
    """The stored state of a silo in a session. Keys and shares are hexadecimal; they are empty for finished slots."""

    federation: str
    number: int
    """The number of the session, which only increases."""
    silo: SiloId
    channel: str = field(repr=False)
    """The private key for messages to other silos; empty after the first sum."""
    keys: list[str] = field(repr=False)
    """The private key for masks of each slot."""
    seeds: list[str] = field(repr=False)
    """The seed of the silo's own mask of each slot."""
    sent: str
    """The silo's public keys."""
    roster: str = ""
    members: list[SiloId] = field(default_factory=list)
    """The silos that mask: those whose shares it has received."""
    held: dict[SiloId, list[str]] = field(default_factory=dict, repr=False)
    """For each silo, the share of its seed followed by the share of its key, for each slot."""
    used: list[SlotUse] = field(default_factory=list)
    """The slots in which the silo has sent a masked vector."""
    summed: list[str] = field(default_factory=list)
    """The works for which the silo has given shares, in this session or before."""


def begun(federation: str, number: int, silo: SiloId, identity: Identity, known: SiloSecrets | None) -> SiloSecrets:
    """Return new signed keys for a session, and forget the keys of the last session. Raises SecureRefused unless the
    session's number is above the last one."""
    if known is not None and (known.federation != federation or number <= known.number):
        raise SecureRefused(
            f"silo {silo!r} refuses keys for session {number} of {federation}: it has seen session {known.number} of "
            f"{known.federation}, expected a later session of this federation"
        )
    channel, keys = new_private(), [new_private() for _ in range(SLOTS)]
    advert = Advert(silo, public_of(channel), tuple(map(public_of, keys)), identity.count())
    key, signature = identity.sign(advert.signed_text(federation, number))
    seeds = [secrets.token_bytes(32).hex() for _ in range(SLOTS)]
    sent = advert._replace(key=key, signature=signature).to_text()
    summed = [] if known is None else list(known.summed)
    private = [each.hex() for each in keys]
    return SiloSecrets(federation, number, silo, channel.hex(), private, seeds, sent, summed=summed)


@dataclass
class SecureSilo:
    """A silo in one session."""

    own: SiloSecrets
    identity: Identity
    keep: Callable[[], object]
    """Stores `own`; called before an answer leaves the silo."""

    def refuse(self, why: str) -> SecureRefused:
        return SecureRefused(f"silo {self.own.silo!r} refuses secure aggregation: {why}")

    def share(self, roster: Roster) -> dict[SiloId, bytes]:
        """Return, for each silo, the sealed shares of this silo's seeds and keys."""
        self._check(roster)
        own, names = self.own, roster.names
        self.own.roster = roster.to_text()
        by_silo: list[list[bytes]] = [[] for _ in names]
        for seed, key in zip(own.seeds, own.keys, strict=True):
            for secret in (seed, key):
                parts = shares.split(bytes.fromhex(secret), roster.threshold, len(names))
                for found, part in zip(by_silo, parts, strict=True):
                    found.append(part)
        texts = {name: b"".join(parts) for name, parts in zip(names, by_silo, strict=True)}
        own.held = {own.silo: _apart(texts.pop(own.silo))}
        sealed = {name: self._seal(roster, name, text) for name, text in texts.items()}
        self.keep()
        return sealed

    def _check(self, roster: Roster) -> None:
        """Raise SecureRefused for keys that are not this session's, not signed, or that one silo sent twice."""
        own, names = self.own, roster.names
        if own.roster:
            raise self.refuse(f"it has already received the keys of session {own.number}")
        if (roster.federation, roster.number) != (own.federation, own.number):
            raise self.refuse(
                f"it sent keys for session {own.number} of {own.federation}, but the list has keys for session "
                f"{roster.number} of {roster.federation}"
            )
        if len(names) < roster.threshold:
            raise self.refuse(
                f"the list has keys of {len(names)} of {roster.silos} silos, expected {roster.threshold} or more: a "
                "sum over fewer reveals their numbers"
            )
        if list(names) != sorted(set(names)):
            raise self.refuse("the list of keys has a silo twice, or is not sorted by name")
        if own.silo not in names or roster.by_name[own.silo].to_text() != own.sent:
            raise self.refuse("the list of keys lacks its own keys, or has other keys under its name")
        keys = [key for each in roster.adverts for key in (each.channel, *each.masks)]
        signers = [each.key.split()[:2] for each in roster.adverts]
        if any(key[-1] & 0x80 for key in keys):
            raise self.refuse("a key has its highest bit set, which X25519 ignores, so it could equal another key")
        if len(set(keys)) < len(keys) or len(set(map(tuple, signers))) < len(signers):
            raise self.refuse("two names have the same key")
        for each in roster.adverts:
            if len(each.masks) != SLOTS:
                raise self.refuse(f"silo {each.silo!r} has keys for {len(each.masks)} slots, expected {SLOTS}")
            why = self.identity.check(
                each.silo, each.key, each.signature, each.signed_text(roster.federation, roster.number)
            )
            if why:
                raise self.refuse(f"keys under the name {each.silo!r}: {why}")
            if each.silo != own.silo:
                for key_, public in zip((own.channel, *own.keys), (each.channel, *each.masks), strict=True):
                    self._agreed(bytes.fromhex(key_), public, each.silo)

    def mask(
        self,
        slot: int,
        members: Sequence[SiloId],
        inbox: Mapping[SiloId, bytes],
        request: bytes,
        words: Words,
        work: str,
    ) -> Words:
        """Return words with the masks of this silo. `members` are the silos that mask in this session, whose sealed
        shares are in `inbox` the first time. `request` is a digest of everything that the silo was sent, `work` the
        round and task of which the words are the result."""
        own, roster = self.own, self._roster()
        if slot not in range(SLOTS) or any(use.slot == slot for use in own.used):
            raise self.refuse(f"slot {slot} of session {own.number} has already been used")
        self._check_new(work)
        self._receive(roster, sorted(members), inbox)
        context = mask_context(roster, own.members, slot, request)
        own.used.append(SlotUse(slot, work, context.hex()))
        self.keep()  # first, because a slot's masks must not hide two vectors
        found = words.copy()
        add_mask(found, derived(bytes.fromhex(own.seeds[slot]), "own mask", context), 1)
        private = bytes.fromhex(own.keys[slot])
        for name in own.members:
            if name != own.silo:
                key = self._agreed(private, roster.by_name[name].masks[slot], name)
                add_mask(found, derived(key, "mask of a pair", context), 1 if own.silo < name else -1)
        return found

    def check_noise(self, shares: int) -> None:
        """Raise SecureRefused if a sum over this silo and fewer than `shares` other silos can be opened."""
        roster = self._roster()
        if shares >= roster.threshold:
            raise self.refuse(
                f"the noise of {shares} other silos protects the update, but a sum over {roster.threshold} of "
                f"{roster.silos} silos can be opened: the server reported more silos than there are keys"
            )

    def _check_new(self, work: str) -> None:
        """Raise SecureRefused if a sum of this work was opened: from two sums, over silos that differ by one, the
        server could subtract that silo's numbers."""
        if work in self.own.summed:
            raise self.refuse(f"it has already sent shares for a sum of {work}")

    def _receive(self, roster: Roster, members: Sequence[SiloId], inbox: Mapping[SiloId, bytes]) -> None:
        own = self.own
        if own.members:
            if own.members != list(members):
                raise self.refuse("the silos differ from the silos of the session's first sum")
            return
        needed = roster.threshold
        if not set(members) <= set(roster.names) or len(set(members)) < len(members) or own.silo not in members:
            raise self.refuse("the silos are not in the session's list of keys, or this silo is missing")
        if len(members) < needed:
            raise self.refuse(f"the sum is over {len(members)} of {roster.silos} silos, expected {needed} or more")
        for name in members:
            if name != own.silo:
                text = unseal(self._channel(roster, name), inbox.get(name, b""), self._about(roster, name, own.silo))
                if text is None or len(text) != 2 * SLOTS * shares.BYTES:
                    raise self.refuse(f"the shares of silo {name!r} are missing, or were not sent by this silo")
                own.held[name] = _apart(text)
        own.members, own.channel = list(members), ""

    def agree(self, slot: int, survivors: Sequence[SiloId]) -> str:
        """Return the signature by which this silo agrees to a sum: its members, request and survivors. A silo signs one
        sum of a slot."""
        own = self.own
        use, about = self._sum(slot, survivors)
        if use.agreed not in ("", about.hex()):
            raise self.refuse(f"it has already signed a sum over other silos for slot {slot}")
        use.agreed = about.hex()
        self.keep()
        return self.identity.sign(signed_agreement(own.federation, own.number, own.silo, about))[1]

    def _sum(self, slot: int, survivors: Sequence[SiloId]) -> tuple[SlotUse, bytes]:
        """Return a slot and the digest of its sum. Raises SecureRefused for a sum without this silo, over too few
        silos, or of a work that was summed before."""
        own, roster = self.own, self._roster()
        use = next((each for each in own.used if each.slot == slot), None)
        if use is None or own.silo not in survivors:
            raise self.refuse(f"it is not in the sum of slot {slot}")
        if use.opened:
            raise self.refuse(f"it has already sent the shares of slot {slot} of session {own.number}")
        alive = set(survivors)
        if not alive <= set(own.members) or len(alive) < len(survivors):
            raise self.refuse("a survivor does not take part in this session, or is listed twice")
        if len(alive) < roster.threshold:
            raise self.refuse(
                f"the sum is over {len(alive)} of {roster.silos} silos, expected at least {roster.threshold}"
            )
        self._check_new(use.work)
        return use, agreement(bytes.fromhex(use.context), survivors)

    def open(self, slot: int, survivors: Sequence[SiloId], signatures: Mapping[SiloId, str]) -> Opened:
        """Return shares of the seeds of the silos in the sum, and of the keys of the other members; forget both.
        Raises SecureRefused unless more than two thirds of the silos signed the same sum."""
        own, roster = self.own, self._roster()
        (use, about), alive = self._sum(slot, survivors), set(survivors)
        if use.agreed != about.hex():
            raise self.refuse(f"it has not signed this sum of slot {slot}")
        signed = [silo for silo in alive if self._has_signed(roster, silo, signatures.get(silo, ""), about)]
        if len(signed) < roster.threshold:
            raise self.refuse(
                f"{len(signed)} of {roster.silos} silos signed the sum of slot {slot} as it is known here, expected "
                f"{roster.threshold}: the other silos received a different model, request or list of silos"
            )
        use.opened = True
        own.summed.append(use.work)
        taken = {name: own.held[name][2 * slot : 2 * slot + 2] for name in own.members}
        for held in own.held.values():
            held[2 * slot : 2 * slot + 2] = ["", ""]
        own.keys[slot] = own.seeds[slot] = ""
        self.keep()
        return Opened(
            {name: bytes.fromhex(seed) for name, (seed, _) in taken.items() if name in alive},
            {name: bytes.fromhex(key) for name, (_, key) in taken.items() if name not in alive},
        )

    def _has_signed(self, roster: Roster, silo: SiloId, signature: str, about: bytes) -> bool:
        text = signed_agreement(roster.federation, roster.number, silo, about)
        return not self.identity.check(silo, roster.by_name[silo].key, signature, text)

    def _roster(self) -> Roster:
        if not self.own.roster:
            raise self.refuse(f"it has not received the keys of session {self.own.number}")
        return Roster.of_text(self.own.roster)

    def _seal(self, roster: Roster, to: SiloId, text: bytes) -> bytes:
        return seal(self._channel(roster, to), text, self._about(roster, self.own.silo, to))

    def _channel(self, roster: Roster, peer: SiloId) -> bytes:
        key = self._agreed(bytes.fromhex(self.own.channel), roster.by_name[peer].channel, peer)
        return derived(key, "channel", roster.digest)

    def _agreed(self, private: bytes, public: bytes, peer: SiloId) -> bytes:
        try:
            return agreed(private, public)
        except ValueError:
            raise self.refuse(f"the key of silo {peer!r} is not a point of large order") from None

    @staticmethod
    def _about(roster: Roster, sender: SiloId, receiver: SiloId) -> bytes:
        return joined(roster.digest, sender, receiver)


def _apart(text: bytes) -> list[str]:
    return [text[at : at + shares.BYTES].hex() for at in range(0, len(text), shares.BYTES)]
