"""Tensors brought to where others lie."""

from __future__ import annotations

from torch import Tensor


def beside(tensor: Tensor, other: Tensor) -> Tensor:
    """A tensor on the device of another one, without waiting until it is there where that is safe."""
    return tensor.to(other.device, non_blocking=other.is_cuda)
