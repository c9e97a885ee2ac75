"""The run that a rehearsal carries out: few silos are measured, few steps are trained, few inputs are encoded."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ...core import Data, Silo, SiloId
from ...engines.executor import Executor
from ...engines.one_thread import one_thread
from ...files.checkpoints import SiloStore
from ...files.schema.gallery import Features, Gallery
from ...training.fit import Training
from ..frozen_features import SilosBehind
from ..local import LocalRun
from .counts import Fit

STEPS, SECONDS = 3, 0.1
"""Steps of training and seconds after which no more steps of a call are carried out."""
STAND_IN = 8
"""Inputs whose encoded rows stand for all rows of a split."""


class SilosStandingIn(SilosBehind):
    """Silos with the encoded rows of a few inputs, over and over, which are not cached: training takes as long."""

    def _behind(self, data: Data) -> Data:
        if not len(data):
            return super()._behind(data)
        with one_thread():
            rows = self.encoder(data.x[:STAND_IN])
        return Data(rows[torch.arange(len(data)) % len(rows)], data.y)


@dataclass(frozen=True, kw_only=True)
class ShortRun(LocalRun):
    """A run of which a few silos are measured. Behind a frozen encoder the rows of a few inputs stand for all."""

    sample: tuple[SiloId, ...]

    @cached_property
    def measured(self) -> list[SiloId]:
        return list(self.sample)

    def executor(self) -> Executor:
        silos: Mapping[SiloId, Silo] = self.silos.by_name
        if self.frozen_encoder is not None:
            silos = SilosStandingIn(silos, self.frozen_encoder)
        return self.executor_of(silos, self.participants, SiloStore(self.folder / "state" / "silos"))

    def gallery(self) -> Gallery:
        """Without silos behind a frozen encoder, whose rows a rehearsal does not compute."""
        return super().gallery() if self.frozen_encoder is None else Gallery(classes=[], silos=[], sure_errors=[])

    def features(self) -> Features | None:
        return super().features() if self.frozen_encoder is None else None


class StepLog:
    """Watches training, also in workers that are forked later, and appends every call of `Training.fit` to a file."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.read_until = 0

    def __call__(self, training: Training, examples: int, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """Hand on the first few batches."""
        done, began = 0, 0.0
        for batch in batches:
            if done == 1:
                began = time.perf_counter()
            elif done >= STEPS and time.perf_counter() - began > SECONDS:
                break
            yield batch
            done += 1
        seconds = time.perf_counter() - began if done > 1 else 0.0
        fit = Fit(training.local_epochs, training.local_steps, training.batch_size, done, seconds)
        os.write(self.descriptor, f"{json.dumps(asdict(fit))}\n".encode())  # in one piece, whoever else writes

    def new(self) -> list[Fit]:
        """The calls since this was last asked, of all silos."""
        end = os.fstat(self.descriptor).st_size
        text = os.pread(self.descriptor, end - self.read_until, self.read_until).decode()
        self.read_until = end
        return [Fit(**json.loads(line)) for line in text.splitlines()]

    def close(self) -> None:
        os.close(self.descriptor)
