"""What makes a model's inputs of raw ones, in operators that can be recorded: as `Preparation.prepare`, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import ConfigurationError, SiloId
from ..data import Preparation
from ..data.tables.encoding import Encoder


@dataclass(frozen=True)
class RawInputs:
    """The raw inputs that a silo's exported model takes."""

    preparation: Preparation
    silo: SiloId

    @property
    def kind(self) -> str:
        """ "images", "table", "tokens", "series" or "features"."""
        if self.preparation.images:
            return "images"
        if self.preparation.encoders:
            return "table"
        if self.preparation.sequence_format is not None:
            return self.preparation.sequence_format.kind
        return "features" if self.preparation.dtype.is_floating_point else "tokens"

    @property
    def dtype(self) -> torch.dtype:
        if self.kind == "images":
            return torch.uint8
        return torch.float32 if self.kind == "table" else self.preparation.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: (H, W) or (H, W, C) of an image, the columns of a row of a table."""
        if self.kind == "images":
            channels, *size = self.preparation.shape
            return tuple(size) if channels == 1 else (*size, channels)
        return (len(self.encoder.table),) if self.kind == "table" else self.preparation.shape

    @property
    def encoder(self) -> Encoder:
        return self.preparation.encoders[self.silo]

    def batch(self, size: int) -> Tensor:
        """Some inputs (N, ...) that are drawn at random, the same ones every time."""
        generator = torch.Generator().manual_seed(size)
        if self.kind == "images":
            return torch.randint(0, 256, (size, *self.shape), generator=generator, dtype=torch.uint8)
        if self.kind == "tokens":
            return torch.zeros(size, *self.shape, dtype=self.dtype)
        found = torch.randn(size, *self.shape, generator=generator)
        if self.kind == "table":
            for i, column in enumerate(self.encoder.table):
                if column.categories is not None:
                    codes = torch.randint(-1, len(column.categories), (size,), generator=generator)
                    found[:, i] = codes.to(found.dtype)
        return found

    def prepared(self, x: Tensor) -> Tensor:
        """(N, *shape of a model input) from raw inputs (N, ...)."""
        if self.kind == "images":
            return self._normalised(x)
        if self.silo in self.preparation.scalings:
            return self.preparation.scalings[self.silo](x)
        return encoded(self.encoder, x) if self.kind == "table" else x

    def _normalised(self, x: Tensor) -> Tensor:
        constants = self.preparation.normalise
        if constants is None:
            raise ConfigurationError("images without constants to normalise them with")
        images = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (constants.mean, constants.std))
        return images.contiguous().float().div(255).sub(mean).div(std)


def encoded(encoder: Encoder, raw: Tensor) -> Tensor:
    """(N, F) features of raw rows (N, D): what `Encoder` makes of them."""
    place = {column.name: i for i, column in enumerate(encoder.table)}
    numbers, flags, one_hot = [], [], []
    constants = iter(zip(encoder.medians, encoder.means, encoder.scales, strict=True))
    for column in encoder.layout.columns:
        i = place[column.name]
        value, own = raw[:, i], encoder.table[i].categories
        if column.categories is not None:
            one_hot += [_are(value, own or (), category) for category in column.categories]
            continue
        median, mean, scale = (torch.tensor(each, dtype=raw.dtype) for each in next(constants))
        missing = value.isnan() if own is None else torch.ones_like(value, dtype=torch.bool)
        numbers.append((torch.where(missing, median, value) - mean) / scale)
        if column.name in encoder.layout.flagged:
            flags.append(missing)
    return torch.stack([each.float() for each in (*numbers, *flags, *one_hot)], 1)


def _are(value: Tensor, categories: Sequence[str], category: str) -> Tensor:
    """(N,) bool: whether codes of one silo's categories stand for a category."""
    if category not in categories:
        return torch.zeros_like(value, dtype=torch.bool)
    return value == categories.index(category)
