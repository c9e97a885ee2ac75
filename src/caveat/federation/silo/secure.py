"""Secure aggregation at a silo: its key, the keys of its peers, and its secrets on disk between two messages."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ...core import DataError, SiloId, Update
from ...core.text import escaped
from ...engines.flower_messages import Order, Words
from ...engines.flower_secure import Slot, masked, work_of
from ...files import privately, record_of, write_record
from ...files.schema import PeersFile, SecureKept
from ...secure.messages import Roster, SecureRefused, hexed
from ...secure.silo import SecureSilo, SiloSecrets, SlotUse, begun
from ..keys import fingerprint_in, key_and_signature, signer

SESSION, PEERS = "secure.json", "peers.json"
"""The files of a silo's secrets in a session, and of its peers' keys."""


@dataclass(frozen=True)
class SignedName:
    """A silo's name and key, and the keys of the other silos.

    With a folder `peers`, only silos with a NAME.pub in it are known. Otherwise the first key of a name is stored in
    `pins`, and reported, and another key is refused later.
    """

    silo: SiloId
    key: Path | None
    pins: Path
    peers: Path | None = None

    def sign(self, text: bytes) -> tuple[str, str]:
        if self.key is None:
            raise SecureRefused(
                f"silo {self.silo!r} has no key, which secure aggregation needs for signatures; start it with silo.sh"
            )
        return key_and_signature(self.key, text)

    def check(self, silo: SiloId, key: str, signature: str, text: bytes) -> str:
        try:
            found = signer(key, signature, text)
        except DataError as error:
            return f"an invalid signature ({error})"
        if silo == self.silo:
            return "" if self.key is not None and key == self.sign(b"")[0] else "another key than its own"
        known = self._known(silo)
        if known is None and self.peers is not None:
            return f"there is no {silo}.pub in {self.peers}"
        if known is None:
            self._pin(silo, found)
        elif known != found:
            place = self.peers or self.pins
            return f"key {found}, but {place} has {known}; if that key was replaced, replace it there, too"
        return ""

    def count(self) -> int:
        if self.peers is not None:
            names = {path.name.removesuffix(".pub") for path in self.peers.glob("*.pub")}
        else:
            names = set((record_of(self.pins, PeersFile) or PeersFile()).keys)
        return len(names | {self.silo})

    def _known(self, silo: SiloId) -> str | None:
        if self.peers is not None:
            path = self.peers / f"{silo}.pub"
            return fingerprint_in(path) if path.is_file() else None
        return (record_of(self.pins, PeersFile) or PeersFile()).keys.get(silo)

    def _pin(self, silo: SiloId, key: str) -> None:
        known = record_of(self.pins, PeersFile) or PeersFile()
        write_record(self.pins, PeersFile(keys={**known.keys, silo: key}), lasting=True, opener=privately)
        told = f"caveat: silo {self.silo!r} knows silo {silo!r} by key {key} from now on; compare it there"
        print(escaped(told), file=sys.stderr, flush=True)


@dataclass(frozen=True)
class SecureFolder:
    """A silo's part in the sessions of one method of a federation."""

    folder: Path
    identity: SignedName

    def answer(self, federation: str, question: Words) -> Words:
        """Answer a question about keys, shares, agreement on a sum, or the shares that unmask it. Raises SecureRefused
        for any other question, and for one that could reveal a silo's numbers."""
        phase, number = str(question.get("phase")), int(question.get("number", 0))
        if phase == "keys":
            known = self._known()
            own = begun(federation, number, self.identity.silo, self.identity, known)
            self._keep(own)
            return {"answer": own.sent}
        silo = self._session(number)
        if phase == "shares":
            return {"answer": json.dumps(hexed(silo.share(Roster.of_text(str(question.get("roster", ""))))))}
        if phase not in ("agree", "open"):
            raise silo.refuse(f"the request has the unknown phase {phase!r}")
        slot, survivors = int(question.get("slot", -1)), json.loads(str(question.get("survivors", "[]")))
        if not isinstance(survivors, list):
            raise silo.refuse("the request has no list of survivors")
        survivors = list(map(str, survivors))
        if phase == "agree":
            return {"answer": silo.agree(slot, survivors)}
        signatures = json.loads(str(question.get("signatures", "{}")))
        if not isinstance(signatures, dict):
            raise silo.refuse("the request has no mapping from silos to signatures")
        given = {silo: str(each) for silo, each in signatures.items()}
        return {"answer": silo.open(slot, survivors, given).to_text()}

    def masked(self, order: Order, request: bytes, update: Update, weight: int, shares: int = 0) -> Update:
        """Return an update as it leaves the silo. Raises SecureRefused if there is no slot to mask it, and if its
        protection needs the noise of `shares` other silos, but a sum may include fewer."""
        slot = Slot.of_text(order.secure)
        silo = self._session(slot.number)
        silo.check_noise(shares)
        return masked(update, weight, silo, slot, request, work_of(order.t, order.task))

    def _session(self, number: int) -> SecureSilo:
        own = self._known()
        if own is None or own.number != number:
            raise SecureRefused(f"silo {self.identity.silo!r} has no keys of session {number}")
        return SecureSilo(own, self.identity, lambda: self._keep(own))

    def _known(self) -> SiloSecrets | None:
        record = record_of(self.folder / SESSION, SecureKept)
        if record is None:
            return None
        found = SiloSecrets(**{name: getattr(record, name) for name in SiloSecrets.__dataclass_fields__})
        found.used = [SlotUse(**dict(each)) for each in record.used]
        return found

    def _keep(self, own: SiloSecrets) -> None:
        write_record(self.folder / SESSION, SecureKept(**asdict(own)), lasting=True, opener=privately)
