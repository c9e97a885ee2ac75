"""Distributions of a number over C ordered bars: a histogram with uniform density in each bar.

Probabilities (N, C) belong to C bars with C + 1 ascending edges. Bars are fitted to silos' targets from sums that add
up: number, sum and sum of squares, then counts and sums on a grid, which is refined where it has many targets. Bars
have about equal numbers of targets, and a number that is frequent has its own bar.

The loss compares outputs with smoothed targets: a Gaussian around the target's bar, in units of ranks (shares of all
targets), so neighboring bars are similar whatever their width. Without smoothing, many bars overfit.

Intervals are conformal (Vovk, Gammerman & Shafer, 2005). The score of a number is the probability of numbers with a
higher density, so intervals are wide where a distribution is wide. With the density itself as score, all inputs would
have the same limit, and intervals would be too narrow where the model is unsure.

Times to an event have the same bars over times since 0, and a last bar for events after the last observed event. The
event of a censored time is later, so the share of each bar is the fall of Kaplan and Meier's (1958) survival curve in
it.
"""

import math
from collections.abc import Generator

import torch
from torch import Tensor

FEWEST, MOST = 8, 64
"""Minimum and maximum number of bars."""
SMOOTHING = 0.75
"""Standard deviation of smoothed targets in ranks, times the root of the number of targets."""
CELLS, REACH = 4096, 8.0
"""Number of cells of a grid, and of the standard deviations that the first grid reaches from the mean."""
GRIDS = 4
"""Maximum number of grids; a later grid has narrower cells where an earlier grid had many targets."""
TAIL = 0.02
"""Width of the bar for times after all events, as a share of the time before."""
MARGIN = 0.02
"""Maximum distance of the outer edges from the outer targets, as a share of the range; at most a bar's width."""


def number_of_bars(targets: int) -> int:
    """Return the number of bars for this number of training targets: its root, from 8 to 64."""
    return min(max(round(math.sqrt(targets)), FEWEST), MOST)


def moments(y: Tensor) -> Tensor:
    """Return (3,) float64: number, sum and sum of squares of targets (n,), which add up over silos."""
    y = y.double()
    return torch.stack([torch.tensor(float(len(y)), dtype=torch.float64), y.sum(), y.square().sum()])


def grid(added: Tensor) -> Tensor:
    """Return (4097,) ascending edges of cells of equal width, around the mean of targets with these summed `moments`;
    all targets are inside if none is 8 standard deviations away."""
    n, total, squares = added.tolist()
    mean = total / n
    reach = REACH * math.sqrt(max(squares / n - mean**2, 0.0)) or 1.0
    return torch.linspace(mean - reach, mean + reach, CELLS + 1, dtype=torch.float64)


def cells(y: Tensor, edges: Tensor) -> Tensor:
    """Return (2, 4096) float64: counts and sums of targets (n,) by cell of a grid, which add up over silos."""
    y = y.double()
    cell = torch.bucketize(y, edges[1:-1], right=True)
    return torch.stack(
        [torch.zeros(CELLS, dtype=torch.float64).index_add_(0, cell, each) for each in (torch.ones_like(y), y)]
    )


def refined(edges: Tensor, counts: Tensor) -> Tensor:
    """Return a grid with half of the cells by counts (4096,) and half by width, if a cell of the given grid has too
    many targets for the bars, as with a few targets far from all others."""
    if counts.max() <= counts.sum() / (2 * MOST):
        return edges
    shares = (counts / counts.sum() + edges.diff() / (edges[-1] - edges[0])) / 2
    rank = torch.cat([torch.zeros(1, dtype=torch.float64), shares.cumsum(0)])
    wanted = torch.linspace(0, float(rank[-1]), CELLS + 1, dtype=torch.float64)[1:-1]
    k = torch.searchsorted(rank[1:-1], wanted)
    inner = edges[k] + (wanted - rank[k]) / shares[k] * edges.diff()[k]
    return torch.cat([edges[:1], inner, edges[-1:]])


def counted(added: Tensor) -> Generator[Tensor, Tensor, Tensor]:
    """Yield a grid from the sum of `moments`, and up to three refined ones. Receive the sum of `cells` of each grid,
    and return the last one."""
    edges = grid(added)
    for _ in range(GRIDS):
        found = yield edges
        if (finer := refined(edges, found[0])) is edges:
            break
        edges = finer
    return found


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
    widths = inner.diff() if len(inner) > 1 else inner.new_full((1,), math.inf)
    ends = [torch.minimum(MARGIN * (place[-1] - place[0]), widths[k]) for k in (0, -1)]
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
    edges = torch.cat([torch.zeros(1, dtype=torch.float64), edges[1:], edges[-1:] * (1 + TAIL)])
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
    """Return (N,) or (N, M) probabilities of a number of at most y (N,) or (N, M)."""
    wanted = y if y.ndim == 2 else y[:, None]
    k = place(edges, wanted)
    share = ((wanted - edges[k]) / edges.diff()[k]).clamp(0, 1)
    return (_below(probs).gather(1, k) + share * probs.gather(1, k)).reshape(y.shape)


