"""Secure sums through Flower's Grid: the server's part of the exchanges, and the messages of both sides.

A session takes an exchange of keys and one of shares, for several sums. A sum takes three exchanges: the task, whose
update comes back masked, the silos' signatures of the sum, and the shares that unmask it. Texts are JSON in the words
of messages. Silos open the sum of a task and round only once, so the server stores it before it continues.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from ..core import DataError, Payload, RunError, SiloId, Update
from ..core.silo import TOGETHER, SiloInfo
from ..files import read_payload, refuse_link, to_bytes, write_bytes
from ..secure.fixed_point import DecodedSum, Layout, Words, decode, encode, layout_of
from ..secure.messages import (
    Advert,
    MasksRemain,
    Opened,
    SecureRefused,
    TooFewSilos,
    bound_request,
    hexed,
    sealed_of_text,
    unhexed,
)
from ..secure.primitives import digest
from ..secure.server import SecureSession
from ..secure.silo import SecureSilo
from .flower_grid import GridMessages
from .flower_messages import Order, pack, words_of
from .measurement_checks import left_out_measuring

GROUP = "masked"
"""The group of a masked update, with "words" and, as the bytes of a text, their "layout"."""
Parsed = TypeVar("Parsed")
PHASE = "evaluate"
"""The kind of Flower's messages about keys and shares."""


class Slot(NamedTuple):
    """The information that a silo needs for one sum, as part of the request for a task."""

    number: int
    slot: int
    members: tuple[SiloId, ...]
    inbox: dict[SiloId, bytes]

    def to_text(self) -> str:
        return json.dumps([self.number, self.slot, self.members, hexed(self.inbox)])

    @classmethod
    def of_text(cls, text: str) -> "Slot":
        """Parse a slot. Raises SecureRefused for an invalid text."""
        try:
            number, slot, members, inbox = json.loads(text)
            return cls(int(number), int(slot), tuple(map(str, members)), unhexed(inbox))
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
            raise SecureRefused("the request for a masked update has no valid slot of a session") from None


def request_digest(order: Order, terms: str, sent: bytes) -> bytes:
    """Return a digest of everything in a request that must be equal for all silos; `sent` is the digest of its
    payload."""
    return digest("request", order.t, order.task, order.rollbacks, terms, sent)


def work_of(t: int, task: str) -> str:
    """Return the name of a task of a round; silos open one sum for each name."""
    return f"round {t}, task {task!r}"


def masked(update: Update, weight: int, silo: SecureSilo, slot: Slot, request: bytes, work: str) -> Update:
    """Return a silo's update as it leaves the silo."""
    layout, silos = layout_of(update.payload), len(slot.members)
    words = encode(update.payload, weight, silos)
    about = bound_request(request, layout, silos)
    found = silo.mask(slot.slot, slot.members, slot.inbox, about, words, work)
    group = {"words": torch.from_numpy(found.view("int64")), "layout": bytes_of(layout.to_text())}
    return Update({GROUP: group}, update.examples)


def unpacked(update: Update) -> tuple[Layout, Words]:
    """Return layout and words of a masked update. Raises DataError for any other update."""
    group = update.payload.get(GROUP, {})
    if update.payload.keys() != {GROUP} or group.keys() != {"words", "layout"}:
        raise DataError("is not masked")
    words, text = group["words"], group["layout"]
    if words.dtype != torch.int64 or text.dtype != torch.uint8 or words.ndim != 1 or text.ndim != 1:
        raise DataError("is not a vector of 64-bit numbers")
    layout = Layout.of_text(text.numpy().tobytes().decode(errors="replace"))
    if len(words) != layout.words:
        raise DataError(f"has {len(words)} numbers, expected {layout.words} for its tensors")
    return layout, words.numpy().view("uint64")


