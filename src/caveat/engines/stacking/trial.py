"""Whether a work can be stacked, and whether it is worth while: tried before the first round in which it would be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...core import Data, Payload, SiloId, State, seeded
from ...core.devices import CPU
from ...training.stacked.replay import Ended
from ...training.stacked.site import NotStackable
from ..executor import Executor
from ..one_thread import one_thread
from .chunk import StackedPlace

TOLERANCE = 1e-5
"""How far a tensor of stacked silos may be from that of silos one after the other, of its largest number, where both
are computed in float64. What a work makes of its number of steps is float32 there, which leaves 1e-7."""
GAIN = 1.25
"""How many times as fast stacked silos have to be to be worth while: less is lost in what is measured."""
SILOS = 3
"""Silos that are carried out both ways."""


@dataclass(frozen=True)
class StackingTrial:
    """A work in round t that is tried at some silos."""

    place: Executor
    t: int
    address: str
    sent: Payload
    silos: Sequence[SiloId]
    states: Sequence[State]
    """What each of them has kept, all of one form."""
    padded: bool = False
    """Whether batches of different sizes are taken together."""

    def stacked(self, place: StackedPlace) -> Ended:
        """All silos at once."""
        return place.stacked(self.t, self.address, self.sent, self.silos, self.states, self.padded)


def check_same(trial: StackingTrial) -> int:
    """The bytes that a step of training keeps for each silo.

    Raises NotStackable, or what a work has raised, unless stacked silos come to the numbers of each by itself. Both are
    computed in float64, in which rounding cannot hide a difference, nor look like one.
    """
    alone, saved, t = _exact(trial.place, trial.silos), _Saved(), trial.t
    sent, states = in_float64(trial.sent), [in_float64(state) for state in trial.states]
    exact = StackedPlace(alone)
    with saved_tensors_hooks(saved.pack, saved.unpack):
        ended = replace(trial, place=alone, sent=sent, states=states).stacked(exact)
    if trial.padded and not exact.has_padded:
        raise NotStackable("no batches of different sizes came together")
    name, work = alone.find_work(t, trial.address)
    for k, (silo, state) in enumerate(zip(trial.silos, states, strict=True)):
        with one_thread(), seeded(alone.seed, name, t, silo):
            update, after = work(sent, state, alone.site(silo, t))
        if update.examples != ended.examples[k]:
            raise NotStackable("it counts other examples")
        for one, other in ((update.payload, ended.payload), (after, ended.state)):
            _compare(
                one, {group: {name: each[k] for name, each in tensors.items()} for group, tensors in other.items()}
            )
    return saved.most // len(trial.silos) // 2  # float32 is half as wide


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


def _exact(place: Executor, silos: Sequence[SiloId]) -> Executor:
    """An executor at these silos that computes in float64, and keeps nothing."""
    data = {silo: place.silos[silo] for silo in silos}
    own = {id(module): deepcopy(module).double() for silo, module in place.own.items() if silo in data}
    return replace(
        place,
        device=CPU,  # where silos by themselves drop the same units as stacked ones
        module=deepcopy(place.module).double(),
        silos={
            name: replace(
                silo, train=_split(silo.train), validation=_split(silo.validation), calibration=_split(silo.calibration)
            )
            for name, silo in data.items()
        },
        own={silo: own[id(place.own[silo])] for silo in silos if silo in place.own},
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


def gain(trial: StackingTrial) -> float:
    """How many times as fast stacked silos are, per silo, than a few of them one after the other; each is warm."""
    place, t, address, sent, count = trial.place, trial.t, trial.address, trial.sent, len(trial.silos)
    name, work = place.find_work(t, address)
    few = list(zip(trial.silos, trial.states, strict=True))[:: max(1, count // SILOS)][:SILOS]
    stacked = StackedPlace(place)

    def together() -> None:
        trial.stacked(stacked)

    def alone() -> None:
        for silo, state in few:
            kept = {group: dict(tensors) for group, tensors in state.items()}
            with one_thread(), seeded(place.seed, name, t, silo):
                if place.computes_here(t, address):
                    work(sent, kept, place.site(silo, t))
                else:
                    place.perform_there(t, address, sent, kept, silo)

    return _seconds(alone) / len(few) / (_seconds(together) / count)


def _seconds(work: Callable[[], None]) -> float:
    """The least of two, after one that is not counted."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found[1:])
