"""Reading a source by its name in a configuration."""

from __future__ import annotations

import os
from pathlib import Path

from ..core import ConfigurationError, DataError
from .arrays import digits, npz_pools
from .hub import hub_pools
from .images import image_pools
from .pools import Pool, Source
from .settings import KINDS, DataSettings
from .tables import csv_source

ROOT = "CAVEAT_DATA"
"""The environment variable with the folder where relative paths are looked up that do not exist."""


def locate(path: str) -> Path:
    """An existing file or folder: the path itself, or the one under `$CAVEAT_DATA`. Raises DataError without one."""
    here = Path(path.strip()).expanduser()
    root = os.environ.get(ROOT, "")
    candidates = [here] if here.is_absolute() or not root else [here, Path(root) / here]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    tried = " nor ".join(f"at {candidate}" for candidate in candidates)
    raise DataError(
        f"{path.strip()}: no such file or folder, neither {tried} ({ROOT} is {'set' if root else 'not set'})"
    )


def guess(path: str) -> str:
    """The source that a bare path stands for; a source stays as it is."""
    kind, colon, _ = path.partition(":")
    if path == "digits" or (colon and kind in KINDS):
        return path
    found = locate(path)
    if found.is_dir():
        return f"{'csv' if any(found.glob('*.csv')) else 'images'}:{path}"
    if found.suffix.lower() not in {".npz", ".csv"}:
        raise DataError(f"{path}: expected an .npz file, a .csv file, or a folder of csv files or images")
    return f"{found.suffix[1:].lower()}:{path}"


def csv_paths(names: str) -> list[Path]:
    """The files of a csv source: those named, and all of a folder."""
    paths: list[Path] = []
    for name in names.split(","):
        found = locate(name)
        paths += sorted(found.glob("*.csv")) if found.is_dir() else [found]
        if found.is_dir() and not any(found.glob("*.csv")):
            raise DataError(f"{found}: no csv files in this folder")
    return paths


def npz(path: str | Path) -> Pool:
    """The samples of an npz file: x_train, y_train, x_test, y_test or x, y; raises DataError if it cannot be used."""
    return npz_pools([locate(str(path))])[0]


def read_outside(settings: DataSettings) -> tuple[Pool, ...]:
    """What nobody's data comes from: the source `streams.ood_global`, if there is one.

    Raises ConfigurationError if a part of it is a part of the silos' own source.
    """
    name = settings.streams.ood_global
    if not name:
        return ()
    if shared := _parts(name) & _parts(settings.source):
        raise ConfigurationError(
            f"data.streams.ood_global = {name!r} is of data.source = {settings.source!r} too ({sorted(shared)[0]}): "
            "expected what no silo knows"
        )
    return read(DataSettings(source=name)).pools


def _parts(source: str) -> set[str]:
    """Files and folders as absolute paths, however they were written."""
    kind, _, rest = source.partition(":")
    if kind not in {"npz", "images"}:
        return {source}
    return {str(locate(name).resolve()) for name in (rest.split(",") if kind == "npz" else [rest])}


def read(settings: DataSettings) -> Source:
    """All that the source holds. Raises DataError for what cannot be used, naming file, value and expectation."""
    kind, _, rest = settings.source.partition(":")
    if kind == "digits":
        return Source((digits(),))
    if kind == "npz":
        return Source(npz_pools([locate(name) for name in rest.split(",")]))
    if kind == "images":
        return Source(image_pools(locate(rest)), given=True)
    if kind == "hub":
        return Source(hub_pools(rest))
    if settings.target is None:
        raise ConfigurationError(f"data.target is missing: source {settings.source!r} needs the column to predict")
    return csv_source(csv_paths(rest), settings.target, settings.silo, settings.categorical)
