"""The tensors of modules: put in place, copied, told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core import Tensors
from ..core.tensors import GIVEN

Kind = TypeVar("Kind", bound=nn.Module)


def expect(kind: type[Kind], module: nn.Module | None) -> Kind:
    """The module, known to be of a kind. Raises TypeError if it is not."""
    if not isinstance(module, kind):
        raise TypeError(f"the module is a {type(module).__name__}, expected a {kind.__name__}")
    return module


def frozen(module: nn.Module) -> frozenset[str]:
    """Names of the tensors that stay as the module was made: parameters that require no gradient, and all that is in a
    part whose parameters are all such, statistics of its normalisation included. They are neither sent nor kept.
    """
    named = list(module.named_parameters(remove_duplicate=False))
    names = {name for name, p in named if not p.requires_grad}
    if not names:
        return frozenset()
    for path, part in _still(module):
        names |= {f"{path}.{name}".lstrip(".") for name in part.state_dict()}
    return frozenset(names)


def _again(module: nn.Module) -> set[str]:
    """The names of parameters that are others' too: all names but the first of tensors that are tied."""
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    once = {name for name, _ in module.named_parameters()}
    return every - once


def _still(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a module that have parameters, none of which requires a gradient."""
    if all(p.requires_grad for p in module.parameters()):
        return
    for path, part in module.named_modules():
        parameters = list(part.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            yield path, part


def to_train(module: nn.Module) -> None:
    """Have a module compute as in training, but for the parts of it that are frozen."""
    module.train()
    for _, part in _still(module):
        part.eval()


def learning(module: nn.Module) -> dict[str, nn.Parameter]:
    """A module's parameters that require a gradient, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@contextmanager
def without_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within it no gradients of these parameters are computed, which takes a good part of a step of training."""
    still = list(parameters)
    for p in still:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in still:
            p.requires_grad_(True)


def tensors_of(module: nn.Module) -> Tensors:
    """A module's own tensors by name, those that are frozen left out; tied ones have the first of their names."""
    there: Tensors = module.state_dict()
    left_out = frozen(module) | _again(module)
    return {name: tensor for name, tensor in there.items() if name not in left_out} if left_out else there


def on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a module on a device; tensors that are tied stay tied."""
    found: dict[int, object] = {}
    for _, tensor in chain(module.named_parameters(), module.named_buffers()):
        there = tensor.detach().to(device)
        learns = isinstance(tensor, nn.Parameter)
        found[id(tensor)] = nn.Parameter(there, requires_grad=tensor.requires_grad) if learns else there
    return deepcopy(module, found)


def load(module: nn.Module, tensors: Tensors) -> nn.Module:
    """Put all of a module's tensors in place; a missing or unexpected name raises RuntimeError."""
    there = tensors_of(module)
    if there.keys() != tensors.keys() or any(there[name].shape != tensor.shape for name, tensor in tensors.items()):
        whole = module.state_dict() | tensors if tensors.keys() >= there.keys() else tensors
        module.load_state_dict(whole, strict=True)  # says what is wrong
    with torch.no_grad():
        for name, tensor in tensors.items():
            there[name].copy_(tensor)
    return module


def reset(module: nn.Module) -> None:
    """Have all parts of a module begin anew, whatever was in them: drawn from torch's global generator, or with the
    weights that they were given (`GIVEN`). What is frozen stays.
    """
    given: Tensors | None = getattr(module, GIVEN, None)
    if given is not None:
        there = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        with torch.no_grad():
            for name, tensor in given.items():
                there[name].copy_(tensor)
    elif callable(draw := getattr(module, "reset_parameters", None)) and _learns(module):
        draw()
    for part in module.children():
        reset(part)


def _learns(part: nn.Module) -> bool:
    """Whether none of a part's own parameters, apart from those of the parts in it, is frozen."""
    return all(p.requires_grad for p in part.parameters(recurse=False))


def snapshot(module: nn.Module, names: frozenset[str] | None = None) -> Tensors:
    """Copies of a module's tensors but the frozen ones, all or those of these names, in the layout in which they are
    sent and stored.
    """
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors_of(module).items()
        if names is None or name in names
    }


def zeros(module: nn.Module) -> Tensors:
    """A tensor of zeros for each of a module's parameters that learn."""
    return {name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in learning(module).items()}


def split(tensors: Tensors, names: frozenset[str]) -> tuple[Tensors, Tensors]:
    """The tensors outside `names`, and those in it."""
    outside = {name: tensor for name, tensor in tensors.items() if name not in names}
    return outside, {name: tensor for name, tensor in tensors.items() if name in names}


def normalisation(module: nn.Module) -> frozenset[str]:
    """Every tensor of a BatchNorm layer, weights and statistics, found by type: names differ between architectures."""
    names = frozenset(
        f"{path}.{name}"
        for path, part in module.named_modules()
        if isinstance(part, _BatchNorm)
        for name in part.state_dict()
    )
    return names - frozen(module) if names else names


def in_batches(function: Callable[[Tensor], Tensor], x: Tensor, size: int = 500, dim: int = 0) -> Tensor:
    """Apply a function to slices of `x` and join the results along `dim`, without gradients."""
    with torch.no_grad():
        return torch.cat([function(part) for part in torch.split(x, size)], dim)
