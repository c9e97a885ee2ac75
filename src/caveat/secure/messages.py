"""Messages of secure aggregation, and their texts.

A session serves several aggregations ("slots") with one exchange of keys and one of shares. Each aggregation then needs
two exchanges: the masked vectors, and the shares that unmask their sum.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from ..core import DataError, RunError, SiloId
from .fixed_point import LEAST
from .masks import digest, joined

SLOTS = 8
"""Number of aggregations of a session."""
LONGEST = 50_000_000
"""Maximum length of a message."""
Result = TypeVar("Result")


class SecureRefused(RunError):
    """A silo refuses a request of secure aggregation. The text contains no data of the silo."""


class TooFewSilos(RunError):
    """Too few silos answered in a phase, so the sum stays masked."""


class MasksRemain(RunError):
    """The masks do not cancel, so the sum is useless."""


def threshold(silos: int) -> int:
    """Return how many of the silos must take part in every phase: more than two thirds.

    A silo gives one kind of share of each peer. So a server that has no more than a third of the silos on its side
    cannot collect enough shares of both kinds of one silo, even if it tells silos of different survivors.
    """
    return max(LEAST, 2 * silos // 3 + 1)


class Advert(NamedTuple):
    """The public keys of one silo for a session, signed with the key that signs its greetings."""

    silo: SiloId
    channel: bytes
    """The key for messages to other silos."""
    masks: tuple[bytes, ...]
    """The key for masks of each slot."""
    key: str = ""
    """The public key of the signature."""
    signature: str = ""

    def signed_text(self, federation: str, number: int) -> bytes:
        """Return the text to sign. A session's number is used once, so keys cannot be replayed in another session."""
        return joined("caveat secure keys 1", federation, number, self.silo, self.channel, *self.masks)

    def to_text(self) -> str:
        keys = [each.hex() for each in (self.channel, *self.masks)]
        return json.dumps([self.silo, keys, self.key, self.signature])

    @classmethod
    def of_text(cls, text: str) -> "Advert":
        """Parse a silo's keys. Raises DataError for any other text."""

        def parsed() -> Advert:
            silo, keys, key, signature = json.loads(text)
            channel, *masks = [_bytes(each, 32) for each in keys]
            return cls(str(silo), channel, tuple(masks), str(key), str(signature))

        return _parsed(parsed, text, "keys")


@dataclass(frozen=True)
class Roster:
    """The keys of all silos of a session, sorted by name. Its digest is part of every mask."""

    federation: str
    number: int
    adverts: tuple[Advert, ...]

    @cached_property
    def names(self) -> tuple[SiloId, ...]:
        return tuple(each.silo for each in self.adverts)

    @cached_property
    def by_name(self) -> dict[SiloId, Advert]:
        return {each.silo: each for each in self.adverts}

    @property
    def threshold(self) -> int:
        return threshold(len(self.adverts))

    @cached_property
    def digest(self) -> bytes:
        return digest("roster", self.to_text())

    def to_text(self) -> str:
        return json.dumps([self.federation, self.number, [each.to_text() for each in self.adverts]])

    @classmethod
    def of_text(cls, text: str) -> "Roster":
        """Parse a session's keys. Raises DataError for any other text."""

        def parsed() -> Roster:
            federation, number, adverts = json.loads(text)
            return cls(str(federation), int(number), tuple(Advert.of_text(each) for each in adverts))

        return _parsed(parsed, text, "keys of all silos")


class Opened(NamedTuple):
    """The shares that a silo gives after an aggregation: of the seed of each survivor, and of the key of each lost
    silo."""

    seeds: dict[SiloId, bytes]
    keys: dict[SiloId, bytes]

    def to_text(self) -> str:
        return json.dumps([hexed(self.seeds), hexed(self.keys)])

    @classmethod
    def of_text(cls, text: str) -> "Opened":
        """Parse a silo's shares. Raises DataError for any other text."""

        def parsed() -> Opened:
            seeds, keys = json.loads(text)
            return cls(unhexed(seeds), unhexed(keys))

        return _parsed(parsed, text, "shares")


def hexed(found: Mapping[SiloId, bytes]) -> dict[SiloId, str]:
    return {silo: each.hex() for silo, each in found.items()}


def unhexed(found: Mapping[SiloId, str]) -> dict[SiloId, bytes]:
    return {str(silo): bytes.fromhex(each) for silo, each in found.items()}


def sealed_of_text(text: str) -> dict[SiloId, bytes]:
    """Parse sealed messages by silo. Raises DataError for any other text."""
    return _parsed(lambda: unhexed(json.loads(text)), text, "sealed shares")


def _bytes(text: str, length: int) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != length:
        raise ValueError(f"{len(found)} bytes, expected {length}")
    return found


def _parsed(parse: Callable[[], Result], text: str, what: str) -> Result:
    try:
        if len(text) > LONGEST:
            raise ValueError(f"more than {LONGEST:,} characters")
        return parse()
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"invalid {what} of secure aggregation: {type(error).__name__}: {error}") from None


def mask_context(roster: Roster, members: Sequence[SiloId], slot: int, request: bytes) -> bytes:
    """Return what masks depend on besides keys: the keys of all silos, the silos that mask, the slot, and the digest of
    the request with everything that was sent to the silo. Masks of silos that saw different ones do not cancel."""
    return digest("masks", roster.digest, *sorted(members), slot, request)
