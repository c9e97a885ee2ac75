"""Decompositions of operators into operators that every runtime has, with the same precision.

ONNX has neither digamma nor lgamma, and its translations of log1p, logsigmoid and logaddexp are too imprecise for small
uncertainties.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..nn import posterior_network, stage_features
from ..uncertainty import measures, novelty, typicality
from .onnx_operators import STEPS

aten = torch.ops.aten


def log1p(x: Tensor) -> Tensor:
    """Return ln(1 + x), exact for small x (Kahan): the rounding error of 1 + x is divided out."""
    u = 1 + x
    return torch.where(u == 1, x, u.log() * (x / torch.where(u == 1, 1.0, u - 1)))


def expm1(x: Tensor) -> Tensor:
    """Return exp(x) - 1, exact for small x."""
    u = x.exp()
    safe = (u != 1) & (u - 1 != -1)
    found = (u - 1) * (x / torch.where(safe, u, 2.0).log())
    return torch.where(u == 1, x, torch.where(u - 1 == -1, -1.0, found))


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    top = torch.maximum(a, b)
    return top + log1p((-(a - b).abs()).nan_to_num(nan=-math.inf).exp())


def logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    top = x.amax(dim, keepdim=True)
    safe = torch.where(top.abs() == math.inf, 0.0, top)
    found = (x - safe).exp().sum(dim, keepdim=True).log() + safe
    return found if keepdim else found.squeeze(dim)


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.clamp_max(x, 0) - log1p((-x.abs()).exp()), x


def entr(x: Tensor) -> Tensor:
    return x * x.clamp_min(torch.finfo(x.dtype).tiny).log().neg()  # 0 times a finite number is 0


def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    y = x * beta
    return torch.where(y > threshold, x, log1p(torch.clamp_max(y, threshold).exp()) / beta)


TERMS = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""Bernoulli numbers B_2n / 2n, the coefficients of the asymptotic series."""
SHIFT = 10
"""Shift of arguments to a range in which the series are exact to 1e-15."""


def digamma(x: Tensor) -> Tensor:
    """Return psi(x) for x > 0: the series of psi(x + 10), minus the sum of 1 / (x + k)."""
    steps = torch.arange(SHIFT, dtype=x.dtype)
    lower = (1 / (x[..., None] + steps)).sum(-1)
    z = x + SHIFT
    r, found = 1 / z.square(), torch.zeros_like(x)
    for term in reversed(TERMS):
        found = r * (term + found)
    return z.log() - 0.5 / z - found - lower


