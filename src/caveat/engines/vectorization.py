"""Decides which client tasks of a run are batched over silos, and which silos form a chunk.

The rules are the same on every machine. A task is batched only if `check_same` finds equal results in float64.
`engine.vectorized = "auto"` also requires many silos and a small training step (`SILOS`, `STEP`), as measured in
docs/how-to/hardware.md. No rule depends on times or on the number of workers, so runs are bitwise reproducible.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..core import Data, Payload, SiloId, State, seeded
from ..core.aggregation import size
from ..core.devices import CPU
from ..files.schema import KeptState, VectorizedRecord
from ..training.modules import learning
from ..training.vectorized_task import NotVectorizable
from .batched_executor import BatchedExecutor, form, one_of, why
from .executor import Executor
from .silos_on_device import one_thread

TOLERANCE = 1e-5
"""Maximum difference between batched and single silos relative to a tensor's largest number, both in float64. Numbers
that a task computes from its number of steps are float32, with errors of 1e-7."""


@dataclass(frozen=True)
class TaskSample:
    """A client task in round t at a few silos."""

    executor: Executor
    t: int
    address: str
    sent: Payload
    silos: Sequence[SiloId]
    states: Sequence[State]
    """The state of each silo, all of one form."""
    padded: bool = False
    """Whether batches of different sizes are padded."""


def check_same(sample: TaskSample) -> int:
    """Return the bytes that autograd stores for a training step, per silo, in float32.

    Raises NotVectorizable, or an error of the task, unless batched silos give the results of each silo alone. Both are
    computed in float64, so rounding can neither hide a difference nor cause one.
    """
    single, saved, t = _exact(sample.executor, sample.silos), _Saved(), sample.t
    sent, states = in_float64(sample.sent), [in_float64(state) for state in sample.states]
    batched = BatchedExecutor(single)
    with saved_tensors_hooks(saved.pack, saved.unpack):
        ended = batched.vectorized(t, sample.address, sent, sample.silos, states, sample.padded)
    if sample.padded and not batched.has_padded:
        raise NotVectorizable("no batches of different sizes occurred")
    name, task = single.find_task(t, sample.address)
    for k, (silo, state) in enumerate(zip(sample.silos, states, strict=True)):
        with one_thread(), seeded(single.seed, name, t, silo):
            update, after = task(sent, state, single.context(silo, t))
        if update.examples != ended.examples[k]:
            raise NotVectorizable("its numbers of examples differ")
        for one, other in ((update.payload, ended.payload), (after, ended.state)):
            _compare(one, one_of(other, k))
    return saved.most // len(sample.silos) // 2  # float32 is half as wide


class _Saved:
    """Counts the bytes that autograd stores in a training step."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> tuple[Tensor, _Counted]:
        return tensor, _Counted(self, tensor.nbytes)

    def unpack(self, kept: tuple[Tensor, _Counted]) -> Tensor:
        return kept[0]


class _Counted:
    """A stored tensor whose bytes are counted while it exists."""

    def __init__(self, saved: _Saved, size: int) -> None:
        self.saved, self.size = saved, size
        saved.now += size
        saved.most = max(saved.most, saved.now)

    def __del__(self) -> None:
        self.saved.now -= self.size


def _compare(one: Payload, other: Payload) -> None:
    if {group: set(tensors) for group, tensors in one.items()} != {group: set(named) for group, named in other.items()}:
        raise NotVectorizable("its tensors differ")
    for group, tensors in one.items():
        for name, tensor in tensors.items():
            there = other[group][name]
            if there.shape != tensor.shape or there.dtype != tensor.dtype:
                raise NotVectorizable(f"{group}/{name} is {tuple(there.shape)} {there.dtype} instead of {tensor.dtype}")
            if not tensor.numel():
                continue
            off, most = (there.double() - tensor.double()).abs().max().item(), tensor.double().abs().max().item()
            if not off <= TOLERANCE * max(most, 1e-3):
                raise NotVectorizable(f"{group}/{name} differs by {off:.2g}, with numbers up to {most:.2g}")


def _exact(executor: Executor, silos: Sequence[SiloId]) -> Executor:
    """Return an executor at `silos` that computes in float64 and stores nothing."""
    data = {silo: executor.silos[silo] for silo in silos}
    own = {id(module): deepcopy(module).double() for silo, module in executor.own.items() if silo in data}
    return replace(
        executor,
        device=CPU,  # where single silos use the dropout masks of batched silos
        module=deepcopy(executor.module).double(),
        silos={
            name: replace(
                silo, train=_split(silo.train), validation=_split(silo.validation), calibration=_split(silo.calibration)
            )
            for name, silo in data.items()
        },
        own={silo: own[id(executor.own[silo])] for silo in silos if silo in executor.own},
        names=list(silos),
    )


def _split(data: Data) -> Data:
    if type(data).batch is not Data.batch or not isinstance(data.x, Tensor):
        return data  # not batched
    return Data(data.x.double() if data.x.is_floating_point() else data.x, data.y)


def in_float64(payload: Payload) -> Payload:
    """Return copies of all tensors; floating-point tensors become float64."""
    return {
        group: {name: t.double() if t.dtype == torch.float32 else t.clone() for name, t in tensors.items()}
        for group, tensors in payload.items()
    }


