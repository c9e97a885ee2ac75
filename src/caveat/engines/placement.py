"""Where client tasks run: on one device, with one thread, and with the data of as many silos as fit there."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ..core import AugmentedData, Data, Payload, Silo, SiloId, State, Update
from ..core.devices import (
    PartedInputs,
    StreamedInputs,
    brought,
    brought_all,
    deterministic,
    free_memory,
    has_double,
    home,
)
from ..core.random import seeded
from ..core.silo import SPLITS, LateData
from ..training.modules import on_device


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread: one and two threads sum in different orders and give different bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SHARE = 0.5
"""Of the memory that is free on a device at first, what the silos' data may take; the rest is for works."""


class Workplace:
    """Copies of workspaces on a device, and there the data of as many silos as fit, the first ones that are asked.

    The data of other silos come to it batch by batch.
    """

    def __init__(
        self, device: torch.device, module: nn.Module, own: Mapping[SiloId, nn.Module], sharing: int = 1
    ) -> None:
        self.device, self.double = device, has_double(device)
        made = {id(each): on_device(each, device) for each in (module, *own.values())}
        self.module = made[id(module)]
        self.own = {silo: made[id(each)] for silo, each in own.items()}
        free = free_memory(device)
        self.room = None if free is None else int(free * SHARE) // sharing
        """Bytes that the data of more silos may take; None where nobody knows."""
        self._kept: dict[int, tuple[weakref.ref[Silo], Silo]] = {}
        """The silos whose data lie on the device, by the identity of what they are copies of, which come first."""

    @contextmanager
    def working(self, *key: object) -> Iterator[None]:
        """Random numbers of that key, and the same bits every time."""
        with seeded(*key, device=self.device), deterministic(self.device):
            yield

    def brought(self, payload: Payload) -> Payload:
        """Groups of tensors on the device; those of a type that it does not have stay on the CPU."""
        if self.double:
            return brought_all(payload, self.device)
        return {
            group: {name: t if t.dtype == torch.float64 else brought(t, self.device) for name, t in tensors.items()}
            for group, tensors in payload.items()
        }

    def taken_home(self, update: Update, state: State) -> tuple[Update, State]:
        """What a work has come to, on the CPU."""
        return home(update), home(state)

    def silo(self, silo: Silo) -> Silo:
        """A silo with its data on the device, or with inputs that come to it as they are taken."""
        if id(silo) in self._kept:
            return self._kept[id(silo)][1]
        size = _size(silo)
        if size is None or (self.room is not None and size > self.room):
            return self._placed(silo, whole=False)
        placed = self._placed(silo, whole=True)
        # A silo that is made anew whenever it is asked for takes no room once it is gone.
        gone = partial(_forget, weakref.ref(self), id(silo), size)
        self._kept[id(silo)] = weakref.ref(silo, gone), placed
        if self.room is not None:
            self.room -= size
        return placed

    def _placed(self, silo: Silo, whole: bool) -> Silo:
        place = partial(placed_data, device=self.device, whole=whole)
        train, validation, calibration, test = (place(getattr(silo, split)) for split in SPLITS)
        streams = {name: place(data) for name, data in silo.streams.items()}
        return replace(silo, train=train, validation=validation, calibration=calibration, test=test, streams=streams)


def _forget(place: weakref.ref[Workplace], silo: int, size: int, of: object) -> None:
    there = place()
    if there is not None:
        del there._kept[silo]
        if there.room is not None:
            there.room += size


def placed_data(data: Data, device: torch.device, whole: bool = True) -> Data:
    """A split on a device, whole or with inputs that come to it in parts; one that is read late, when it is asked."""
    if isinstance(data, LateData):
        return LateData.of(lambda: placed_data(data.read(), device, whole))
    found = Data(placed_inputs(data.x, device, whole), brought(data.y, device))
    return AugmentedData.of(found, data.augment, data.names) if isinstance(data, AugmentedData) else found


def placed_inputs(x: Tensor, device: torch.device, whole: bool = True) -> Tensor:
    """Inputs on a device, or such that come to it in parts, as those do that are read where they lie."""
    if whole and not isinstance(x, PartedInputs):
        return brought(x, device)
    return StreamedInputs(x, device)  # type: ignore[return-value]  # all that is asked of inputs can be asked of it


def _size(silo: Silo) -> int | None:
    """Bytes of a silo's data; None where some of them are not in memory, or not read yet."""
    parts = [*(getattr(silo, split) for split in SPLITS), *silo.streams.values()]
    if any(isinstance(part, LateData) or isinstance(part.x, PartedInputs) for part in parts):
        return None
    return sum(int(part.x.nbytes + part.y.nbytes) for part in parts)
