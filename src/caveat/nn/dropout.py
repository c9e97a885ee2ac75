"""Monte Carlo dropout: only dropout layers sample, and what comes before the first is computed once.

Gal & Ghahramani, Dropout as a Bayesian Approximation, ICML 2016. A pass draws one mask per layer and shows
it to every input, so that a pass is one sampled network; and the same networks are sampled every time. So an
input's prediction depends neither on when it is made nor on the inputs beside it, and silos are compared
under common random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ..core import seeded

ELEMENTWISE = (nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh)
"""Stages for which it makes no difference whether units or inputs are the first axis."""


def has_dropout(module: nn.Module) -> bool:
    """Whether any layer of the module drops anything."""
    return (isinstance(module, _DropoutNd) and module.p > 0) or any(map(has_dropout, module.children()))


def flat(module: nn.Module) -> Iterator[nn.Module]:
    """The stages of nested `nn.Sequential`s, in order."""
    if type(module).forward is nn.Sequential.forward:
        for part in module.children():
            yield from flat(part)
    else:
        yield module


@torch.no_grad()
def mc_dropout(module: nn.Module, x: Tensor, samples: int, seed: int = 0) -> Tensor:
    """(N, ...) inputs to (S, N, C) outputs of `samples` networks drawn by dropout.

    The module is used as in evaluation: BatchNorm keeps its statistics. With no dropout anywhere the
    result has one sample, since all would be equal. The networks are a function of `seed` and the module's
    layers alone, except where dropout is hidden inside a stage of its own forward.
    """
    if any(part.training for part in module.modules()):
        module.eval()
    parts = list(flat(module))
    first = next((i for i, part in enumerate(parts) if has_dropout(part)), len(parts))
    x, parts = _hidden(parts[:first], x), parts[first:]
    if not parts:
        return x[None]
    drop, linear = parts[0], parts[1] if len(parts) > 1 else None
    if isinstance(drop, nn.Dropout) and drop.p < 1 and isinstance(linear, nn.Linear) and x.ndim == 2:
        missing = _missing(samples, *linear.weight.shape, drop.p, seed)
        x, parts, generator = _thinned(linear, x, drop.p, missing), parts[2:], missing.generator
    else:
        x, generator = x.expand(samples, *x.shape), _generator(seed)
    if parts:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(generator)
            for part in parts:
                x = _pass(part, x)
    return x


def _run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    for part in parts:
        x = part(x)
    return x


def _hidden(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Run stages; the units that a linear layer and its activation end in are stored one after the other.

    That is how `_thinned` reads them, and to store them like that costs nothing here and a copy there.
    """
    if len(parts) < 2 or not (isinstance(linear := parts[-2], nn.Linear) and isinstance(parts[-1], ELEMENTWISE)):
        return _run(parts, x)
    x = _run(parts[:-2], x)
    if x.ndim != 2:
        return _run(parts[-2:], x)
    units: Tensor = parts[-1](_columns(linear, x.T))
    return units.T


def _columns(linear: nn.Linear, columns: Tensor, scale: float = 1) -> Tensor:
    """(D, N) inputs, one per column, to (H, N) outputs for `scale` times the inputs."""
    if linear.bias is None:
        return linear.weight @ columns * scale
    return torch.addmm(linear.bias[:, None], linear.weight, columns, alpha=scale)


class Missing(NamedTuple):
    """The units that S passes drop, listed for each pass and each of C outputs."""

    units: Tensor  # (M,) int64, pass by pass, in a pass output by output
    weights: Tensor  # (M,) int64, where the weight from that unit to that output is among all
    begins: Tensor  # (S * C,) int64, where the list of a pass and output begins
    generator: Tensor
    """The state of torch's generator after the masks were drawn."""


@lru_cache(maxsize=16)
def _missing(samples: int, outputs: int, units: int, p: float, seed: int) -> Missing:
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(_generator(seed))
        dropped = F.dropout(torch.ones(samples, 1, units), p) == 0
        generator = torch.get_rng_state()
    lists, unit = dropped.expand(samples, outputs, units).flatten(0, 1).nonzero(as_tuple=True)
    lengths = torch.bincount(lists, minlength=samples * outputs)
    return Missing(unit, lists % outputs * units + unit, lengths.cumsum(0) - lengths, generator)


@lru_cache(maxsize=16)
def _generator(seed: int) -> Tensor:
    """The state of torch's generator from which the networks of a seed are drawn."""
    with seeded("mc-dropout", seed):
        return torch.get_rng_state()


def _thinned(linear: nn.Linear, x: Tensor, p: float, missing: Missing) -> Tensor:
    """(N, H) hidden units, of which each pass drops some, through a linear layer; (S, N, C).

    What all units give, once, less what the missing ones would add: S p layers' work instead of S.
    """
    columns, keep = x.T.contiguous(), 1 / (1 - p)
    weights = linear.weight.flatten().index_select(0, missing.weights)
    y = F.embedding_bag(missing.units, columns, missing.begins, mode="sum", per_sample_weights=weights)
    y = y.view(-1, linear.out_features, len(x))
    return torch.sub(_columns(linear, columns, keep), y, alpha=keep, out=y).transpose(1, 2)


def _pass(part: nn.Module, x: Tensor) -> Tensor:
    """One stage on (S, N, ...), with a mask per sample that all inputs share."""
    if isinstance(part, nn.Dropout):
        return x * F.dropout(x.new_ones(len(x), 1, *x.shape[2:]), part.p)
    # Dropout inside a stage: each input draws its own masks, which nn.Dropout does by itself.
    y = _with_dropout(part, x.flatten(0, 1)) if has_dropout(part) else part(x.flatten(0, 1))
    return y.view(*x.shape[:2], *y.shape[1:])


def _with_dropout(part: nn.Module, x: Tensor) -> Tensor:
    layers = [layer for layer in part.modules() if isinstance(layer, _DropoutNd)]
    for layer in layers:
        layer.train()
    try:
        y: Tensor = part(x)
        return y
    finally:
        for layer in layers:
            layer.eval()