logger = logging.getLogger(__name__)
Mode = Literal["off", "auto", "on"]
SILOS = 16
"""Minimum number of silos of one architecture in a round for "auto": they form two chunks, for two workers."""
STEP = 1 << 19
"""Maximum bytes of a silo's training step for "auto": the model's parameters and what autograd stores. Larger steps are
dominated by arithmetic and memory access, which batching does not save."""
MOST = 64
"""Maximum number of silos in a chunk: more silos do not make a step faster per silo."""
MEMORY = 1 << 28
"""Maximum bytes of the models of a chunk in training."""
TIMES = 8
"""Numbers in memory per parameter of a silo in training, including a step's."""


class Vectorization:
    """Decides which tasks of a run are batched: once per task, before the first round that depends on it."""

    def __init__(self, mode: Mode, works: dict[str, VectorizedRecord] | None = None) -> None:
        """`works` are the decisions in a checkpoint."""
        self.mode = mode
        self.works: dict[str, VectorizedRecord] = {} if works is None else works
        """The decisions, by `BatchedExecutor.name` of the task."""

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
        """Return the chunks of round t, and the names of its batched tasks with whether their batches are padded.
        Without chunks, silos are asked one by one."""
        executor = batched.executor
        if self.mode == "off" or address in executor.method.evaluations:
            return [], {}

        def kind(silo: SiloId) -> object:
            return id(executor.own.get(silo)), silo in kept

        found = chunks(cohort, sent, examples, kind)
        vectorized = dict[str, VectorizedRecord]()
        for silos in {kind(silos[0]): silos for silos in reversed(found) if len(silos) > 1}.values():
            name = batched.name(address, silos[0], executor.state(silos[0], kept.get(silos[0])))
            if name not in self.works:
                count = sum(executor.own.get(silo) is executor.own.get(silos[0]) for silo in cohort)
                made = self._decision(_sampled(executor, t, address, sent, silos, kept), count)
                logger.info("round %d, %s: %s", t, name, "vectorized" if made.vectorized else f"one by one: {made.why}")
                self.works[name] = made
            if self.works[name].vectorized:
                vectorized[name] = self.works[name]
        if not vectorized:
            return [], {}
        found = chunks(cohort, sent, examples, kind, max(record.bytes for record in vectorized.values()))
        return found, {name: record.padded for name, record in vectorized.items()}

    def _decision(self, sample: TaskSample, count: int) -> VectorizedRecord:
        """Decide on a task from a few silos; `count` silos of their architecture take part in the round."""
        if self.mode == "auto" and count < SILOS:
            reason = f"{count} silos of one architecture take part in a round, expected at least {SILOS}"
            return VectorizedRecord(vectorized=False, why=reason)
        try:
            padded, kept = _checked(sample)
        except Exception as error:
            # Catch any error: silo by silo, the task raises a clearer error or succeeds.
            return VectorizedRecord(vectorized=False, why=why(error))
        # A silo trains the global model's parameters, and its personalized model's.
        own: nn.Module | None = sample.executor.own.get(sample.silos[0])
        modules = [module for module in (sample.executor.module, own) if module is not None]
        step = 4 * sum(tensor.numel() for module in modules for tensor in learning(module).values()) + kept
        if self.mode == "auto" and step > STEP:
            reason = f"a training step takes {step / 1e6:.2f} MB per silo, expected at most {STEP / 1e6:.2f}"
            return VectorizedRecord(vectorized=False, why=reason, bytes=kept)
        return VectorizedRecord(vectorized=True, padded=padded, bytes=kept)

    def fell_back(self, t: int, reasons: Mapping[str, str]) -> None:
        """Record why silos were run one by one in round t although their task should be batched, by task."""
        for name, reason in reasons.items():
            if not self.works[name].why:
                self.works[name] = self.works[name].model_copy(
                    update={"why": f"in round {t + 1} of the schedule {reason}"}
                )


def _sampled(
    executor: Executor, t: int, address: str, sent: Payload, silos: Sequence[SiloId], kept: Mapping[SiloId, KeptState]
) -> TaskSample:
    """Return the task at three of the silos whose states have the form of the first one's."""
    states = {silo: executor.state(silo, kept.get(silo)) for silo in silos}
    alike = [silo for silo in silos if form(states[silo]) == form(states[silos[0]])]
    few = list(dict.fromkeys((alike[0], alike[len(alike) // 2], alike[-1])))
    return TaskSample(executor, t, address, sent, few, [states[silo] for silo in few])


def _checked(sample: TaskSample) -> tuple[bool, int]:
    """Return whether batches can be padded, and the bytes of a step. Raises the errors of `check_same`."""
    sizes = {len(sample.executor.silos[silo].train) for silo in sample.silos}
    with suppress(Exception):
        if len(sizes) > 1:
            return True, check_same(replace(sample, padded=True))
    return False, check_same(sample)


def chunks(
    cohort: Sequence[SiloId],
    sent: Payload,
    examples: Mapping[SiloId, int] | None,
    kind: Callable[[SiloId], object],
    kept: int = 0,
) -> list[list[SiloId]]:
    """Group the silos of a cohort into chunks of the same `kind`, largest silos first and together if sizes are known.

    Chunks depend on the cohort only, so results do not depend on the number of workers. Chunks of a kind have similar
    numbers of silos. `kept` are the bytes that a training step stores for each silo.
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
