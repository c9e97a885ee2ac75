"""Standardization of the channels of series, of a silo or of all silos together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import ConfigurationError, SiloId
from .lazy_rows import row_parts
from .raw_samples import Array, Pool

Standardize = Literal["none", "silo", "federation"]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """Standardization of the channels of a series."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    """Standard deviations; 1 for constant channels."""
    masked: bool = False
    """Whether an additional last channel is a mask: padded steps stay zero."""

    def __call__(self, x: Tensor) -> Tensor:
        """Standardize series (N, T, C) float32; a mask does not change."""
        rest = (0.0,) * self.masked, (1.0,) * self.masked
        means, scales = (torch.tensor([*own, *more]) for own, more in zip((self.means, self.scales), rest, strict=True))
        found = (x - means) / scales
        return found * x[..., -1:] if self.masked else found


@dataclass(frozen=True)
class StepMoments:
    """Number of real steps, and per channel their mean and sum of squared deviations."""

    count: int
    mean: Numbers
    squares: Numbers

    def __add__(self, other: StepMoments) -> StepMoments:
        count = self.count + other.count
        if not count:
            return self
        apart, share = other.mean - self.mean, other.count / count
        squares = self.squares + other.squares + apart**2 * self.count * share
        return StepMoments(count, self.mean + apart * share, squares)

    def scaling(self, masked: bool) -> Scaling:
        """Return the standardization with these moments."""
        scales = np.sqrt(self.squares / max(self.count, 1))
        scales[scales <= 10 * np.finfo(np.float64).eps * np.abs(self.mean)] = 1  # constant, except for rounding
        return Scaling(tuple(self.mean.tolist()), tuple(scales.tolist()), masked)


def moments(x: Array, masked: bool) -> StepMoments:
    """Return the moments of the real steps of series (N, T, C), or (N, T, C + 1) with a mask, read in parts."""
    channels = x.shape[2] - masked
    nothing = StepMoments(0, np.zeros(channels), np.zeros(channels))
    return reduce(StepMoments.__add__, (_moments(part, masked) for part in row_parts(x)), nothing)


def _moments(x: Array, masked: bool) -> StepMoments:
    steps = (x[x[..., -1] > 0][:, :-1] if masked else x.reshape(-1, x.shape[2])).astype(np.float64)
    mean = steps.mean(0) if len(steps) else np.zeros(steps.shape[1])
    return StepMoments(len(steps), mean, ((steps - mean) ** 2).sum(0))


def scalings(train: Mapping[SiloId, Array], standardize: Standardize, masked: bool) -> dict[SiloId, Scaling]:
    """Return each silo's standardization from training splits (N, T, C); empty for "none"."""
    if standardize == "none":
        return {}
    own = {silo: moments(x, masked) for silo, x in train.items()}
    if standardize == "silo":
        return {silo: each.scaling(masked) for silo, each in own.items()}
    return dict.fromkeys(own, reduce(StepMoments.__add__, own.values()).scaling(masked))


def check_standardize(pool: Pool, standardize: Standardize) -> None:
    """Raise ConfigurationError for standardization of inputs that are not series."""
    if standardize != "none" and not pool.series:
        raise ConfigurationError(
            f"data.standardize = {standardize!r} is for series only; tables are always standardized",
            "data.standardize",
        )
