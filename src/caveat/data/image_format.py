"""Images of several sources, brought to one size and one number of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import interpolate

from ..core import ConfigurationError, DataError
from ..core.devices import check_memory
from ..core.settings import check_type
from .pools import Array, Pool, check_alike

CHUNK = 1024
"""Images resized at a time: bounds the memory for float32 copies."""
LUMA = (19595, 38470, 7471)
"""ITU-R 601-2 weights of red, green and blue in 65,536ths, as Pillow has them for mode "L"."""


@dataclass(frozen=True)
class ImageFormat:
    """The size and the number of channels that raw images (N, H, W, C) uint8 are brought to."""

    size: int | None = None
    """Pixels of both sides; None leaves sizes as they are."""
    channels: int | None = None
    """1 or 3; None leaves colours as they are."""
    exif_rotation: bool = True
    """Whether the images of files are turned upright as their EXIF data say when they are read."""

    def shape(self, images: Array) -> tuple[int, ...]:
        """The shape (H, W, C) that one of the images gets."""
        height, width, channels = images.shape[1:]
        if {channels, self.channels} == {1, 3}:
            channels = self.channels
        return (height, width, channels) if self.size is None else (self.size, self.size, channels)

    def __call__(self, images: Array) -> Array:
        """The images, resized and then recoloured; the array itself where it has this shape already.

        Raises DataError if it has neither one channel nor three and should have another number.
        """
        if self.size is not None:
            images = resized(images, self.size)
        return images if self.channels is None else recoloured(images, self.channels)


def common_format(pools: Sequence[Pool], size: int | None, channels: int | None) -> ImageFormat:
    """The format that gives the inputs of all pools one shape; one that changes nothing where they have it already.

    Without `channels`, grey images become coloured where others are. Raises DataError, with names and shapes, for
    inputs that cannot be brought to one shape, ConfigurationError if features are to get a size or channels.
    """
    if not all(pool.images for pool in pools):
        for name, value in (("size", size), ("channels", channels)):
            if value is not None and not any(pool.images for pool in pools):
                raise ConfigurationError(f"data.{name} = {value} is for images, these inputs are features")
        check_alike(pools, [pool.x.shape[1:] for pool in pools])
        return ImageFormat()
    found = [pool.x.shape[-1] for pool in pools]
    if channels is None and (size is not None or len(set(found)) > 1):
        channels = max(found)
    for pool, own in zip(pools, found, strict=True):
        if channels in (1, 3) and own not in (1, 3):
            raise DataError(f"{pool.origin or pool.domain}: images of {own} channels, expected 1 or 3")
    image_format = ImageFormat(size, channels)
    check_alike(pools, [image_format.shape(pool.x) for pool in pools])
    return image_format


def resized(images: Array, size: int) -> Array:
    """Images of `size` x `size` pixels from (N, H, W, C) uint8; the array itself where they are of that size.

    Bilinear, over all the pixels that a smaller image's pixel covers (no aliasing), rounded; sides that differ are
    stretched to one length.
    """
    check_type(images, np.ndarray, "images", "an array (N, H, W, C)")
    check_type(size, (int, np.integer), "size", "a whole number of pixels")
    if size < 1:
        raise ConfigurationError(f"size = {size}: expected at least 1 pixel", "size")
    if images.shape[1:3] == (size, size):
        return images
    result = np.empty((len(images), size, size, images.shape[-1]), np.uint8)
    for start in range(0, len(images), CHUNK):
        chunk = images[start : start + CHUNK].transpose(0, 3, 1, 2).astype(np.float32, order="C")
        small = interpolate(torch.from_numpy(chunk), (size, size), mode="bilinear", antialias=True)
        result[start : start + CHUNK] = small.round_().clamp_(0, 255).byte().movedim(1, -1).numpy()
    return result


def check_image_memory(count: int, size: int, of_pixel: int) -> None:
    """Raises ConfigurationError if so many images of `size` x `size` pixels, of so many bytes each, cannot be kept."""
    check_memory(count * size**2 * of_pixel, f"data.size = {size}: {count:,} images of that size take", "data.size")


def recoloured(images: Array, channels: int) -> Array:
    """Grey images (N, H, W, 1) from coloured (N, H, W, 3) by their luma, or coloured from grey by repeating; uint8.

    The array itself where it has as many channels. Raises DataError for other numbers of channels than 1 and 3.
    """
    check_type(images, np.ndarray, "images", "an array (N, H, W, C)")
    found = images.shape[-1]
    if found == channels:
        return images
    if {found, channels} != {1, 3}:
        raise DataError(f"images of {found} channels to be made ones of {channels}, expected 1 or 3")
    if channels == 3:
        return np.repeat(images, 3, axis=-1)
    luma = images @ np.array(LUMA, dtype=np.uint32)
    return ((luma + (1 << 15)) >> 16).astype(np.uint8)[..., None]
