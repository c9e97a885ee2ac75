"""Custom models: the requirements on a `torch.nn.Module`, and its conversion to a `Model` if it has an encoder and a
head.

The contract: a module maps a batch of inputs (N, ...) to logits (N, C). Methods that need no more train it unchanged.
Other methods need the attributes `encoder` and `head`, such that the module computes head(encoder(x)), with or without
a flatten in between. The encoder returns features (N, D), feature maps (N, D, H, W) or tokens (N, T, D), which the head
takes. In an `nn.Sequential` that ends in a linear layer, the parts need no names: the head is that layer, and the
encoder everything before it.

A module starts with its current weights; weights that a function draws at random are drawn again if a method or an
ensemble needs another initialization. A given module is copied and never changed.

A configuration names code as "package.module:name" or "file.py:name". Such a name is only looked up among the code that
the user of this process named: code is never imported because a folder names it.
"""

import inspect
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from ..core import ConfigurationError, DataWarning, seeded
from ..core.aggregation import GIVEN
from ..core.errors import message_of, short_repr
from .dropout import flat
from .efficientnet import lite0, lite0_128
from .encoders import Head, Model, Tokens
from .model_checks import check_calls, name_of_dtype, probe_output, sample

Make = Callable[..., nn.Module]
"""A module, or a function that returns one, without arguments or from an input's shape and the number of classes."""

KNOWN: dict[str, Make] = {}
"""The code that the user of this process named, by its name in configurations."""

SHIPPED: dict[str, Make] = {f"{make.__module__}:{make.__name__}": make for make in (lite0, lite0_128)}
"""Built-in encoders by name. A folder may name them even if the user does not."""


def make_known(name: str, code: Make) -> None:
    """Register code that a program imports itself under its name in configurations."""
    KNOWN[name] = code


def code_of(code: str | Make, key: str) -> Make:
    """Return the code for a configuration's name. Raises ConfigurationError unless the user named the code."""
    if not isinstance(code, str):
        return code
    found = KNOWN.get(code, SHIPPED.get(code))
    if found is None:
        raise ConfigurationError(
            f"{{key}} = {code!r} is custom code, and a folder cannot make caveat import code: name the code yourself, "
            f"with --model {code} on the command line or caveat.load(RUN, model=...) in Python",
            key,
        )
    return found


def name_of(code: str | Make | None) -> str | None:
    """Return the name of code in files: the name under which it was given, or the name of the function or class."""
    if code is None or isinstance(code, str):
        return code
    named: Any = type(code) if isinstance(code, nn.Module) else code
    return f"{named.__module__}:{getattr(named, '__qualname__', type(named).__qualname__)}"


def made(code: str | Make, shape: tuple[int, ...], dtype: torch.dtype, classes: int, seed: int, key: str) -> nn.Module:
    """Return a module made by custom code, or a copy if the code is a module; initial tensors are marked (`remember`).
    Raises ConfigurationError if the code fails or returns no module."""
    make = code_of(code, key)
    given = None if isinstance(make, nn.Module) else _takes(make, key)

    def once(*purpose: object) -> nn.Module:
        with seeded(seed, "init", *purpose):
            module: Any = make if given is None else make(*(shape, classes)[:given])
            if not isinstance(module, nn.Module):
                text = f"{{key}}: {name_of(code)} returned {short_repr(module)}, expected a torch.nn.Module"
                raise ConfigurationError(text, key)
            for part in module.modules():
                scripted = isinstance(part, torch.jit.ScriptModule)
                if scripted or "_orig_mod" in part._modules:
                    name = type(part if scripted else part._modules["_orig_mod"]).__name__
                    text = f"{name} is compiled ({'torch.jit' if scripted else 'torch.compile'})"
                    raise ConfigurationError(f"{{key}}: {text}, expected the original module", key)
            # A function, too, may return a module that others use. Torch does not copy buffers without a size.
            unsized = {id(buffer): UninitializedBuffer() for buffer in module.buffers() if is_lazy(buffer)}
            copy: nn.Module = deepcopy(module, unsized)
            if any(map(is_lazy, (*copy.parameters(), *copy.buffers()))):
                copy.eval()(sample(shape, dtype))  # lazy modules infer their inputs' size
            return copy

    try:
        module = once()
        _check_tensors(module, key)
        remember(module, None if given is None else once("again"))
    except ConfigurationError:
        raise
    except Exception as error:
        arguments = (f"shape = {shape}", f"classes = {classes}")[: given or 0]
        called = f", called with {' and '.join(arguments)}, fails" if arguments else " fails"
        raise ConfigurationError(f"{{key}}: {name_of(code)}{called}: {message_of(error)}", key) from error
    return module


