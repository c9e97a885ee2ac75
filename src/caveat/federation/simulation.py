"""The silos of a simulation: nodes of one machine, each of which is one of the silos that a source makes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core import RunError, SiloId
from ..core.silo_info import FederationInfo, SiloInfo
from ..engines.flower_messages import GridMessages, Words, legible, pack, words_of
from .terms import Terms


@dataclass
class FixedMembership:
    """Nodes that say which silo they are; all have to be there before the first round."""

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
        """Nothing: a simulation's data are there for all to see."""

    @property
    def late(self) -> Sequence[SiloId]:
        """Nobody: all are there before the first round."""
        return ()

    def close(self) -> None:
        """Nothing to be done."""

    def meet(self, wire: GridMessages, until: float) -> None:
        """Ask nodes that are not known yet which silo they are."""
        strangers = wire.online() - set(self.nodes.values())
        questions = {node: pack({}, terms=self.terms_text) for node in sorted(strangers)}
        answers, errors = wire.ask(questions, "query", until)
        for why in errors.values():
            raise RunError(f"a node of the simulation {legible(why)}")
        for node, records in answers.items():
            self.nodes[str(words_of(records)["silo"])] = node

    def gather(self, wire: GridMessages, patience: float) -> None:
        """Wait until every silo has a node. Raises RunError if that takes too long."""
        end = time.monotonic() + patience
        while missing := set(self.info.names) - self.nodes.keys():
            self.meet(wire, end)
            if missing and time.monotonic() > end:
                absent = ", ".join(sorted(missing))
                raise RunError(f"{len(self.info)} silos, but no node is {absent}; start as many nodes as silos")
            time.sleep(0.1)
