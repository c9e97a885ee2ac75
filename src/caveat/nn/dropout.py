"""Monte Carlo dropout: only dropout layers sample, and what comes before the first is computed once.

Gal & Ghahramani, Dropout as a Bayesian Approximation, ICML 2016. A pass draws one mask per layer and shows
it to every input, so that a pass is one sampled network; and the same networks are sampled every time. So an
input's prediction depends neither on when it is made nor on the inputs beside it, and silos are compared
under common random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ..core import seeded


def has_dropout(module: nn.Module) -> bool:
    """Whether any layer of the module drops anything."""
    return any(isinstance(part, _DropoutNd) and part.p > 0 for part in module.modules())


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
    module.eval()
    parts = list(flat(module))
    first = next((i for i, part in enumerate(parts) if has_dropout(part)), len(parts))
    for part in parts[:first]:
        x = part(x)
    if first == len(parts):
        return x[None]
    with seeded("mc-dropout", seed):
        return _sample(parts[first:], x, samples)


def _sample(parts: list[nn.Module], x: Tensor, samples: int) -> Tensor:
    """Run stages, of which the first drops, on (N, ...); (S, N, ...)."""
    first, second = parts[0], parts[1] if len(parts) > 1 else None
    if isinstance(first, nn.Dropout) and isinstance(second, nn.Linear) and x.ndim == 2:
        # Masks on the weights instead of the inputs: the same numbers without S copies of the inputs.
        masks = F.dropout(x.new_ones(samples, 1, second.in_features), first.p)
        weights = (masks * second.weight).flatten(0, 1)
        y = F.linear(x, weights).view(len(x), samples, -1).transpose(0, 1)
        x, parts = y if second.bias is None else y + second.bias, parts[2:]
    else:
        x = x.expand(samples, *x.shape)
    for part in parts:
        x = _pass(part, x)
    return x


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