def remember(module: nn.Module, other: nn.Module | None = None) -> None:
    """Store in each part of a module the initial tensors that must not be drawn again.

    These are all tensors if `other` is None. Otherwise `other` is the module made with another seed: tensors that are
    equal in both were not drawn at random. Tensors of parts without `reset_parameters`, which cannot be drawn again,
    are stored, too.
    """
    others = dict(other.named_modules()) if other is not None else {}
    for path, part in module.named_modules():
        own = _own_tensors(part)
        twin = _own_tensors(others[path]) if path in others else None
        drawn = twin is not None and callable(getattr(part, "reset_parameters", None)) and not _same(own, twin)
        if own and not drawn:
            setattr(part, GIVEN, {name: tensor.detach().clone() for name, tensor in own.items()})


def forget(module: nn.Module) -> None:
    """Remove the stored initial tensors from all parts of a module."""
    for part in module.modules():
        vars(part).pop(GIVEN, None)


def _own_tensors(part: nn.Module) -> dict[str, Tensor]:
    """Return a part's own parameters and buffers, without its submodules'."""
    return dict(part.named_parameters(recurse=False)) | dict(part.named_buffers(recurse=False))


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _check_tensors(module: nn.Module, key: str) -> None:
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        learns = isinstance(tensor, nn.Parameter)
        if tensor.device.type != "cpu":
            wrong = f"{name!r} on {tensor.device}, expected the CPU: call "
            wrong += '.to_empty(device="cpu") on it and load its weights' if tensor.is_meta else ".cpu() on it"
        elif tensor.dtype != torch.float32 if learns else tensor.is_complex():
            wrong = f"{name!r} in {name_of_dtype(tensor.dtype)}, expected float32: "
            wrong += "store real and imaginary part separately" if tensor.is_complex() else "call .float() on it"
        elif learns and not tensor.isfinite().all():
            wrong = f"NaN or infinity in {name!r}" + ("" if tensor.requires_grad else ": make a constant a buffer")
        else:
            continue
        raise ConfigurationError(f"{{key}}: {type(module).__name__} has {wrong}", key)


