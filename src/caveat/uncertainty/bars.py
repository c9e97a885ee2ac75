"""Distributions of a number over C ordered bars: a histogram with uniform density in each bar.

Probabilities (N, C) belong to C bars with C + 1 ascending edges. Silos' targets become bars by sums that add up:
number, sum and sum of squares, then counts and sums on a grid around their mean. Bars have about equal numbers of
targets, and a number that is frequent has its own bar.

The loss compares outputs with smoothed targets: a Gaussian around the target's bar, in units of ranks (shares of all
targets), so neighboring bars are similar whatever their width. Without smoothing, many bars overfit.

Intervals are conformal (Vovk, Gammerman & Shafer, 2005): they contain all numbers whose density is at least the
quantile of the densities of calibration targets. The two outer bars have half-normal tails there, since a new target
can lie beyond all training targets.

Times to an event have the same bars over times since 0, and a last one for events after the last observed event. A
censored time says that the event is later, so bars get the falls of Kaplan and Meier's (1958) survival curve.
"""

import math

import torch
from torch import Tensor

FEWEST, MOST = 8, 64
"""Minimum and maximum number of bars."""
SMOOTHING = 0.75
"""Standard deviation of smoothed targets in ranks, times the root of the number of targets."""
CELLS, REACH = 4096, 8.0
"""Cells of the grid, which reaches so many standard deviations from the mean."""
MARGIN = 0.02
"""Distance of the outer edges from the outer targets, as a share of the range."""
HALF_NORMAL = math.log(2) - 0.5 * math.log(2 * math.pi)


def number_of_bars(targets: int) -> int:
    """Return the number of bars for this number of training targets: its root, from 8 to 64."""
    return min(max(round(math.sqrt(targets)), FEWEST), MOST)


def moments(y: Tensor) -> Tensor:
    """Return (3,) float64: number, sum and sum of squares of targets (n,), which add up over silos."""
    y = y.double()
    return torch.stack([torch.tensor(float(len(y)), dtype=torch.float64), y.sum(), y.square().sum()])


def cells(y: Tensor, added: Tensor) -> Tensor:
    """Return (2, 4096) float64: counts and sums of targets (n,) by cell of the grid that the sum of `moments` sets."""
    n, total, squares = added.tolist()
    mean = total / n
    reach = REACH * math.sqrt(max(squares / n - mean**2, 0.0)) or 1.0
    cell = ((y.double() - mean + reach) / (2 * reach) * CELLS).floor().long().clamp(0, CELLS - 1)
    counts = torch.bincount(cell, minlength=CELLS).double()
    return torch.stack([counts, torch.zeros(CELLS, dtype=torch.float64).index_add_(0, cell, y.double())])