def quantile(probs: Tensor, edges: Tensor, level: float | Tensor) -> Tensor:
    """Return the quantiles (N,) at a level, or at levels (N,)."""
    below = _below(probs)
    wanted = torch.as_tensor(level, dtype=below.dtype, device=below.device).reshape(-1, 1).expand(len(probs), 1)
    k = (torch.searchsorted(below, wanted.contiguous()) - 1).clamp(0, probs.shape[1] - 1)
    share = ((wanted - below.gather(1, k)) / probs.gather(1, k).clamp_min(1e-12))[:, 0].clamp(0, 1)
    return edges[k[:, 0]] + share * edges.diff()[k[:, 0]]


def crps(probs: Tensor, edges: Tensor, y: Tensor) -> Tensor:
    """Return the continuous ranked probability scores (N,) of y (N,), in the unit of y: the integral of (F(z) - 1[y <=
    z])^2 (Gneiting & Raftery, 2007), exactly for these distributions."""
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
    """Return (N,) nats: minus the logarithm of the density at y (N,), in units of the bars' whole width; numbers beyond
    the outer edges count as in the outer bars, and NaN is infinite."""
    k = place(edges, y)[:, None]
    log_p = probs.nan_to_num(nan=0.0).gather(1, k)[:, 0].log() + (edges[-1] - edges[0]).log()
    return edges.diff().log()[k[:, 0]] - log_p


def _denser(probs: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return (N, C) probabilities of the bars before each one in the order of density, and the first bar (N, 1)."""
    order = (probs / edges.diff()).argsort(dim=1, descending=True, stable=True)
    sums = probs.gather(1, order).cumsum(1)
    before = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], 1)
    return before.gather(1, order.argsort(1)), order[:, :1]


def nonconformity(probs: Tensor, edges: Tensor, y: Tensor) -> Tensor:
    """Return (N,) nonconformity scores of y (N,): the probability of numbers with a higher density (HPD-split, Izbicki,
    Shimizu & Stern, 2022), from 0 to 1. Within a bar, numbers nearer to the densest bar come first. A number beyond the
    outer edges has a score of 1 plus its distance in units of the bars' whole width; NaN is infinite."""
    clean = probs.nan_to_num(nan=0.0)
    before, mode = _denser(clean, edges)
    k = place(edges, y)[:, None]
    low, high = edges[k], edges[k + 1]
    wanted = torch.where(
        k < mode, high - y[:, None], torch.where(k > mode, y[:, None] - low, (2 * y[:, None] - low - high).abs())
    )
    share = (wanted / (high - low)).clamp(0, 1)
    inside = (before.gather(1, k) + share * clean.gather(1, k))[:, 0].clamp_max(1)
    beyond = (edges[0] - y).clamp_min(0) + (y - edges[-1]).clamp_min(0)
    found = torch.where(beyond > 0, 1 + beyond / (edges[-1] - edges[0]), inside)
    return found.masked_fill(~probs.isfinite().all(1), math.inf)


def interval(probs: Tensor, edges: Tensor, limit: Tensor) -> Tensor:
    """Return (N, 2): the shortest intervals that contain all numbers whose nonconformity is at most a limit, () or (N,
    1); infinite for an infinite limit and for NaN."""
    room = limit.reshape(-1, 1).expand(len(probs), 1)
    clean, width = probs.nan_to_num(nan=0.0), edges.diff()
    before, mode = _denser(clean, edges)
    share = torch.where(clean > 0, (room - before) / clean, 1.0).clamp(0, 1)
    reach = share * width
    bar = torch.arange(len(width), device=probs.device)
    center = (edges[1:] + edges[:-1]) / 2
    low = torch.where(bar < mode, edges[1:] - reach, torch.where(bar > mode, edges[:-1], center - reach / 2))
    high = torch.where(bar < mode, edges[1:], torch.where(bar > mode, edges[:-1] + reach, center + reach / 2))
    outside = before > room
    beyond = (room[:, 0] - 1).clamp_min(0) * (edges[-1] - edges[0])
    found = torch.stack([
        low.masked_fill(outside, math.inf).amin(1) - beyond, high.masked_fill(outside, -math.inf).amax(1) + beyond
    ], 1)  # fmt: skip
    unlimited = (room[:, 0] >= torch.finfo(torch.float64).max) | ~probs.isfinite().all(1)
    endless = torch.tensor([-math.inf, math.inf], dtype=found.dtype, device=found.device)
    return torch.where(unlimited[:, None], endless, found)
