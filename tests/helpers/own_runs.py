"""Three silos of two numbers and three classes, and quick runs of own models on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from own_models import Plain
from torch import Tensor

import caveat
from caveat.data.silo_collection import Silos
from caveat.files import read_payload

MODEL = Path("model", "model.safetensors")
FAST = caveat.Training(batch_size=16, lr=0.02)


def three_silos() -> Silos:
    rng = np.random.default_rng(0)
    arrays = {}
    for k in range(3):
        x = rng.normal(size=(100, 2)).astype(np.float32) + k
        arrays[f"s{k}"] = x, (x.sum(1) > 2 * k).astype(np.int64) + (x[:, 0] > k + 0.7)
    return caveat.data.from_arrays(arrays, split=caveat.data.Split(calibration=0.1))


def run(silos: Silos, out: Path, method: caveat.FedAvg | None = None, **more: Any) -> caveat.Run:
    given = {"model": Plain, "rounds": 2, "training": FAST} | more
    return caveat.run(silos, method or caveat.FedAvg(), out=out, **given)


def model_of(run: caveat.Run) -> dict[str, dict[str, Tensor]]:
    return read_payload(run.folder / MODEL)
