"""Images: folders DIR/SILO/CLASS/*.png|jpg|jpeg, and conversion to one size and number of channels."""

import re
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.nn.functional import interpolate

from ...core import ConfigurationError, DataError, SiloId
from ...core.devices import check_memory
from ...core.settings import check_type
from ..checks import check_alike
from ..groups import numbered
from ..lazy_rows import LazyRows, PartRows, size_and_time
from ..raw_samples import Array, DataSource, Index, Pool, ordered
from ..tables.cell_formats import variants
from .base import Source, SourceSettings, the_one_of

CHUNK = 1024
"""Number of images resized at once, which bounds the memory for float32 copies."""
LUMA = (19595, 38470, 7471)
"""ITU-R 601-2 weights of red, green and blue in 65,536ths, as in Pillow's mode "L"."""
SUFFIXES = {".png", ".jpg", ".jpeg"}
UNREAD = {
    ".avif", ".bmp", ".dcm", ".dib", ".emf", ".eps", ".gif", ".heic", ".heif", ".ico", ".jfif", ".jp2", ".jpe", ".nii",
    ".pbm", ".pcx", ".pgm", ".pnm", ".ppm", ".ps", ".psd", ".svg", ".tga", ".tif", ".tiff", ".webp",
}  # fmt: skip
"""Suffixes of image formats that are not supported."""
FORMATS = ("PNG", "JPEG")
"""The only decoders that are used, for any file name and content."""
ORIENTATION = 0x0112
"""EXIF's tag for the orientation."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""The transposition for each orientation; 1 is upright, other numbers are ignored."""
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
OPAQUE = 255
MODES = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "PA": "RGB", "RGB": "RGB", "RGBA": "RGB"}
"""Pillow's modes of stored pixels, and the modes that they are converted to."""


@dataclass(frozen=True)
class ImageFormat:
    """The size and number of channels that raw images (N, H, W, C) uint8 are converted to."""

    size: int | None = None
    """Height and width in pixels; None keeps sizes."""
    channels: int | None = None
    """1 or 3; None keeps channels."""
    exif_rotation: bool = True
    """Whether image files are rotated according to their EXIF orientation."""

    def shape(self, images: Array) -> tuple[int, ...]:
        """Return the shape (H, W, C) of one image after conversion."""
        height, width, channels = images.shape[1:]
        if {channels, self.channels} == {1, 3}:
            channels = self.channels
        return (height, width, channels) if self.size is None else (self.size, self.size, channels)

    def __call__(self, images: Array) -> Array:
        """Resize and recolor images; return the array itself if it already has this shape. Raises DataError if channels
        must change from or to a number other than 1 and 3."""
        if self.size is not None:
            images = resized(images, self.size)
        return images if self.channels is None else recolored(images, self.channels)


def common_format(pools: Sequence[Pool], size: int | None, channels: int | None) -> ImageFormat:
    """Return the format that gives the inputs of all pools one shape.

    Without `channels`, grayscale images get color if other images have it. Raises DataError, with names and shapes, if
    there is no common shape, ConfigurationError for a size or channels of features.
    """
    if not all(pool.images for pool in pools):
        for name, value in (("size", size), ("channels", channels)):
            if value is not None and not any(pool.images for pool in pools):
                raise ConfigurationError(f"data.{name} = {value} is for images, but these inputs are not images")
        check_alike(pools, [pool.x.shape[1:] for pool in pools])
        return ImageFormat()
    found = [pool.x.shape[-1] for pool in pools]
    if channels is None and (size is not None or len(set(found)) > 1):
        channels = max(found)
    for pool, own in zip(pools, found, strict=True):
        if channels in (1, 3) and own not in (1, 3):
            raise DataError(f"{pool.origin or pool.domain}: images have {own} channels, expected 1 or 3")
    image_format = ImageFormat(size, channels)
    check_alike(pools, [image_format.shape(pool.x) for pool in pools])
    return image_format


