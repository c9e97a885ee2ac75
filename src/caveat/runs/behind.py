"""Silos behind a frozen encoder: their inputs are what it says of them, computed once and kept on their machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from ..core import Data, Silo, SiloId
from ..core.silo_info import SPLITS
from ..engines.one_thread import one_thread
from ..files.feature_cache import FeatureCache, cache_folder, hashes
from ..nn.frozen import FrozenEncoder

PART = 256
"""Inputs whose rows are kept at once: what is computed when a process is killed is lost for no more than these."""
KEPT = 256
"""Silos whose rows stay in memory."""


class SilosBehind(Mapping[SiloId, Silo]):
    """Silos with rows of a frozen encoder (N, W) in place of inputs, each made when it is looked up."""

    def __init__(self, silos: Mapping[SiloId, Silo], encoder: FrozenEncoder) -> None:
        self.silos, self.encoder = silos, encoder
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
        train, validation, calibration, test = (self._behind(getattr(silo, split)) for split in SPLITS)
        streams = {name: self._behind(data) for name, data in silo.streams.items()}
        return replace(silo, train=train, validation=validation, calibration=calibration, test=test, streams=streams)

    def _behind(self, data: Data) -> Data:
        return Data(rows_of(self.encoder, data.x), data.y)


def rows_of(encoder: FrozenEncoder, x: Tensor) -> Tensor:
    """The rows (N, W) of inputs (N, ...), computed where they are not known yet."""
    cache = _cache(encoder)
    ids = hashes(x.numpy())
    missing = cache.find(ids)
    with one_thread():
        for part in (missing[i : i + PART] for i in range(0, len(missing), PART)):
            cache.add([ids[i] for i in part], encoder(x[part]).numpy())
    return torch.from_numpy(cache.rows(ids))


@lru_cache(maxsize=8)
def _cache(encoder: FrozenEncoder) -> FeatureCache:
    width = encoder.unpacked.tokens * encoder.unpacked.features + sum(encoder.unpacked.widths.values())
    return FeatureCache(cache_folder() / "features" / encoder.digest[:32], width)
