"""Dropout of stacked silos: masks are drawn outside, by each silo's own generator, as `F.dropout` would draw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .site import NotStackable


class Mask(NamedTuple):
    """One call of dropout in a step."""

    shape: torch.Size
    """Of what it drops from, at one silo."""
    dtype: torch.dtype
    p: float


class Masking(TorchFunctionMode):
    """Within it `F.dropout` takes the masks that are given, in the order of the calls; it lists them where none are."""

    def __init__(self, masks: Sequence[Tensor] | None, known: Sequence[Mask] = ()) -> None:
        """`known` is what the masks were drawn for."""
        super().__init__()
        self.masks, self.known, self.found = masks, known, list[Mask]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.dropout:
            return self._dropped(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _dropped(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0 or p == 1 or inplace or not x.numel():
            return F.dropout(x, p, training, inplace)
        mask = Mask(x.shape, x.dtype, p)
        self.found.append(mask)
        if self.masks is None:
            return x
        if len(self.found) > len(self.known) or self.known[len(self.found) - 1] != mask:
            raise NotStackable("it drops other units than before")
        return x * self.masks[len(self.found) - 1]

    def check(self) -> None:
        """Raises NotStackable unless all masks were taken."""
        if len(self.found) != len(self.known):
            raise NotStackable("it drops other units than before")


def drawn(
    masks: Sequence[Mask], generators: Sequence[torch.Generator], sizes: Sequence[int], device: torch.device
) -> list[Tensor]:
    """For each mask (K, *shape), in which every silo's part is drawn by its generator, on the CPU; on another device
    all are drawn there at once, by its own generator.

    `sizes` are the examples of silos' batches, of which the largest has the shape of the mask: smaller ones draw less.
    Raises NotStackable where examples are not along the first axis.
    """
    if device.type != "cpu":
        whole = [torch.empty(len(sizes), *mask.shape, dtype=mask.dtype, device=device) for mask in masks]
        return [each.bernoulli_(1 - mask.p).div_(1 - mask.p) for mask, each in zip(masks, whole, strict=True)]
    most, even = max(sizes), min(sizes) == max(sizes)
    if not even and any(not mask.shape or mask.shape[0] % most for mask in masks):
        raise NotStackable("what it drops is not along its examples")
    make = torch.empty if even else torch.zeros
    found = [make(len(generators), *mask.shape, dtype=mask.dtype) for mask in masks]
    parts = [each.unbind() for each in found]
    for silo, (generator, size) in enumerate(zip(generators, sizes, strict=True)):
        for mask, part in zip(masks, parts, strict=True):
            of_silo = part[silo] if size == most else part[silo][: mask.shape[0] // most * size]
            of_silo.bernoulli_(1 - mask.p, generator=generator)
    for mask, each in zip(masks, found, strict=True):
        each.div_(1 - mask.p)
    return found