def resized(images: Array, size: int) -> Array:
    """Resize images (N, H, W, C) uint8 to `size` x `size` pixels; return the array itself if they have that size.
    Bilinear interpolation with antialiasing, rounded; the aspect ratio is not kept."""
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
    """Raise ConfigurationError if `count` images of `size` x `size` pixels of `of_pixel` bytes exceed the memory."""
    check_memory(count * size**2 * of_pixel, f"data.size = {size}: {count:,} images of that size take", "data.size")


def recolored(images: Array, channels: int) -> Array:
    """Convert uint8 images (N, H, W, 3) to grayscale (N, H, W, 1) by luma, or grayscale to color by repetition. Returns
    the array itself if it has as many channels. Raises DataError for channels other than 1 and 3."""
    check_type(images, np.ndarray, "images", "an array (N, H, W, C)")
    found = images.shape[-1]
    if found == channels:
        return images
    if {found, channels} != {1, 3}:
        raise DataError(f"cannot convert images with {found} channels to {channels} channels, expected 1 or 3")
    if channels == 3:
        return np.repeat(images, 3, axis=-1)
    luma = images @ np.array(LUMA, dtype=np.uint32)
    return ((luma + (1 << 15)) >> 16).astype(np.uint8)[..., None]


class ImageSource(Source):
    """Folders of images; the classes are the class folders of all silos."""

    name = "images"
    form = "images:DIR"
    about = "DIR/SILO/CLASS/*.png or *.jpg: silos and classes are folders"
    keys = frozenset({"lazy", "exif_rotation", "groups"})
    in_silos = True

    def read(self, settings: SourceSettings) -> DataSource:
        """Read one pool per silo folder. Raise DataError for images outside of class folders."""
        (folder,) = self.paths()
        if not folder.is_dir():
            raise DataError(f"{folder}: a file, expected a folder SILO/CLASS/*.png|jpg")
        if not _folders(folder):
            raise DataError(f"{folder}: no silo folders, expected SILO/CLASS/*.png|jpg")
        _check_no_images(folder)
        return DataSource(_pools(_folders(folder), settings), given=True)

    def read_silo(self, settings: SourceSettings, silo: SiloId) -> Pool:
        """Read the pool of one silo. Raise DataError if it does not exist.

        The folder is the silo's own, CLASS/*.png|jpg, or a folder of silos, SILO/CLASS/*.png|jpg: the silo's name
        selects one, unless there is only one.
        """
        (folder,) = self.paths()
        if not folder.is_dir():
            raise DataError(f"{folder}: a file, expected a folder CLASS/*.png|jpg or SILO/CLASS/*.png|jpg")
        inner = _folders(folder)
        if inner and not any(map(_folders, inner)):
            return _pools([folder], settings)[0]
        _check_no_images(folder)
        return _pools([the_one_of({path.name: path for path in inner}, silo, str(folder))], settings)[0]

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        return path.is_dir()


def _pools(folders: Sequence[Path], settings: SourceSettings) -> tuple[Pool, ...]:
    for silo in folders:
        _check_no_images(silo)
    silos = {folder: {kind.name: image_files(kind) for kind in _folders(folder)} for folder in folders}
    for silo, kinds in silos.items():
        if not kinds:
            raise DataError(f"{silo}: no class folders, expected SILO/CLASS/*.png|jpg")
        for kind, files in kinds.items():
            if not files:
                raise DataError(f"{silo / kind}: no images in this class folder, expected png or jpg files")
    classes = ordered([kind for kinds in silos.values() for kind in kinds])
    for group in variants(classes):
        counts = {name: sum(len(kinds.get(name, ())) for kinds in silos.values()) for name in group}
        found = [f"{silo / name}" for name in group for silo, kinds in silos.items() if name in kinds]
        raise DataError(
            f"class folders {' and '.join(f'{name!r} ({count} images)' for name, count in counts.items())} differ only "
            f"in case, spaces, Unicode form or leading zeros: rename one of {', '.join(found[:5])}"
        )
    files = [path for kinds in silos.values() for kind in ordered(list(kinds)) for path in kinds[kind]]
    labels = [[classes.index(kind) for kind in ordered(list(kinds)) for _ in kinds[kind]] for kinds in silos.values()]
    cuts = np.cumsum([len(y) for y in labels])[:-1]
    groups: Sequence[Index | None] = [None] * len(silos)
    if settings.reading.groups is not None:
        names = _groups(files, settings.reading.groups)
        groups = [numbered(names[start:end]) for start, end in pairwise([0, *cuts.tolist(), len(files)])]
    parts: Sequence[Array]
    if settings.lazy:
        rows = ImageRows(files, settings.size, settings.exif_rotation)
        parts = [cast(Array, PartRows(rows, index)) for index in np.split(np.arange(len(files)), cuts)]
    else:
        parts = np.split(read_images(files, settings.size, settings.exif_rotation), cuts)
    return tuple(
        Pool(part, np.array(y, dtype=np.int64), classes, silo.name, origin=str(silo), groups=group)
        for silo, part, y, group in zip(silos, parts, labels, groups, strict=True)
    )


