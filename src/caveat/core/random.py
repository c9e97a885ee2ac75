"""Random numbers as a function of a key: (seed, purpose, round, silo)."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from .devices import CPU


def key(*parts: object) -> int:
    """A 63-bit seed that is a function of the parts' representations alone.

    Torch's generator for CPUs takes the lower 32 bits of a seed: of n keys, some two share their random numbers with a
    probability of n^2 / 2^33, 1 % for ten thousand works. That makes them no less repeatable.
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@contextmanager
def seeded(*parts: object, device: torch.device = CPU) -> Iterator[None]:
    """Torch's random numbers as a function of the key alone, e.g. (seed, purpose, round, silo); also those that a
    device draws itself, which are others than the CPU's, and those of `random` and `numpy.random`, for users' code.
    """
    number = key(*parts)
    # nn.Dropout draws from the global generator: one of our own would not cover it.
    # No device's generator unless it is named: to ask for one starts CUDA, and workers could not be forked any more.
    with torch.random.fork_rng(devices=[]), seeded_device(device, number):
        torch.default_generator.manual_seed(number)
        before = random.getstate(), np.random.get_state()
        random.seed(number)
        np.random.seed(number & 0xFFFFFFFF)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


@contextmanager
def seeded_device(device: torch.device, number: int) -> Iterator[None]:
    """The random numbers that a device draws as a function of a number; nothing for the CPU."""
    if device.type == "cpu":
        yield
        return
    module = torch.get_device_module(device)
    # Where there are several devices of a kind, the functions below are about the current one.
    with module.device(device) if hasattr(module, "device") else nullcontext():
        before = module.get_rng_state()
        module.manual_seed(number)
        try:
            yield
        finally:
            module.set_rng_state(before)