def lgamma(x: Tensor) -> Tensor:
    """Return ln Gamma(x) for x > 0: Stirling's series at x + 10, minus the logarithm of the product of x + k."""
    steps = torch.arange(SHIFT, dtype=x.dtype)
    z = x + SHIFT
    r, found = 1 / z.square(), torch.zeros_like(x)
    for n, term in reversed(list(enumerate(TERMS, 1))):
        found = term / (2 * n - 1) + r * found
    stirling = (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + found / z
    return stirling - (x[..., None] + steps).log().sum(-1)


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Tensor | None = None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sums of listed rows, as one product with the matrix of their weights."""
    if mode:
        raise NotImplementedError("embedding_bag with means is not supported")
    bags = torch.bucketize(torch.arange(len(indices)), offsets, right=True) - 1
    share = torch.zeros(len(offsets), weight.shape[0], dtype=weight.dtype)
    each = torch.ones(len(indices), dtype=weight.dtype) if weights is None else weights
    share.index_put_((bags, indices), each, accumulate=True)
    none = torch.zeros(0, dtype=torch.long)
    return share @ weight, none, none, none


def searchsorted(edges: Tensor, values: Tensor, *, right: bool = False, **other: Any) -> Tensor:
    """Return the number of edges below each value, or of those of its row if edges have rows; meant for few edges."""
    edges = edges[..., None, :] if edges.ndim > 1 else edges
    above = values[..., None] >= edges if right else values[..., None] > edges
    return above.sum(-1)


def fmin(a: Tensor, b: Tensor) -> Tensor:
    """Return the smaller of two numbers, or the other number if one is NaN."""
    return torch.where(a.isnan() | (a > b), b, a)


def fmax(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a.isnan() | (a < b), b, a)


def scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    """Replace one entry per row; more entries are not supported."""
    if index.shape[dim] != 1:
        raise NotImplementedError("scatter of several entries is not supported")
    size = [1] * x.ndim
    size[dim] = x.shape[dim]
    return torch.where(torch.arange(x.shape[dim]).view(size) == index, torch.as_tensor(value, dtype=x.dtype), x)


def index_put(x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Replace columns of a matrix, by concatenation and selection."""
    if len(indices) != 2 or indices[0] is not None or indices[1] is None or accumulate or x.ndim != 2:
        raise NotImplementedError("index_put_ is only supported for columns")
    columns = indices[1].nonzero()[:, 0] if indices[1].dtype == torch.bool else indices[1]
    order = torch.arange(x.shape[1])
    order[columns] = x.shape[1] + torch.arange(len(columns))
    return x.copy_(torch.cat([x, values], 1).index_select(1, order))


def batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return batch normalization as in evaluation."""
    epsilon, none = rest[-1], torch.zeros(0)
    scale = (var + epsilon).rsqrt() * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - mean * scale
    shape = [1, -1, *[1] * (x.ndim - 2)]
    return x * scale.view(shape) + shift.view(shape), none, none


def variance(x: Tensor, dim: Any = None, *, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    dims = dim or list(range(x.ndim))
    count = math.prod(x.shape[each] for each in dims)
    squares = (x - x.mean(dims, keepdim=True)).square().sum(dims, keepdim=keepdim)
    found: Tensor = squares / (count - (1 if correction is None else correction))
    return found


def deviation(x: Tensor, dim: Any = None, *, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    return variance(x, dim, correction=correction, keepdim=keepdim).sqrt()


def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims, none = list(range(-len(shape), 0)), torch.zeros(0)
    centerd = x - x.mean(dims, keepdim=True)
    found = centerd / (centerd.square().mean(dims, keepdim=True) + epsilon).sqrt()
    found = found if weight is None else found * weight
    return found if bias is None else found + bias, none, none


def group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, channels: int, pixels: int, groups: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    grouped, none = x.reshape(x.shape[0], groups, -1), torch.zeros(0)
    found = layer_norm(grouped, [grouped.shape[2]], None, None, epsilon)[0].reshape(x.shape)
    shape = [1, channels, *[1] * (x.ndim - 2)]
    found = found if weight is None else found * weight.view(shape)
    return found if bias is None else found + bias.view(shape), none, none


def cumprod(x: Tensor, dim: int, **other: Any) -> Tensor:
    """Return the cumulative product of booleans: whether all values so far are true."""
    if x.dtype != torch.bool:
        raise NotImplementedError("cumprod of numbers is not supported")
    return (x.logical_not().long().cumsum(dim) == 0).long()


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if ord != 2 or dtype is not None:
        raise NotImplementedError("vector_norm is only supported for order 2")
    return x.square().sum(dim, keepdim=keepdim).sqrt()


def cells(x: Tensor, size: list[int]) -> Tensor:
    """Return means over cells of images (..., H, W), as products with matrices of pixel weights."""
    if all(x.shape[dim] % count == 0 for dim, count in zip((-2, -1), size, strict=True)):
        return F.avg_pool2d(x, [x.shape[dim] // count for dim, count in zip((-2, -1), size, strict=True)])
    for dim, count in zip((-2, -1), size, strict=True):
        length = x.shape[dim]
        share = torch.zeros(length, count, dtype=x.dtype)
        for i in range(count):
            start, stop = i * length // count, -(-(i + 1) * length // count)
            share[start:stop, i] = 1 / (stop - start)
        x = (x.transpose(-2, -1) @ share).transpose(-2, -1) if dim == -2 else x @ share
    return x


OPERATORS: dict[Any, Callable[..., Any]] = {
    aten.log1p.default: log1p,
    aten.expm1.default: expm1,
    aten.special_expm1.default: expm1,
    aten.logaddexp.default: logaddexp,
    aten.logsumexp.default: logsumexp,
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten.special_entr.default: entr,
    aten.softplus.default: softplus,
    aten.digamma.default: digamma,
    aten.lgamma.default: lgamma,
    aten._embedding_bag.default: embedding_bag,
    aten._embedding_bag_forward_only.default: embedding_bag,
    aten.searchsorted.Tensor: searchsorted,
    aten.fmin.default: fmin,
    aten.fmax.default: fmax,
    aten.scatter.value: scatter_value,
    aten.index_put_.default: index_put,
    aten.native_batch_norm.default: batch_norm,
    aten.linalg_vector_norm.default: vector_norm,
    aten.cumprod.default: cumprod,
    aten.var.correction: variance,
    aten.std.correction: deviation,
    aten.native_layer_norm.default: layer_norm,
    aten.native_group_norm.default: group_norm,
    aten._adaptive_avg_pool2d.default: cells,
}
"""Replacements of operators: functions with the same arguments that use other operators."""
PLAIN = frozenset(STEPS)
"""Names of operators that are recorded without decomposition."""


def whole(batch: int, x: Tensor, split: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Split without splitting a batch: a batch is one part, and several batches are one part each."""
    if isinstance(split, int) and x.shape[dim] == batch:
        return (x,)
    if split == batch:
        return tuple(x.narrow(dim, i, batch) for i in range(0, x.shape[dim], batch))
    return torch.functional.split(x, split, dim)


def one_hot(batch: int, y: Tensor, num_classes: int = -1) -> Tensor:
    return (y[..., None] == torch.arange(num_classes)).long()


def conformal(batch: int, calibration: Tensor, new: Tensor) -> Tensor:
    return typicality.conformal_directly(calibration, new)


def typicality_p_values(batch: int, *given: Any, **named: Any) -> Tensor:
    return typicality.typicality_directly(*given, **named)


def log_distances(batch: int, *given: Tensor) -> Tensor:
    return novelty.log_distances_directly(*given)


def density(batch: int, *given: Any) -> Tensor:
    return posterior_network.density_directly(*given)


def decomposed_logits(batch: int, logits: Tensor) -> tuple[Tensor, measures.Decomposition]:
    return measures.decomposed_logits_directly(logits)


def moments(batch: int, h: Tensor) -> Tensor:
    return stage_features.moments_directly(h)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.functional.split: whole,
    torch.split: whole,
    F.one_hot: one_hot,
    typicality.conformal: conformal,
    typicality.typicality: typicality_p_values,
    novelty.log_distances: log_distances,
    measures.decomposed_logits: decomposed_logits,
    posterior_network.density: density,
    stage_features.moments: moments,
}
"""Functions that replace those of torch and caveat while recording."""
