"""New inputs for the models of a run: npz files, images, csv and parquet files, with or without labels."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import ConfigurationError, DataError, DataWarning, SiloId
from ..core.errors import short_repr
from ..core.quantity import Times, observed
from .preprocessing import Inputs, Preparation
from .quantities import column_values, numbers
from .raw_samples import Array
from .silo_collection import Silos
from .sources.array_files import read_npz
from .sources.base import locate
from .sources.image_folders import SUFFIXES, image_files, read_images
from .sources.tables import rows_of
from .tables.encoding import Codes
from .tables.files import SUFFIX, read_sheet
from .tables.harmonize import declared_labels
from .tables.reading_settings import AS_USUAL

TABLES = (".csv", SUFFIX)
ARRAYS = ("x", "x_test", "x_train")
"""The arrays of an npz file that can contain inputs; the first one found is used."""


def read_inputs(path: str | Path, silos: Silos | Preparation, silo_name: SiloId) -> Tensor:
    """Read a file as inputs of a silo's model, (N, ...) float32, images sorted by file name.

    Inputs are not rotated or made noisy: they are assumed to come from the silo's domain. Images are resized and
    recolored as in training. Raises DataError for an unknown silo, an unreadable file, or inputs whose shape differs
    from training. Warns of rows that are unlike the training rows; `noted_inputs` returns notes on them.
    """
    found = noted_inputs(path, silos, silo_name)
    for line in found.lines:
        warnings.warn(f"{path}: {line}", DataWarning, stacklevel=2)
    return found.x


def noted_inputs(path: str | Path, silos: Silos | Preparation, silo_name: SiloId) -> Inputs:
    """Read a file as `read_inputs` does, with a note on each input that is unlike the training inputs. A silo's
    predictor accepts the result and copies the notes to its prediction."""
    preparation = silos.preparation if isinstance(silos, Silos) else silos
    preparation.check_name(silo_name)
    found = locate(str(path))
    try:
        if found.suffix.lower() in TABLES and not found.is_dir():
            return _of_table(found, preparation, silo_name)
        noted = preparation.noted(_raw(found, preparation), silo_name)
        # Undecodable bytes of a name are escaped.
        return replace(noted, files=tuple(f.name.encode("utf-8", "backslashreplace").decode() for f in _files(found)))
    except DataError as error:
        raise error if str(found) in str(error) else DataError(f"{found}: {error}") from error


def _of_table(path: Path, preparation: Preparation, silo_name: SiloId) -> Inputs:
    if not preparation.encoders:
        raise DataError(
            f"{path}: a {path.suffix[1:].lower()} file, but the silos were not trained on csv or parquet files"
        )
    encoder = preparation.encoders[silo_name]
    sheet = read_sheet(path, encoder.csv_format.of(path.stem, silo_name).separator)
    noted = preparation.noted(rows_of(sheet, encoder.table, encoder.csv_format, silo_name), silo_name)
    if preparation.subgroups is None:
        return noted
    return replace(noted, subgroup=preparation.subgroups.of_sheet(sheet, encoder, silo_name))


def _raw(path: Path, preparation: Preparation) -> Array:
    if files := _files(path):
        # Grayscale images get three equal channels if the silos have color images, as in training.
        images = read_images(files, preparation.image_format.size, preparation.image_format.exif_rotation)
        return images.repeat(3, axis=-1) if images.shape[-1] == 1 and preparation.shape[0] == 3 else images
    if path.is_dir():
        raise DataError(f"{path}: no png or jpg files in this folder")
    if path.suffix.lower() != ".npz":
        raise DataError(f"{path}: expected an .npz file, an image, a folder of images, or a .csv or .parquet file")
    arrays = read_npz(path)
    for name in ARRAYS:
        if name in arrays:
            return arrays[name]
    raise DataError(f"{path}: found arrays {sorted(arrays)}, expected one of {', '.join(ARRAYS)}")


def _files(path: Path) -> list[Path]:
    """Return the images of a folder, or the image itself; none for other files."""
    if path.is_dir():
        return image_files(path)
    return [path] if path.suffix.lower() in SUFFIXES else []


class Labeled(NamedTuple):
    """Model inputs and their labels."""

    inputs: Inputs
    y: Tensor  # (N,) int64, or float64 if the target is a quantity; (N, 2) times and events


def labeled_inputs(path: str | Path, preparation: Preparation, silo: SiloId, target: str | None = None) -> Labeled:
    """Read the inputs of a file as `noted_inputs` does, and their labels.

    Labels are the array `y` of an npz file (`y_test` for `x_test`, `y_train` for `x_train`), the column `target` of a
    table, or the names of a folder's folders of images. Raises ConfigurationError for a `target` if the file is not a
    table, DataError for labels that are not classes of the run.
    """
    found = locate(str(path))
    if found.is_dir():
        _no_target(target, found)
        return _of_folders(found, preparation, silo)
    if found.suffix.lower() in TABLES:
        if target is None:
            raise ConfigurationError(f"{found}: name the column of labels with --target COLUMN", "target")
        encoder = preparation.encoders.get(silo)
        csv_format = (encoder.csv_format if encoder is not None else AS_USUAL).of(found.stem, silo)
        sheet = read_sheet(found, csv_format.separator)
        names = {column.name: column.own for column in csv_format.declared.rename_columns}
        if not {target, names.get(target)} & set(sheet.columns):
            columns = ", ".join(sheet.columns)
            raise ConfigurationError(f"target = {target!r}: no such column; {found} has {columns}", "target")
        if preparation.target is not None:
            event = getattr(preparation.target, "event", None)
            if event is not None and event not in sheet.columns:
                raise DataError(f"{found}: no column {event!r}, which must be 1 for an event and 0 if censored")
            y = torch.from_numpy(column_values([sheet], names.get(target, target), csv_format, event))
            y = y if event is None else torch.stack([each.double() for each in observed(y)], 1)
        else:
            y = labels_of(declared_labels(sheet, csv_format.declared, target), preparation.classes, str(found))
    else:
        _no_target(target, found)
        arrays = read_npz(found) if found.suffix.lower() == ".npz" else {}
        name = next((name for name in ARRAYS if name in arrays), "x").replace("x", "y", 1)
        if name not in arrays:
            raise DataError(f"{found}: no array {name!r}, expected one with the label of each input")
        given = arrays[name]
        if isinstance(preparation.target, Times) and given.ndim == 1:
            event = name.replace("y", preparation.target.event, 1)
            if event not in arrays:
                raise DataError(f"{found}: no array {event!r}, which must be 1 for an event and 0 if censored")
            given = np.stack([given, arrays[event]], 1)
        timed = isinstance(preparation.target, Times)
        y = torch.from_numpy(given) if timed else truth_of(given, preparation, str(found))
    inputs = noted_inputs(found, preparation, silo)
    if len(inputs.x) != len(y):
        raise DataError(f"{found}: {len(y)} labels for {len(inputs.x)} inputs, expected one label per input")
    return Labeled(inputs, y)


def truth_of(y: Any, preparation: Preparation, origin: str) -> Tensor:
    """Return the true values of the target: (N,) class indices as `labels_of` does, (N,) quantities, or (N,) observed
    times from times and events (N, 2). Raises DataError for other values."""
    if preparation.target is None:
        return labels_of(y, preparation.classes, origin)
    return torch.from_numpy(numbers(y, origin, preparation.target.predicts))


def labels_of(labels: Any, classes: Sequence[str], origin: str) -> Tensor:
    """Return labels as (N,) int64 class indices, from indices or names. Raises DataError, naming the first wrong label,
    if a label is neither."""
    array = np.asarray(labels)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{origin}: labels have shape {array.shape}, expected (N,) with N > 0")
    if array.dtype.kind in "iub":
        unknown = array[(array < 0) | (array >= len(classes))].tolist()
        found: Array = array.astype(np.int64)
    else:
        codes = Codes(classes)
        unknown = [each for each in array.tolist() if not 0 <= codes[str(each)] < len(classes)]
        found = np.array([codes[str(each)] for each in array.tolist()], dtype=np.int64)
    if unknown:
        raise DataError(
            f"{origin}: unknown label {short_repr(unknown[0])}, expected a class of the run ("
            f"{', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''}) or its number from 0"
        )
    return torch.from_numpy(found)


def _of_folders(path: Path, preparation: Preparation, silo: SiloId) -> Labeled:
    folders = sorted(each for each in path.iterdir() if each.is_dir() and image_files(each))
    if not folders:
        raise DataError(f"{path}: expected a folder of images for each class")
    parts = [noted_inputs(folder, preparation, silo) for folder in folders]
    names = [folder.name for folder, part in zip(folders, parts, strict=True) for _ in part.files]
    files = tuple(f"{folder.name}/{name}" for folder, part in zip(folders, parts, strict=True) for name in part.files)
    inputs = Inputs(torch.cat([part.x for part in parts]), sum((part.notes for part in parts), ()), files)
    return Labeled(inputs, labels_of(names, preparation.classes, str(path)))


def _no_target(target: str | None, path: Path) -> None:
    if target is not None:
        raise ConfigurationError(f"target = {target!r} is for tables only, but {path} is not a table", "target")
