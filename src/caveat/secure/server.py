"""The server in secure aggregation: forwards keys and sealed shares, adds masked vectors, and unmasks their sum."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core import SiloId
from . import shares
from .fixed_point import LEAST, Words
from .messages import SLOTS, Advert, MasksRemain, Opened, Roster, TooFewSilos, mask_context
from .primitives import add_mask, agreed, derived, public_of


@dataclass
class SecureSession:
    """The server's side of one session. It holds no secret of a silo, except those that unmask a sum."""

    federation: str
    number: int
    roster: Roster = field(init=False)
    members: tuple[SiloId, ...] = ()
    """The silos that mask: those whose shares the other silos have."""
    sealed: dict[SiloId, dict[SiloId, bytes]] = field(default_factory=dict)
    """Shares by receiver and sender, which only the receiver can read."""
    slot: int = 0
    """The slot of the next aggregation."""
    misfits: dict[SiloId, list[SiloId]] = field(default_factory=dict)
    """For each silo whose shares of the last sum do not fit those of the other silos, the silos to whose secrets these
    shares belong."""

    @property
    def spent(self) -> bool:
        return self.slot >= SLOTS

    def enrol(self, adverts: Mapping[SiloId, Advert]) -> Roster:
        """Return the list of the silos' keys, which is sent to every silo. Raises TooFewSilos."""
        if len(adverts) < LEAST:
            raise TooFewSilos(f"secure sums need {LEAST} silos or more, but {len(adverts)} sent keys")
        self.roster = Roster(self.federation, self.number, tuple(adverts[silo] for silo in sorted(adverts)))
        self.enough(adverts, "sent keys")
        return self.roster

    def collect(self, sent: Mapping[SiloId, Mapping[SiloId, bytes]]) -> None:
        """Keep the sealed shares of the silos that sent one to every other silo. Raises TooFewSilos."""
        names = set(self.roster.names)
        self.members = tuple(sorted(silo for silo, each in sent.items() if set(each) == names - {silo}))
        self.enough(self.members, "sent shares")
        self.sealed = {to: {silo: sent[silo][to] for silo in self.members if silo != to} for to in self.members}

    def enough(self, silos: Collection[SiloId], what: str) -> None:
        """Raise TooFewSilos unless `silos` are more than two thirds of the federation's silos."""
        needed = self.roster.threshold
        if len(silos) < needed:
            lost = ", ".join(sorted(set(self.roster.names) - set(silos)))
            without = f"; without {lost}" if lost else ""
            raise TooFewSilos(
                f"{len(silos)} of {self.roster.silos} silos {what}, but secure sums need {needed}, more than two "
                f"thirds{without}"
            )

    def begin(self) -> int:
        """Return the slot of an aggregation, which no other aggregation uses."""
        self.slot += 1
        return self.slot - 1

    def survivors(self, vectors: Mapping[SiloId, Words]) -> dict[SiloId, Words]:
        """Return the vectors in the sum: the members' vectors of the usual length. Raises TooFewSilos."""
        lengths = Counter(len(words) for silo, words in vectors.items() if silo in self.members)
        usual = max(lengths, key=lambda each: (lengths[each], each), default=0)
        found = {silo: vectors[silo] for silo in self.members if silo in vectors and len(vectors[silo]) == usual}
        self.enough(found, "sent masked vectors")
        return found

    def unmask(
        self, slot: int, request: bytes, vectors: Mapping[SiloId, Words], opened: Mapping[SiloId, Opened]
    ) -> Words:
        """Return the sum of the `survivors`' vectors, from the shares that silos gave. If more silos than needed gave
        shares, a silo with wrong shares is left out. Raises TooFewSilos, and MasksRemain if shares or masks do not
        fit."""
        alive = sorted(vectors)
        lost = set(self.members) - set(alive)
        fits = [
            silo for silo, each in sorted(opened.items())
            if silo in self.members and set(each.seeds) == set(alive) and set(each.keys) == lost
        ]  # fmt: skip
        self.enough(fits, "gave shares")
        needed, context = self.roster.threshold, mask_context(self.roster, self.members, slot, request)
        without = [[silo for silo in fits if silo != wrong] for wrong in fits[:needed]] if len(fits) > needed else []
        total = np.zeros(len(vectors[alive[0]]), np.uint64)
        problems: list[MasksRemain] = []
        for silo in alive:
            total += vectors[silo]
        for by in (fits, *without):
            try:
                secrets = self._secrets(by[:needed], lost, opened)
                masks = list(self._masks(slot, secrets, alive, context))
                first = total[:1].copy()
                for key, sign in masks:
                    add_mask(first, key, sign)
                if int(first[0]) == len(alive):
                    for key, sign in masks:
                        add_mask(total, key, sign)
                    rest = [silo for silo in fits if silo not in by[:needed]]
                    self.misfits = self._misfits(rest, by[1:needed], lost, opened, secrets)
                    return total
                raise MasksRemain(
                    "the masks do not cancel, so the server learned nothing: silos received different models, requests "
                    "or lists of keys, or one of them sent a wrong vector or share"
                )
            except MasksRemain as error:
                problems.append(error)
        raise problems[0]

    def _masks(
        self, slot: int, secrets: Mapping[SiloId, bytes], alive: Sequence[SiloId], context: bytes
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the keys of the masks that remain in a sum, and the sign with which they are removed."""
        for silo in alive:
            yield derived(secrets[silo], "own mask", context), -1
        for lost in set(self.members) - set(alive):
            if public_of(secrets[lost]) != self.roster.by_name[lost].masks[slot]:
                raise MasksRemain(f"the shares of the key of silo {lost!r} do not match its public key")
            for silo in alive:
                key = derived(agreed(secrets[lost], self.roster.by_name[silo].masks[slot]), "mask of a pair", context)
                # The survivor added the mask if its name comes first.
                yield key, -1 if silo < lost else 1

    def _secrets(
        self, by: Sequence[SiloId], lost: Collection[SiloId], opened: Mapping[SiloId, Opened]
    ) -> dict[SiloId, bytes]:
        """Return the survivors' seeds, and the keys of lost members, from the shares of some silos."""
        found = {}
        for silo, secret in self._combined(by, lost, opened):
            if secret is None:
                raise MasksRemain(f"the shares of a secret of silo {silo!r} do not fit together")
            found[silo] = secret
        return found

    def _combined(
        self, by: Sequence[SiloId], lost: Collection[SiloId], opened: Mapping[SiloId, Opened]
    ) -> Iterator[tuple[SiloId, bytes | None]]:
        """Yield each member's secret from the shares of some silos; None if these are not shares of a secret."""
        weights = shares.weights([1 + self.roster.names.index(silo) for silo in by])
        for silo in self.members:
            parts = [opened[each].keys[silo] if silo in lost else opened[each].seeds[silo] for each in by]
            yield silo, shares.combine(parts, weights)

    def _misfits(
        self, rest: Sequence[SiloId], by: Sequence[SiloId], lost: Collection[SiloId],
        opened: Mapping[SiloId, Opened], secrets: Mapping[SiloId, bytes],
    ) -> dict[SiloId, list[SiloId]]:  # fmt: skip
        """Return, for each silo in `rest`, the members for whom its shares and those of `by` give other secrets."""
        found = dict[SiloId, list[SiloId]]()
        for silo in rest:
            wrong = [name for name, each in self._combined([silo, *by], lost, opened) if each != secrets[name]]
            found |= {silo: wrong} if wrong else {}
        return found