def _groups(files: Sequence[Path], pattern: str) -> list[str]:
    """Return the group of each file: the match of the pattern's only group in its name."""
    expected = 'expected a regular expression with one group in parentheses, such as "^(p[0-9]+)_"'
    try:
        searched = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"data.groups = {pattern!r}: {error}; {expected}", "data.groups") from None
    if searched.groups != 1:
        raise ConfigurationError(f"data.groups = {pattern!r}: {expected}", "data.groups")
    found = []
    for file in files:
        match = searched.search(file.name)
        if match is None or not match[1]:
            raise DataError(f"{file}: the file name contains no group; expected a match of data.groups = {pattern!r}")
        found.append(match[1])
    return found


class ImageRows(LazyRows):
    """The images of files, decoded when needed. All are checked once at the start, as by `read_images`. Reading raises
    DataError for a file that has changed since."""

    def __init__(self, paths: Sequence[Path], size: int | None, exif_rotation: bool) -> None:
        self.paths, self.side, self.exif_rotation = paths, size, exif_rotation
        self.written = list(map(size_and_time, paths))
        shapes = [_sized(_read(path, exif_rotation), size).shape for path in paths]
        _check_sizes(paths, shapes)
        super().__init__((len(paths), *shapes[0][:2], max(shape[2] for shape in shapes)), np.dtype(np.uint8))

    def read(self, index: Index) -> Array:
        found = np.empty((len(index), *self.shape[1:]), np.uint8)
        for row, number in enumerate(index.tolist()):
            if size_and_time(self.paths[number]) != self.written[number]:
                raise DataError(
                    f"{self.paths[number]} changed while caveat was reading it. Restore it and start again."
                )
            image = _sized(_read(self.paths[number], self.exif_rotation), self.side)
            if image.shape[:2] != self.shape[1:3] or image.shape[2] > self.shape[3]:
                raise DataError(
                    f"{self.paths[number]}: the image changed after caveat first read it. Restore it and start again."
                )
            found[row] = image  # broadcast: grayscale becomes color if other images have color
        return found


