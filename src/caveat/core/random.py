"""Random numbers as a function of a key: (seed, purpose, round, silo)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def key(*parts: object) -> int:
    """A 63-bit seed that is a function of the parts' representations alone.

    Torch's generator for CPUs takes the lower 32 bits of a seed: of n keys, some two share their random numbers with a
    probability of n^2 / 2^33, 1 % for ten thousand works. That makes them no less repeatable.
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Torch's random numbers as a function of the key alone, e.g. (seed, purpose, round, silo)."""
    # nn.Dropout draws from the global generator: one of our own would not cover it.
    # Only the CPU's generator: asking for a GPU's would start CUDA, and workers could not be forked any more.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(*parts))
        yield
