"""Series standardised per channel: by each silo's own training split, or by those of all silos together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import ConfigurationError, SiloId
from .pools import Array, Pool
from .table_encoding import row_parts

Standardise = Literal["none", "silo", "federation"]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """What is taken off the channels of a series, and what they are divided by then."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    """Standard deviations; 1 for a channel that is the same everywhere."""
    masked: bool = False
    """Whether one more channel, the last, is a mask: padded steps stay zeros."""

    def __call__(self, x: Tensor) -> Tensor:
        """(N, T, C) float32 standardised, with the mask as it was where there is one."""
        rest = (0.0,) * self.masked, (1.0,) * self.masked
        means, scales = (torch.tensor([*own, *more]) for own, more in zip((self.means, self.scales), rest, strict=True))
        found = (x - means) / scales
        return found * x[..., -1:] if self.masked else found


@dataclass(frozen=True)
class StepMoments:
    """How many real steps there are, and per channel their mean and the summed squares of distances from it."""

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
        """What standardises these steps."""
        scales = np.sqrt(self.squares / max(self.count, 1))
        scales[scales <= 10 * np.finfo(np.float64).eps * np.abs(self.mean)] = 1  # constant, but for rounding
        return Scaling(tuple(self.mean.tolist()), tuple(scales.tolist()), masked)


def moments(x: Array, masked: bool) -> StepMoments:
    """Of the real steps of series (N, T, C), or (N, T, C + 1) with a mask, a part of which is looked at at a time."""
    channels = x.shape[2] - masked
    nothing = StepMoments(0, np.zeros(channels), np.zeros(channels))
    return reduce(StepMoments.__add__, (_moments(part, masked) for part in row_parts(x)), nothing)


def _moments(x: Array, masked: bool) -> StepMoments:
    steps = (x[x[..., -1] > 0][:, :-1] if masked else x.reshape(-1, x.shape[2])).astype(np.float64)
    mean = steps.mean(0) if len(steps) else np.zeros(steps.shape[1])
    return StepMoments(len(steps), mean, ((steps - mean) ** 2).sum(0))


def scalings(train: Mapping[SiloId, Array], standardise: Standardise, masked: bool) -> dict[SiloId, Scaling]:
    """By silo, what standardises its series, from training splits (N, T, C); nothing unless it is asked for."""
    if standardise == "none":
        return {}
    own = {silo: moments(x, masked) for silo, x in train.items()}
    if standardise == "silo":
        return {silo: each.scaling(masked) for silo, each in own.items()}
    return dict.fromkeys(own, _together(own.values()).scaling(masked))


def _together(several: Iterable[StepMoments]) -> StepMoments:
    return reduce(StepMoments.__add__, several)


def check_standardise(pool: Pool, standardise: Standardise) -> None:
    """Raises ConfigurationError for inputs that are no series."""
    if standardise != "none" and not pool.series:
        raise ConfigurationError(
            f"data.standardise = {standardise!r} is for series, these inputs are none; tables are standardised anyway",
            "data.standardise",
        )
