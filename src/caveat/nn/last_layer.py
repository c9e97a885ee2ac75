"""The linear layer that a model ends in, whatever comes before it, and what reaches it."""

from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core import ConfigurationError


class LastLayer(NamedTuple):
    """What a model's last layer was given and said in one pass, as in evaluation."""

    name: str
    """What the layer is called in the model."""
    weight: Tensor  # (C, D), with the bias for its last column
    hidden: Tensor  # (N, D), with the 1 that the bias is for
    logits: Tensor  # (N, C)


@torch.no_grad()
def last_layer(module: nn.Module, x: Tensor) -> LastLayer:
    """One pass of (N, ...) inputs through a module, without dropout, and what its last linear layer saw.

    Raises ConfigurationError unless what the module says is what a linear layer said of (N, H) numbers.
    """
    calls: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def keep(layer: nn.Module, given: tuple[Any, ...], said: Tensor) -> None:
        if isinstance(layer, nn.Linear):
            calls[:] = [(layer, given[0], said)]

    hooks = [part.register_forward_hook(keep) for part in module.modules() if isinstance(part, nn.Linear)]
    try:
        logits = module.eval()(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not calls or calls[0][1].ndim != 2 or not _same(calls[0][2], logits):
        raise ConfigurationError(
            "uncertainty.source = 'laplace' needs a model that ends in a linear layer, which this one does not",
            "uncertainty.source",
        )
    layer, hidden, _ = calls[0]
    weight = layer.weight.detach()
    if layer.bias is not None:
        weight = torch.cat([weight, layer.bias.detach()[:, None]], 1)
        hidden = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], 1)
    (name,) = (name for name, part in module.named_modules() if part is layer)
    return LastLayer(name, weight, hidden, logits)


def unobserved(module: nn.Module) -> nn.Module:
    """A copy of a module whose passes nobody records, for those that are no part of an answer."""
    copy = deepcopy(module)
    for part in copy.modules():
        part._forward_hooks.clear()
    return copy


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one, or hold the same numbers: models of one's own may copy what they say."""
    if one.shape != other.shape or one.data_ptr() == other.data_ptr():
        return one.shape == other.shape
    return bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
