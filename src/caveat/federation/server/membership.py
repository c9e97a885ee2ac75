"""Membership: the server asks nodes which silo they are, and lets silos agree on a schema.

In a simulation, the silos come from one data source, and all of them are present.
"""

import dataclasses
import json
import math
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from flwr.app import RecordDict
from torch import Tensor

from ..._version import __version__
from ...core import DataError, RunError, SiloId, check_silo_name
from ...core.quantity import Quantity
from ...core.silo import FederationInfo, SiloInfo
from ...data.agreement import check_fits, shared_schema, unlike_silos
from ...data.quantities import checked_sums, fitted, kind_of, rows_told, summed
from ...data.shared_schema import DataSchema
from ...data.tables.reading_settings import NUMERIC
from ...engines.flower_grid import GridMessages
from ...engines.flower_messages import Words, comes_after, legible, pack, words_of
from ..keys import UNSIGNED, Asked, NameRefused
from ..refusals import other_version
from ..request_terms import Terms
from .agreement import Members


@dataclass
class FixedMembership:
    """Nodes that report which silo they are; all must be present before the first round."""

    info: FederationInfo
    terms: Terms
    nodes: dict[SiloId, int] = field(default_factory=dict)

    @property
    def silos(self) -> Sequence[SiloId]:
        return sorted(self.info.names)

    @property
    def most(self) -> Mapping[SiloId, int]:
        return {name: card.most for name, card in self.info.silo_infos.items()}

    @property
    def cards(self) -> Mapping[SiloId, SiloInfo]:
        return self.info.silo_infos

    @property
    def terms_text(self) -> str:
        return self.terms.to_text()

    def hear(self, silo: SiloId, words: Words) -> None:
        """Do nothing, because a simulation's data are visible to all."""

    @property
    def late(self) -> Sequence[SiloId]:
        """Empty, because all silos are present before the first round."""
        return ()

    def close(self) -> None:
        """Do nothing."""

    def meet(self, wire: GridMessages, until: float) -> None:
        """Ask unknown nodes which silo they are."""
        strangers = wire.online() - set(self.nodes.values())
        questions = {node: pack({}, terms=self.terms_text) for node in sorted(strangers)}
        answers, errors = wire.ask(questions, "query", until)
        for why in errors.values():
            raise RunError(f"a node of the simulation {legible(why)}")
        for node, records in answers.items():
            self.nodes[str(words_of(records)["silo"])] = node

    def gather(self, wire: GridMessages, start_timeout: float) -> None:
        """Wait until every silo has a node. Raises RunError if that takes too long."""
        end = time.monotonic() + start_timeout
        while missing := set(self.info.names) - self.nodes.keys():
            self.meet(wire, end)
            if missing and time.monotonic() > end:
                absent = ", ".join(sorted(missing))
                raise RunError(f"{len(self.info)} silos, but no node for {absent}; start one node per silo")
            time.sleep(0.1)


PAUSE = 0.2
"""Seconds between two checks for silos before the first round."""
AGAIN = 60.0
"""Seconds before a node whose greeting failed, or was not answered, is asked again."""


SEE_THE_SERVER = "the log of the run at the server says why"
"""The message to a refused silo if the reason may reveal something about other silos."""


class PendingGreeting(NamedTuple):
    """A greeting that waits for an answer."""

    asked: Asked
    until: float


