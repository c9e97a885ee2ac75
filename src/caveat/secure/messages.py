"""Messages of secure aggregation, and their texts.

A session serves several aggregations ("slots") with one exchange of keys and one of shares. Each aggregation then needs
three exchanges: the masked vectors, the signatures by which silos agree on the sum, and the shares that unmask it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from ..core import DataError, RunError, SiloId, check_silo_name
from .fixed_point import FRACTION, Layout, threshold
from .primitives import digest, joined

SLOTS = 8
"""Number of aggregations of a session."""
LONGEST = 50_000_000
"""Maximum length of a message."""
MOST_SILOS = 10_000
"""Maximum number of silos that a silo may claim to know."""
Result = TypeVar("Result")


class SecureRefused(RunError):
    """A silo refuses a request of secure aggregation. The text contains no data of the silo."""


class TooFewSilos(RunError):
    """Too few silos answered in a phase, so the sum stays masked."""


class MasksRemain(RunError):
    """The masks do not cancel, so the sum is useless."""


class Advert(NamedTuple):
    """The public keys of one silo for a session, signed with the key that signs its greetings."""

    silo: SiloId
    channel: bytes
    """The key for messages to other silos."""
    masks: tuple[bytes, ...]
    """The key for masks of each slot."""
    known: int
    """The number of silos that the silo knows, including itself."""
    key: str = ""
    """The public key of the signature."""
    signature: str = ""

    def signed_text(self, federation: str, number: int) -> bytes:
        """Return the text to sign. A session's number is used once, so keys cannot be replayed in another session."""
        return joined("caveat secure keys 2", federation, number, self.silo, self.known, self.channel, *self.masks)

    def to_text(self) -> str:
        keys = [each.hex() for each in (self.channel, *self.masks)]
        return json.dumps([self.silo, keys, self.known, self.key, self.signature])

    @classmethod
    def of_text(cls, text: str) -> "Advert":
        """Parse a silo's keys. Raises DataError for an invalid text."""

        def parsed() -> Advert:
            silo, keys, known, key, signature = json.loads(text)
            check_silo_name(silo)
            channel, *masks = [_bytes(each, 32) for each in keys]
            if type(known) is not int or not 1 <= known <= MOST_SILOS:
                raise ValueError(f"a number of silos that is not from 1 to {MOST_SILOS:,}")
            return cls(silo, channel, tuple(masks), known, str(key), str(signature))

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
    def silos(self) -> int:
        """The number of silos of the federation: the largest number that a silo of the session knows."""
        return max(len(self.adverts), *(each.known for each in self.adverts))

    @property
    def threshold(self) -> int:
        return threshold(self.silos)

    @cached_property
    def digest(self) -> bytes:
        return digest("roster", self.to_text())

    def to_text(self) -> str:
        return json.dumps([self.federation, self.number, [each.to_text() for each in self.adverts]])

    @classmethod
    def of_text(cls, text: str) -> "Roster":
        """Parse a session's keys. Raises DataError for an invalid text."""

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
        """Parse a silo's shares. Raises DataError for an invalid text."""

        def parsed() -> Opened:
            seeds, keys = json.loads(text)
            return cls(unhexed(seeds), unhexed(keys))

        return _parsed(parsed, text, "shares")


def hexed(found: Mapping[SiloId, bytes]) -> dict[SiloId, str]:
    return {silo: each.hex() for silo, each in found.items()}


def unhexed(found: Mapping[SiloId, str]) -> dict[SiloId, bytes]:
    return {str(silo): bytes.fromhex(each) for silo, each in found.items()}


def sealed_of_text(text: str) -> dict[SiloId, bytes]:
    """Parse sealed messages by silo. Raises DataError for an invalid text."""
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
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(f"invalid {what} of secure aggregation: {type(error).__name__}: {error}") from None


def bound_request(request: bytes, layout: Layout, silos: int) -> bytes:
    """Return a digest of a request and of how numbers become words, so that masks of silos with other tensors or
    another scale do not cancel."""
    return digest("words", request, layout.to_text(), FRACTION, silos)


def mask_context(roster: Roster, members: Sequence[SiloId], slot: int, request: bytes) -> bytes:
    """Return the context of masks: the keys of all silos, the silos that mask, the slot, and the digest of
    the request with everything that was sent to the silo. Masks of silos with different contexts do not cancel."""
    return digest("masks", roster.digest, *sorted(members), slot, request)


def agreement(context: bytes, survivors: Sequence[SiloId]) -> bytes:
    """Return a digest of one sum: the context of its masks, and the silos in it."""
    return digest("sum", context, *sorted(survivors))


def signed_agreement(federation: str, number: int, silo: SiloId, about: bytes) -> bytes:
    """Return the text that a silo signs to agree to the sum with the digest `about`."""
    return joined("caveat secure sum 1", federation, number, silo, about)
