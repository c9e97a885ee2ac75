"""Folders of images: DIR/SILO/CLASS/*.png|jpg|jpeg, where the folders of the first level are the silos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ...core import DataError
from ..image_format import resized
from ..pools import Array, Pool, ordered

SUFFIXES = {".png", ".jpg", ".jpeg"}


def image_pools(folder: Path, size: int | None = None) -> tuple[Pool, ...]:
    """One pool per silo folder, its images resized if a size is given.

    The classes are the class folders of all silos together.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: a file, expected a folder SILO/CLASS/*.png|jpg")
    if not _folders(folder):
        raise DataError(f"{folder}: no silo folders, expected SILO/CLASS/*.png|jpg")
    return _pools(_folders(folder), size)


def own_image_pool(folder: Path, name: str, size: int | None = None) -> Pool:
    """The pool of the silo `name` alone, its images resized if a size is given.

    The folder is the silo's own, CLASS/*.png|jpg, or one of silos, SILO/CLASS/*.png|jpg: then the silo is the one
    called so, or the only one. Raises DataError if it is not there.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: a file, expected a folder CLASS/*.png|jpg or SILO/CLASS/*.png|jpg")
    inner = _folders(folder)
    if inner and not any(map(_folders, inner)):
        return _pools([folder], size)[0]
    return _pools([the_one_of({path.name: path for path in inner}, name, str(folder))], size)[0]


def the_one_of(named: Mapping[str, Path], silo: str, origin: str) -> Path:
    """The file or folder of a silo: the only one, or the one with its name. Raises DataError if there is none."""
    if len(named) == 1:
        return next(iter(named.values()))
    if silo not in named:
        found = ", ".join(list(named)[:10]) or "nothing"
        raise DataError(f"{origin}: {found}; expected one called {silo!r}, as the silo is, or one alone")
    return named[silo]


def _pools(folders: Sequence[Path], size: int | None) -> tuple[Pool, ...]:
    """A pool for each silo's folder, in which there is a folder for each class."""
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
    x = read_images(files, size)
    cuts = np.cumsum([len(y) for y in labels])[:-1]
    return tuple(
        Pool(part, np.array(y, dtype=np.int64), classes, silo.name, origin=str(silo))
        for silo, part, y in zip(silos, np.split(x, cuts), labels, strict=True)
    )


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def read_images(paths: Sequence[Path], size: int | None = None) -> Array:
    """Images as (N, H, W, C) uint8, resized if a size is given: one channel if all are grey, otherwise three.

    Raises DataError for a file that is no image and, without a size, for images of different sizes.
    """
    read = [_read(path) if size is None else resized(_read(path)[None], size)[0] for path in paths]
    for path, image in zip(paths, read, strict=True):
        if image.shape[:2] != read[0].shape[:2]:
            (h, w), (h0, w0) = image.shape[:2], read[0].shape[:2]
            raise DataError(
                f"{paths[0]} is {w0}x{h0} pixels but {path} is {w}x{h}; expected images of one size, or data.size"
            )
    channels = max(image.shape[2] for image in read)
    return np.stack([np.broadcast_to(image, (*image.shape[:2], channels)) for image in read])


def _read(path: Path) -> Array:
    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":
                raise DataError(f"{path}: an image of 16 or 32 bits per pixel, expected 8")
            grey = image.mode in {"1", "L", "LA"}
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from error
    return pixels[..., None] if grey else pixels


def _folders(folder: Path) -> list[Path]:
    # Names with a dot are of tools (".git", ".thumbnails"), not of the user.
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