def _takes(make: Make, key: str) -> int:
    """Return how many of the two arguments, input shape and number of classes, a function takes."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return 0
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) > 2:
        raise ConfigurationError(
            f"{{key}}: {name_of(make)} takes {len(needed)} arguments ({', '.join(p.name for p in needed)}), "
            "expected no arguments, or an input's shape and the number of classes",
            key,
        )
    return len(needed)


def as_model(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, classes: int, key: str) -> nn.Module:
    """Return a module as a `Model` if it has an encoder and a head, otherwise unchanged. Raises ConfigurationError for
    a module that does not return logits (N, classes) float32 for inputs of this shape."""
    x = sample(shape, dtype)
    logits = probe_output(module, x, key)
    if logits.shape != (len(x), classes) or logits.dtype != torch.float32:
        raise ConfigurationError(
            f"{{key}}: {type(module).__name__} returns {tuple(logits.shape)} {name_of_dtype(logits.dtype)} "
            f"for {len(x)} inputs, expected ({len(x)}, {classes}) float32: a logit for each class",
            key,
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigurationError(
            f"{{key}}: {type(module).__name__} has no parameter that requires a gradient, so nothing can be trained",
            key,
        )
    if bool((logits >= 0).all()) and torch.allclose(logits.sum(1), torch.ones(len(x)), rtol=0, atol=1e-4):
        warnings.warn(
            f"{key}: {type(module).__name__} returns probabilities, expected logits: with a softmax at its end it "
            "learns badly, and its uncertainties are too large; remove the softmax",
            DataWarning,
            stacklevel=2,
        )
    check_calls(module, shape, dtype, key)
    _lay_out(module, x)
    if isinstance(module, Model):
        module.shape = shape_of(x)
    if isinstance(module, Model) or (parts := parts_of(module)) is None:
        return module
    encoder, head = parts
    for between in (head, nn.Sequential(nn.Flatten(), head)):
        if (model := _alike(encoder, between, x, logits, key)) is not None:
            return model
    return module  # treated as without these parts; a method that needs them raises an error


def _alike(encoder: nn.Module, head: nn.Module, x: Tensor, logits: Tensor, key: str) -> Model | None:
    """Return an encoder and a head as a `Model` if this computes the same logits for the inputs, else None."""
    try:
        model = joined(encoder, head, x, key)
        found = probe_output(model, x, key)
    except ConfigurationError:
        return None
    same = found.shape == logits.shape and torch.allclose(found, logits, rtol=0, atol=0, equal_nan=True)
    return model if same else None


def _lay_out(module: nn.Module, x: Tensor) -> None:
    """Convert images to channels-first memory before a module whose code cannot take them otherwise. Silos store images
    with channels last, which is the fastest format for convolutions."""
    if x.ndim != 4:
        return
    try:
        with torch.no_grad():
            module(x.to(memory_format=torch.channels_last))
    except RuntimeError:
        next(flat(module)).register_forward_pre_hook(_channels_first)


def _channels_first(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *others = given
    return x.clone(memory_format=torch.contiguous_format), *others


def parts_of(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """Return a module's encoder and head, if it has them."""
    encoder, head = getattr(module, "encoder", None), getattr(module, "head", None)
    if isinstance(encoder, nn.Module) and isinstance(head, nn.Module):
        return encoder, head
    stages = list(flat(module)) if type(module) is nn.Sequential else []
    if len(stages) > 1 and isinstance(stages[-1], nn.Linear):
        return nn.Sequential(*stages[:-1]), stages[-1]
    return None


def joined(encoder: nn.Module, head: nn.Module, x: Tensor, key: str) -> Model:
    """Return an encoder and its head as a `Model`. Raises ConfigurationError unless there are tokens between them."""
    features = probe_output(encoder, x, key)
    if features.ndim not in (2, 3, 4) or not features.is_floating_point():
        raise ConfigurationError(
            f"{{key}}: the encoder returns {tuple(features.shape)} for {len(x)} inputs, expected features (N, D), "
            "feature maps (N, D, H, W) or tokens (N, T, D)",
            key,
        )
    tokens = features if features.ndim == 3 else Tokens()(features)
    encoder = encoder if features.ndim == 3 else nn.Sequential(encoder, Tokens())
    _, count, width = tokens.shape
    return Model(encoder, _halved(head, features), count, width, shape_of(x))


def shape_of(x: Tensor) -> tuple[int, ...] | None:
    """Return the shape of an input among inputs (N, ...); None for token ids."""
    return tuple(x.shape[1:]) if x.is_floating_point() else None


def _halved(head: nn.Module, features: Tensor) -> Head:
    """Return a head on tokens in two halves: up to the units before its last linear layer, and from their dropout."""
    shape = tuple(features.shape[1:])
    stages = list(flat(head))
    last = next((i for i in reversed(range(len(stages))) if isinstance(stages[i], nn.Linear)), 0)
    while last and isinstance(stages[last - 1], nn.Dropout):
        last -= 1
    if (
        not last or probe_output(nn.Sequential(*stages[:last]), features, "").ndim != 2
    ):  # no hidden units: the tokens themselves
        return Head([nn.Flatten()], [Shaped(shape), *stages] if len(shape) > 1 else stages)
    return Head([Shaped(shape), *stages[:last]], stages[last:])


class Shaped(nn.Module):
    """Reshapes tokens (N, T, D), flattened or not, to the input shape of a head: (D,), (D, H, W) or (T, D)."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, tokens: Tensor) -> Tensor:
        if len(self.shape) < 3:
            return tokens.reshape(len(tokens), *self.shape)
        depth, *size = self.shape
        return tokens.reshape(len(tokens), -1, depth).transpose(1, 2).reshape(len(tokens), depth, *size)
