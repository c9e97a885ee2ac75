"""Which works of a run are stacked: decided once, before the first round that depends on it; checkpoints keep it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from ...core import Payload, SiloId
from ...files.schema.small_files import KeptState, StackedRecord
from ..executor import Executor
from .chunk import StackedPlace, form, why
from .chunks import chunks
from .trial import GAIN, StackingTrial, check_same, gain

logger = logging.getLogger(__name__)
Mode = Literal["off", "auto", "on"]


class Stacking:
    """Decides for a run which of its works are carried out stacked."""

    def __init__(self, mode: Mode, works: dict[str, StackedRecord] | None = None) -> None:
        """`works` are what was decided before the run was interrupted."""
        self.mode = mode
        self.works: dict[str, StackedRecord] = {} if works is None else works
        """By the address of a work and the groups that silos keep, as `StackedPlace.name` has it."""

    def plan(
        self,
        stacked_place: StackedPlace,
        t: int,
        address: str,
        sent: Payload,
        cohort: Sequence[SiloId],
        examples: Mapping[SiloId, int] | None,
        kept: Mapping[SiloId, KeptState],
        workers: int,
    ) -> tuple[list[list[SiloId]], dict[str, bool]]:
        """The chunks of a round, and with which forms of states they are stacked; none if it is carried out as ever."""
        place = stacked_place.place
        if self.mode == "off" or address in place.method.evaluations:
            return [], {}

        def kind(silo: SiloId) -> object:
            return id(place.own.get(silo)), silo in kept

        found = chunks(cohort, sent, examples, kind)
        stacked = dict[str, StackedRecord]()
        for silos in {kind(silos[0]): silos for silos in reversed(found) if len(silos) > 1}.values():
            name = stacked_place.name(address, silos[0], place.state(silos[0], kept.get(silos[0])))
            if name not in self.works:
                self._decide(name, place, t, address, sent, silos, kept, _shared(len(found), len(cohort), workers))
            if self.works[name].stacked:
                stacked[name] = self.works[name]
        if not stacked:
            return [], {}
        found = chunks(cohort, sent, examples, kind, max(record.bytes for record in stacked.values()))
        return found, {name: record.padded for name, record in stacked.items()}

    def _decide(
        self,
        name: str,
        place: Executor,
        t: int,
        address: str,
        sent: Payload,
        silos: Sequence[SiloId],
        kept: Mapping[SiloId, KeptState],
        shared: float,
    ) -> None:
        states = {silo: place.state(silo, kept.get(silo)) for silo in silos}
        alike = [silo for silo in silos if form(states[silo]) == form(states[silos[0]])]
        times = None
        try:
            few = list(dict.fromkeys((alike[0], alike[len(alike) // 2], alike[-1])))
            trial = StackingTrial(place, t, address, sent, few, [states[silo] for silo in few])
            padded, kept_bytes = _tried(trial)
            if self.mode == "auto":
                alike = chunks(alike, sent, None, lambda silo: 0, kept_bytes)[0]
                of_all = [states[silo] for silo in alike]
                times = shared * gain(replace(trial, silos=alike, states=of_all, padded=padded))
        except Exception as error:
            # Whatever it is, the same work one silo after the other says it better, or does not fail.
            made = StackedRecord(stacked=False, why=why(error))
        else:
            slow = times is not None and times < GAIN
            told = f"stacked silos were {times:.2f} times as fast, expected {GAIN}" if slow else ""
            made = StackedRecord(stacked=not slow, why=told, padded=padded, bytes=kept_bytes, gain=times)
        logger.info("round %d, %s: %s", t, name, "stacked" if made.stacked else f"one after the other: {made.why}")
        self.works[name] = made

    def fell_back(self, t: int, reasons: Mapping[str, str]) -> None:
        """Silos were carried out one after the other in round t although they were to be stacked; why, by work."""
        for name, told in reasons.items():
            if not self.works[name].why:
                self.works[name] = self.works[name].model_copy(update={"why": f"in round {t} of the schedule {told}"})


def _tried(trial: StackingTrial) -> tuple[bool, int]:
    """Whether batches can be padded, and the bytes of a step. Raises what `check_same` does where they need not be."""
    sizes = {len(trial.place.silos[silo].train) for silo in trial.silos}
    with suppress(Exception):
        if len(sizes) > 1:
            return True, check_same(replace(trial, padded=True))
    return False, check_same(trial)


def _shared(chunks: int, silos: int, workers: int) -> float:
    """How many workers have something to do with so many chunks, for each that has with as many silos by themselves."""
    return min(chunks, workers) / min(silos, workers)
