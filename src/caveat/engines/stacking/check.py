"""Whether stacked silos come to the numbers of each silo by itself: checked in float64 before a task is stacked."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...core import Data, Payload, SiloId, State, seeded
from ...core.devices import CPU
from ...training.vectorized_replay import NotStackable
from ..executor import Executor
from ..one_thread import one_thread
from .batched_executor import BatchedExecutor, one_of

TOLERANCE = 1e-5
"""How far a tensor of stacked silos may be from that of silos one after the other, of its largest number, where both
are computed in float64. What a work makes of its number of steps is float32 there, which leaves 1e-7."""


@dataclass(frozen=True)
class TaskSample:
    """A client task in round t at a few silos."""

    executor: Executor
    t: int
    address: str
    sent: Payload
    silos: Sequence[SiloId]
    states: Sequence[State]
    """What each of them has kept, all of one form."""
    padded: bool = False
    """Whether batches of different sizes are taken together."""


def check_same(sample: TaskSample) -> int:
    """Return the bytes that autograd keeps for a step of training, per silo, in float32.

    Raises NotStackable, or what the task has raised, unless stacked silos come to the numbers of each by itself. Both
    are computed in float64, in which rounding can neither hide a difference nor look like one.
    """
    alone, saved, t = _exact(sample.executor, sample.silos), _Saved(), sample.t
    sent, states = in_float64(sample.sent), [in_float64(state) for state in sample.states]
    batched = BatchedExecutor(alone)
    with saved_tensors_hooks(saved.pack, saved.unpack):
        ended = batched.stacked(t, sample.address, sent, sample.silos, states, sample.padded)
    if sample.padded and not batched.has_padded:
        raise NotStackable("no batches of different sizes came together")
    name, task = alone.find_work(t, sample.address)
    for k, (silo, state) in enumerate(zip(sample.silos, states, strict=True)):
        with one_thread(), seeded(alone.seed, name, t, silo):
            update, after = task(sent, state, alone.context(silo, t))
        if update.examples != ended.examples[k]:
            raise NotStackable("it counts other examples")
        for one, other in ((update.payload, ended.payload), (after, ended.state)):
            _compare(one, one_of(other, k))
    return saved.most // len(sample.silos) // 2  # float32 is half as wide


class _Saved:
    """Counts the bytes that autograd keeps for a step of training."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> tuple[Tensor, _Counted]:
        return tensor, _Counted(self, tensor.nbytes)

    def unpack(self, kept: tuple[Tensor, _Counted]) -> Tensor:
        return kept[0]


class _Counted:
    """As long as this is there, its bytes count."""

    def __init__(self, saved: _Saved, size: int) -> None:
        self.saved, self.size = saved, size
        saved.now += size
        saved.most = max(saved.most, saved.now)

    def __del__(self) -> None:
        self.saved.now -= self.size


def _compare(one: Payload, other: Payload) -> None:
    if {group: set(tensors) for group, tensors in one.items()} != {group: set(named) for group, named in other.items()}:
        raise NotStackable("it comes to other tensors")
    for group, tensors in one.items():
        for name, tensor in tensors.items():
            there = other[group][name]
            if there.shape != tensor.shape or there.dtype != tensor.dtype:
                raise NotStackable(f"{group}/{name} is {tuple(there.shape)} {there.dtype} instead of {tensor.dtype}")
            if not tensor.numel():
                continue
            off, most = (there.double() - tensor.double()).abs().max().item(), tensor.double().abs().max().item()
            if not off <= TOLERANCE * max(most, 1e-3):
                raise NotStackable(f"{group}/{name} is off by {off:.2g}, of numbers up to {most:.2g}")


def _exact(executor: Executor, silos: Sequence[SiloId]) -> Executor:
    """An executor at these silos that computes in float64, and keeps nothing."""
    data = {silo: executor.silos[silo] for silo in silos}
    own = {id(module): deepcopy(module).double() for silo, module in executor.own.items() if silo in data}
    return replace(
        executor,
        device=CPU,  # where silos by themselves drop the same units as stacked ones
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
        return data  # which stacked silos refuse
    return Data(data.x.double() if data.x.is_floating_point() else data.x, data.y)


def in_float64(payload: Payload) -> Payload:
    """Copies of all tensors, with numbers that are no integers in float64."""
    return {
        group: {name: t.double() if t.dtype == torch.float32 else t.clone() for name, t in tensors.items()}
        for group, tensors in payload.items()
    }
