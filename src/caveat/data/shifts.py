"""Shifts of silos: rotations of images, and noise in inputs."""

import math

import numpy as np

from ..core import ConfigurationError
from .preprocessing import SequenceFormat
from .raw_samples import Array, Pool
from .settings import DataSettings, Shift

CHUNK = 1024
"""Number of images rotated at once, which bounds the memory for float32 copies."""


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
    """Add noise of standard deviation `std` to inputs, then rotate them by an angle in degrees; 0 changes nothing."""
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
            f"{name} has {len(values)} entries for {silos} silos, expected a number of entries that divides {silos}",
            name,
        )
    return [value for value in values for _ in range(silos // len(values))]


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
                f"data.{name} needs all inputs in memory, but these inputs are read lazily; shift them beforehand",
                f"data.{name}",
            )
