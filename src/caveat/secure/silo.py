"""A silo in secure aggregation: what it sends in each phase, and what it refuses.

A silo answers each request once. It gives the share of a peer's seed or of its key, never both, and forgets both after
that. Everything that it must remember between two requests is in `SiloSecrets`, which a silo stores before it answers.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..core import SiloId
from . import shares
from .fixed_point import LEAST, Words
from .masks import add_mask, agreed, derived, joined, new_private, public_of, seal, unseal
from .messages import SLOTS, Advert, Opened, Roster, SecureRefused, mask_context, threshold


class Identity(Protocol):
    """The key by which others know a silo, and the keys by which it knows them."""

    def sign(self, text: bytes) -> tuple[str, str]:
        """Return the silo's public key and its signature of a text."""

    def check(self, silo: SiloId, key: str, signature: str, text: bytes) -> str:
        """Return why this is not a signature by that silo, or ""."""


@dataclass
class SiloSecrets:
    """What a silo remembers of a session. Keys and shares are hexadecimal; those of finished slots are empty."""

    federation: str
    number: int
    """The number of the session, which only increases."""
    silo: SiloId
    channel: str
    keys: list[str]
    """The private key for masks of each slot."""
    seeds: list[str]
    """The seed of the silo's own mask of each slot."""
    sent: str
    """Its public keys."""
    roster: str = ""
    members: list[SiloId] = field(default_factory=list)
    """The silos that mask: those whose shares it has received."""
    held: dict[SiloId, list[str]] = field(default_factory=dict)
    """By silo, the share of its seed followed by that of its key, for each slot."""
    masked: list[int] = field(default_factory=list)
    """The slots in which it has sent a masked vector."""
    opened: list[int] = field(default_factory=list)
    """The slots in which it has given shares."""


def begun(federation: str, number: int, silo: SiloId, identity: Identity, known: SiloSecrets | None) -> SiloSecrets:
    """Return new keys for a session, signed, and forget those of the session before. Raises SecureRefused for a number
    that is not above that of the last session."""
    if known is not None and (known.federation != federation or number <= known.number):
        raise SecureRefused(
            f"silo {silo!r} refuses keys for session {number} of {federation}: it has seen session {known.number} of "
            f"{known.federation}, and a session's number increases"
        )
    channel, keys = new_private(), [new_private() for _ in range(SLOTS)]
    advert = Advert(silo, public_of(channel), tuple(map(public_of, keys)))
    key, signature = identity.sign(advert.signed_text(federation, number))
    seeds = [secrets.token_bytes(32).hex() for _ in range(SLOTS)]
    sent = advert._replace(key=key, signature=signature).to_text()
    return SiloSecrets(federation, number, silo, channel.hex(), [each.hex() for each in keys], seeds, sent)


@dataclass
class SecureSilo:
    """A silo in one session."""

    own: SiloSecrets
    identity: Identity
    keep: Callable[[], object] = lambda: None
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
            raise self.refuse(f"it has received the keys of session {own.number} before")
        if (roster.federation, roster.number) != (own.federation, own.number):
            raise self.refuse(f"keys of session {roster.number}, but it has sent keys for session {own.number}")
        if len(names) < LEAST:
            raise self.refuse(f"{len(names)} silos, expected {LEAST} or more: a sum over fewer reveals their numbers")
        if list(names) != sorted(set(names)):
            raise self.refuse("keys of one silo twice, or not sorted by name")
        if own.silo not in names or roster.by_name[own.silo].to_text() != own.sent:
            raise self.refuse("its own keys are missing or replaced")
        keys = [key for each in roster.adverts for key in (each.channel, *each.masks)]
        signers = [each.key.split()[:2] for each in roster.adverts]
        if len(set(keys)) < len(keys) or len(set(map(tuple, signers))) < len(signers):
            raise self.refuse("one key under two names, as if one silo were two")
        for each in roster.adverts:
            if len(each.masks) != SLOTS:
                raise self.refuse(f"keys of silo {each.silo!r} for {len(each.masks)} slots, expected {SLOTS}")
            why = self.identity.check(
                each.silo, each.key, each.signature, each.signed_text(roster.federation, roster.number)
            )
            if why:
                raise self.refuse(f"keys under the name {each.silo!r}: {why}")

    def mask(
        self, slot: int, members: Sequence[SiloId], inbox: Mapping[SiloId, bytes], request: bytes, words: Words
    ) -> Words:
        """Return words with the masks of this silo. `members` are the silos that mask in this session, whose sealed
        shares are in `inbox` the first time. `request` is a digest of everything that the silo was sent."""
        own, roster = self.own, self._roster()
        if slot not in range(SLOTS) or slot in own.masked or slot in own.opened:
            raise self.refuse(f"slot {slot} of session {own.number} is used")
        self._receive(roster, sorted(members), inbox)
        own.masked.append(slot)
        self.keep()  # first, because a slot's masks must not hide two vectors
        context = mask_context(roster, own.members, slot, request)
        found = words.copy()
        add_mask(found, derived(bytes.fromhex(own.seeds[slot]), "own mask", context), 1)
        private = bytes.fromhex(own.keys[slot])
        for name in own.members:
            if name != own.silo:
                key = self._agreed(private, roster.by_name[name].masks[slot], name)
                add_mask(found, derived(key, "mask of a pair", context), 1 if own.silo < name else -1)
        return found

    def _receive(self, roster: Roster, members: Sequence[SiloId], inbox: Mapping[SiloId, bytes]) -> None:
        own = self.own
        if own.members:
            if own.members != list(members):
                raise self.refuse("other silos than in the first sum of the session")
            return
        needed = threshold(len(roster.names))
        if not set(members) <= set(roster.names) or len(set(members)) < len(members) or own.silo not in members:
            raise self.refuse("silos that are not in the session's list of keys")
        if len(members) < needed:
            raise self.refuse(f"{len(members)} of {len(roster.names)} silos, expected {needed} or more")
        for name in members:
            if name != own.silo:
                text = unseal(self._channel(roster, name), inbox.get(name, b""), self._about(roster, name, own.silo))
                if text is None or len(text) != 2 * SLOTS * shares.BYTES:
                    raise self.refuse(f"the shares of silo {name!r} are missing or not from it")
                own.held[name] = _apart(text)
        own.members = list(members)

    def open(self, slot: int, survivors: Sequence[SiloId]) -> Opened:
        """Return shares of the seeds of the silos in the sum, and of the keys of the other members; forget both."""
        own, roster = self.own, self._roster()
        if slot not in range(SLOTS) or slot in own.opened:
            raise self.refuse(f"shares of slot {slot} of session {own.number} were given before")
        if slot not in own.masked or own.silo not in survivors:
            raise self.refuse(f"it is not in the sum of slot {slot}")
        alive = set(survivors)
        if not alive <= set(own.members) or len(alive) < len(survivors):
            raise self.refuse("survivors that do not mask in this session, or one twice")
        if len(alive) < roster.threshold:
            raise self.refuse(f"a sum over {len(alive)} of {len(roster.names)} silos, expected {roster.threshold}")
        own.opened.append(slot)
        taken = {name: own.held[name][2 * slot : 2 * slot + 2] for name in own.members}
        for held in own.held.values():
            held[2 * slot : 2 * slot + 2] = ["", ""]
        own.keys[slot] = own.seeds[slot] = ""
        self.keep()
        return Opened(
            {name: bytes.fromhex(seed) for name, (seed, _) in taken.items() if name in alive},
            {name: bytes.fromhex(key) for name, (_, key) in taken.items() if name not in alive},
        )

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
