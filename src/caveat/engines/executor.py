"""What carries out works on silos, for every engine: a module, the silos' data, and their private states on disk."""

import math
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import torch
from torch import nn

from ..core import (
    CaveatError,
    ConfigurationError,
    Method,
    Payload,
    Round,
    RunError,
    Silo,
    SiloContext,
    SiloId,
    SiloTask,
    State,
    Update,
    horizon,
    key,
    seeded,
)
from ..core.aggregation import all_finite
from ..core.devices import CPU, has_double
from ..core.errors import DIVERGED, Diverged
from ..files.checkpoints import SiloStore, StateLost
from ..files.schema import KeptState
from ..training.modules import load, snapshot
from .placement import Workplace, one_thread

HUGE = 100.0
"""A weight that no model needs which has learnt anything."""


class SiloError(RunError):
    """A silo's work failed: names the silo, the round and the work."""


class SiloDiverged(SiloError, Diverged):
    """A silo's work came to numbers that are not finite."""


class Performed(NamedTuple):
    """What a silo's work has left: what leaves the silo, and which state is kept."""

    update: Update
    kept: KeptState | None


def channels_last(module: nn.Module) -> nn.Module:
    """A module in the memory layout in which convolutions are fastest on a CPU."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@dataclass
class Executor:
    """Carries out works on silos, one at a time, in one resident module, and one more per architecture of their own."""

    method: Method
    module: nn.Module
    silos: Mapping[SiloId, Silo]
    states: SiloStore
    seed: int
    own: Mapping[SiloId, nn.Module] = field(default_factory=dict)
    """The module for a silo's own model, which silos of the same architecture share."""
    names: Sequence[SiloId] | None = None
    """The names of the silos; None where `silos` can be listed at little cost."""
    secret: int | None = None
    """What a silo's noise is drawn from; by default a function of the seed, which protects nobody."""
    device: torch.device = CPU
    """Where works are carried out. What they are given and what they come to is on the CPU."""
    sharing: int = 1
    """How many processes share the device's memory."""

    def __post_init__(self) -> None:
        self.initial = snapshot(self.module)
        # A silo's initial state, once it is known that silos of this method begin with none.
        self.empty_state: State | None = None

    @property
    def sorted_names(self) -> Sequence[SiloId]:
        """The names of the silos in order. Names that are no list are made on demand, and in order already."""
        names = list(self.silos) if self.names is None else self.names
        return sorted(names) if isinstance(names, list) else names

    def state(self, silo: SiloId, kept: KeptState | None) -> State:
        """The private state that a silo has kept; its initial one if it has kept none, or is to begin afresh.

        Raises StateLost if it is not there, or is another.
        """
        if kept is not None and kept.sha256 is not None:
            return self.states.load(kept)
        if self.empty_state is None:
            load(self.module, self.initial)
            with seeded(self.seed, "init_silo", silo):
                state = self.method.init_silo(self.context(silo))
            if any(state.values()):
                return state
            self.empty_state = state
        return {group: {} for group in self.empty_state}

    def context(self, silo: SiloId, t: int = 0) -> SiloContext:
        """What a method may see at a silo in round t."""
        return self._told(self.silos[silo].context(self.module, t, self.own.get(silo)))

    def _told(self, context: SiloContext) -> SiloContext:
        """A site that knows its silo's secret, and how many rounds there are."""
        secret = key(self.seed, "secret", context.id) if self.secret is None else self.secret
        return replace(context, secret=secret, horizon=self.horizon)

    @cached_property
    def workplace(self) -> Workplace:
        """Where works are carried out if that is not the CPU. The first process that asks for it starts the device."""
        return Workplace(self.device, self.module, self.own, self.sharing)

    @cached_property
    def horizon(self) -> int:
        """`Site.horizon` of every site."""
        return horizon(self.schedule)

    @cached_property
    def schedule(self) -> Sequence[Round]:
        """The method's rounds, listed once for all orders."""
        return list(self.method.schedule())

    def find_work(self, t: int, address: str) -> tuple[str, SiloTask]:
        """The name and the work that an order of round t asks for by its address.

        Raises RunError for what is neither a round's work nor a measurement. A wrapper's base, for instance, would send
        what the wrapper protects.
        """
        if address in self.method.evaluations:
            return address, self.method.evaluations[address]
        # A silo may know of fewer rounds than its server has, but never of fewer works.
        for step in chain(self.schedule[t : t + 1], self.schedule):
            if step.address == address:
                return step.name, step.task
        raise RunError(f"{address!r} is neither a round's work nor a measurement")

    def perform(
        self,
        t: int,
        address: str,
        payload: Payload,
        silo: SiloId,
        kept: KeptState | None,
        needed: Collection[int] = (),
    ) -> Performed:
        """Carry out the work with that address in round t at a silo, from the state that it has `kept`.

        The state that the work leaves is kept; those of rounds that are `needed` stay on the disk. Raises RunError for
        an address that there is not, StateLost, SiloError with the silo, round, work and payload's shapes if the work
        raises anything.
        """
        name, task = self.find_work(t, address)
        evaluates = address in self.method.evaluations
        data = self.silos[silo]
        try:
            with one_thread(), seeded(self.seed, name, t, silo):
                before = self.state(silo, kept)
                if self.computes_here(t, address):
                    context = data.test_context(self.module, self.own.get(silo)) if evaluates else self.context(silo, t)
                    update, after = task(payload, before, context)
                else:
                    update, after = self.perform_there(t, address, payload, before, silo)
            if not evaluates:
                check_finite(update.payload | {f"kept {group}": tensors for group, tensors in after.items()})
        except StateLost:
            raise
        except Exception as error:
            why = "" if isinstance(error, CaveatError | FloatingPointError) else self._why(silo)
            kind = SiloDiverged if why or isinstance(error, FloatingPointError) else SiloError
            raise kind(_failure(silo, t, address, payload, data, error, why), silo) from error
        if not evaluates and (any(before.values()) or any(after.values())):
            kept = self.states.save(silo, t, after, needed)
        return Performed(update, kept)

    def computes_here(self, t: int, address: str) -> bool:
        """Whether a work of round t is carried out on the CPU: all are where there is no other device, and what is no
        training where the device has no float64, in which predictions and what they are worth are computed.
        """
        if self.device.type == "cpu":
            return True
        trains = any(step.trains for step in self.schedule[t : t + 1] if step.address == address)
        return not trains and not has_double(self.device)

    def perform_there(self, t: int, address: str, payload: Payload, state: State, silo: SiloId) -> tuple[Update, State]:
        """A work at a silo in round t on the device, from tensors on the CPU to such."""
        (name, task), there = self.find_work(t, address), self.workplace
        with there.working(self.seed, name, t, silo):
            context = self.site_there(silo, t, address in self.method.evaluations)
            try:
                return there.taken_home(*task(there.brought(payload), there.brought(state), context))
            except (TypeError, RuntimeError) as error:
                if "float64" not in str(error) or has_double(self.device):
                    raise
                why = f"{self.method.name!r} trains in float64, which {self.device.type!r} does not have"
                raise ConfigurationError(f"engine.device: {why}; use cpu", "engine.device") from error

    def site_there(self, silo: SiloId, t: int = 0, evaluates: bool = False) -> SiloContext:
        """`context`, or what an evaluation may see, with workspaces and data on the device."""
        there = self.workplace
        data, own = there.silo(self.silos[silo]), there.own.get(silo)
        if evaluates:
            return data.test_context(there.module, own)
        return self._told(data.context(there.module, t, own))

    def _why(self, silo: SiloId) -> str:
        """What the weights in the workspace say of an error that a work has raised; empty if they are ordinary."""
        places: list[Executor | Workplace] = [self] if self.device.type == "cpu" else [self, self.workplace]
        modules = [m for place in places for m in (place.module, place.own.get(silo)) if m is not None]
        sizes = [float(p.detach().abs().max()) for module in modules for p in module.parameters() if p.numel()]
        if not all(map(math.isfinite, sizes)):
            return f"weights are not finite: {DIVERGED}"
        largest = max(sizes, default=0.0)
        return f"weights are as large as {largest:.2g}: {DIVERGED}" if largest > HUGE else ""


def check_finite(payload: Payload) -> None:
    """Raises FloatingPointError naming the first tensor with NaN or infinity in it."""
    for group, tensors in payload.items():
        for name, tensor in tensors.items():
            if not all_finite(tensor):
                raise FloatingPointError(f"{group}/{name} is not finite: {DIVERGED}")


def _failure(silo: SiloId, t: int, address: str, payload: Payload, data: Silo, error: Exception, why: str = "") -> str:
    groups = ", ".join(f"{group} ({len(tensors)} tensors)" for group, tensors in payload.items())
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"silo {silo!r} failed in round {t}, work {address!r}: {type(error).__name__}: {error}{why and f'; {why}'} "
        f"[at {where.name}, line {where.lineno}; received {groups or 'nothing'}; "
        f"training inputs {tuple(data.train.x.shape)}]"
    )
