"""What an engine sets in its process: one thread for equal bits, and memory that is kept."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""


KEPT = 1 << 30
"""Bytes that a process keeps at the end of its heap, and above which a tensor is still mapped by itself."""


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread: one and two threads sum in different orders and give different bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Have the C library hand freed memory to the next tensor rather than to the system; for the whole process.

    The system clears every page that it hands out: a step of training that gives its memory back and asks for it
    again takes a fifth longer, a copy of 44 MB twice as long. Does nothing where the C library is not glibc.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        # Both, since giving one turns off the adaptation of the other. An older glibc takes no more than 32 MB.
        if not libc.mallopt(M_MMAP_THRESHOLD, KEPT):
            libc.mallopt(M_MMAP_THRESHOLD, 1 << 25)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)
