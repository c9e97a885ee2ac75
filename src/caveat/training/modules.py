"""The tensors of modules: loading, copies, names of parts, frozen parts, and encoders in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core import ConfigurationError, Tensors
from ..core.aggregation import GIVEN

Kind = TypeVar("Kind", bound=nn.Module)
_SWAPS = ContextVar["Swaps | None"]("swaps", default=None)
"""The object that replaces modules' own tensors within vectorized tasks; None elsewhere."""
LEARNS = "learns"
"""Attribute of a tensor that replaces a parameter: whether the parameter requires a gradient."""


def expect(kind: type[Kind], module: nn.Module | None) -> Kind:
    """Return the module. Raises TypeError if it is not of this kind."""
    if not isinstance(module, kind):
        raise TypeError(f"the module has type {type(module).__name__}, expected a {kind.__name__}")
    return module


def frozen(module: nn.Module) -> frozenset[str]:
    """Return names of tensors that are never trained, sent or kept. These are parameters that require no gradient, and
    all tensors of parts in which no parameter requires a gradient, including statistics of normalization."""
    named = list(module.named_parameters(remove_duplicate=False))
    names = {name for name, p in named if not _requires(p)}
    if not names:
        return frozenset()
    for path, part in _still(module):
        names |= {f"{path}.{name}".lstrip(".") for name in part.state_dict()}
    return frozenset(names)


def _requires(p: Tensor) -> bool:
    found: bool = getattr(p, LEARNS, p.requires_grad)
    return found


def _again(module: nn.Module) -> set[str]:
    """Return the names of tied parameters, except for the first name of each."""
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    once = {name for name, _ in module.named_parameters()}
    return every - once


