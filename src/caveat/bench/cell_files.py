"""The files of a cell of the leaderboard: its record, and its scores per input."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .._version import __version__
from ..core import DataError, Silo
from ..files import read, sum_of_bytes, write_bytes, write_record
from ..files.schema import BoardCell, CellSource
from .cell_metrics import figures
from .federations import BoardFederation

Arrays = dict[str, NDArray[Any]]
"""Arrays by the names "SILO/y", "SILO/id" and "SOURCE/SILO/KIND/NAME"."""


class CellPlace(NamedTuple):
    """The place of a cell on the board."""

    federation: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.federation}.{self.method}.{self.seed}"

    def __str__(self) -> str:
        return f"{self.method} on {self.federation}, seed {self.seed}"


def cell_files(folder: Path, place: CellPlace) -> tuple[Path, Path]:
    """Return the paths of a cell's record and of its scores per input."""
    return folder / "cells" / f"{place.name}.json", folder / "cells" / f"{place.name}.npz"


def write_cell(
    place: CellPlace, changes: dict[str, Any], federation: BoardFederation, folder: Path, arrays: Arrays,
    costs: Mapping[str, Mapping[str, float]], seconds: dict[str, float], failed: str | None, code: str | None = None,
) -> BoardCell:  # fmt: skip
    """Write the scores per input and the record of a cell; return the record."""
    record, inputs = cell_files(folder, place)
    data, found = b"", {}
    if failed is None:
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        data = file.getvalue()
        write_bytes(inputs, data)
        found = {
            source: CellSource.model_validate({**parts, **costs[source]}) for source, parts in figures(arrays).items()
        }
    cell = BoardCell.model_validate({
        "schema": 1, **place._asdict(), "split": split_of(federation.silos), "settings": changes,
        "version": __version__, "code": code, "sources": found,
        "inputs": sum_of_bytes(data) if failed is None else None, "failed": failed, "seconds": seconds,
    })  # fmt: skip
    write_record(record, cell)
    return cell


def split_of(silos: Any) -> str:
    """Return a hash of the positions of all silos' inputs in their splits."""
    digest = hashlib.sha256()
    for silo in silos:
        digest.update(silo.name.encode())
        for name in sorted(silo.indices):
            digest.update(silo.indices[name].numpy().tobytes())
        digest.update(_rows(silo))
    return digest.hexdigest()


def _rows(silo: Silo) -> bytes:
    x = silo.test.x
    return (x if isinstance(x, torch.Tensor) else torch.as_tensor(x)).contiguous().numpy().tobytes()


def read_cell(folder: Path, place: CellPlace) -> BoardCell | None:
    """Read a cell; None if it was not made yet. Raises DataError, naming the file, if it is damaged or of a different
    cell."""
    record, inputs = cell_files(folder, place)
    if not record.exists():
        return None
    cell = read(record, BoardCell)
    if (cell.federation, cell.method, cell.seed) != tuple(place):
        raise DataError(
            f"{record} contains the cell {cell.federation}.{cell.method}.{cell.seed}, expected {place.name}"
        )
    if cell.failed is None and (not inputs.is_file() or sum_of_bytes(inputs.read_bytes()) != cell.inputs):
        raise DataError(f"{inputs} is missing or damaged: delete {record.name} to make the cell again")
    return cell


def read_arrays(folder: Path, place: CellPlace) -> Arrays:
    """Read the scores per input of a cell. Raises DataError, naming the file, if it is damaged."""
    path = cell_files(folder, place)[1]
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
