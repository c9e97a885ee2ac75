"""Random augmentation of training batches.

Random numbers are drawn on the CPU, so they do not depend on the device of the inputs.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import AugmentedData, ConfigurationError, Data
from ..core.devices import brought
from ..core.errors import short_repr
from .settings import ImageChange, Normalize

SHIFT = 1 / 8
"""crop: maximum translation, as a fraction of the image's sides."""
DEGREES = 15.0
"""rotate: maximum angle in either direction."""
LEAST, MOST = 1 / 8, 3 / 8
"""erase: minimum and maximum sides of the rectangle, as fractions of the image's sides."""
BRIGHTER = 0.2
"""brightness: maximum change of all pixels, on the 0..1 scale."""
Augment = Callable[[Tensor], Tensor]
"""A function of a batch (B, ...) that keeps its shape and draws from a global generator (torch, numpy, random)."""


def random_flip(x: Tensor) -> Tensor:
    """Mirror each image of (B, C, H, W) left to right with probability 1/2."""
    return torch.where(brought(torch.rand(len(x), 1, 1, 1) < 0.5, x.device), x.flip(3), x)


def random_crop(x: Tensor) -> Tensor:
    """Translate images by up to an eighth of their sides, repeating their edges."""
    for axis in (2, 3):
        size = x.shape[axis]
        most = max(round(size * SHIFT), 1)
        moved = torch.arange(size) + torch.randint(-most, most + 1, (len(x), 1))
        index = moved.clamp(0, size - 1).view(len(x), 1, *((-1, 1) if axis == 2 else (1, -1)))
        x = x.gather(axis, brought(index, x.device).expand_as(x))
    return x


def random_rotation(x: Tensor) -> Tensor:
    """Rotate images bilinearly by up to 15 degrees in either direction, repeating their edges."""
    angle = (torch.rand(len(x)) * 2 - 1) * math.radians(DEGREES)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(len(x))
    ratio = x.shape[2] / x.shape[3]
    turned = torch.stack([cos, -sin * ratio, zero, sin / ratio, cos, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(brought(turned, x.device), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def random_erasing(x: Tensor) -> Tensor:
    """Fill a rectangle, 1/8 to 3/8 of the sides long, with the image's mean color (Zhong et al., 2020)."""
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
    """Add up to 0.2 of the pixel range, or subtract it; `std` is the normalization constant of the images."""
    added = (torch.rand(len(x), 1, 1, 1) * 2 - 1) * BRIGHTER
    return x + brought(added / torch.tensor(std).view(1, -1, 1, 1), x.device)


CHANGES: dict[ImageChange, Augment] = {
    "flip": random_flip, "crop": random_crop, "rotate": random_rotation, "erase": random_erasing,
    "brightness": random_brightness,
}  # fmt: skip


def augmented(data: Data, augment: str | Sequence[str] | Augment, normalize: Normalize | None = None) -> AugmentedData:
    """Return training data whose batches are randomly augmented in every training step, but not in evaluations.

    `augment` is a function of a batch of model inputs (B, ...) that draws from the global generator of torch, numpy or
    random (seeded by seed, round and silo) and returns a batch of the same shape; or, for images, names of such
    functions, applied in order: "flip", "crop", "rotate", "erase", "brightness". `normalize` has the constants of the
    images. Raises ConfigurationError for other values.
    """
    if callable(augment):
        name = f"{getattr(augment, '__module__', '')}.{getattr(augment, '__qualname__', type(augment).__name__)}"
        return AugmentedData.of(data, augment, (name,))
    names = [augment] if isinstance(augment, str) else augment
    if not isinstance(names, (list, tuple)) or not names or any(name not in CHANGES for name in names):
        known = ", ".join(get_args(ImageChange))
        raise ConfigurationError(
            f"augment = {short_repr(augment)}: expected a function of a batch, or names among {known}", "data.augment"
        )
    if data.x.ndim != 4:
        raise ConfigurationError(
            f"augment = {short_repr(augment)} is for images, but these inputs have shape {tuple(data.x.shape[1:])}; "
            "expected a function of a batch",
            "data.augment",
        )
    steps: list[Any] = [CHANGES[name] for name in names]
    std = normalize.std if normalize else (0.5,)
    steps = [partial(step, std=std) if step is random_brightness else step for step in steps]

    def changed(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return AugmentedData.of(data, changed, tuple(names))