class OpenedSum(NamedTuple):
    """A sum that silos opened, as the server stores it before it continues."""

    layout: Layout
    words: Words
    examples: dict[SiloId, int]
    """The number of examples of each silo in the sum."""
    left_out: dict[SiloId, str]

    def total(self, weight: int) -> DecodedSum:
        """Return the decoded sum. Raises MasksRemain if its silos' weights do not add up to `weight`."""
        found = decode(self.words, self.layout)
        if found.weight != weight:
            raise MasksRemain(f"the weights add up to {found.weight:,}, expected {weight:,}")
        return found

    def to_payload(self, about: bytes) -> Payload:
        text = json.dumps([self.layout.to_text(), self.examples, self.left_out, about.hex()])
        return {GROUP: {"words": torch.from_numpy(self.words.view("int64")), "text": bytes_of(text)}}

    @classmethod
    def of_payload(cls, payload: Payload, path: Path) -> tuple["OpenedSum", str]:
        """Return a stored sum and the digest that it was stored with. Raises DataError, naming the file, for other
        content."""
        try:
            words, text = payload[GROUP]["words"], payload[GROUP]["text"]
            layout, examples, left_out, about = json.loads(text.numpy().tobytes())
            return cls(Layout.of_text(layout), words.numpy().view("uint64"), examples, left_out), str(about)
        except (DataError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a stored sum: {error}") from None


def bytes_of(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


@dataclass
class SecureServer:
    """The server's sessions, one at a time."""

    wire: GridMessages
    federation: str
    folder: Path
    """The folder of opened sums, which silos do not open again."""
    session: SecureSession | None = None
    delivered: set[SiloId] = field(default_factory=set)
    """The silos that have their shares of the session."""

    def stored(self, t: int, task: str, about: bytes) -> OpenedSum | None:
        """Return the stored sum of a task of a round; `about` is a digest of what silos were sent. Raises RunError if
        another sum of it was opened."""
        path = self._place(t, task)
        if not path.exists():
            return None
        found, known = OpenedSum.of_payload(read_payload(path), path)
        if known != about.hex():
            raise RunError(
                f"{work_of(t, task)}: the silos have already unmasked a sum for a different model or before a rollback "
                f"({path}), and do not unmask a second one; start a new run"
            )
        return found

    def store(self, t: int, task: str, about: bytes, opened: OpenedSum) -> None:
        """Store a sum, synced to disk."""
        refuse_link(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._place(t, task), to_bytes(opened.to_payload(about)), lasting=True)

    def forget(self, before: int) -> None:
        """Delete the sums of earlier rounds."""
        for path in self.folder.glob("*.safetensors"):
            if int(path.name.partition("-")[0]) < before:
                path.unlink()

    def _place(self, t: int, task: str) -> Path:
        return self.folder / f"{t}-{task}.safetensors"

    def ready(self, nodes: Mapping[SiloId, int], terms: str, until: float) -> tuple[SecureSession, dict[SiloId, str]]:
        """Return a session with an unused slot for these silos, and the silos that are not in it, with reasons. Raises
        TooFewSilos."""
        last = self.session
        if last is not None and not last.spent and set(last.members) == set(nodes):
            return last, {}
        self.session = None
        session = SecureSession(self.federation, max(time.time_ns() // 1000, last.number + 1 if last else 0))
        about: dict[str, str | int] = {"terms": terms, "number": session.number}
        texts, lost = self.ask(nodes, {**about, "phase": "keys"}, nodes, until)
        adverts, wrong = parsed(texts, Advert.of_text)
        wrong |= {silo: "sent keys of another silo" for silo, each in adverts.items() if each.silo != silo}
        roster = session.enrol({silo: each for silo, each in adverts.items() if silo not in wrong})
        request = {**about, "phase": "shares", "roster": roster.to_text()}
        texts, later = self.ask(roster.names, request, nodes, until)
        sealed, wrong_later = parsed(texts, sealed_of_text)
        lost |= wrong | later | wrong_later
        session.collect(sealed)
        self.session, self.delivered = session, set()
        return session, lost

    def slot_of(self, session: SecureSession, silo: SiloId, slot: int) -> str:
        """Return the `Slot` of a sum for a silo, as text."""
        inbox = {} if silo in self.delivered else session.sealed[silo]
        return Slot(session.number, slot, session.members, inbox).to_text()

    def total(
        self,
        session: SecureSession,
        slot: int,
        request: bytes,
        vectors: Mapping[SiloId, Words],
        nodes: Mapping[SiloId, int],
        terms: str,
        until: float,
    ) -> Words:
        """Return the sum of the survivors' vectors. `request` is the result of `bound_request`. Raises TooFewSilos and
        MasksRemain."""
        self.delivered |= vectors.keys()
        alive = sorted(vectors)
        question: dict[str, str | int] = {
            "terms": terms, "number": session.number, "slot": slot, "survivors": json.dumps(alive),
        }  # fmt: skip
        signatures, lost = self.ask(alive, {**question, "phase": "agree"}, nodes, until)
        with told(lost):
            session.enough(signatures, "signed the sum")
        texts, later = self.ask(
            signatures, {**question, "phase": "open", "signatures": json.dumps(signatures)}, nodes, until
        )
        opened, wrong = parsed(texts, Opened.of_text)
        with told(lost | later | wrong):
            return session.unmask(slot, request, vectors, opened)

    def ask(
        self, silos: Iterable[SiloId], question: Mapping[str, str | int], nodes: Mapping[SiloId, int], until: float
    ) -> tuple[dict[SiloId, str], dict[SiloId, str]]:
        """Return the answers of silos, and why other silos have none."""
        silo_of = {nodes[silo]: silo for silo in silos}
        contents = {node: pack({}, silo=silo, **question) for node, silo in silo_of.items()}
        answers, errors = self.wire.ask(contents, PHASE, until)
        texts = {silo_of[node]: str(words_of(records).get("answer", "")) for node, records in answers.items()}
        lost = {silo: errors.get(nodes[silo], "no reply in time") for silo in silo_of.values() if silo not in texts}
        return texts, lost


@contextmanager
def told(reasons: Mapping[SiloId, str]) -> Iterator[None]:
    """Add the silos' reasons to the error about too few of them."""
    try:
        yield
    except TooFewSilos as error:
        text = "; ".join(f"{silo}: {why}" for silo, why in sorted(reasons.items()))
        raise TooFewSilos(f"{error}; {text}" if text else str(error)) from error


def parsed(
    texts: Mapping[SiloId, str], parse: Callable[[str], Parsed]
) -> tuple[dict[SiloId, Parsed], dict[SiloId, str]]:
    """Return the parsed texts, and why other texts are invalid."""
    found, wrong = dict[SiloId, Parsed](), dict[SiloId, str]()
    for silo, text in texts.items():
        try:
            found[silo] = parse(text)
        except DataError as error:
            wrong[silo] = str(error)
    return found, wrong


def alike(updates: Mapping[SiloId, Update]) -> tuple[Layout, dict[SiloId, Words], dict[SiloId, str]]:
    """Return the layout of most silos, their masked vectors, and why other silos are left out."""
    found, wrong = dict[SiloId, tuple[Layout, Words]](), dict[SiloId, str]()
    for silo, update in updates.items():
        try:
            found[silo] = unpacked(update)
        except DataError as error:
            wrong[silo] = str(error)
    if not found:
        return Layout((), ()), {}, wrong
    usual = Counter(layout for layout, _ in found.values()).most_common(1)[0][0]
    other = {silo: "has other tensors than most silos" for silo, (layout, _) in found.items() if layout != usual}
    return usual, {silo: words for silo, (layout, words) in found.items() if layout == usual}, wrong | other


def check_quorum(found: Collection[SiloId], quorum: int) -> None:
    if len(found) < quorum:
        raise TooFewSilos(f"{len(found)} silos, fewer than federation.quorum = {quorum}")


def check_measured(total: DecodedSum, cards: Sequence[SiloInfo]) -> None:
    """Raise RunError for measurements that are impossible for these silos together. It is unknown which silo is
    faulty."""
    together, inputs = SiloInfo.of_sum(cards), int(total.sums.get("sums", {}).get("examples", 0))
    wrong = left_out_measuring({TOGETHER: Update(total.sums, inputs)}, {TOGETHER: together.most})
    if inputs not in together.examples.values():
        wrong[TOGETHER] = f"{inputs} inputs, but the silos have {dict(together.examples)}"
    if wrong:
        raise RunError(f"the sum over {len(cards)} silos is impossible, so one of them is faulty: {wrong[TOGETHER]}")
