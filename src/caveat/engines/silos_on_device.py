"""Placement of client tasks: on one device, with one thread, and with the data of as many silos as fit on it."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ..core import AugmentedData, Data, Payload, Silo, SiloId, State, Update, devices
from ..core.random import exclusive, seeded
from ..core.silo import SPLITS, LateData
from ..training.modules import on_device


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one intra-op thread, because the order of summation, and therefore rounding, depends on their number.

    Other threads of the process wait.
    """
    with exclusive():
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


SHARE = 0.5
"""Fraction of a device's free memory for the silos' data; the rest is for tasks."""


class Workplace:
    """Copies of workspaces on a device, and the data of as many silos as fit on it, in the order of access. The data of
    other silos are moved to it batch by batch."""

    def __init__(
        self, device: torch.device, module: nn.Module, own: Mapping[SiloId, nn.Module], sharing: int = 1
    ) -> None:
        self.device, self.double = device, devices.has_double(device)
        made = {id(each): on_device(each, device) for each in (module, *own.values())}
        self.module = made[id(module)]
        self.own = {silo: made[id(each)] for silo, each in own.items()}
        free = devices.free_memory(device)
        self.room = None if free is None else int(free * SHARE) // sharing
        """Remaining bytes for the data of silos; None if unknown."""
        self._kept: dict[int, tuple[weakref.ref[Silo], Silo]] = {}
        """The silos whose data are on the device, by the identity of the originals, which are the first entries."""

    @contextmanager
    def working(self, *key: object) -> Iterator[None]:
        """Use random numbers from this key, and deterministic operations, within this context."""
        with seeded(*key, device=self.device), devices.deterministic(self.device):
            yield

    def to_device(self, payload: Payload) -> Payload:
        """Return groups of tensors on the device; tensors of unsupported types stay on the CPU."""
        if self.double:
            return devices.brought_all(payload, self.device)
        return {
            group: {
                name: t if t.dtype == torch.float64 else devices.brought(t, self.device) for name, t in tensors.items()
            }
            for group, tensors in payload.items()
        }

    def to_cpu(self, update: Update, state: State) -> tuple[Update, State]:
        """Return the results of a task on the CPU."""
        return devices.home(update), devices.home(state)

    def silo(self, silo: Silo) -> Silo:
        """Return a silo with its data on the device, or with inputs that are moved to it on access."""
        if id(silo) in self._kept:
            return self._kept[id(silo)][1]
        size = _size(silo)
        if size is None or (self.room is not None and size > self.room):
            return self._placed(silo, whole=False)
        placed = self._placed(silo, whole=True)
        # A silo created on demand needs no memory after it is deleted.
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
    workplace = place()
    if workplace is not None:
        del workplace._kept[silo]
        if workplace.room is not None:
            workplace.room += size


def placed_data(data: Data, device: torch.device, whole: bool = True) -> Data:
    """Return a split on a device, completely or with inputs moved in parts; lazy data are moved on access."""
    if isinstance(data, LateData):
        return LateData.of(lambda: placed_data(data.read(), device, whole))
    found = Data(placed_inputs(data.x, device, whole), devices.brought(data.y, device))
    return AugmentedData.of(found, data.augment, data.names) if isinstance(data, AugmentedData) else found


def placed_inputs(x: Tensor, device: torch.device, whole: bool = True) -> Tensor:
    """Return inputs on a device, or inputs that are moved to it in parts, as is always done for lazy data."""
    if whole and not isinstance(x, devices.PartedInputs):
        return devices.brought(x, device)
    return devices.StreamedInputs(x, device)  # type: ignore[return-value]  # supports all operations on inputs


def _size(silo: Silo) -> int | None:
    """Return the bytes of a silo's data, or None if some are not in memory."""
    parts = [*(getattr(silo, split) for split in SPLITS), *silo.streams.values()]
    if any(isinstance(part, LateData) or isinstance(part.x, devices.PartedInputs) for part in parts):
        return None
    return sum(int(part.x.nbytes + part.y.nbytes) for part in parts)
