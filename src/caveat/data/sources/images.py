"""Images: folders DIR/SILO/CLASS/*.png|jpg|jpeg, and the one size and number of channels that images are brought to."""

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
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
from ..pools import Array, DataSource, Index, LazyRows, PartRows, Pool, ordered, size_and_time
from .base import Source, SourceSettings, the_one_of

CHUNK = 1024
"""Images resized at a time: bounds the memory for float32 copies."""
LUMA = (19595, 38470, 7471)
"""ITU-R 601-2 weights of red, green and blue in 65,536ths, as Pillow has them for mode "L"."""
SUFFIXES = {".png", ".jpg", ".jpeg"}
UNREAD = {
    ".avif", ".bmp", ".dcm", ".dib", ".emf", ".eps", ".gif", ".heic", ".heif", ".ico", ".jfif", ".jp2", ".jpe", ".nii",
    ".pbm", ".pcx", ".pgm", ".pnm", ".ppm", ".ps", ".psd", ".svg", ".tga", ".tif", ".tiff", ".webp",
}  # fmt: skip
"""Files that are images as well, in formats that are not read."""
FORMATS = ("PNG", "JPEG")
"""The only decoders that a file reaches, whatever it holds and however it is called."""
ORIENTATION = 0x0112
"""EXIF's number for how a picture is to be turned before it is looked at."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""What each orientation asks for; 1 is upright, and other numbers mean nothing."""
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
OPAQUE = 255
MODES = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "PA": "RGB", "RGB": "RGB", "RGBA": "RGB"}
"""Pillow's name of how pixels are stored, and of how they are read."""


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
        return images if self.channels is None else recolored(images, self.channels)


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


def recolored(images: Array, channels: int) -> Array:
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


class ImageSource(Source):
    """Folders of images. The classes are the class folders of all silos together."""

    name = "images"
    form = "images:DIR"
    about = "DIR/SILO/CLASS/*.png or *.jpg: silos and classes are folders"
    keys = frozenset({"lazy", "exif_rotation"})
    in_silos = True

    def read(self, settings: SourceSettings) -> DataSource:
        """One pool per silo folder. Raises DataError for images that no class folder holds."""
        (folder,) = self.paths()
        if not folder.is_dir():
            raise DataError(f"{folder}: a file, expected a folder SILO/CLASS/*.png|jpg")
        if not _folders(folder):
            raise DataError(f"{folder}: no silo folders, expected SILO/CLASS/*.png|jpg")
        _check_no_images(folder)
        return DataSource(_pools(_folders(folder), settings), given=True)

    def read_silo(self, settings: SourceSettings, silo: SiloId) -> Pool:
        """The pool of one silo. Raises DataError if it is not there.

        The folder is the silo's own, CLASS/*.png|jpg, or one of silos, SILO/CLASS/*.png|jpg: then the silo is the one
        called so, or the only one.
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
    """A pool for each silo's folder, in which there is a folder for each class."""
    for silo in folders:
        _check_no_images(silo)
    silos = {folder: {kind.name: image_files(kind) for kind in _folders(folder)} for folder in folders}
    for silo, kinds in silos.items():
        if not kinds:
            raise DataError(f"{silo}: no class folders, expected SILO/CLASS/*.png|jpg")
        for kind, files in kinds.items():
            if not files:
                raise DataError(f"{silo / kind}: an empty class folder, expected png or jpg files")
    classes = ordered([kind for kinds in silos.values() for kind in kinds])
    files = [path for kinds in silos.values() for kind in ordered(list(kinds)) for path in kinds[kind]]
    labels = [[classes.index(kind) for kind in ordered(list(kinds)) for _ in kinds[kind]] for kinds in silos.values()]
    cuts = np.cumsum([len(y) for y in labels])[:-1]
    parts: Sequence[Array]
    if settings.lazy:
        rows = ImageRows(files, settings.size, settings.exif_rotation)
        parts = [cast(Array, PartRows(rows, index)) for index in np.split(np.arange(len(files)), cuts)]
    else:
        parts = np.split(read_images(files, settings.size, settings.exif_rotation), cuts)
    return tuple(
        Pool(part, np.array(y, dtype=np.int64), classes, silo.name, origin=str(silo))
        for silo, part, y in zip(silos, parts, labels, strict=True)
    )


class ImageRows(LazyRows):
    """The images of files, decoded when they are needed. All are looked at once, as `read_images` does.

    Reading raises DataError for a file that was written since.
    """

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
                raise DataError(f"{self.paths[number]}: was written while it was read; begin again from what it held")
            image = _sized(_read(self.paths[number], self.exif_rotation), self.side)
            if image.shape[:2] != self.shape[1:3] or image.shape[2] > self.shape[3]:
                raise DataError(f"{self.paths[number]}: another image than at the start, expected the same")
            found[row] = image  # grey becomes coloured where others are
        return found


