"""Silos whose inputs are the features of a frozen encoder, computed once and cached on their own machine."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..core import ConfigurationError, Data, DataWarning, RunError, Silo, SiloId
from ..core.devices import CPU, brought, cache_folder, deterministic, device_model
from ..core.silo import SPLITS, AugmentedData
from ..engines.placement import one_thread
from ..files.tensors import FeatureCache, hashes
from ..nn.frozen import FrozenEncoder
from ..training.modules import on_device

PART = 256
"""Inputs whose rows are kept at once: what is computed when a process is killed is lost for no more than these."""
KEPT = 256
"""Silos whose rows stay in memory."""


class SilosBehind(Mapping[SiloId, Silo]):
    """Silos with rows of a frozen encoder (N, W) in place of inputs, each made when it is looked up."""

    def __init__(self, silos: Mapping[SiloId, Silo], encoder: FrozenEncoder, device: torch.device = CPU) -> None:
        self.silos, self.encoder, self.device = silos, encoder, device
        self._made = lru_cache(KEPT)(self._make)

    def __len__(self) -> int:
        return len(self.silos)

    def __iter__(self) -> Iterator[SiloId]:
        return iter(self.silos)

    def __contains__(self, name: object) -> bool:
        return name in self.silos

    def __getitem__(self, name: SiloId) -> Silo:
        return self._made(name)

    def _make(self, name: SiloId) -> Silo:
        silo = self.silos[name]
        check_unchanging(silo)
        train, validation, calibration, test = (self._behind(getattr(silo, split)) for split in SPLITS)
        streams = {name: self._behind(data) for name, data in silo.streams.items()}
        return replace(silo, train=train, validation=validation, calibration=calibration, test=test, streams=streams)

    def _behind(self, data: Data) -> Data:
        return Data(rows_of(self.encoder, data.x, device=self.device), data.y)


def check_unchanging(silo: Silo) -> None:
    """Raises ConfigurationError for a silo whose inputs are others in every batch."""
    if isinstance(silo.train, AugmentedData):
        raise ConfigurationError(
            "the model's encoder is frozen, so that silos compute what it says once, and augmented inputs change with "
            "every batch: leave out the augmentation, or have the encoder learn",
            "data.augment",
        )


def rows_of(encoder: FrozenEncoder, x: Tensor, keep: bool = True, device: torch.device = CPU) -> Tensor:
    """The rows (N, W) of inputs (N, ...), computed on a device where they are not known yet; those are kept, unless
    told not to. Inputs and rows are on the CPU.

    Warns where they cannot be kept: every process computes them anew then.
    """
    cache = _cache(encoder, device)
    ids = [each for part in torch.split(x, PART) for each in hashes(part.numpy())]
    rows = torch.empty(len(ids), cache.width)  # in torch's memory: last bits of sums depend on where numbers lie
    found = rows.numpy()
    missing = cache.take(ids, found)
    with one_thread(), deterministic(device):
        for part in (missing[i : i + PART] for i in range(0, len(missing), PART)):
            found[part] = encoder_on(encoder, device)(brought(x[torch.tensor(part)], device)).cpu().numpy()
            try:
                if keep:
                    cache.add([ids[i] for i in part], found[part])
            except (OSError, RunError) as error:
                keep = False
                warnings.warn(
                    f"what the frozen encoder says of inputs cannot be kept, and every process computes it anew "
                    f"({error}); CAVEAT_CACHE=FOLDER names another folder",
                    DataWarning,
                    stacklevel=2,
                )
    return rows


def _cache(encoder: FrozenEncoder, device: torch.device) -> FeatureCache:
    width = encoder.unpacked.tokens * encoder.unpacked.features + sum(encoder.unpacked.widths.values())
    name = encoder.digest[:32]
    if device.type != "cpu":  # other devices, and other versions of torch there, have other last bits
        about = f"{device_model(device)} {torch.__version__}".encode()
        name = f"{name}-{device.type}-{hashlib.sha256(about).hexdigest()[:8]}"
    return _opened(cache_folder() / "features" / name, width)


@lru_cache(maxsize=1)
def encoder_on(encoder: FrozenEncoder, device: torch.device) -> FrozenEncoder:
    """The encoder on a device."""
    return encoder if device.type == "cpu" else replace(encoder, module=on_device(encoder.module, device))


@lru_cache(maxsize=8)
def _opened(folder: Path, width: int) -> FeatureCache:
    return FeatureCache(folder, width)


def known_rows(encoder: FrozenEncoder, ids: list[bytes], device: torch.device = CPU) -> int:
    """How many of the inputs with these hashes have rows of a device that are kept."""
    cache = _cache(encoder, device)
    return len(ids) - len(cache.take(ids, torch.empty(len(ids), cache.width).numpy()))
