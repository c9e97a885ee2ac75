"""What makes the inputs of silos differ: rotation and Gaussian noise."""

from __future__ import annotations

import math

import numpy as np

from ..core import ConfigurationError
from .pools import Array
from .settings import Shift

CHUNK = 1024
"""Images rotated at a time: bounds the memory for float32 copies."""


def rotate(images: Array, degrees: float) -> Array:
    """Rotate images counter-clockwise, bilinearly, with black where nothing was; (N, H, W, C) uint8 in and out.

    The centre is the pixel coordinate (W / 2, H / 2), half a pixel right of and below the middle: that is what
    OpenCV users write, and so the images are those of the published experiments.
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
    """For each of the four neighbours of where an output pixel comes from: flat index and weight, both (H * W,)."""
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


def add_noise(x: Array, std: float, generator: np.random.Generator) -> Array:
    """Inputs plus noise N(0, std²): uint8 images on the scale of 0..255, rounded and clipped; features as they are."""
    noisy: Array = x + std * generator.standard_normal(x.shape, dtype=np.float32)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8) if x.dtype == np.uint8 else noisy.astype(x.dtype)


def apply_shift(x: Array, angle: float, std: float, generator: np.random.Generator) -> Array:
    """The inputs with noise of this standard deviation, then rotated by the angle in degrees; 0 leaves them alone."""
    if std:
        x = add_noise(x, std, generator)
    return rotate(x, angle) if angle else x


def shifts_per_silo(shift: Shift, silos: int) -> list[tuple[float, float]]:
    """Angle and noise of each silo; raises ConfigurationError if a list's length does not divide the silos."""
    angles = spread(shift.angles, silos, "data.shift.angles")
    return list(zip(angles, spread(shift.noise_std, silos, "data.shift.noise_std"), strict=True))


def domain_name(shift: Shift, angle: float, std: float, source: str) -> str:
    """The name of a shifted domain, for example "rotate(120)+noise(10)", after the name `source` if there is one."""
    parts = [source] if source else []
    if shift.angles:
        parts.append(f"rotate({angle:g})")
    if shift.noise_std and (std or not shift.angles):
        parts.append(f"noise({std:g})")
    return "+".join(parts) or "all"


def spread(values: tuple[float, ...], silos: int, name: str) -> list[float]:
    """The value of each silo, where each entry is that of a block of them; 0 for all if there is none.

    Raises ConfigurationError, naming the key, if the number of entries does not divide the silos.
    """
    if not values:
        return [0.0] * silos
    if silos % len(values):
        raise ConfigurationError(
            f"{name} has {len(values)} entries for {silos} silos, expected a number that divides {silos}", name
        )
    return [value for value in values for _ in range(silos // len(values))]
