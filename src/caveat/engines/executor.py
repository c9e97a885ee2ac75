"""Runs client tasks at silos, for every engine: with a module, the silos' data, and their private states on disk."""

import math
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from ..core.errors import DIVERGED, HUGE, Diverged
from ..core.method import round_at
from ..files import SiloStore, StateLost
from ..files.schema import KeptState
from ..training.modules import load, snapshot
from .silos_on_device import Workplace, one_thread


class SiloError(RunError):
    """A client task failed. The text names the silo, the round and the task."""


class SiloDiverged(SiloError, Diverged):
    """A client task produced values that are not finite."""


class Performed(NamedTuple):
    """The result of a client task: what leaves the silo, and the stored state."""

    update: Update
    kept: KeptState | None


def channels_last(module: nn.Module) -> nn.Module:
    """Convert a module to the memory format that is fastest for convolutions on a CPU."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@dataclass
class Executor:
    """Runs client tasks, one at a time, in one resident module, and one per architecture of personalized models."""

    method: Method
    module: nn.Module
    silos: Mapping[SiloId, Silo]
    states: SiloStore
    seed: int
    own: Mapping[SiloId, nn.Module] = field(default_factory=dict)
    """The modules of personalized models; silos of one architecture share a module."""
    names: Sequence[SiloId] | None = None
    """The names of the silos; None if listing `silos` is cheap."""
    secret: int | None = None
    """Seed of the silos' noise; by default a function of the seed, which gives no protection."""
    device: torch.device = CPU
    """The device on which tasks run; their inputs and results are on the CPU."""
    sharing: int = 1
    """Number of processes that share the device's memory."""

    def __post_init__(self) -> None:
        self.initial = snapshot(self.module)
        # The initial state of silos, once it is known to have no tensors.
        self.empty_state: State | None = None

    @property
    def sorted_names(self) -> Sequence[SiloId]:
        """The names of the silos, sorted. Sequences other than lists are created on demand and already sorted."""
        names = list(self.silos) if self.names is None else self.names
        return sorted(names) if isinstance(names, list) else names

    def state(self, silo: SiloId, kept: KeptState | None) -> State:
        """Return the stored private state of a silo, or its initial state. Raises StateLost if the stored state is
        missing, or differs from `kept`."""
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
        """Return what a method can access at a silo in round t."""
        return self._with_secret(self.silos[silo].context(self.module, t, self.own.get(silo)))

    def _with_secret(self, context: SiloContext) -> SiloContext:
        secret = key(self.seed, "secret", context.id) if self.secret is None else self.secret
        return replace(context, secret=secret, horizon=self.horizon)

    @cached_property
    def workplace(self) -> Workplace:
        """The place of tasks on a device other than the CPU. The process that accesses it first initializes the
        device."""
        return Workplace(self.device, self.module, self.own, self.sharing)

    @cached_property
    def horizon(self) -> int:
        """The `SiloContext.horizon` of all silos."""
        return horizon(self.schedule)

    @cached_property
    def schedule(self) -> Sequence[Round]:
        """The method's rounds, listed once."""
        return list(self.method.schedule())

    def find_task(self, t: int, address: str) -> tuple[str, SiloTask]:
        """Return the name and the task for an address in round t. Raises RunError if it is neither a round's task nor
        an evaluation, so a request cannot name, for example, the unprotected task inside a wrapper."""
        if address in self.method.evaluations:
            return address, self.method.evaluations[address]
        if (step := round_at(self.schedule, t, address)) is None:
            raise RunError(f"task {address!r} is neither a task of a round nor an evaluation")
        return step.name, step.task

    def perform(
        self, t: int, address: str, payload: Payload, silo: SiloId, kept: KeptState | None, needed: Collection[int] = ()
    ) -> Performed:
        """Run the task with that address in round t at a silo, from its stored state `kept`.

        The new state is saved; states of `needed` rounds stay on disk. Raises RunError for an unknown address,
        StateLost, or SiloError with silo, round, task and the payload's shapes if the task raises anything.
        """
        name, task = self.find_task(t, address)
        evaluates = address in self.method.evaluations
        data = self.silos[silo]
        try:
            with one_thread(), seeded(self.seed, name, t, silo):
                before = self.state(silo, kept)
                if self.runs_on_cpu(t, address):
                    context = data.test_context(self.module, self.own.get(silo)) if evaluates else self.context(silo, t)
                    update, after = task(payload, before, context)
                else:
                    update, after = self.perform_on_device(t, address, payload, before, silo)
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

    def runs_on_cpu(self, t: int, address: str) -> bool:
        """Return whether a task of round t runs on the CPU: always without another device, and outside training if the
        device lacks float64, which predictions and metrics need."""
        if self.device.type == "cpu":
            return True
        trains = any(step.trains for step in self.schedule[t : t + 1] if step.address == address)
        return not trains and not has_double(self.device)

    def perform_on_device(
        self, t: int, address: str, payload: Payload, state: State, silo: SiloId
    ) -> tuple[Update, State]:
        """Run a task at a silo in round t on the device; arguments and results are on the CPU."""
        (name, task), place = self.find_task(t, address), self.workplace
        with place.working(self.seed, name, t, silo):
            context = self.context_on_device(silo, t, address in self.method.evaluations)
            try:
                return place.to_cpu(*task(place.to_device(payload), place.to_device(state), context))
            except (TypeError, RuntimeError) as error:
                if "float64" not in str(error) or has_double(self.device):
                    raise
                why = f"{self.method.name!r} trains in float64, which {self.device.type!r} does not support"
                raise ConfigurationError(f"engine.device: {why}; use cpu", "engine.device") from error

    def context_on_device(self, silo: SiloId, t: int = 0, evaluates: bool = False) -> SiloContext:
        """Return `context`, or the context of an evaluation, with workspaces and data on the device."""
        place = self.workplace
        data, own = place.silo(self.silos[silo]), place.own.get(silo)
        if evaluates:
            return data.test_context(place.module, own)
        return self._with_secret(data.context(place.module, t, own))

    def _why(self, silo: SiloId) -> str:
        """Return an explanation of a task's error by the weights in the workspace; "" if they do not explain it."""
        places: list[Executor | Workplace] = [self] if self.device.type == "cpu" else [self, self.workplace]
        modules = [m for place in places for m in (place.module, place.own.get(silo)) if m is not None]
        sizes = [float(p.detach().abs().max()) for module in modules for p in module.parameters() if p.numel()]
        if not all(map(math.isfinite, sizes)):
            return f"weights are not finite: {DIVERGED}"
        largest = max(sizes, default=0.0)
        return f"weights are as large as {largest:.2g}: {DIVERGED}" if largest > HUGE else ""


def check_finite(payload: Payload) -> None:
    """Raise FloatingPointError with the name of the first tensor that is not finite."""
    for group, tensors in payload.items():
        for name, tensor in tensors.items():
            if not all_finite(tensor):
                raise FloatingPointError(f"{group}/{name} is not finite: {DIVERGED}")


def _failure(silo: SiloId, t: int, address: str, payload: Payload, data: Silo, error: Exception, why: str = "") -> str:
    groups = ", ".join(f"{group} ({len(tensors)} tensors)" for group, tensors in payload.items())
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"silo {silo!r} failed in round {t + 1} of the schedule, task {address!r}: {type(error).__name__}: "
        f"{error}{why and f'; {why}'} [at {where.name}, line {where.lineno}; received {groups or 'nothing'}; "
        f"training inputs {tuple(data.train.x.shape)}]"
    )