def _check_sizes(paths: Sequence[Path], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise DataError for images of different sizes."""
    for path, (h, w, *_) in zip(paths, shapes, strict=True):
        h0, w0 = shapes[0][:2]
        if (h, w) != (h0, w0):
            raise DataError(
                f"{paths[0]} has {w0}x{h0} pixels but {path} has {w}x{h}; resize the images, or set data.size"
            )


def image_files(folder: Path) -> list[Path]:
    """Return the images of a folder, by name. Raise DataError for images of other formats or in subfolders."""
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in UNREAD and path.is_file():
            raise DataError(f"{path}: image format not supported, expected PNG or JPEG; convert or remove the file")
    for inner in _folders(folder):
        if deeper := next((path for path in sorted(inner.rglob("*")) if _is_image(path)), None):
            raise DataError(f"{deeper}: a folder in {folder} contains images, expected them in {folder} itself")
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def _check_no_images(folder: Path) -> None:
    """Raise DataError for an image outside of class folders."""
    if outside := next((path for path in sorted(folder.iterdir()) if _is_image(path)), None):
        raise DataError(f"{outside} is outside of the class folders, expected SILO/CLASS/*.png|jpg")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES | UNREAD and path.is_file()


def read_images(paths: Sequence[Path], size: int | None = None, exif_rotation: bool = True) -> Array:
    """Read images as (N, H, W, C) uint8, resized if a size is given: one channel if all are grayscale, else three.

    They are rotated by their EXIF orientation if `exif_rotation`. Raises DataError for a file that is not a complete,
    opaque, 8-bit, grayscale or RGB, single-frame PNG or JPEG image, and, without a size, for images of different sizes.
    """
    if size is not None:
        check_image_memory(len(paths), size, 3)
    read = [_sized(_read(path, exif_rotation), size) for path in paths]
    _check_sizes(paths, [image.shape for image in read])
    channels = max(image.shape[2] for image in read)
    return np.stack([np.broadcast_to(image, (*image.shape[:2], channels)) for image in read])


def _sized(image: Array, size: int | None) -> Array:
    return image if size is None else resized(image[None], size)[0]


def _read(path: Path, exif_rotation: bool) -> Array:
    try:
        # Pillow warns of properties that are refused below or read correctly.
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as image:
            # Pillow silently truncates 16-bit colors to 8 bits; the header has the true depth.
            with path.open("rb") as file:
                header = file.read(25)
            if (image.format == "PNG" and header[24:] == b"\x10") or image.mode[0] in "IF":
                raise DataError(f"{path} has 16 or 32 bits per channel, expected 8; convert the image")
            if image.mode not in MODES:
                raise DataError(f"{path} has the color mode {image.mode}, expected grayscale or RGB; convert the image")
            _check_whole(path, image)
            mode = MODES[image.mode]
            turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1)) if exif_rotation else None
            # The color of transparent pixels depends on the background.
            has_alpha = image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info
            if has_alpha and (np.asarray(image.convert("RGBA"))[..., 3] < OPAQUE).any():
                raise DataError(f"{path} has transparent pixels; save it as an opaque image, without an alpha channel")
            pixels = np.asarray((image if turn is None else image.transpose(turn)).convert(mode))
    except UnidentifiedImageError:
        raise DataError(f"{path}: not a readable image (the content is neither PNG nor JPEG)") from None
    except DataError:
        raise
    except Exception as error:  # decoders raise many types for damaged files
        raise DataError(f"{path}: not a readable image ({error})") from error
    return pixels[..., None] if mode == "L" else pixels


def _check_whole(path: Path, image: Image.Image) -> None:
    """Raise DataError for several frames in a file, and for a truncated or corrupt PNG."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise DataError(f"{path} has {frames} frames, expected one; save the frame that you need as a file")
    # Pillow checks neither the end of a PNG nor its pixels' checksums.
    if image.format == "PNG" and not _has_whole_chunks(path):
        raise DataError(f"{path}: not a readable image (the PNG is truncated or corrupt)")


def _has_whole_chunks(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(len(PNG_SIGNATURE))
        while len(head := file.read(8)) == 8:
            size, kind = int.from_bytes(head[:4], "big"), head[4:]
            held, sum_ = file.read(size), file.read(4)
            decides = kind[:1].isupper()
            if len(sum_) < 4 or (decides and zlib.crc32(kind + held) != int.from_bytes(sum_, "big")):
                return False
            if kind == b"IEND":
                return True
    return False


def _folders(folder: Path) -> list[Path]:
    # Names with a leading dot belong to tools (".git", ".thumbnails"), not to the user.
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in found:
        if any("\ud800" <= letter <= "\udfff" for letter in path.name):  # undecodable bytes
            raise DataError(f"{folder}: a folder is called {path.name!r}, expected a name in UTF-8")
    return found
