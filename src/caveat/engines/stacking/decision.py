"""Which client tasks of a run are stacked, and which silos are one chunk: rules that are the same on every machine.

A task is stacked only if `check_same` finds the same numbers. `engine.vectorized = "auto"` also asks for many silos and
a small step of training (`SILOS`, `STEP`), which docs/hardware.md has measured. Nothing here depends on a time or on
the number of workers, so that a run repeats to the bit wherever it is repeated.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from torch import nn

from ...core import Payload, SiloId
from ...core.tensors import size
from ...files.schema import KeptState, StackedRecord
from ...training.modules import learning
from ..executor import Executor
from .batched_executor import BatchedExecutor, form, why
from .check import TaskSample, check_same

logger = logging.getLogger(__name__)
Mode = Literal["off", "auto", "on"]
SILOS = 16
"""Silos of one architecture in a round from which on "auto" stacks: they are two chunks, for two workers."""
STEP = 1 << 19
"""Bytes of a silo's step of training up to which "auto" stacks: the model's parameters and what autograd keeps. Larger
steps spend their time on arithmetic and memory, which stacking does not save."""
MOST = 64
"""Silos of a chunk: beyond that a step takes as long per silo."""
MEMORY = 1 << 28
"""Bytes that the models of a chunk take while they are trained."""
TIMES = 8
"""Numbers in memory for each parameter of a silo in training, those of a step included."""


class Stacking:
    """Decides for a run which of its tasks are stacked: once for each, before the first round that depends on it."""

    def __init__(self, mode: Mode, works: dict[str, StackedRecord] | None = None) -> None:
        """`works` are the decisions that a checkpoint has kept."""
        self.mode = mode
        self.works: dict[str, StackedRecord] = {} if works is None else works
        """By the address of a task and the groups that silos keep, as `BatchedExecutor.name` has it."""

    def plan(
        self,
        batched: BatchedExecutor,
        t: int,
        address: str,
        sent: Payload,
        cohort: Sequence[SiloId],
        examples: Mapping[SiloId, int] | None,
        kept: Mapping[SiloId, KeptState],
    ) -> tuple[list[list[SiloId]], dict[str, bool]]:
        """Return the chunks of round t, and the names of the tasks that are stacked in it with whether their batches
        are padded. No chunks: all silos are asked one by one.
        """
        executor = batched.executor
        if self.mode == "off" or address in executor.method.evaluations:
            return [], {}

        def kind(silo: SiloId) -> object:
            return id(executor.own.get(silo)), silo in kept

        found = chunks(cohort, sent, examples, kind)
        stacked = dict[str, StackedRecord]()
        for silos in {kind(silos[0]): silos for silos in reversed(found) if len(silos) > 1}.values():
            name = batched.name(address, silos[0], executor.state(silos[0], kept.get(silos[0])))
            if name not in self.works:
                count = sum(executor.own.get(silo) is executor.own.get(silos[0]) for silo in cohort)
                made = self._decision(_sampled(executor, t, address, sent, silos, kept), count)
                logger.info("round %d, %s: %s", t, name, "stacked" if made.stacked else f"one by one: {made.why}")
                self.works[name] = made
            if self.works[name].stacked:
                stacked[name] = self.works[name]
        if not stacked:
            return [], {}
        found = chunks(cohort, sent, examples, kind, max(record.bytes for record in stacked.values()))
        return found, {name: record.padded for name, record in stacked.items()}

    def _decision(self, sample: TaskSample, count: int) -> StackedRecord:
        """Decide on a task by a few silos, where `count` silos of their architecture take part in the round."""
        if self.mode == "auto" and count < SILOS:
            told = f"{count} silos of one architecture take part in a round, expected at least {SILOS}"
            return StackedRecord(stacked=False, why=told)
        try:
            padded, kept = _checked(sample)
        except Exception as error:
            # Whatever it is, the same task at one silo after the other says it better, or does not fail.
            return StackedRecord(stacked=False, why=why(error))
        step = 4 * _learnt(sample) + kept
        if self.mode == "auto" and step > STEP:
            told = f"a step of training takes {step / 1e6:.2f} MB for each silo, expected at most {STEP / 1e6:.2f}"
            return StackedRecord(stacked=False, why=told, bytes=kept)
        return StackedRecord(stacked=True, padded=padded, bytes=kept)

    def fell_back(self, t: int, reasons: Mapping[str, str]) -> None:
        """Record why silos were asked one by one in round t although they were to be stacked, by task."""
        for name, told in reasons.items():
            if not self.works[name].why:
                self.works[name] = self.works[name].model_copy(update={"why": f"in round {t} of the schedule {told}"})


def _sampled(
    executor: Executor,
    t: int,
    address: str,
    sent: Payload,
    silos: Sequence[SiloId],
    kept: Mapping[SiloId, KeptState],
) -> TaskSample:
    """The task at three of the silos whose states have the form of the first one's."""
    states = {silo: executor.state(silo, kept.get(silo)) for silo in silos}
    alike = [silo for silo in silos if form(states[silo]) == form(states[silos[0]])]
    few = list(dict.fromkeys((alike[0], alike[len(alike) // 2], alike[-1])))
    return TaskSample(executor, t, address, sent, few, [states[silo] for silo in few])


def _checked(sample: TaskSample) -> tuple[bool, int]:
    """Whether batches can be padded, and the bytes of a step. Raises what `check_same` does where they need not be."""
    sizes = {len(sample.executor.silos[silo].train) for silo in sample.silos}
    with suppress(Exception):
        if len(sizes) > 1:
            return True, check_same(replace(sample, padded=True))
    return False, check_same(sample)


def _learnt(sample: TaskSample) -> int:
    """Numbers that a silo's models learn: the federation's, and the silo's own where it has one."""
    own: nn.Module | None = sample.executor.own.get(sample.silos[0])
    modules = [module for module in (sample.executor.module, own) if module is not None]
    return sum(tensor.numel() for module in modules for tensor in learning(module).values())


def chunks(
    cohort: Sequence[SiloId],
    sent: Payload,
    examples: Mapping[SiloId, int] | None,
    kind: Callable[[SiloId], object],
    kept: int = 0,
) -> list[list[SiloId]]:
    """The silos of a cohort in chunks of the same `kind`, the largest silos together and first, where sizes are known.

    They are a function of the cohort, so that no bit depends on the workers. Chunks of a kind are of about the same
    number of silos. `kept` are the bytes that a step of training keeps for each.
    """
    groups: dict[object, list[SiloId]] = {}
    for silo in cohort if examples is None else sorted(cohort, key=lambda silo: (-examples[silo], silo)):
        groups.setdefault(kind(silo), []).append(silo)
    most = max(2, min(MOST, MEMORY // max(TIMES * size(sent) + kept, 1)))
    found = list[list[SiloId]]()
    for silos in groups.values():
        count = max(math.ceil(len(silos) / most), 2 if len(silos) >= SILOS else 1)
        ends = [round(len(silos) * k / count) for k in range(count + 1)]
        found += [silos[begin:end] for begin, end in pairwise(ends)]
    return found
