"""Rehearsals of training: whoever plans a run watches its batches, and has no more of them carried out than it takes.

Nothing is watched unless a plan asks for it, and nothing that trains for good is ever cut short.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor


class Batched(Protocol):
    """What decides how many batches a silo trains on, as a configuration's `[training]` has it."""

    @property
    def local_epochs(self) -> float | None: ...
    @property
    def local_steps(self) -> int | None: ...
    @property
    def batch_size(self) -> int: ...


class Watcher(Protocol):
    """Gets all batches of one call of `Training.fit`, and hands on those that are to be trained on."""

    def __call__(self, training: Batched, examples: int, batches: Iterator[Tensor]) -> Iterator[Tensor]: ...


_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Within it, and in processes that are forked within it, batches go by way of the watcher."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def watched(training: Batched, examples: int, batches: Iterator[Tensor]) -> Iterator[Tensor]:
    """The batches to train on: all, unless a rehearsal hands on fewer."""
    watcher = _WATCHER.get()
    return batches if watcher is None else watcher(training, examples, batches)
