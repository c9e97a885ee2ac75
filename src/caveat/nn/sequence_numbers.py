"""A few dozen numbers of a sequence itself, by which it is told whether it is like those that a silo knows."""

import torch
import torch.nn.functional as F
from torch import Tensor

BUCKETS = 64
"""Into how many shares the ids of a sequence are counted; ids of one bucket are not told apart."""
PAIRS = 32
"""Into how many shares pairs of neighbouring ids are counted."""
CELLS = 8
"""Stretches of a series whose means stand for its course."""
QUIET = 1e-3
"""Deviations of so much count like none: what their logarithm begins at, in units of the series."""
FACTOR = 2654435761
"""Knuth's multiplicative hash: 2^32 over the golden ratio."""


def token_numbers(x: Tensor) -> dict[str, Tensor]:
    """By name, (N, d) float32 numbers of ids (N, T) int64.

    The "length": the share of steps before the run of equal ids at the end, which fills shorter sequences up, how many
    different ids and how many repeated neighbours there are, and mean and largest logarithm of an id. The "tokens":
    square roots of the shares of 64 buckets that ids are hashed into. The "order": those of pairs of neighbours, of 32.
    """
    x = x.flatten(1)
    steps = x.shape[1]
    filled = (x == x[:, -1:]).flip(1).cumprod(1).sum(1, keepdim=True) - 1  # the last id of a full sequence is its own
    real = torch.arange(steps, device=x.device) < steps - filled
    count = real.sum(1, keepdim=True).float()
    values, repeated = x.sort(1).values, (x.diff(dim=1) == 0) & real[:, 1:]
    different = (values.diff(dim=1) != 0).sum(1, keepdim=True) + 1
    logarithm = (x.double() + 1).log().float()
    mean = (logarithm * real).sum(1, keepdim=True) / count
    length = [count / steps, different / steps, repeated.sum(1, keepdim=True) / count, mean]
    return {
        "length": torch.cat([*length, logarithm.amax(1, keepdim=True)], 1),
        "tokens": _shares(_hashed(x, BUCKETS), real, BUCKETS),
        "order": _shares(_hashed(x[:, :-1] * 31 + x[:, 1:], PAIRS), real[:, 1:], PAIRS),
    }


def _hashed(ids: Tensor, buckets: int) -> Tensor:
    return (((ids % (1 << 31)) * FACTOR) % (1 << 32)) * buckets >> 32


def _shares(bucket: Tensor, real: Tensor, buckets: int) -> Tensor:
    """(N, buckets) square roots of shares, between which distances are as large for rare ids as for frequent ones."""
    counted = torch.zeros(len(bucket), buckets, device=bucket.device).scatter_add_(1, bucket, real.float())
    return (counted / real.sum(1, keepdim=True).clamp_min(1)).sqrt()


def series_numbers(x: Tensor) -> dict[str, Tensor]:
    """By name, (N, d) float32 numbers of series (N, T, C).

    Per channel the "levels": mean, least and largest value; the "changes": logarithms of the standard deviation and of
    the root mean squares of first and second differences; and the "course": the means of 8 stretches of time.
    """
    x = x.transpose(1, 2)
    mean, first = x.mean(2), x.diff(dim=2)
    changes = [_mean_square(x - mean[:, :, None]), _mean_square(first), _mean_square(first.diff(dim=2))]
    return {
        "levels": torch.cat([mean, x.amin(2), x.amax(2)], 1),
        "changes": torch.cat([(each + QUIET**2).log() / 2 for each in changes], 1),
        "course": F.adaptive_avg_pool1d(x, min(CELLS, x.shape[2])).flatten(1),
    }


def _mean_square(x: Tensor) -> Tensor:
    """(N, C) of (N, C, T), 0 where there is no step."""
    return x.square().sum(2) / max(x.shape[2], 1)