@dataclass
class OpenMembership(Members):
    """The silos of a federation and their nodes, which may join at any time."""

    nodes: dict[SiloId, int] = field(default_factory=dict)
    late: set[SiloId] = field(default_factory=set, init=False)
    """The silos that connected after training ended."""
    closed: bool = field(default=False, init=False)
    """Whether training has ended, after which no silo can join."""

    def __post_init__(self) -> None:
        self._pending: dict[str, PendingGreeting] = {}
        self._until: dict[int, float] = {}
        self._refused: dict[int, str] = {}
        self._names: dict[int, SiloId] = {}
        self._fitting: Generator[Tensor, Tensor, Quantity] | None = None
        self._first: dict[SiloId, tuple[tuple[float, ...], ...]] = {}
        """The first sums of a quantity's targets that silos sent, which all later numbers must fit."""
        self._told: dict[int, str] = {}
        """Messages to nodes for their next greeting."""

    def close(self) -> None:
        """Defer silos that have not joined yet until after the run."""
        self.closed = True

    def meet(self, wire: GridMessages, until: float) -> None:
        """Read nodes' answers, and ask new nodes, without waiting."""
        for _ in range(3):  # the number of steps of a greeting, for nodes that answer immediately
            self._read(wire)
            self._greet(wire)
        self.save_changes()

    def gather(self, wire: GridMessages, count: int, least: int, start_timeout: float) -> None:
        """Wait until `count` silos have joined: they report schemas, agree, and report their sizes.

        After `start_timeout` seconds, `least` silos are enough. Raises RunError if there are fewer, DataError if their
        data are incompatible.
        """
        end = time.monotonic() + start_timeout
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
                self._agree(least)
            elif time.monotonic() > end and (self.terms.agreement is None or len(here) < least):
                so_far = f"{count} silos are needed to start; after {start_timeout:.0f} s: {self._so_far(here)}"
                why = (f"refused: {each}" for each in dict.fromkeys(self._refused.values()))
                raise RunError("\n".join([so_far, *why]))
            elif time.monotonic() > end:
                self.note(
                    f"starting with {', '.join(sorted(here))}, after waiting {start_timeout:.0f} s for {count} silos"
                )
                break
            else:
                time.sleep(PAUSE)
        if not self.path.exists():
            # Silos are ordered by name, not by speed.
            self.silo_infos = dict(sorted(self.silo_infos.items()))
            self.records = dict(sorted(self.records.items()))

    def _so_far(self, here: Sequence[SiloId]) -> str:
        """Return the silos that have joined, that only sent a schema, and that took part before but are absent."""
        heard = set(self._names.values())  # only since this start, while sketches includes earlier starts
        joined, greeted = ", ".join(sorted(here)), ", ".join(sorted((self.sketches.keys() & heard) - set(here)))
        count = f"{len(here)} joined" + (f" ({joined})" if joined else "")
        count += f", {greeted} connected but not joined yet" if greeted else ""
        away = ", ".join(sorted(self.silo_infos.keys() - set(here) - heard))
        return f"{count}; took part before but absent: {away}" if away else count

    def _set_aside(self) -> None:
        """Before a run starts, set silos with implausible numbers of rows aside until they connect again."""
        if self.path.exists():
            return  # they already took part
        for silo, why in self.incredible(self.silo_infos).items():
            self._until[self.nodes[silo]] = time.monotonic() + AGAIN
            self.note(f"silo {silo} is set aside: {legible(why)}")
            del self.silo_infos[silo], self.records[silo], self.nodes[silo]

    def connected(self, wire: GridMessages) -> list[SiloId]:
        """Return the silos that have joined and whose nodes are online."""
        online = wire.online()
        return [silo for silo in self.silo_infos if self.nodes.get(silo) in online]

    def _agree(self, least: int) -> None:
        sketches, data = dict(sorted(self.sketches.items())), self.terms.config.data
        try:
            agreement = shared_schema(sketches, data)
        except DataError as error:
            # The only silo without which the other silos agree; if two silos differ, either may be wrong.
            found = []
            for silo in sketches if len(sketches) > 2 else ():
                with suppress(DataError):
                    shared_schema({name: sketch for name, sketch in sketches.items() if name != silo}, data)
                    found.append(silo)
            if (odd := (found[0] if len(found) == 1 else None)) is None or len(sketches) - 1 < least:
                raise
            self.note(f"silo {odd} is set aside, because only without it the others agree: {legible(str(error))}")
            self._until |= {self.nodes[odd]: time.monotonic() + AGAIN} if odd in self.nodes else {}
            del self.sketches[odd], sketches[odd]
            agreement = shared_schema(sketches, data)
        if data.predict in NUMERIC:
            if (target := self._counted(sketches)) is None:
                return
            agreement = agreement.predicting(target)
            self.sketches = {name: dataclasses.replace(each, sums=()) for name, each in sketches.items()}
        for line in unlike_silos(sketches):
            self.note(f"warning: {legible(line)}")
        self.terms = self.agreed(agreement)
        # Silos that connected before the agreement are asked again, and then join.
        self.nodes.clear()

    def _counted(self, sketches: Mapping[SiloId, DataSchema]) -> Quantity | None:
        """Return the bars of a quantity from the sums of all silos, or None after asking them for other sums."""
        data = self.terms.config.data
        total = summed([each.sums for each in sketches.values()], data, self.terms.grid)
        if self._fitting is None:
            self._fitting = kind_of(data).fitting(data.target or "", data.range)
            next(self._fitting)
        fitting = self._fitting

        def fit() -> Quantity | None:
            try:
                self.terms = dataclasses.replace(self.terms, grid=tuple(fitting.send(total).tolist()))
            except StopIteration as done:
                return cast(Quantity, done.value)
            # Replies with earlier sums are ignored.
            self.nodes, self.sketches, self._pending = {}, {}, {}
            return None

        return fitted(fit, data)

    def _greet(self, wire: GridMessages) -> None:
        now, online = time.monotonic(), wire.online()
        # A process that was killed while answering never answers.
        self._pending = {message: asked for message, asked in self._pending.items() if now < asked.until}
        if self.terms.agreement is None:
            # A silo that reconnects may have corrected its data.
            self.nodes = {silo: node for silo, node in self.nodes.items() if node in online}
        asked, known = {each.asked.node for each in self._pending.values()}, set(self.nodes.values())
        for node in sorted(online):
            if node not in known and node not in asked and now >= self._until.get(node, 0.0):
                self._ask(wire, node, "introduce")

    def _ask(self, wire: GridMessages, node: int, question: str, names: tuple[SiloId, ...] = ()) -> None:
        terms = dataclasses.replace(self.terms, names=(*self.silo_infos, *names))
        asked = Asked(terms.federation, question, os.urandom(16).hex(), node)
        words = {"question": question, "nonce": asked.nonce, "terms": terms.to_text()}
        if told := self._told.pop(node, ""):
            words["refused"] = told
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
                self._refused.pop(asked.node, None)
            except Exception as error:  # a hostile answer may make anything raise
                self._refuse(asked, f"{type(error).__name__}: {error}")
                # A silo's own refusals are already in its log.
                self._told[asked.node] = error.told if isinstance(error, NameRefused) else SEE_THE_SERVER

    def _refuse(self, asked: Asked, why: str) -> None:
        self._until[asked.node] = time.monotonic() + AGAIN
        self._refused[asked.node] = legible(f"{asked.question}: {why}")
        silo = f" (silo {self._names[asked.node]})" if asked.node in self._names else ""
        self.note(f"node {asked.node}{silo} is refused: {self._refused[asked.node]}")

    def _hear(self, wire: GridMessages, asked: Asked, records: RecordDict) -> None:
        words, node = words_of(records), asked.node
        silo = str(words["silo"])
        check_silo_name(silo)
        if (theirs := words.get("version")) != __version__:
            raise DataError(other_version(silo, theirs, __version__))
        key = self.keys.check(silo, words, asked)
        there = self.nodes.get(silo, node) != node and self.nodes[silo] in wire.online()
        if there and not self.keys.replaced(silo, key):
            told = f"another connected node is silo {silo!r} at the server"
            raise NameRefused(f"claims to be silo {silo!r}, but another connected node is this silo", told)
        if self._names.get(node) != silo:
            self.note(f"node {node} is silo {silo}")
        self._names[node] = silo
        if self.closed and silo not in self.silo_infos:
            self._until[node] = math.inf
            if silo not in self.late:
                self.late.add(silo)
                self.note(comes_after(silo))
            return
        if asked.question == "join":
            joined = silo in self.silo_infos
            self.take(silo, words, rows_told(self._first.get(silo, ()), self.terms.config.data))
            self.nodes[silo] = node
            self._bind(silo, key)
            if key == UNSIGNED and not joined:
                self.note(f"silo {silo} did not sign: its name is not bound to a key, and others may use it")
            return
        sketch = DataSchema.of_json(json.loads(str(words["sketch"])))
        if self.terms.agreement is None:
            if (data := self.terms.config.data).predict in NUMERIC:
                checked_sums(sketch.sums, data, self.terms.grid, self._first.get(silo, ()))
                if not self.terms.grid:
                    self._first[silo] = sketch.sums
            self.sketches[silo] = sketch
            self.nodes[silo] = node
            self._bind(silo, key)
            return
        check_fits(self.terms.agreement, silo, sketch)
        self.sketches[silo] = sketch
        self._ask(wire, node, "join", () if silo in self.silo_infos else (silo,))

    def _bind(self, silo: SiloId, key: str) -> None:
        """Bind a silo's name to the key of its greeting."""
        if key != UNSIGNED and self.keys.bound.get(silo) != key:
            by = f"{silo}.pub" if self.keys.given_to(silo) else "its first greeting"
            self.note(f"silo {silo}: its name is bound to key {key} by {by}")
            self.keys.bound[silo] = key
            self.changed = True
