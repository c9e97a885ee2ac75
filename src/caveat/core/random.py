"""Random numbers as a function of a key: (seed, purpose, round, silo)."""

import hashlib
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from .devices import CPU


def key(*parts: object) -> int:
    """Return a 63-bit seed that depends only on the representations of the parts.

    Torch's CPU generator uses only the lower 32 bits of a seed, so two of n keys have the same random numbers with
    probability n^2 / 2^33, which is about 1 % for ten thousand tasks. Results are still reproducible.
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that holds the parent's lock does not exist in the child


@contextmanager
def exclusive() -> Iterator[None]:
    """Make other threads that compute wait, because threads share random generators, torch's settings and modules."""
    with _lock:
        yield


@contextmanager
def seeded(*parts: object, device: torch.device = CPU) -> Iterator[None]:
    """Make random numbers a function of the key, e.g. (seed, purpose, round, silo).

    Seeds the global generators of torch, `random` and `numpy.random`. Also seeds torch's generator of the device, whose
    random numbers differ from those of the CPU.
    """
    number = key(*parts)
    # nn.Dropout draws from the global generator, so a separate generator would not cover it.
    # With devices=None, this would initialize CUDA, and workers could no longer be forked.
    with exclusive(), torch.random.fork_rng(devices=[]), seeded_device(device, number):
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
    """Make the random numbers drawn on a device a function of a number. This has no effect for the CPU."""
    if device.type == "cpu":
        yield
        return
    module = torch.get_device_module(device)
    # If there are several devices of a type, the functions below apply to the current one.
    with module.device(device) if hasattr(module, "device") else nullcontext():
        before = module.get_rng_state()
        module.manual_seed(number)
        try:
            yield
        finally:
            module.set_rng_state(before)
