"""Models of one's own: what a `torch.nn.Module` has to be, and how it becomes a `Model` where it has the parts of one.

The contract. A module takes a batch of inputs (N, ...) and gives logits (N, C). Methods that need no more than that
train it as it is. The others need to know where it sees and where it decides: attributes `encoder` and `head`, such
that the module computes head(encoder(x)). The encoder gives features (N, D), feature maps (N, D, H, W) or tokens
(N, T, D); the head takes what the encoder gives. An `nn.Sequential` that ends in a linear layer has these parts
without naming them: all before that layer, and the layer.

A configuration names code as "package.module:name" or "file.py:name". Such a name is only ever looked up among what
this process was told to use: a folder that names code has none imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..core import ConfigurationError, seeded
from ..core.errors import shown
from .dropout import flat
from .encoders import Head, Model, Tokens

Make = Callable[..., nn.Module]
"""A module, or a function that makes one: of nothing, or of an input's shape and the number of classes."""

KNOWN: dict[str, Make] = {}
"""By its name in configurations, the code that the user of this process named."""


def code_of(code: str | Make, key: str) -> Make:
    """What a name in a configuration stands for. Raises ConfigurationError unless this process was told."""
    if not isinstance(code, str):
        return code
    if code not in KNOWN:
        raise ConfigurationError(
            f"{{key}} = {code!r} is code of one's own, which nothing but its user names: say --model {code} "
            f"on the command line, or caveat.load(RUN, model=...) in Python",
            key,
        )
    return KNOWN[code]


def name_of(code: str | Make | None) -> str | None:
    """What code is called in files: the name by which it was given, or that of the function or class."""
    if code is None or isinstance(code, str):
        return code
    named: Any = type(code) if isinstance(code, nn.Module) else code
    return f"{named.__module__}:{getattr(named, '__qualname__', type(named).__qualname__)}"


def made(code: str | Make, shape: tuple[int, ...], classes: int, seed: int, key: str) -> nn.Module:
    """A module by code of one's own, as a copy where the code is a module. Raises ConfigurationError if it is none."""
    make = code_of(code, key)
    if isinstance(make, nn.Module):
        module: Any = deepcopy(make)
    else:
        with seeded(seed, "init"):
            module = make(*(shape, classes)[: _takes(make)])
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"{{key}}: {name_of(code)} gave {shown(module)}, expected a torch.nn.Module", key)
    return module


def _takes(make: Make) -> int:
    """How many of an input's shape and the number of classes a function asks for."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return 0
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) > 2:
        raise ConfigurationError(
            f"{name_of(make)} asks for {len(needed)} arguments, expected a function of nothing, or of an input's "
            "shape and the number of classes",
            "model",
        )
    return len(needed)


def sample(shape: tuple[int, ...], dtype: torch.dtype, rows: int = 2) -> Tensor:
    """(rows, *shape) inputs to try a module with: numbers from N(0, 1), or zeros for token ids."""
    with seeded("contract"):
        return torch.randn(rows, *shape) if dtype.is_floating_point else torch.zeros(rows, *shape, dtype=dtype)


@torch.no_grad()
def said(module: nn.Module, x: Tensor, key: str) -> Tensor:
    """What a module says of inputs, as in evaluation. Raises ConfigurationError for one that cannot take them."""
    try:
        found: Any = module.eval()(x)
    except Exception as error:
        raise ConfigurationError(
            f"{{key}}: {type(module).__name__} cannot take inputs (N, {', '.join(map(str, x.shape[1:]))}) of "
            f"{str(x.dtype).removeprefix('torch.')}: {type(error).__name__}: {error}",
            key,
        ) from error
    if not isinstance(found, Tensor):
        raise ConfigurationError(f"{{key}}: {type(module).__name__} gave a {type(found).__name__}, not a tensor", key)
    return found


def as_model(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, classes: int, key: str) -> nn.Module:
    """A module as a `Model`, where it has an encoder and a head; any other as it is.

    Raises ConfigurationError for a module that does not give logits (N, classes) float32 for inputs of this shape.
    """
    x = sample(shape, dtype)
    logits = said(module, x, key)
    if logits.shape != (len(x), classes) or logits.dtype != torch.float32:
        raise ConfigurationError(
            f"{{key}}: {type(module).__name__} gives {tuple(logits.shape)} {str(logits.dtype).removeprefix('torch.')} "
            f"for {len(x)} inputs, expected ({len(x)}, {classes}) float32: a logit for each class",
            key,
        )
    if not any(True for _ in module.parameters()):
        raise ConfigurationError(f"{{key}}: {type(module).__name__} has no parameters, so that nothing can learn", key)
    if isinstance(module, Model) or (parts := parts_of(module)) is None:
        return module
    encoder, head = parts
    model = joined(encoder, head, x, key)
    if not torch.equal(said(model, x, key), said(module, x, key)):
        raise ConfigurationError(
            f"{{key}}: {type(module).__name__} has an encoder and a head, but computes something else than "
            "head(encoder(x)); have it compute that, or call these attributes something else",
            key,
        )
    return model


def parts_of(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """A module's encoder and head, if it has them."""
    encoder, head = getattr(module, "encoder", None), getattr(module, "head", None)
    if isinstance(encoder, nn.Module) and isinstance(head, nn.Module):
        return encoder, head
    if type(module) is nn.Sequential and len(module) > 1 and isinstance(module[-1], nn.Linear):
        return module[:-1], module[-1]
    return None


def joined(encoder: nn.Module, head: nn.Module, x: Tensor, key: str) -> Model:
    """An encoder and the head behind it as a `Model`. Raises ConfigurationError if no tokens lie between them."""
    features = said(encoder, x, f"{key}.encoder")
    if features.ndim not in (2, 3, 4) or not features.is_floating_point():
        raise ConfigurationError(
            f"{{key}}: the encoder gives {tuple(features.shape)} for {len(x)} inputs, expected features (N, D), "
            "feature maps (N, D, H, W) or tokens (N, T, D)",
            key,
        )
    tokens = features if features.ndim == 3 else Tokens()(features)
    encoder = encoder if features.ndim == 3 else nn.Sequential(encoder, Tokens())
    return Model(encoder, _halved(head, tuple(features.shape[1:])), *tokens.shape[1:])


def _halved(head: nn.Module, shape: tuple[int, ...]) -> Head:
    """A head on tokens, in halves: up to the units before its last linear layer and their dropout, and from there."""
    stages = list(flat(head))
    last = next((i for i in reversed(range(len(stages))) if isinstance(stages[i], nn.Linear)), 0)
    while last and isinstance(stages[last - 1], nn.Dropout):
        last -= 1
    if not last:  # nothing hidden: the tokens themselves
        return Head([nn.Flatten()], [Shaped(shape), *stages] if len(shape) > 1 else stages)
    return Head([Shaped(shape), *stages[:last]], stages[last:])


class Shaped(nn.Module):
    """Tokens (N, T, D), flattened or not, in the shape in which a head takes them: (D,), (D, H, W) or (T, D) each."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, tokens: Tensor) -> Tensor:
        if len(self.shape) < 3:
            return tokens.reshape(len(tokens), *self.shape)
        depth, *size = self.shape
        return tokens.reshape(len(tokens), -1, depth).transpose(1, 2).reshape(len(tokens), depth, *size)