def _check_sizes(paths: Sequence[Path], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises DataError for images of different sizes."""
    for path, (h, w, *_) in zip(paths, shapes, strict=True):
        h0, w0 = shapes[0][:2]
        if (h, w) != (h0, w0):
            raise DataError(
                f"{paths[0]} is {w0}x{h0} pixels but {path} is {w}x{h}; expected images of one size, or data.size"
            )


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, by name. Raises DataError for images that are not read: of other formats, or deeper."""
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in UNREAD and path.is_file():
            raise DataError(f"{path}: an image that is not read, expected PNG or JPEG; convert it or take it away")
    for inner in _folders(folder):
        if deeper := next((path for path in sorted(inner.rglob("*")) if _is_image(path)), None):
            raise DataError(f"{deeper}: a folder in {folder} holds images, expected them in {folder} itself")
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def _check_no_images(folder: Path) -> None:
    """Raises DataError for an image that lies beside folders which should hold it."""
    if outside := next((path for path in sorted(folder.iterdir()) if _is_image(path)), None):
        raise DataError(f"{outside}: an image outside of the class folders, expected SILO/CLASS/*.png|jpg")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES | UNREAD and path.is_file()


def read_images(paths: Sequence[Path], size: int | None = None, exif_rotation: bool = True) -> Array:
    """Images as (N, H, W, C) uint8, resized if a size is given: one channel if all are grey, otherwise three.

    They are turned upright as their EXIF data say, unless `exif_rotation` is off. Raises DataError for a file that is
    no whole PNG or JPEG image of 8 bits, grey or RGB, of one frame and opaque, and, without a size, for images of
    different sizes.
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
        # Pillow warns of what is then refused below, or read as it should be.
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as image:
            _check_pixels(path, image)
            _check_whole(path, image)
            mode = MODES[image.mode]
            turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1)) if exif_rotation else None
            _check_opaque(path, image)
            pixels = np.asarray((image if turn is None else image.transpose(turn)).convert(mode))
    except UnidentifiedImageError:
        raise DataError(f"{path}: not a readable image: neither PNG nor JPEG, whatever it is called") from None
    except DataError:
        raise
    except Exception as error:  # whatever a decoder raises for a damaged file
        raise DataError(f"{path}: not a readable image ({error})") from error
    return pixels[..., None] if mode == "L" else pixels


def _check_pixels(path: Path, image: Image.Image) -> None:
    """Raises DataError for pixels that 8 bits of grey or of red, green and blue cannot hold."""
    # Pillow cuts 16 bits of colour to 8 without a word; what is stored is in the header, at one place in every file.
    with path.open("rb") as file:
        header = file.read(25)
    if (image.format == "PNG" and header[24:] == b"\x10") or image.mode[0] in "IF":
        raise DataError(f"{path}: an image of 16 or 32 bits per pixel and channel, expected 8; convert it")
    if image.mode not in MODES:
        raise DataError(f"{path}: an image in {image.mode}, expected grey or RGB; convert it")


def _check_whole(path: Path, image: Image.Image) -> None:
    """Raises DataError for several pictures in one file, and for a PNG that is cut short or damaged anywhere."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise DataError(f"{path}: an image of {frames} frames, expected one; save the one that is meant by itself")
    # Pillow looks neither at the end of a PNG nor at the checksums of its pixels.
    if image.format == "PNG" and not _has_whole_chunks(path):
        raise DataError(f"{path}: not a readable image (a PNG that is cut short, or damaged: a checksum differs)")


def _has_whole_chunks(path: Path) -> bool:
    """Whether a PNG has its chunks up to the last, and those that decide its pixels as their checksums say."""
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


def _check_opaque(path: Path, image: Image.Image) -> None:
    """Raises DataError for pixels that are not opaque: which colour they show depends on what lies behind them."""
    has_alpha = image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info
    if has_alpha and (np.asarray(image.convert("RGBA"))[..., 3] < OPAQUE).any():
        raise DataError(f"{path}: an image with transparent pixels, expected opaque ones; save it without alpha")


def _folders(folder: Path) -> list[Path]:
    # Names with a dot are of tools (".git", ".thumbnails"), not of the user.
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in found:
        if any("\ud800" <= letter <= "\udfff" for letter in path.name):  # bytes that Python could not decode
            raise DataError(f"{folder}: a folder is called {path.name!r}, expected a name in UTF-8")
    return found
