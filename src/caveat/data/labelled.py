"""Inputs with labels that a finished run has not seen, to be measured on: npz files, tables, folders of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import ConfigurationError, DataError, SiloId
from ..core.errors import shown
from .inputs import ARRAYS, noted_inputs
from .pools import AS_USUAL, Array
from .preparation import Inputs, Preparation
from .sources.arrays import read_npz
from .sources.base import locate
from .sources.declared_sheets import declared_labels
from .sources.images import image_files
from .sources.parquet import SUFFIX
from .sources.read_sheets import read_sheet


class Labelled(NamedTuple):
    """Inputs as a model takes them, and their labels."""

    inputs: Inputs
    y: Tensor  # (N,) int64


def labelled_inputs(path: str | Path, preparation: Preparation, silo: SiloId, target: str | None = None) -> Labelled:
    """The inputs of a file as `noted_inputs` reads them, and their labels.

    Labels are the array `y` of an npz file (`y_test`, `y_train` beside inputs of these names), the column `target` of a
    table, or the names of folders of images below a folder. Raises ConfigurationError for a `target` where none is
    read, DataError for labels that the run does not know.
    """
    found = locate(str(path))
    if found.is_dir():
        _no_target(target, found)
        return _of_folders(found, preparation, silo)
    if found.suffix.lower() in (".csv", SUFFIX):
        if target is None:
            raise ConfigurationError(f"{found}: name the column of labels, --target COLUMN", "target")
        encoder = preparation.encoders.get(silo)
        csv_format = encoder.csv_format if encoder is not None else AS_USUAL
        sheet = read_sheet(found, csv_format.separator)
        names = {column.name: column.own for column in csv_format.declared.columns}
        if not {target, names.get(target)} & set(sheet.columns):
            raise ConfigurationError(f"target = {target!r}: {found} has {', '.join(sheet.columns)}", "target")
        y = labels_of(declared_labels(sheet, csv_format.declared, target), preparation.classes, str(found))
    else:
        _no_target(target, found)
        arrays = read_npz(found) if found.suffix.lower() == ".npz" else {}
        name = next((name for name in ARRAYS if name in arrays), "x").replace("x", "y", 1)
        if name not in arrays:
            raise DataError(f"{found}: no array {name!r} of labels beside the inputs")
        y = labels_of(arrays[name], preparation.classes, str(found))
    inputs = noted_inputs(found, preparation, silo)
    if len(inputs.x) != len(y):
        raise DataError(f"{found}: {len(y)} labels for {len(inputs.x)} inputs")
    return Labelled(inputs, y)


def labels_of(labels: Any, classes: Sequence[str], origin: str) -> Tensor:
    """(N,) int64 numbers of classes, from those numbers or from names.

    Raises DataError, naming the first, for what is neither.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{origin}: labels of shape {array.shape}, expected (N,), N > 0")
    if array.dtype.kind in "iub":
        unknown = array[(array < 0) | (array >= len(classes))].tolist()
        found: Array = array.astype(np.int64)
    else:
        numbers = {name: i for i, name in enumerate(classes)}
        unknown = [each for each in array.tolist() if each not in numbers]
        found = np.array([numbers.get(each, -1) for each in array.tolist()], dtype=np.int64)
    if unknown:
        raise DataError(
            f"{origin}: label {shown(unknown[0])}, expected a class of the run: "
            f"{', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''}, or its number from 0"
        )
    return torch.from_numpy(found)


def _of_folders(path: Path, preparation: Preparation, silo: SiloId) -> Labelled:
    folders = sorted(each for each in path.iterdir() if each.is_dir() and image_files(each))
    if not folders:
        raise DataError(f"{path}: expected a folder of images for each class")
    parts = [noted_inputs(folder, preparation, silo) for folder in folders]
    names = [folder.name for folder, part in zip(folders, parts, strict=True) for _ in part.files]
    files = tuple(f"{folder.name}/{name}" for folder, part in zip(folders, parts, strict=True) for name in part.files)
    inputs = Inputs(torch.cat([part.x for part in parts]), sum((part.notes for part in parts), ()), files)
    return Labelled(inputs, labels_of(names, preparation.classes, str(path)))


def _no_target(target: str | None, path: Path) -> None:
    if target is not None:
        raise ConfigurationError(f"target = {target!r}: {path} is no table, whose columns have names", "target")
