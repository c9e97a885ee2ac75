"""Which works of a run are stacked: decided once, written down before the first round that depends on it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from ...core import Payload, SiloId
from ...files.atomic import write_record
from ...files.reading import record_of
from ...files.schema.small_files import KeptState, StackedFile, StackedRecord
from ..executor import Executor
from .chunk import form, form_name, why
from .chunks import chunks
from .trial import GAIN, SILOS, check_same, gain

logger = logging.getLogger(__name__)
Mode = Literal["off", "auto", "on"]


class Stacking:
    """Decides for a run which of its works are carried out stacked."""

    def __init__(self, mode: Mode, file: Path | None = None) -> None:
        """`file` keeps what was decided, and has what was decided before the run was interrupted."""
        self.mode, self.file = mode, file
        known = None if file is None else record_of(file, StackedFile)
        self.works: dict[str, StackedRecord] = {} if known is None else dict(known.works)
        """By the address of a work and the groups that silos keep, as `form_name` has it."""

    def plan(
        self,
        place: Executor,
        t: int,
        address: str,
        sent: Payload,
        cohort: Sequence[SiloId],
        examples: Mapping[SiloId, int] | None,
        kept: Mapping[SiloId, KeptState],
    ) -> tuple[list[list[SiloId]], frozenset[str]]:
        """The chunks of a round, and with which forms of states they are stacked; none if it is carried out as ever."""
        if self.mode == "off" or address in place.method.evaluations:
            return [], frozenset()
        found = chunks(cohort, sent, examples, lambda silo: (id(place.own.get(silo)), silo in kept))
        stacked = set[str]()
        for silos in found:
            if len(silos) < 2:
                continue
            name = form_name(address, place.state(silos[0], kept.get(silos[0])))
            if name not in self.works:
                self._decide(name, place, t, address, sent, silos, kept)
            if self.works[name].stacked:
                stacked.add(name)
        return (found if stacked else []), frozenset(stacked)

    def _decide(
        self,
        name: str,
        place: Executor,
        t: int,
        address: str,
        sent: Payload,
        silos: Sequence[SiloId],
        kept: Mapping[SiloId, KeptState],
    ) -> None:
        states = {silo: place.state(silo, kept.get(silo)) for silo in silos}
        alike = [silo for silo in silos if form(states[silo]) == form(states[silos[0]])]
        times = None
        try:
            few = alike[:: max(1, len(alike) // SILOS)][:SILOS]
            check_same(place, t, address, sent, few, [states[silo] for silo in few])
            if self.mode == "auto":
                times = gain(place, t, address, sent, alike, [states[silo] for silo in alike])
        except Exception as error:
            # Whatever it is, the same work one silo after the other says it better, or does not fail.
            made = StackedRecord(stacked=False, why=why(error))
        else:
            slow = times is not None and times < GAIN
            told = f"stacked silos were {times:.2f} times as fast, expected {GAIN}" if slow else ""
            made = StackedRecord(stacked=not slow, why=told, gain=times)
        self.works[name] = made
        logger.info("round %d, %s: %s", t, name, "stacked" if made.stacked else f"one after the other: {made.why}")
        if self.file is not None:
            write_record(self.file, StackedFile(schema=StackedFile.SCHEMA, mode=self.mode, works=self.works))


def notes(works: Mapping[str, StackedRecord]) -> list[str]:
    """What a run says of works that were carried out one silo after the other."""
    return [
        f"{name}: silos were trained one after the other: {found.why}" for name, found in works.items() if found.why
    ]
