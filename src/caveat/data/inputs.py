"""Inputs without labels, for predictions: an npz file, an image, a folder of images, a csv or parquet file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..core import DataError, DataWarning, SiloId
from .pools import Array
from .preparation import Inputs, Preparation
from .silos import Silos
from .sources.arrays import read_npz
from .sources.base import locate
from .sources.images import SUFFIXES, image_files, read_images
from .sources.parquet import SUFFIX
from .sources.tables import read_rows

ARRAYS = ("x", "x_test", "x_train")
"""The arrays of an npz file that hold inputs, the first one found is taken."""


def read_inputs(path: str | Path, silos: Silos | Preparation, silo_name: SiloId) -> Tensor:
    """The inputs of a file as the silo's model takes them, (N, *shape) float32, images by file name.

    They are not rotated or made noisy: they are taken to come from the silo's domain already. Images are resized
    and recoloured where those of training were. Raises DataError for an unknown silo, an unreadable file, or inputs of
    another shape than those trained on. Warns of rows unlike those of training: `noted_inputs` says which.
    """
    found = noted_inputs(path, silos, silo_name)
    if found.told:
        warnings.warn(f"{path}: {found.told}", DataWarning, stacklevel=2)
    return found.x


def noted_inputs(path: str | Path, silos: Silos | Preparation, silo_name: SiloId) -> Inputs:
    """The inputs of a file, read likewise, with a note on each that is unlike those of training.

    A silo's predictor takes them too, and its prediction has the notes.
    """
    preparation = silos.preparation if isinstance(silos, Silos) else silos
    preparation.check_name(silo_name)
    found = locate(str(path))
    try:
        noted = preparation.noted(_raw(found, preparation, silo_name), silo_name)
        return replace(noted, files=tuple(_printed(file.name) for file in _files(found)))
    except DataError as error:
        raise error if str(found) in str(error) else DataError(f"{found}: {error}") from error


def _raw(path: Path, preparation: Preparation, silo_name: SiloId) -> Array:
    if files := _files(path):
        return _pictures(files, preparation)
    if path.is_dir():
        raise DataError(f"{path}: no png or jpg files in this folder")
    suffix = path.suffix.lower()
    if suffix in (".csv", SUFFIX):
        if not preparation.encoders:
            raise DataError(f"{path}: a {suffix[1:]} file, but the silos were not trained on csv or parquet files")
        encoder = preparation.encoders[silo_name]
        return read_rows(path, encoder.table, encoder.csv_format)
    if suffix != ".npz":
        raise DataError(f"{path}: expected an .npz file, an image, a folder of images, or a .csv or .parquet file")
    arrays = read_npz(path)
    for name in ARRAYS:
        if name in arrays:
            return arrays[name]
    raise DataError(f"{path}: arrays {sorted(arrays)}, expected one of {', '.join(ARRAYS)}")


def _files(path: Path) -> list[Path]:
    """The images of a folder, or the image itself; none where it is something else."""
    if path.is_dir():
        return image_files(path)
    return [path] if path.suffix.lower() in SUFFIXES else []


def _printed(name: str) -> str:
    """A file's name, with what is no text in it written out."""
    return name.encode("utf-8", "backslashreplace").decode()


def _pictures(files: Sequence[Path], preparation: Preparation) -> Array:
    """Pictures; grey ones with equal colour channels where the silos have colour, as in training."""
    images = read_images(files, preparation.image_format.size, preparation.image_format.exif_rotation)
    return images.repeat(3, axis=-1) if images.shape[-1] == 1 and preparation.shape[0] == 3 else images
