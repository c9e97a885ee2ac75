"""Silos and a server of secure aggregation that pass messages as texts, in one process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from caveat.secure.fixed_point import Words
from caveat.secure.messages import Advert, Opened, Roster, hexed, sealed_of_text
from caveat.secure.server import SecureSession
from caveat.secure.silo import SecureSilo, begun


@dataclass
class Ed25519Identity:
    """A silo's key, and those of its peers by name."""

    private: Ed25519PrivateKey
    known: dict[str, str]

    @property
    def public(self) -> str:
        return self.private.public_key().public_bytes_raw().hex()

    def sign(self, text: bytes) -> tuple[str, str]:
        return self.public, self.private.sign(text).hex()

    def check(self, silo: str, key: str, signature: str, text: bytes) -> str:
        if self.known.get(silo) != key:
            return "an unknown key"
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), text)
        except (InvalidSignature, ValueError):
            return "an invalid signature"
        return ""

    def count(self) -> int:
        return len(self.known)


def nothing() -> None:
    """Store no secrets."""


def identities(names: Sequence[str]) -> dict[str, Ed25519Identity]:
    known: dict[str, str] = {}
    found = {name: Ed25519Identity(Ed25519PrivateKey.generate(), known) for name in names}
    known |= {name: each.public for name, each in found.items()}
    return found


@dataclass
class SecureFederation:
    """One session. Everything that reaches the server is in `received`."""

    names: Sequence[str]
    number: int = 1
    before: dict[str, SecureSilo] = field(default_factory=dict)
    received: list[bytes] = field(default_factory=list)
    given: dict[tuple[str, int], Opened] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = SecureSession("heart", self.number)
        keys = {name: each.identity for name, each in self.before.items()} or identities(self.names)
        known = {name: each.own for name, each in self.before.items()}
        self.silos = {
            name: SecureSilo(begun("heart", self.number, name, keys[name], known.get(name)), keys[name], nothing)
            for name in self.names
        }

    def text(self, text: str) -> str:
        self.received.append(text.encode())
        return text

    def adverts(self, lost: Collection[str] = ()) -> dict[str, Advert]:
        return {name: Advert.of_text(self.text(silo.own.sent)) for name, silo in self.silos.items() if name not in lost}

    def set_up(self, no_keys: Collection[str] = (), no_shares: Collection[str] = ()) -> None:
        roster = Roster.of_text(self.server.enrol(self.adverts(no_keys)).to_text())
        sent = {}
        for name in roster.names:
            if name not in no_shares:
                sealed = hexed(self.silos[name].share(roster))
                self.text(str(sealed))
                sent[name] = {to: bytes.fromhex(each) for to, each in sealed.items()}
        self.server.collect(sent)

    def masked(self, name: str, slot: int, words: Words, request: bytes = b"request", work: str = "") -> Words:
        sealed = self.server.sealed[name]
        found = self.silos[name].mask(slot, self.server.members, sealed, request, words, work or f"work {slot}")
        self.received.append(found.tobytes())
        return found

    def signed(self, slot: int, survivors: Sequence[str], by: Collection[str] | None = None) -> dict[str, str]:
        """The signatures of a sum by its silos, or by these."""
        return {name: self.text(self.silos[name].agree(slot, survivors)) for name in (survivors if by is None else by)}

    def open(self, name: str, slot: int, survivors: Sequence[str], signatures: Mapping[str, str]) -> Opened:
        found = Opened.of_text(self.text(self.silos[name].open(slot, survivors, signatures).to_text()))
        self.given[name, slot] = found
        return found

    def total(
        self,
        vectors: Mapping[str, Words],
        no_vector: Collection[str] = (),
        no_opening: Collection[str] = (),
        no_signature: Collection[str] = (),
        work: str = "",
    ) -> Words:
        slot = self.server.begin()
        asked = [name for name in self.server.members if name not in no_vector]
        sent = {name: self.masked(name, slot, vectors[name], work=work) for name in asked}
        kept = self.server.survivors(sent)
        alive = list(kept)
        signatures = self.signed(slot, alive, [name for name in alive if name not in no_signature])
        self.server.enough(signatures, "signed the sum")
        opened = {name: self.open(name, slot, alive, signatures) for name in signatures if name not in no_opening}
        return self.server.unmask(slot, b"request", kept, opened)


def vectors(names: Sequence[str], length: int = 50, seed: int = 0) -> dict[str, Words]:
    """Return vectors as `encode` makes them: the first word is 1."""
    draw = np.random.default_rng(seed)
    found = {name: draw.integers(0, 2**64, length, dtype=np.uint64) for name in names}
    for each in found.values():
        each[0] = 1
    return found


def summed(given: Mapping[str, Words], names: Sequence[str]) -> list[int]:
    """Return the sum of these silos' vectors."""
    return [sum(map(int, each)) % 2**64 for each in zip(*(given[name] for name in names), strict=True)]


__all__ = ["Ed25519Identity", "SecureFederation", "identities", "sealed_of_text", "summed", "vectors"]
