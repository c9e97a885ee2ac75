"""Memory that a process and its forked workers share: an anonymous file, gone when the last of them ends."""

import math
import mmap
import os
import tempfile
import weakref
from typing import Any

import torch

from ..core import Payload

ALIGNED = 64
"""Bytes: where tensors begin, as processors like it."""
MANY = 1000
"""Windows on a buffer after which those that nobody uses any more are forgotten."""
BufferLayout = dict[str, list[list[Any]]]
"""The name, type, shape and place of each tensor by group: all that a reader needs, as JSON can say it."""


class SharedBuffer:
    """Payloads one after the other, written by one process and read by others where they are, without a copy.

    A payload that was read is valid until the buffer is written from the start again, for which there is `unread`.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor` is of a buffer of another process, which this one has inherited."""
        # Neither has a name: nothing is left behind, however the processes end.
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
        """The parts of the buffer that were read: each is there as long as a tensor that lies in it."""
        self.many = MANY

    @property
    def unread(self) -> bool:
        """Whether no tensor is left of those that this process has read, wherever it went."""
        self.windows = [window for window in self.windows if window() is not None]
        return not self.windows

    def restart(self) -> None:
        """Write from the start again."""
        self.end = 0

    def write(self, payload: Payload) -> BufferLayout:
        """Store a payload after the last one; return what a reader needs."""
        layout: BufferLayout = {}
        for group, tensors in payload.items():
            layout[group] = []
            for name, tensor in tensors.items():
                layout[group].append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), self.end])
                self.end += math.ceil(tensor.nbytes / ALIGNED) * ALIGNED
        if os.fstat(self.descriptor).st_size < self.end:
            # Much more than is needed, which costs nothing until it is used: every page has to be found anew
            # in a new mapping.
            os.ftruncate(self.descriptor, 64 * self.end)
        for group, there in self.read(layout).items():
            for name, tensor in there.items():
                tensor.copy_(payload[group][name])
        return layout

    def read(self, layout: BufferLayout) -> Payload:
        """The payload that was written with this layout: views, not to be changed."""
        window = self._window()
        return {
            group: {entry[0]: _tensor(window, *entry[1:]) for entry in entries} for group, entries in layout.items()
        }

    def close(self) -> None:
        """Give up the file; tensors that were read stay valid."""
        os.close(self.descriptor)

    def _window(self) -> memoryview:
        """On the whole file; an older, shorter mapping lives on in the tensors that were read from it."""
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
