"""What a model computes, by what it says of fixed inputs: code that computes something else gives other numbers."""

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..core import seeded
from .custom_model import sample

Said = tuple[float | None, ...]
"""Numbers that a model said; None for one that is not finite."""
MOST = 16
"""Numbers that are kept of each input: of more logits that many weighted sums."""
CLOSE = 1e-3
"""Numbers of other machines differ in their last bits: by less than this share of the largest."""


def said_of(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Said, Said]:
    """What a model says of fixed inputs in evaluation, then in training; nothing where it fails or draws at random.

    A copy is asked, with some of a cosine on all its parameters, since a layer that begins with zeros hides others.
    """
    x = sample(shape, dtype)
    more = 4 * x if x.is_floating_point() else (torch.arange(x.numel()) % 2).reshape(x.shape).to(dtype)
    x = torch.cat([x, more])
    return _said(model, x, False), _said(model, x, True)


def alike(one: Sequence[Said], other: Sequence[Said]) -> bool:
    """Whether the same models said these, on whatever machines."""
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Said, other: Said) -> bool:
    if len(one) != len(other):
        return False
    near = CLOSE * max((abs(value) for value in (*one, *other) if value is not None), default=0.0)
    pairs = zip(one, other, strict=True)
    return all(a == b or (a is not None and b is not None and abs(a - b) <= near) for a, b in pairs)


def _said(model: nn.Module, x: Tensor, training: bool) -> Said:
    once, again = (_once(model, x, training, seed) for seed in (0, 1))
    return once if _same(once, again) else ()


@torch.no_grad()
def _once(model: nn.Module, x: Tensor, training: bool, seed: int) -> Said:
    copy = deepcopy(model).train(training)
    for parameter in copy.parameters():
        inputs = parameter[0].numel() if parameter.ndim > 1 and len(parameter) else 25
        wave = torch.arange(parameter.numel(), dtype=torch.float64).cos().reshape(parameter.shape)
        parameter.add_((wave / (2 * math.sqrt(max(inputs, 1)))).to(parameter))
    try:
        with seeded("probe", seed):
            logits = copy(x.clone()).double()
    except Exception:  # whatever code of somebody else raises: as a model begins, it has been tried already
        return ()
    if (classes := logits.shape[-1]) > MOST:
        logits = logits @ torch.arange(classes * MOST, dtype=torch.float64).cos().reshape(classes, MOST)
    return tuple(float(f"{value:.6g}") if math.isfinite(value) else None for value in logits.flatten().tolist())
