"""Arrays on disk that are mapped into memory: of a silo x.npy and y.npy, in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core import DataError
from ..pools import Array, Pool
from ..settings import Kind
from .arrays import pools_of
from .images import the_one_of


def npy_pools(folder: Path, kind: Kind | None = None) -> tuple[Pool, ...]:
    """A pool for each folder with x.npy and y.npy, and maybe x_test.npy and y_test.npy, by name."""
    silos = _silos(folder)
    if not silos:
        raise DataError(f"{folder}: no folders with x.npy and y.npy, expected SILO/x.npy and SILO/y.npy")
    return _pools(silos, kind)


def own_npy_pool(folder: Path, silo: str, kind: Kind | None = None) -> Pool:
    """The pool of one silo: of the folder itself, of the only one in it, or of the one with the silo's name."""
    if (folder / "x.npy").exists():
        return _pools([folder], kind)[0]
    return _pools([the_one_of({path.name: path for path in _silos(folder)}, silo, str(folder))], kind)[0]


def _silos(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: a file, expected a folder SILO/x.npy and SILO/y.npy")
    return sorted(path for path in folder.iterdir() if (path / "x.npy").exists())


def _pools(silos: Sequence[Path], kind: Kind | None) -> tuple[Pool, ...]:
    parts = []
    for silo in silos:
        y = np.array(_mapped(silo / "y.npy"))
        tested = (silo / "x_test.npy").exists()
        test = (_mapped(silo / "x_test.npy"), np.array(_mapped(silo / "y_test.npy"))) if tested else (None, None)
        parts.append((_mapped(silo / "x.npy"), y, *test))
    return pools_of(parts, [silo.name for silo in silos], [str(silo) for silo in silos], None, kind)


def _mapped(path: Path) -> Array:
    """The array of a file, of which pages are read when they are needed."""
    try:
        found: object = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected x.npy and y.npy beside each other") from None
    except Exception as error:  # whatever numpy raises for a damaged file, and for one of pickled objects
        raise DataError(f"{path}: not a readable npy file ({error})") from None
    if not isinstance(found, np.ndarray):
        raise DataError(f"{path}: several arrays, expected an npy file of one")
    return found