def _still(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts of a module that have parameters, none of which requires a gradient."""
    if all(map(_requires, module.parameters())):
        return
    for path, part in module.named_modules():
        parameters = list(part.parameters())
        if parameters and not any(map(_requires, parameters)):
            yield path, part


def to_train(module: nn.Module) -> None:
    """Set a module to training mode, except for its frozen parts."""
    module.train()
    for _, part in _still(module):
        part.eval()


def learning(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return a module's parameters that require a gradient, by name."""
    return {name: p for name, p in module.named_parameters() if _requires(p)}


def current(module: nn.Module) -> Callable[[str], Tensor]:
    """Return a function from names to a module's present parameters, without gradients. They are looked up once,
    because training changes them in place; in vectorized tasks they are replaced."""
    if _SWAPS.get() is not None:
        return lambda name: attrgetter(name)(module).detach()
    return {name: p.detach() for name, p in learning(module).items()}.__getitem__


@contextmanager
def without_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Compute no gradients of these parameters within this context, which makes steps faster."""
    still = list(parameters)
    for p in still:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in still:
            p.requires_grad_(True)


def tensors_of(module: nn.Module) -> Tensors:
    """Return a module's tensors by name, without frozen ones; tied tensors appear under their first name."""
    there: Tensors = module.state_dict()
    left_out = frozen(module) | _again(module)
    return {name: tensor for name, tensor in there.items() if name not in left_out} if left_out else there


def on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a module on a device; tied tensors stay tied."""
    found: dict[int, object] = {}
    for _, tensor in chain(module.named_parameters(), module.named_buffers()):
        there = tensor.detach().to(device)
        learns = isinstance(tensor, nn.Parameter)
        found[id(tensor)] = nn.Parameter(there, requires_grad=tensor.requires_grad) if learns else there
    return deepcopy(module, found)


def load(module: nn.Module, tensors: Tensors) -> nn.Module:
    """Load all of a module's tensors. Raises RuntimeError for a missing or unexpected name."""
    if (swaps := _SWAPS.get()) is not None:
        swaps.load(module, tensors)
        return module
    there = tensors_of(module)
    if there.keys() != tensors.keys() or any(there[name].shape != tensor.shape for name, tensor in tensors.items()):
        whole = module.state_dict() | tensors if tensors.keys() >= there.keys() else tensors
        module.load_state_dict(whole, strict=True)  # raises with all differences
    with torch.no_grad():
        for name, tensor in tensors.items():
            there[name].copy_(tensor)
    return module


class Places(NamedTuple):
    """The places where the tensors of a module are stored."""

    places: list[tuple[dict[str, Tensor | None], str, str, bool]]
    """A dictionary and the key in it, the tensor's name (the first one if tied), and whether it requires a gradient."""
    loaded: dict[str, tuple[torch.Size, torch.dtype]]
    """Shapes and types of the tensors that `load` takes."""

    @classmethod
    def of(cls, module: nn.Module) -> Places:
        first: dict[int, str] = {}
        places = [
            (where, key, first.setdefault(id(tensor), f"{path}.{key}" if path else key), _requires(tensor))
            for path, part in module.named_modules()
            for where in (part._parameters, part._buffers)
            for key, tensor in where.items()
            if tensor is not None
        ]
        return cls(places, {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_of(module).items()})


class Swaps:
    """Replaces a module's own tensors, for vectorized tasks. Tensors of K silos cannot be copied into the tensors of
    one module."""

    def __init__(self, *lasting: nn.Module) -> None:
        """`lasting` are modules that exist as long as this object, so their places are looked up once."""
        self.known: dict[int, Places | None] = {id(part): None for module in lasting for part in module.modules()}
        self.own = [(where, key, where[key]) for module in lasting for where, key, *_ in Places.of(module).places]

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Let `load` replace tensors within this context. Afterwards, lasting modules have their own tensors again."""
        token = _SWAPS.set(self)
        try:
            yield
        finally:
            _SWAPS.reset(token)
            for where, key, tensor in self.own:
                where[key] = tensor

    def load(self, module: nn.Module, tensors: Tensors) -> None:
        """Replace a module's tensors, with the errors of `load` and one for types that differ from the module's."""
        there = self._places(module).loaded
        if there.keys() != tensors.keys():
            module.load_state_dict(tensors, strict=True)  # raises with all differences
        for name, tensor in tensors.items():
            if there[name] != (tensor.shape, tensor.dtype):
                raise RuntimeError(f"{name} is {(tensor.shape, tensor.dtype)}, expected {there[name]}")
        self.put(module, tensors)

    def put(self, module: nn.Module, tensors: Tensors) -> None:
        """Replace the tensors of these names, and the tensors tied to them. Each new tensor records whether the
        parameter that it replaces requires a gradient."""
        placed: Tensors = {}
        for where, key, name, learns in self._places(module).places:
            if name in tensors:
                if name not in placed:
                    placed[name] = tensor = tensors[name].view_as(
                        tensors[name]
                    )  # a view, which can have its own attribute
                    setattr(tensor, LEARNS, learns)
                where[key] = placed[name]

    def _places(self, module: nn.Module) -> Places:
        found = self.known.get(id(module)) or Places.of(module)
        if id(module) in self.known:
            self.known[id(module)] = found
        return found


def reset(module: nn.Module) -> None:
    """Initialize all parts of a module again, from torch's global generator or with given weights (`GIVEN`). Frozen
    parts are not changed."""
    given: Tensors | None = getattr(module, GIVEN, None)
    if given is not None:
        there = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        with torch.no_grad():
            for name, tensor in given.items():
                there[name].copy_(tensor)
    elif hasattr(module, "reset_parameters") and all(map(_requires, module.parameters(recurse=False))):
        module.reset_parameters()  # type: ignore[operator]
    for part in module.children():
        reset(part)


def snapshot(module: nn.Module, names: frozenset[str] | None = None) -> Tensors:
    """Return copies of a module's tensors, to send and to store: those in `names`, or all except frozen ones."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors_of(module).items()
        if names is None or name in names
    }


def zeros(module: nn.Module) -> Tensors:
    """Return a tensor of zeros for each trained parameter of a module."""
    return {name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in learning(module).items()}


