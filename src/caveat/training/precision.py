"""Encoders that compute in bfloat16 while they train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..core import ConfigurationError


@contextmanager
def in_bfloat16(module: nn.Module) -> Iterator[None]:
    """Have a module's encoders compute in bfloat16 for a while, from float32 weights and inputs to float32 tokens.

    An encoder is what a part of the module has as its attribute `encoder`. What is behind it stays float32: it costs
    little, and losses, log-densities and Dirichlet terms need the digits. Gradients need no scale, since bfloat16 has
    float32's range. Raises ConfigurationError if there is no encoder.
    """
    parts = [getattr(part, "encoder", None) for part in module.modules()]
    encoders = {part for part in parts if isinstance(part, nn.Module)}
    if not encoders:
        raise ConfigurationError(
            f"training.precision = 'bfloat16' is for encoders, and {type(module).__name__} has none; use 'float32'"
        )
    for encoder in encoders:
        # In the instance, where it hides the class's: calls by torch.func.functional_call find it too.
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
