"""Silos behind a frozen encoder in a rehearsal: how long it takes per input, and rows that stand for all."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ...core import Data
from ...core.devices import brought
from ...engines.one_thread import one_thread
from ...files.feature_cache import hashes
from ..behind import PART, SilosBehind, encoder_on, known_rows
from ..local import LocalRun
from .sample import Sizes

FEW = 8
"""Inputs whose rows stand for all of a split."""
SECONDS = 0.3
"""After which no more inputs are encoded to see how long it takes."""


class SilosStandingIn(SilosBehind):
    """Silos with the rows of a few inputs, over and over, which nobody keeps: they take as long to train on."""

    def _behind(self, data: Data) -> Data:
        if not len(data):
            return super()._behind(data)
        with one_thread():
            rows = self.encoder(data.x[:FEW])
        return Data(rows[torch.arange(len(data)) % len(rows)], data.y)


@dataclass(frozen=True)
class Encoding:
    """What it takes to have a frozen encoder's rows of all inputs, once."""

    seconds: float
    """Of one input."""
    inputs: int
    """Of all silos."""
    known: float
    """Share of them whose rows are kept on this machine already, by those of one silo."""
    bytes: int
    """Of a row."""


def encoding_of(run: LocalRun, sizes: Sizes, silo: str) -> Encoding | None:
    """What a run's frozen encoder takes, by some inputs of a silo; None without such an encoder."""
    if (encoder := run.frozen_encoder) is None:
        return None
    x, there = run.silos.by_name[silo].train.x, encoder_on(encoder, run.device)
    done, began = 0, time.perf_counter()
    with one_thread():
        row = there(brought(x[:1], run.device)).cpu()  # the first one takes longer
        began = time.perf_counter()
        while done < len(x) and time.perf_counter() - began < SECONDS:
            there(brought(x[done : done + 1], run.device)).cpu()
            done += 1
    seconds = (time.perf_counter() - began) / max(done, 1)
    some = x[:PART]
    known = known_rows(encoder, hashes(some.numpy()), run.device) / len(some)
    inputs = sum(sum(each.values()) for each in sizes.of.values()) * sizes.population / len(sizes.of)
    return Encoding(seconds, round(inputs), known, row.nbytes)
