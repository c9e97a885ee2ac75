"""Optimiser steps: how many a silo takes, and how long one takes, from the first few of each call of `Training.fit`."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from ...training.rehearsal import Batched

LEAST = 3
"""Steps that are carried out: what the first one takes includes what only a first one does."""
SECONDS = 0.1
"""After which no more steps of a call are carried out."""


@dataclass(frozen=True)
class Fit:
    """One call of `Training.fit` at a silo, of which a few steps were carried out."""

    epochs: float | None
    steps: int | None
    batch_size: int
    examples: int
    """The silo's training examples."""
    done: int
    """Steps that were carried out."""
    seconds: float
    """What those after the first one took."""

    @property
    def each(self) -> float:
        """Seconds of a step; 0 where there is no second one to tell by."""
        return self.seconds / (self.done - 1) if self.done > 1 else 0.0

    def count(self, examples: int) -> int:
        """Steps of such a call with so many training examples, as `Training.batches` has batches."""
        if self.steps is not None:
            return self.steps
        whole, share = divmod(self.epochs or 1, 1)
        epoch = batches_of(examples, self.batch_size)
        part = max(0 if whole else 1, round(share * epoch)) if share else 0
        return int(whole) * epoch + part


def batches_of(examples: int, batch_size: int) -> int:
    """Batches of a pass over the examples: one that is left over is part of the batch before it."""
    alone = examples > batch_size and examples % batch_size == 1
    return math.ceil(examples / batch_size) - alone


class StepLog:
    """Watches training, also in processes that are forked later, and writes down what it sees in a file."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.read_until = 0

    def __call__(self, training: Batched, examples: int, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """Hands on the first few batches."""
        done, began = 0, 0.0
        for batch in batches:
            if done == 1:
                began = time.perf_counter()
            elif done >= LEAST and time.perf_counter() - began > SECONDS:
                break
            yield batch
            done += 1
        seconds = time.perf_counter() - began if done > 1 else 0.0
        fit = Fit(training.local_epochs, training.local_steps, training.batch_size, examples, done, seconds)
        os.write(self.descriptor, f"{json.dumps(asdict(fit))}\n".encode())  # whole, whoever else writes

    def taken(self) -> list[Fit]:
        """The calls since this was asked last, of all silos."""
        size = os.fstat(self.descriptor).st_size
        text = os.pread(self.descriptor, size - self.read_until, self.read_until).decode()
        self.read_until = size
        return [Fit(**json.loads(line)) for line in text.splitlines()]

    def close(self) -> None:
        os.close(self.descriptor)
