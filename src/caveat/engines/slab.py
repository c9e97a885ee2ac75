"""Memory that a process and its forked workers share: an anonymous file, gone when the last of them ends."""

from __future__ import annotations

import mmap
import os
import tempfile

from ..core import Payload
from ..store import from_bytes, to_bytes


class Slab:
    """Room for one payload at a time. Written by one process, read by others once they are told of its size."""

    def __init__(self) -> None:
        # Neither has a name: nothing is left behind, however the processes end.
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("caveat")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())

    def write(self, payload: Payload) -> int:
        """Store a payload; return its size in bytes, which a reader needs."""
        data = to_bytes(payload)
        if os.fstat(self.descriptor).st_size < len(data):
            os.ftruncate(self.descriptor, len(data))
        with mmap.mmap(self.descriptor, len(data)) as view:
            view[:] = data
        return len(data)

    def read(self, size: int) -> Payload:
        """The payload that was written last."""
        with mmap.mmap(self.descriptor, size, access=mmap.ACCESS_READ) as view:
            return from_bytes(view[:])

    def close(self) -> None:
        os.close(self.descriptor)
