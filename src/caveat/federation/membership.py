"""Who takes part in a federation: nodes are greeted, say whose silo they are, and agree on what data look like.

Greetings never hold up a round: they are sent when a node is first seen, and read when the next round begins.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict

from .._version import __version__
from ..core import DataError, RunError, SiloId, check_silo_name
from ..core.silo_info import FederationInfo, SiloInfo
from ..data.schema.agreement import DataSchema, SharedSchema, check_fits, shared_schema
from ..engines.flower_messages import GridMessages, legible, pack, words_of
from ..files.atomic import write_json, write_record
from ..files.reading import read
from ..files.schema.federation import DataSchemaRecord, FederationFile, Member
from ..files.schema.record import as_json
from ..runs.spec import spec_of
from .credible import Confirmed, incredible
from .name_keys import UNSIGNED, Asked, NameKeys
from .prevalence import told_shares
from .refusals import other_version
from .terms import Terms

PAUSE = 0.2
"""Seconds between two looks for silos before the first round."""
AGAIN = 60.0
"""Seconds before a node is greeted again whose greeting failed, or was not answered."""
LONGEST_RECORD = 1_000_000
"""Characters of what a silo says of its sizes, and of the hashes of its splits."""


class PendingGreeting(NamedTuple):
    """A greeting that is under way."""

    asked: Asked
    until: float


@dataclass
class OpenMembership:
    """The silos of a federation, and the nodes that speak for them.

    Kept in `federation.json` of the run's folder: who is a member, and the agreement, are the same after a resume.
    """

    path: Path
    terms: Terms
    note: Callable[[str], None]
    """Where to tell who was not admitted, and why."""
    nodes: dict[SiloId, int] = field(default_factory=dict)
    silo_infos: dict[SiloId, SiloInfo] = field(default_factory=dict)
    records: dict[SiloId, Any] = field(default_factory=dict)
    sketches: dict[SiloId, DataSchema] = field(default_factory=dict)
    keys: NameKeys = field(default_factory=NameKeys)
    """Which key each silo's name is bound to."""
    confirmed: Confirmed = field(default_factory=Confirmed)
    """The numbers of rows that are believed whatever others have."""

    def __post_init__(self) -> None:
        self._pending: dict[str, PendingGreeting] = {}
        self._until: dict[int, float] = {}
        self._changed = False
        self._refused: dict[int, str] = {}

    @property
    def silos(self) -> Sequence[SiloId]:
        return sorted(self.silo_infos)

    @property
    def most(self) -> Mapping[SiloId, int]:
        return {name: card.most for name, card in self.silo_infos.items()}

    @property
    def terms_text(self) -> str:
        return dataclasses.replace(self.terms, names=tuple(self.silo_infos)).to_text()

    @property
    def info(self) -> FederationInfo:
        shape, classes = self.agreement.input_shape, self.agreement.classes
        positive = self.terms.config.data.positive
        return FederationInfo(shape, classes, self.silo_infos, dtype=_dtype(self.terms), positive=positive)

    @property
    def agreement(self) -> SharedSchema:
        """What the silos have agreed their data to look like. Raises DataError before they have."""
        if self.terms.agreement is None:
            raise DataError("the silos have not agreed yet on what their data look like")
        return self.terms.agreement

    def meet(self, wire: GridMessages, until: float) -> None:
        """Read what nodes have answered, and greet those that are new. Waits for nobody."""
        for _ in range(3):  # as many steps as a greeting has, where answers come at once
            self._read(wire)
            self._greet(wire)
        if self._changed and self.path.exists():
            self.save()

    def gather(self, wire: GridMessages, count: int, least: int, patience: float) -> None:
        """Wait until `count` silos have joined: they say what their data look like, agree, and count what they have.

        After `patience` seconds `least` will do, unless nothing is agreed on yet. Raises RunError if there are fewer,
        DataError if what they have does not go together.
        """
        end = time.monotonic() + patience
        told = ""
        while len(here := self.connected(wire)) < count:
            self.meet(wire, end)
            if (now := self._so_far(here)) != told:
                told = now
                self.note(f"waiting for {count} silos: {told}")
            if len(self.connected(wire)) >= count or time.monotonic() > end:
                self._set_aside()
                here = self.connected(wire)
            if self.terms.agreement is None and len(self.sketches) >= count:
                self._agree()
            elif time.monotonic() > end and (self.terms.agreement is None or len(here) < least):
                why = "; ".join(f"not admitted: {each}" for each in dict.fromkeys(self._refused.values()))
                raise RunError(
                    f"{count} silos are needed to begin; after {patience:.0f} s {self._so_far(here)}"
                    f"{'; ' if why else ''}{why}"
                )
            elif time.monotonic() > end:
                self.note(f"begins with {', '.join(sorted(here))}: {count} silos were waited for, for {patience:.0f} s")
                break
            else:
                time.sleep(PAUSE)
        if not self.path.exists():
            # The order of a run is by name, not by who was quicker.
            self.silo_infos = dict(sorted(self.silo_infos.items()))
            self.records = dict(sorted(self.records.items()))

    def _so_far(self, here: Sequence[SiloId]) -> str:
        """Who has joined, and who has said no more than what its data look like."""
        joined, greeted = ", ".join(sorted(here)), ", ".join(sorted(self.sketches.keys() - set(here)))
        count = f"{len(here)} joined" + (f" ({joined})" if joined else "")
        return f"{count}, {greeted} greeted and not joined yet" if greeted else count

    def _set_aside(self) -> None:
        """Before a run begins, have silos whose numbers of rows are not to be believed greet again later."""
        if self.path.exists():
            return  # they took part, and had been believed
        for silo, why in self._incredible(self.silo_infos).items():
            self._until[self.nodes[silo]] = time.monotonic() + AGAIN
            self.note(f"silo {silo} is set aside: {legible(why)}")
            del self.silo_infos[silo], self.records[silo], self.nodes[silo]

    def _believe(self, card: SiloInfo) -> None:
        """Raises DataError for a silo that joins a run that has begun with more rows than are to be believed."""
        found = self._incredible({**self.silo_infos, card.name: card}) if self.path.exists() else {}
        if card.name in found:
            raise DataError(f"silo {card.name!r} {found[card.name]}")

    def _incredible(self, cards: Mapping[SiloId, SiloInfo]) -> dict[SiloId, str]:
        if self.terms.config.federation.robust == "off":
            return {}
        return incredible({name: card.examples["train"] for name, card in cards.items()}, self.confirmed.read())

    def connected(self, wire: GridMessages) -> list[SiloId]:
        """The silos that have joined and whose nodes are there."""
        online = wire.online()
        return [silo for silo in self.silo_infos if self.nodes.get(silo) in online]

    def _agree(self) -> None:
        agreement = shared_schema(dict(sorted(self.sketches.items())), self.terms.config.data)
        self.terms = self._agreed(agreement)
        # Who came before there was an agreement is greeted again, and then joins.
        self.nodes.clear()

    def _greet(self, wire: GridMessages) -> None:
        now, online = time.monotonic(), wire.online()
        # A process that was killed while it answered never will.
        self._pending = {message: asked for message, asked in self._pending.items() if now < asked.until}
        if self.terms.agreement is None:
            # Who comes back may have mended its data.
            self.nodes = {silo: node for silo, node in self.nodes.items() if node in online}
        asked, known = {each.asked.node for each in self._pending.values()}, set(self.nodes.values())
        for node in sorted(online):
            if node not in known and node not in asked and now >= self._until.get(node, 0.0):
                self._ask(wire, node, "introduce")

    def _ask(self, wire: GridMessages, node: int, question: str, names: tuple[SiloId, ...] = ()) -> None:
        terms = dataclasses.replace(self.terms, names=(*self.silo_infos, *names))
        asked = Asked(terms.federation, question, os.urandom(16).hex(), node)
        words = {"question": question, "nonce": asked.nonce, "terms": terms.to_text()}
        sent = wire.push({node: pack({}, **words)}, "query", AGAIN)
        self._pending |= dict.fromkeys(sent, PendingGreeting(asked, time.monotonic() + AGAIN))

    def _read(self, wire: GridMessages) -> None:
        answers, errors = wire.pull(list(self._pending))
        for message, error in errors.items():
            asked = self._pending.pop(message).asked
            self._refuse(asked, error)
        for message, records in answers.items():
            asked = self._pending.pop(message).asked
            try:
                self._hear(wire, asked, records)
            except Exception as error:  # whatever a hostile answer makes anything raise
                self._refuse(asked, f"{type(error).__name__}: {error}")

    def _refuse(self, asked: Asked, why: str) -> None:
        self._until[asked.node] = time.monotonic() + AGAIN
        self._refused[asked.node] = legible(f"{asked.question}: {why}")
        self.note(f"node {asked.node} is not admitted: {self._refused[asked.node]}")

    def _hear(self, wire: GridMessages, asked: Asked, records: RecordDict) -> None:
        words, node = words_of(records), asked.node
        silo = str(words["silo"])
        check_silo_name(silo)
        if (theirs := words.get("version")) != __version__:
            raise DataError(other_version(silo, theirs, __version__))
        key = self.keys.check(silo, words, asked)
        there = self.nodes.get(silo, node) != node and self.nodes[silo] in wire.online()
        if there and not self.keys.replaced(silo, key):
            raise DataError(f"says that it is silo {silo!r}, but another node that is connected is")
        if asked.question == "join":
            joined = silo in self.silo_infos
            self._join(silo, node, words)
            self._bind(silo, key)
            if key == UNSIGNED and not joined:
                self.note(f"silo {silo} has signed nothing: its name is bound to no key, and others may come under it")
            return
        sketch = DataSchema.of_json(json.loads(str(words["sketch"])))
        if self.terms.agreement is None:
            self.sketches[silo] = sketch
            self.nodes[silo] = node
            self._bind(silo, key)
            return
        check_fits(self.terms.agreement, silo, sketch)
        self.sketches[silo] = sketch
        self._ask(wire, node, "join", () if silo in self.silo_infos else (silo,))

    def _bind(self, silo: SiloId, key: str) -> None:
        """Have a silo's name belong to the key that it greeted with, from now on."""
        if key != UNSIGNED and self.keys.bound.get(silo) != key:
            by = f"{silo}.pub" if self.keys.given_to(silo) else "its first greeting"
            self.note(f"silo {silo}: its name is bound to key {key} by {by}")
            self.keys.bound[silo] = key
            self._changed = True

    def hear(self, silo: SiloId, words: Mapping[str, Any]) -> None:
        """Take over what is left of a silo's data, where it says that rows have left them.

        Raises DataError for what cannot be left of what it joined with.
        """
        if "card" in words:
            self._take(silo, words)
            if self._changed and self.path.exists():
                self.save()

    def _join(self, silo: SiloId, node: int, words: Mapping[str, Any]) -> None:
        self._take(silo, words)
        self.nodes[silo] = node

    def _take(self, silo: SiloId, words: Mapping[str, Any]) -> None:
        """Keep what a silo says of its sizes and splits: at first anything, later the same or what is left of it."""
        card = SiloInfo.of_json(_said(words["card"]), len(self.agreement.classes))
        record = _said(words["record"])
        if card.name != silo:
            raise DataError(f"silo {silo!r} gave a card of {card.name!r}")
        before = self.silo_infos.get(silo)
        if before is None:
            self._believe(card)
            of = told_shares(card, self.agreement.classes)
            self.note(f"silo {silo} has joined: {card.examples['train']} training examples")
            self.note(f"silo {silo}: {of}" if of else f"silo {silo}: {len(self.agreement.classes)} classes")
        elif (card, record) == (before, self.records[silo]):
            return
        elif not card.rest_of(before) or not _same_elsewhere(card, before, record, self.records[silo]):
            raise DataError(f"silo {silo!r}: its data are not those that it joined with")
        else:
            told = ", ".join(f"{split} {count}" for split, count in card.dropped.items())
            self.note(f"silo {silo}: {sum(card.dropped.values())} rows have left its data so far ({told})")
        self.silo_infos[silo], self.records[silo] = card, record
        self._changed = True

    def save(self) -> None:
        """Write `federation.json`, and what the silos say of their splits as `splits.json`."""
        self._changed = False
        write_json(self.path.with_name("splits.json"), self.records)
        agreement = self.terms.agreement
        members = {
            name: Member(card=card.to_json(), record=self.records[name]) for name, card in self.silo_infos.items()
        }
        greeting = FederationFile(
            schema=FederationFile.SCHEMA,
            federation=self.terms.federation,
            agreement=None if agreement is None else agreement.to_json(),
            silos=members,
            sketches={
                name: DataSchemaRecord.model_validate(sketch.to_json()) for name, sketch in self.sketches.items()
            },
            **({"keys": dict(sorted(self.keys.bound.items()))} if self.keys.bound else {}),
        )
        write_record(self.path, greeting, lasting=True)

    def restore(self) -> None:
        """What `save` has kept. Raises DataError, naming the file, if it is damaged."""
        found = read(self.path, FederationFile)
        try:
            agreement = SharedSchema.of_json(found.agreement)
            for name, member in found.silos.items():
                self.silo_infos[name] = SiloInfo.of_json(member.card, len(agreement.classes))
                self.records[name] = member.record
                check_silo_name(name)
                if self.silo_infos[name].name != name:
                    raise DataError(f"silo {name!r} has a card of {self.silo_infos[name].name!r}")
            self.keys.bound = dict(found.keys)
            self.sketches = {name: DataSchema.of_json(as_json(sketch)) for name, sketch in found.sketches.items()}
        except DataError as error:
            raise DataError(f"{self.path}: {error}") from None
        self.terms = dataclasses.replace(self._agreed(agreement), federation=found.federation)

    def _agreed(self, agreement: SharedSchema) -> Terms:
        """The terms with an agreement, and with what code of one's own makes for such data."""
        terms = dataclasses.replace(self.terms, agreement=agreement, code="", says=())
        info = FederationInfo(agreement.input_shape, agreement.classes, {}, dtype=_dtype(terms))
        made = spec_of(terms.config, terms.method).code_made(info)
        return terms if made is None else dataclasses.replace(terms, code=made.untaught, says=made.says)


def _same_elsewhere(card: SiloInfo, before: SiloInfo, record: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether records of splits are the same but for the splits that examples have left."""
    left = {split for split, count in card.dropped.items() if count != before.dropped.get(split, 0)} | {"dropped"}
    return {k: v for k, v in record.items() if k not in left} == {k: v for k, v in known.items() if k not in left}


def _dtype(terms: Terms) -> torch.dtype:
    """Of inputs."""
    return torch.int64 if terms.config.data.kind == "tokens" else torch.float32


def _said(text: object) -> dict[str, Any]:
    """An object in JSON that can be written again. Raises DataError, ValueError or RecursionError for anything else."""
    if not isinstance(text, str) or len(text) > LONGEST_RECORD:
        raise DataError(f"expected a text of {LONGEST_RECORD} characters at most")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise DataError("expected an object")
    json.dumps(value, allow_nan=False)
    return value
