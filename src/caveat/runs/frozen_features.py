"""Silos whose inputs are features of a frozen encoder, computed once and cached on the silo's machine."""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..core import ConfigurationError, Data, DataWarning, RunError, Silo, SiloId
from ..core.devices import CPU, brought, cache_folder, deterministic, device_model
from ..core.silo import SPLITS, AugmentedData, LazyMapping
from ..engines.silos_on_device import one_thread
from ..files import FeatureCache, hashes
from ..nn.frozen import FrozenEncoder
from ..training.modules import on_device
from .fixed_size_batches import filled, size_of

PART = 256
"""Number of inputs whose features are stored at once; a killed process loses at most these."""
KEPT = 256
"""Number of silos whose features stay in memory."""


class SilosWithFeatures(LazyMapping[Silo]):
    """Silos with features of a frozen encoder (N, W) instead of inputs, computed on access."""

    def __init__(self, silos: Mapping[SiloId, Silo], encoder: FrozenEncoder, device: torch.device = CPU) -> None:
        self.silos, self.encoder, self.device = silos, encoder, device
        super().__init__(silos, lru_cache(KEPT)(self._make))

    def _make(self, name: SiloId) -> Silo:
        silo = self.silos[name]
        check_unchanging(silo)
        train, validation, calibration, test = (self._behind(getattr(silo, split)) for split in SPLITS)
        streams = {name: self._behind(data) for name, data in silo.streams.items()}
        return replace(silo, train=train, validation=validation, calibration=calibration, test=test, streams=streams)

    def _behind(self, data: Data) -> Data:
        return Data(features_of(self.encoder, data.x, device=self.device), data.y)


def check_unchanging(silo: Silo) -> None:
    """Raise ConfigurationError for a silo whose inputs change in every batch."""
    if isinstance(silo.train, AugmentedData):
        raise ConfigurationError(
            "the encoder is frozen, so its features are computed once, but augmented inputs change with every batch: "
            "remove the augmentation, or train the encoder",
            "data.augment",
        )


def features_of(encoder: FrozenEncoder, x: Tensor, keep: bool = True, device: torch.device = CPU) -> Tensor:
    """Return the features (N, W) of inputs (N, ...), computed on a device unless cached. Stores them in the cache if
    `keep`. Inputs and features are on the CPU.

    Warns if features cannot be stored, because every process then computes them again.
    """
    cache = _cache(encoder, device)
    ids = [each for part in torch.split(x, PART) for each in hashes(part.numpy())]
    rows = torch.empty(len(ids), cache.width)  # allocated by torch, because rounding of sums depends on alignment
    found = rows.numpy()
    missing = cache.take(ids, found)
    size = PART if keep else size_of(x)
    with one_thread(), deterministic(device):
        for part in (missing[i : i + size] for i in range(0, len(missing), size)):
            inputs = x[torch.tensor(part)]
            inputs = inputs if keep else filled(inputs, size)  # for predictions, see `runs/fixed_size_batches.py`
            found[part] = encoder_on(encoder, device)(brought(inputs, device))[: len(part)].cpu().numpy()
            try:
                if keep:
                    cache.add([ids[i] for i in part], found[part])
            except (OSError, RunError) as error:
                keep = False
                warnings.warn(
                    f"features of the frozen encoder cannot be cached, so every process computes them again ({error}); "
                    f"set CAVEAT_CACHE=FOLDER to use another folder",
                    DataWarning,
                    stacklevel=2,
                )
    return rows


def _cache(encoder: FrozenEncoder, device: torch.device) -> FeatureCache:
    width = encoder.unpacked.tokens * encoder.unpacked.features + sum(encoder.unpacked.widths.values())
    name = encoder.digest[:32]
    if device.type != "cpu":  # results differ between devices and versions by rounding
        about = f"{device_model(device)} {torch.__version__}".encode()
        name = f"{name}-{device.type}-{hashlib.sha256(about).hexdigest()[:8]}"
    return _opened(cache_folder() / "features" / name, width)


@lru_cache(maxsize=1)
def encoder_on(encoder: FrozenEncoder, device: torch.device) -> FrozenEncoder:
    """Return the encoder on a device."""
    return encoder if device.type == "cpu" else replace(encoder, module=on_device(encoder.module, device))


@lru_cache(maxsize=8)
def _opened(folder: Path, width: int) -> FeatureCache:
    return FeatureCache(folder, width)


def known_rows(encoder: FrozenEncoder, ids: list[bytes], device: torch.device = CPU) -> int:
    """Return how many inputs, given by their hashes `ids`, have cached features of a device."""
    cache = _cache(encoder, device)
    return len(ids) - len(cache.take(ids, torch.empty(len(ids), cache.width).numpy()))