def fitted(grid: Tensor, bars: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return edges (C + 1,), means (C,) and shares (C,) of at most `bars` bars, from the sum of `cells`. Raises
    ValueError if all targets are equal."""
    counts, sums = grid[:, grid[0] > 0]
    place = sums / counts
    count = len(counts)
    if count < 2:
        raise ValueError("all targets are equal")
    middle = counts.cumsum(0) - counts / 2
    of = torch.arange(count) if count <= bars else (bars * middle / counts.sum()).long().clamp_max(bars - 1)
    _, of = torch.unique_consecutive(of, return_inverse=True)
    first = torch.cat([torch.tensor([True]), of.diff() > 0]).nonzero()[:, 0]
    inner = (place[first[1:] - 1] + place[first[1:]]) / 2
    ends = [MARGIN * (place[-1] - place[0])] * 2
    if count <= bars:
        ends = [(place[1] - place[0]) / 2, (place[-1] - place[-2]) / 2]
    edges = torch.cat([(place[0] - ends[0])[None], inner, (place[-1] + ends[1])[None]])
    total, summed = (torch.zeros(len(first), dtype=torch.float64).index_add_(0, of, each) for each in (counts, sums))
    return edges, summed / total, total / total.sum()


def fitted_times(grid: Tensor, bars: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return edges, means and shares of at most `bars` bars for times, the last one after all events, from the sum of
    the `cells` (3, 4096): counts and sums of the times of events, and counts of censored times. Raises ValueError
    unless events have different times."""
    events, sums, censored = grid
    at_risk = (events + censored).flip(0).cumsum(0).flip(0)
    survival = (1 - events / at_risk.clamp_min(1)).cumprod(0)
    mass = -torch.cat([torch.ones(1, dtype=torch.float64), survival]).diff()
    edges, means, shares = fitted(torch.stack([mass, mass * sums / events.clamp_min(1)]), bars - 1)
    after = survival[-1:].clamp_min(1 / (1 + at_risk[0]))
    edges = torch.cat([torch.zeros(1, dtype=torch.float64), edges[1:], edges[-1:] * (1 + MARGIN)])
    return edges, torch.cat([means, edges[-2:-1]]), torch.cat([shares * (1 - after), after])


def later(bars: int) -> Tensor:
    """Return (C, C) float32: for a time censored in each bar, the share of each bar that is later."""
    found = torch.ones(bars, bars).triu(1) + 0.5 * torch.eye(bars)
    found[-1, -1] = 1.0
    return found


def likelihood(probs: Tensor, y: Tensor) -> Tensor:
    """Return (N,) probabilities of labels (N,): of a bar, or of all times after one censored in bar y - C."""
    size = probs.shape[1]
    found = probs.gather(1, y[:, None] % size)[:, 0]
    if not bool((y >= size).any()):
        return found
    after = later(size).to(probs)[y % size]
    return torch.where(y >= size, (probs * after).sum(1), found)


def smoothed(shares: Tensor, targets: int) -> Tensor:
    """Return (C, C) float32: for a target in each bar, the probabilities that the loss compares outputs with."""
    ranks = torch.cat([torch.zeros(1, dtype=torch.float64), shares.cumsum(0)])
    middle, width = (ranks[1:] + ranks[:-1]) / 2, SMOOTHING / math.sqrt(targets)
    below: Tensor = torch.special.ndtr((ranks[None] - middle[:, None]) / width)
    found = below.diff(dim=1)
    return (found / found.sum(1, keepdim=True)).float()


def place(edges: Tensor, y: Tensor) -> Tensor:
    """Return (N,) int64: the bars of numbers (N,); numbers beyond the outer edges belong to the outer bars."""
    return torch.bucketize(y.double().contiguous(), edges[1:-1], right=True)


def _below(probs: Tensor) -> Tensor:
    """Return (N, C + 1) probabilities of numbers below each edge."""
    return torch.cat([torch.zeros_like(probs[:, :1]), probs.cumsum(1)], 1).clamp_max(1.0)


def cdf(probs: Tensor, edges: Tensor, y: Tensor) -> Tensor:
    """Return (N,) probabilities of a number of at most y (N,)."""
    k = place(edges, y)[:, None]
    share = ((y - edges[k[:, 0]]) / edges.diff()[k[:, 0]]).clamp(0, 1)
    return _below(probs).gather(1, k)[:, 0] + share * probs.gather(1, k)[:, 0]


def quantile(probs: Tensor, edges: Tensor, level: float | Tensor) -> Tensor:
    """Return (N,) the quantiles at a level, or at levels (N,)."""
    below = _below(probs)
    wanted = torch.as_tensor(level, dtype=below.dtype, device=below.device).reshape(-1, 1).expand(len(probs), 1)
    k = (torch.searchsorted(below, wanted.contiguous(), right=True) - 1).clamp(0, probs.shape[1] - 1)
    share = ((wanted - below.gather(1, k)) / probs.gather(1, k).clamp_min(1e-12))[:, 0].clamp(0, 1)
    return edges[k[:, 0]] + share * edges.diff()[k[:, 0]]


def crps(probs: Tensor, edges: Tensor, y: Tensor) -> Tensor:
    """Return (N,) the continuous ranked probability score of y (N,), in its unit: the integral of (F(z) - 1[y <= z])^2
    (Gneiting & Raftery, 2007), exactly for these distributions."""
    below, width, k = _below(probs), edges.diff(), place(edges, y)[:, None]
    left, right = below[:, :-1], below[:, 1:]
    rising = width * (left**2 + left * right + right**2) / 3
    falling = width * ((1 - left) ** 2 + (1 - left) * (1 - right) + (1 - right) ** 2) / 3
    bar = torch.arange(probs.shape[1], device=probs.device)
    rest = torch.where(bar < k, rising, torch.where(bar > k, falling, 0.0)).sum(1)
    at, start, end = cdf(probs, edges, y), left.gather(1, k)[:, 0], right.gather(1, k)[:, 0]
    inside = y.clamp(edges[0], edges[-1])
    before, after = inside - edges[k[:, 0]], edges[k[:, 0] + 1] - inside
    own = before * (start**2 + start * at + at**2) / 3
    own += after * ((1 - at) ** 2 + (1 - at) * (1 - end) + (1 - end) ** 2) / 3
    return rest + own + (y - inside).abs()


def moment(probs: Tensor, edges: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return (N,) means and (N,) standard deviations, given the means of training targets by bar (C,)."""
    mean = probs @ means
    variance = probs @ (means.square() + edges.diff().square() / 12) - mean.square()
    return mean, variance.clamp_min(0).sqrt()


def surprise(probs: Tensor, edges: Tensor, y: Tensor) -> Tensor:
    """Return (N,) nats: minus the logarithm of the density at y (N,), in units of the bars' whole width; infinite for
    NaN."""
    width, k = edges.diff(), place(edges, y)[:, None]
    log_p = probs.nan_to_num(nan=0.0).gather(1, k)[:, 0].log() + (edges[-1] - edges[0]).log()
    found = log_p - width.log()[k[:, 0]]
    for bar, away in ((0, edges[1] - y), (len(width) - 1, y - edges[-2])):
        unit = width[bar] / 2
        tail = log_p + HALF_NORMAL - unit.log() - 0.5 * (away / unit).square()
        found = torch.where(k[:, 0] == bar, tail, found)
    return -found


def interval(probs: Tensor, edges: Tensor, limit: Tensor) -> Tensor:
    """Return (N, 2): the shortest intervals that contain all numbers of at most this surprise, () or (N, 1), at least
    the bar with the highest density; infinite for an infinite limit and for NaN."""
    width, last = edges.diff(), probs.shape[1] - 1
    log_p = probs.nan_to_num(nan=0.0).log() + (edges[-1] - edges[0]).log()
    density = log_p - width.log()
    within = -density <= limit
    room = limit.reshape(-1, 1).expand(len(probs), 1)[:, 0]
    reach = {}
    for bar in (0, last):
        unit = width[bar] / 2
        left = 2 * (log_p[:, bar] + HALF_NORMAL - unit.log() + room)
        within[:, bar] = left >= 0
        reach[bar] = unit * left.clamp_min(0).sqrt()
    within |= torch.nn.functional.one_hot(density.argmax(1), last + 1).bool() & ~within.any(1, keepdim=True)
    first, final = within.long().argmax(1), last - within.flip(1).long().argmax(1)
    low = torch.where((first == 0) & (reach[0] > 0), edges[1] - reach[0], edges[first])
    high = torch.where((final == last) & (reach[last] > 0), edges[last] + reach[last], edges[final + 1])
    unlimited = (room >= torch.finfo(torch.float64).max) | ~probs.isfinite().all(1)
    low, high = low.masked_fill(unlimited, -math.inf), high.masked_fill(unlimited, math.inf)
    return torch.stack([low, high], 1)
