"""Transforms of inputs: the shifts of silos, and random augmentation of training batches.

Augmentation is drawn on the CPU, so it does not depend on the device of the inputs.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import AugmentedData, ConfigurationError, Data
from ..core.devices import brought
from ..core.errors import short_repr
from .preprocessing import SequenceFormat
from .raw_samples import Array, Pool
from .settings import DataSettings, ImageChange, Normalize, Shift

CHUNK = 1024
"""Number of images rotated at once, which bounds the memory for float32 copies."""
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


def rotate(images: Array, degrees: float) -> Array:
    """Rotate images (N, H, W, C) uint8 counter-clockwise, bilinearly, filling with black.

    The center is the pixel coordinate (W / 2, H / 2), half a pixel right of and below the middle, as in OpenCV code
    and in the published experiments.
    """
    height, width = images.shape[1:3]
    corners = _corners(height, width, degrees)
    flat = images.reshape(len(images), height * width, -1)
    rotated = np.empty_like(flat)
    for start in range(0, len(flat), CHUNK):
        chunk = flat[start : start + CHUNK]
        total = np.zeros(chunk.shape, dtype=np.float32)
        for index, weight in corners:
            total += chunk[:, index] * weight[:, None]
        rotated[start : start + CHUNK] = np.rint(total).astype(np.uint8)
    return rotated.reshape(images.shape)


def _corners(height: int, width: int, degrees: float) -> list[tuple[Array, Array]]:
    """Return, for each of the four neighbors of an output pixel's origin, flat index and weight, both (H * W,)."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    y, x = np.mgrid[:height, :width].reshape(2, -1) - np.array([[height / 2], [width / 2]])
    from_x, from_y = cos * x - sin * y + width / 2, sin * x + cos * y + height / 2
    left, top = np.floor(from_x).astype(int), np.floor(from_y).astype(int)
    corners = []
    for down in (0, 1):
        for right in (0, 1):
            column, row = left + right, top + down
            weight = (1 - np.abs(from_x - column)) * (1 - np.abs(from_y - row))
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            index = np.where(inside, row * width + column, 0)
            corners.append((index, np.where(inside, weight, 0).astype(np.float32)))
    return corners


def apply_shift(x: Array, angle: float, std: float, generator: np.random.Generator) -> Array:
    """Add noise of this standard deviation to inputs, then rotate them by an angle in degrees; 0 changes nothing."""
    if std:
        # uint8 images on the 0..255 scale are rounded and clipped.
        noisy: Array = x + std * generator.standard_normal(x.shape, dtype=np.float32)
        x = np.clip(np.rint(noisy), 0, 255).astype(np.uint8) if x.dtype == np.uint8 else noisy.astype(x.dtype)
    return rotate(x, angle) if angle else x


def shifts_per_silo(shift: Shift, silos: int) -> list[tuple[float, float]]:
    """Return angle and noise of each silo. Raise ConfigurationError if a list's length does not divide their number."""
    angles = spread(shift.angles, silos, "data.shift.angles")
    return list(zip(angles, spread(shift.noise_std, silos, "data.shift.noise_std"), strict=True))


def domain_name(shift: Shift, angle: float, std: float, source: str) -> str:
    """Return the name of a shifted domain such as "rotate(120)+noise(10)", prefixed with `source` if not empty."""
    parts = [source] if source else []
    if shift.angles:
        parts.append(f"rotate({angle:g})")
    if shift.noise_std and (std or not shift.angles):
        parts.append(f"noise({std:g})")
    return "+".join(parts) or "all"


def spread(values: tuple[float, ...], silos: int, name: str) -> list[float]:
    """Return the value of each silo; each entry applies to a block of silos, and all values are 0 without entries.
    Raises ConfigurationError with the key if the number of entries does not divide the number of silos."""
    if not values:
        return [0.0] * silos
    if silos % len(values):
        raise ConfigurationError(
            f"{name} has {len(values)} entries for {silos} silos, expected a number that divides {silos}", name
        )
    return [value for value in values for _ in range(silos // len(values))]


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
    """Return training data whose batches are randomly augmented in every training step, and only there.

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


def check_noise(pool: Pool, shift: Shift, sequence_format: SequenceFormat | None) -> None:
    """Raise ConfigurationError for noise on token ids and on a mask."""
    masked = sequence_format is not None and sequence_format.masked
    if any(shift.noise_std) and (pool.tokens or masked):
        what = "a mask" if masked else "token ids"
        raise ConfigurationError(f"data.shift.noise_std: noise cannot be added to {what}", "data.shift.noise_std")


def check_lazy(settings: DataSettings) -> None:
    """Raise ConfigurationError for shifts of lazy inputs, which need all inputs in memory."""
    for name, value in (("shift.angles", settings.shift.angles), ("shift.noise_std", settings.shift.noise_std)):
        if value:
            raise ConfigurationError(
                f"data.{name} needs all inputs in memory, but these are read lazily; shift them beforehand",
                f"data.{name}",
            )
