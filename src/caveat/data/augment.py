"""Random changes of training inputs, drawn anew for every batch: what a silo does with its own data as it trains.

They are drawn on the CPU, the same ones wherever the inputs lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import AugmentedData, ConfigurationError, Data
from ..core.devices import brought
from ..core.errors import shown
from .settings import ImageChange, Normalise

SHIFT = 1 / 8
"""crop: the most that an image is moved, as a share of its sides."""
DEGREES = 15.0
"""rotate: the most that an image is turned, either way."""
LEAST, MOST = 1 / 8, 3 / 8
"""erase: the sides of the rectangle, as shares of those of the image."""
BRIGHTER = 0.2
"""brightness: the most that is added to or taken from all pixels, on the 0..1 scale."""

Augment = Callable[[Tensor], Tensor]
"""A batch of inputs (B, ...) to one of the same shape, drawn from torch's global generator."""


def random_flip(x: Tensor) -> Tensor:
    """Images (B, C, H, W), each mirrored left to right with probability 1/2."""
    return torch.where(brought(torch.rand(len(x), 1, 1, 1) < 0.5, x.device), x.flip(3), x)


def random_crop(x: Tensor) -> Tensor:
    """Images moved by up to an eighth of their sides, their edges repeated into what becomes free."""
    for axis in (2, 3):
        size = x.shape[axis]
        most = max(round(size * SHIFT), 1)
        moved = torch.arange(size) + torch.randint(-most, most + 1, (len(x), 1))
        index = moved.clamp(0, size - 1).view(len(x), 1, *((-1, 1) if axis == 2 else (1, -1)))
        x = x.gather(axis, brought(index, x.device).expand_as(x))
    return x


def random_rotation(x: Tensor) -> Tensor:
    """Images turned by up to 15 degrees either way, bilinear, their edges repeated into what becomes free."""
    angle = (torch.rand(len(x)) * 2 - 1) * math.radians(DEGREES)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(len(x))
    ratio = x.shape[2] / x.shape[3]
    turned = torch.stack([cos, -sin * ratio, zero, sin / ratio, cos, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(brought(turned, x.device), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def random_erasing(x: Tensor) -> Tensor:
    """Images of which a rectangle, 1/8 to 3/8 of the sides long, has the image's mean colour (Zhong et al., 2020)."""
    inside = torch.ones(len(x), 1, 1, 1, dtype=torch.bool)
    for axis in (2, 3):
        size = x.shape[axis]
        length = (torch.rand(len(x), 1) * (MOST - LEAST) + LEAST) * size
        start = torch.rand(len(x), 1) * (size - length)
        place = torch.arange(size) + 0.5
        within = (place >= start) & (place < start + length)
        inside = inside & within.view(len(x), 1, *((-1, 1) if axis == 2 else (1, -1)))
    return torch.where(brought(inside, x.device), x.mean((2, 3), keepdim=True), x)


def random_brightness(x: Tensor, std: tuple[float, ...] = (0.5,)) -> Tensor:
    """Images with up to 0.2 of the range of pixels added to or taken from all; `std` is what they were divided by."""
    added = (torch.rand(len(x), 1, 1, 1) * 2 - 1) * BRIGHTER
    return x + brought(added / torch.tensor(std).view(1, -1, 1, 1), x.device)


CHANGES: dict[ImageChange, Augment] = {
    "flip": random_flip, "crop": random_crop, "rotate": random_rotation, "erase": random_erasing,
    "brightness": random_brightness,
}  # fmt: skip


def augmented(data: Data, augment: str | Sequence[str] | Augment, normalise: Normalise | None = None) -> AugmentedData:
    """Training data whose batches are changed at random whenever training takes one.

    `augment` is a function of a batch of inputs (B, ...) as models take them, which draws from torch's global generator
    (seeded by seed, round and silo) and returns one of the same shape; or for images names of such, one after the
    other: "flip", "crop", "rotate", "erase", "brightness". `normalise` are the constants of the images. Nothing but
    steps of training sees changed inputs. Raises ConfigurationError for what is none of these.
    """
    if callable(augment):
        name = f"{getattr(augment, '__module__', '')}.{getattr(augment, '__qualname__', type(augment).__name__)}"
        return AugmentedData.of(data, augment, (name,))
    names = [augment] if isinstance(augment, str) else augment
    if not isinstance(names, (list, tuple)) or not names or any(name not in CHANGES for name in names):
        known = ", ".join(get_args(ImageChange))
        raise ConfigurationError(
            f"augment = {shown(augment)}: expected a function of a batch, or some of {known}", "data.augment"
        )
    if data.x.ndim != 4:
        raise ConfigurationError(
            f"augment = {shown(augment)} is for images, these inputs have shape {tuple(data.x.shape[1:])}; "
            "expected a function of a batch",
            "data.augment",
        )
    steps: list[Any] = [CHANGES[name] for name in names]
    std = normalise.std if normalise else (0.5,)
    steps = [partial(step, std=std) if step is random_brightness else step for step in steps]

    def changed(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return AugmentedData.of(data, changed, tuple(names))
