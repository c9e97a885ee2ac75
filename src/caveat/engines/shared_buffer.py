"""Memory shared by a process and its workers: an anonymous file, deleted when the last process ends."""

import math
import mmap
import os
import tempfile
import weakref
from typing import Any

import torch

from ..core import Payload

ALIGNED = 64
"""Alignment of tensors in bytes."""
MANY = 1000
"""Number of views of a buffer after which unused ones are removed."""
BufferLayout = dict[str, list[list[Any]]]
"""Name, type, shape and position of each tensor by group, as JSON values for a reader."""


class SharedBuffer:
    """Payloads in sequence, written by one process and read by others without a copy.

    A payload is valid until the buffer is written from the start again; check `unread` first.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor` is the file descriptor of a buffer inherited from another process."""
        # Neither file has a name, so nothing is left behind, however the processes end.
        if descriptor is not None:
            self.descriptor = descriptor
        elif hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("caveat")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        self.map: mmap.mmap | None = None
        self.end = 0
        self.windows: list[weakref.ref[memoryview]] = []
        """The parts of the buffer that were read; each exists as long as one of its tensors."""
        self.many = MANY

    @property
    def unread(self) -> bool:
        """Whether no tensor that this process has read is still in use."""
        self.windows = [window for window in self.windows if window() is not None]
        return not self.windows

    def restart(self) -> None:
        """Write from the start again."""
        self.end = 0

    def write(self, payload: Payload) -> BufferLayout:
        """Append a payload; return its layout for a reader."""
        layout: BufferLayout = {}
        for group, tensors in payload.items():
            layout[group] = []
            for name, tensor in tensors.items():
                layout[group].append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), self.end])
                self.end += math.ceil(tensor.nbytes / ALIGNED) * ALIGNED
        if os.fstat(self.descriptor).st_size < self.end:
            # Much larger than needed, which costs nothing until used, because a new mapping must load its pages again.
            os.ftruncate(self.descriptor, 64 * self.end)
        for group, there in self.read(layout).items():
            for name, tensor in there.items():
                tensor.copy_(payload[group][name])
        return layout

    def read(self, layout: BufferLayout) -> Payload:
        """Return the payload with this layout as views, which must not be changed."""
        window = self._window()
        return {
            group: {entry[0]: _tensor(window, *entry[1:]) for entry in entries} for group, entries in layout.items()
        }

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        os.close(self.descriptor)

    def _window(self) -> memoryview:
        """Return a view of the whole file; an older, shorter mapping remains valid for tensors read from it."""
        size = os.fstat(self.descriptor).st_size
        if not size:
            return memoryview(b"")
        if self.map is None or len(self.map) < size:
            self.map = mmap.mmap(self.descriptor, size)
        window = memoryview(self.map)
        self.windows.append(weakref.ref(window))
        if len(self.windows) > self.many and not self.unread:
            self.many = 2 * len(self.windows) + MANY
        return window


def _tensor(window: memoryview, dtype: str, shape: list[int], start: int) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(window, dtype=kind, count=count, offset=start).view(shape)
