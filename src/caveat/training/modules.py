"""The tensors of modules: put in place, copied, told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core import Tensors

Kind = TypeVar("Kind", bound=nn.Module)


def expect(kind: type[Kind], module: nn.Module | None) -> Kind:
    """The module, known to be of a kind. Raises TypeError if it is not."""
    if not isinstance(module, kind):
        raise TypeError(f"the module is a {type(module).__name__}, expected a {kind.__name__}")
    return module


def load(module: nn.Module, tensors: Tensors) -> nn.Module:
    """Put all of a module's tensors in place; a missing or unexpected name raises RuntimeError."""
    there = module.state_dict()
    if there.keys() != tensors.keys() or any(there[name].shape != tensor.shape for name, tensor in tensors.items()):
        module.load_state_dict(tensors, strict=True)  # says what is wrong
    with torch.no_grad():
        for name, tensor in tensors.items():
            there[name].copy_(tensor)
    return module


def reset(module: nn.Module) -> None:
    """Draw all parameters of a module's parts anew, from torch's global generator."""
    for part in module.modules():
        if callable(draw := getattr(part, "reset_parameters", None)):
            draw()


def snapshot(module: nn.Module, names: frozenset[str] | None = None) -> Tensors:
    """Copies of a module's tensors, all or those of these names, in the layout in which they are sent and stored."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
        if names is None or name in names
    }


def zeros(module: nn.Module) -> Tensors:
    """A tensor of zeros for each of a module's parameters."""
    return {name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in module.named_parameters()}


def split(tensors: Tensors, names: frozenset[str]) -> tuple[Tensors, Tensors]:
    """The tensors outside `names`, and those in it."""
    outside = {name: tensor for name, tensor in tensors.items() if name not in names}
    return outside, {name: tensor for name, tensor in tensors.items() if name in names}


def normalisation(module: nn.Module) -> frozenset[str]:
    """Every tensor of a BatchNorm layer, weights and statistics, found by type: names differ between architectures."""
    return frozenset(
        f"{path}.{name}"
        for path, part in module.named_modules()
        if isinstance(part, _BatchNorm)
        for name in part.state_dict()
    )


def in_batches(function: Callable[[Tensor], Tensor], x: Tensor, size: int = 500, dim: int = 0) -> Tensor:
    """Apply a function to slices of `x` and join the results along `dim`, without gradients."""
    with torch.no_grad():
        return torch.cat([function(part) for part in torch.split(x, size)], dim)