def split(tensors: Tensors, names: frozenset[str]) -> tuple[Tensors, Tensors]:
    """Split tensors by name; return (those not in `names`, those in `names`)."""
    outside = {name: tensor for name, tensor in tensors.items() if name not in names}
    return outside, {name: tensor for name, tensor in tensors.items() if name in names}


def normalization(module: nn.Module) -> frozenset[str]:
    """Return the tensors of BatchNorm layers, found by type, because names differ between architectures."""
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


@contextmanager
def in_bfloat16(module: nn.Module) -> Iterator[None]:
    """Let a module's encoders compute in bfloat16 within this context, from float32 weights and inputs to float32
    tokens.

    An encoder is the attribute `encoder` of a part of the module. All later parts stay in float32: they cost little,
    and losses, log-densities and Dirichlet terms need the precision. Gradients need no scaling, because bfloat16 has
    the range of float32. Raises ConfigurationError if there is no encoder.
    """
    parts = [getattr(part, "encoder", None) for part in module.modules()]
    encoders = {part for part in parts if isinstance(part, nn.Module)}
    if not encoders:
        raise ConfigurationError(
            f"training.precision = 'bfloat16' needs an encoder, but {type(module).__name__} has none; use 'float32'"
        )
    for encoder in encoders:
        # Set on the instance, where it hides the class's method, also from torch.func.functional_call.
        encoder.__dict__["forward"] = _in_bfloat16(encoder.forward)
    try:
        yield
    finally:
        for encoder in encoders:
            del encoder.__dict__["forward"]


def _in_bfloat16(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def mixed(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return forward(x).float()

    return mixed


def path_of_part(module: nn.Module, part: str, method: str, setting: str = "stays") -> str:
    """Return the path of a module's head ("head") or of its last linear layer ("last").

    Raises ConfigurationError if the module has no such part; the error names what a custom module lacks.
    """
    if part == "head":
        if not isinstance(getattr(module, "head", None), nn.Module):
            raise ConfigurationError(
                f"{method} needs a model with a head, but {type(module).__name__} has no module `head`: give it "
                f'modules `encoder` and `head`, and let it compute head(encoder(x)), or set method.{setting} = "last" '
                "to use its last linear layer",
                "model",
            )
        return "head"
    linear = [path for path, each in module.named_modules() if isinstance(each, nn.Linear)]
    if not linear:
        text = f"{{key}} = 'last' needs a linear layer, but {type(module).__name__} has none"
        raise ConfigurationError(text, f"method.{setting}")
    return str(linear[-1])


def names_at_silo(module: nn.Module, part: str, method: str) -> frozenset[str]:
    """Return the names of the tensors of a module's head ("head") or last linear layer ("last"), which stay at a silo.

    Raises ConfigurationError if the module has no such part, or if no other parameter is trained.
    """
    inside = names_below(module, path_of_part(module, part, method))
    learned = learning(module).keys()
    if learned and not learned - inside:
        raise ConfigurationError(
            f"{{key}} = {part!r} leaves {method} no parameters to share, because none outside of this part is trained; "
            'set model.adapter, or a hidden layer (model.hidden) with method.stays = "last"',
            "method.stays",
        )
    return inside


def names_below(module: nn.Module, path: str) -> frozenset[str]:
    """Return the names of the tensors of a part of a module.

    Raises ConfigurationError if one of them is tied to a tensor outside the part, because a tensor cannot both stay and
    be sent.
    """
    inside = frozenset(f"{path}.{name}" for name in module.get_submodule(path).state_dict())
    every = dict(module.named_parameters(remove_duplicate=False))
    outside = {id(p): name for name, p in every.items() if name not in inside}
    for name in sorted(inside & every.keys()):
        if id(every[name]) in outside:
            raise ConfigurationError(
                f"{name!r} is tied to {outside[id(every[name])]!r}, so it cannot stay at the silo alone; use a "
                "method that sends the whole model (fedavg), or a model without tied weights",
                "model",
            )
    return inside
