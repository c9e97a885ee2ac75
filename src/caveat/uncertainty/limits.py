"""The grid of limits that a policy's uncertainty is compared with, and counts of what each limit answers.

A group of silos (the federation, the silos of a domain, one silo) compares scores with the quantiles of its own
validation scores, one list of J edges per model: an input's rank is (k + 1) / J where k edges lie below its score, and
limit j / J answers the inputs whose rank is at most that. Scores of one silo rank among those of all silos of the
group, so that an easy silo answers more inputs than a hard one at the same limit.

On MNIST, USPS, MNIST-M and house numbers the federation's promise at 5 % and 90 % answers 66 % of inputs this way and
24 % by ranks among each silo's own scores (`benchmarks/guarantee.py`, with `--rank own`). Errors predicted from
validation labels by isotonic regression, with or without an offset per silo, were tried in place of ranks on FedAvg,
FedPer and FML and gained nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import histograms
from .histograms import beside

GRID = 100
"""Limits per grid."""


def limits(size: int = GRID) -> Tensor:
    """The grid j / J for j = 1 .. J, float64, correctly rounded: `rank <= limit` is decided as in the counts."""
    return torch.arange(1, size + 1, dtype=torch.float64) / size


def score_edges(name: str, histogram: Tensor, size: int = GRID) -> Tensor:
    """(J,) float64 ascending: quantiles j / J of the scores in a histogram (4096,), as upper edges of bins.

    The last is the largest number there is, so that a score has a rank of 1 at most. Without any scores so are ranks:
    all other edges are the smallest number.
    """
    histogram = histogram.cpu()
    index = torch.searchsorted(histogram.double().cumsum(0), histogram.sum() * limits(size))
    found = histograms.edges(name)[1:][index.clamp_max(len(histogram) - 1)]
    found[-1] = torch.inf
    if not histogram.any():
        found[:-1] = -torch.inf
    return found.nan_to_num()


def ranks(edges: Tensor, scores: Tensor) -> Tensor:
    """(N,) float64 in (0, 1]: the ranks of scores (N,) among edges (J,); a score that is not a number has rank 1."""
    edges = beside(edges, scores)
    below = torch.searchsorted(edges, scores.double().nan_to_num(nan=torch.inf, posinf=torch.inf).contiguous())
    return beside(limits(len(edges)), scores)[below.clamp_max(len(edges) - 1)]


def counts(used_rank: Tensor, wrong: Tensor, size: int = GRID) -> Tensor:
    """(2, J) float64: per limit, the inputs with rank (n,) <= limit and the wrong (n,) bool ones among them."""
    return policy_counts(used_rank, None, wrong, None, size)


def policy_counts(
    r_local: Tensor | None,
    r_global: Tensor | None,
    wrong_local: Tensor | None,
    wrong_global: Tensor | None,
    size: int = GRID,
) -> Tensor:
    """(2, J) float64: per limit, the inputs answered and those answered wrongly, by one or two models.

    The policy: the local model answers where r_local <= limit, else the global one where r_global <= limit, else
    nobody. So as the limit grows an input may pass from the global model to the local one, and errors may come and
    go. All tensors are (n,), ranks in (0, 1], or infinite for an input that a model answers at no limit; None for a
    model that is not at hand. Counts are on the CPU, and those of disjoint sets of inputs add up. Raises ValueError
    where ranks or lengths do not fit.
    """
    pairs = (r_local, wrong_local), (r_global, wrong_global)
    models = [(r.cpu(), w.cpu()) for r, w in pairs if r is not None and w is not None]
    if not models or (r_local is None) != (wrong_local is None) or (r_global is None) != (wrong_global is None):
        raise ValueError("each model needs both its ranks and what it got wrong, and there must be one model at least")
    n = len(models[0][0])
    if any(tensor.shape != (n,) for model in models for tensor in model):
        raise ValueError(f"shapes {[tuple(tensor.shape) for model in models for tensor in model]} are not all ({n},)")
    # Model by model in order of precedence: it answers from its own column up to where a preceding one takes over.
    change = torch.zeros(2, size + 1, dtype=torch.float64)
    taken = torch.full((n,), size)
    for rank, wrong in models:
        if not ((rank > 0) & ((rank <= 1) | rank.isposinf())).all():
            raise ValueError("ranks must lie in (0, 1], or be infinite")
        column = torch.searchsorted(limits(size), rank.double().contiguous()).minimum(taken)
        each = torch.stack([torch.ones(n, dtype=torch.float64), wrong.double()])
        change.index_add_(1, column, each).index_add_(1, taken, -each)
        taken = column
    return change[:, :size].cumsum(1)
