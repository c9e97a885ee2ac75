"""Reading a source by its name in a configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from ...core import ConfigurationError, DataError, SiloId
from ...core.errors import MissingError, cut, shown
from ...core.settings import check_type
from ..pools import DataSource, Pool
from ..settings import DataSettings, Kind
from ..source_names import JOIN, KINDS, source_parts
from .arrays import digits, npz_pools, own_npz_pool
from .columns import Reading
from .hub import hub_pools
from .images import image_pools, own_image_pool, the_one_of
from .npy import npy_pools, own_npy_pool
from .parquet import SUFFIX
from .tables import csv_source

OWN = "csv:PATH, npz:PATH, npy:DIR, images:DIR or digits"
"""How a silo's own source can be written."""
ROOT = "CAVEAT_DATA"
"""The environment variable with the folder where relative paths are looked up that do not exist."""


def locate(path: str) -> Path:
    """An existing file or folder: the path itself, or the one under `$CAVEAT_DATA`.

    Raises MissingError if there is none, DataError for what is neither, such as a pipe.
    """
    try:
        here = Path(path.strip()).expanduser()
    except RuntimeError:  # "~name" of somebody who has no home here
        raise MissingError(f"{shown(path.strip())}: no home folder of that name") from None
    root = os.environ.get(ROOT, "")
    candidates = [here] if here.is_absolute() or not root else [here, Path(root) / here]
    for candidate in candidates:
        if os.path.isfile(candidate) or os.path.isdir(candidate):  # a Path raises for a name too long
            return candidate
        if os.path.lexists(candidate):
            raise DataError(f"{candidate}: neither a file nor a folder")
    tried = " nor ".join(f"at {cut(str(candidate), 200)}" for candidate in candidates)
    place = f", neither {tried}" if len(candidates) > 1 else ""
    raise MissingError(
        f"{cut(path.strip(), 200)}: no such file or folder{place} ({ROOT} is {'set' if root else 'not set'})"
    )


def _not_special(path: Path) -> Path:
    """The path of a file or folder. Raises DataError for a pipe or a device, which may never end."""
    if not path.is_file() and not path.is_dir():
        raise DataError(f"{path}: neither a file nor a folder, expected one of them")
    return path


def guess(path: str) -> str:
    """The source that a bare path, or several joined by " + ", stand for; a source stays as it is."""
    parts = source_parts(path)
    if len(parts) > 1:
        return JOIN.join(map(guess, parts))
    kind, colon, _ = path.partition(":")
    if path == "digits" or (colon and kind in KINDS):
        return path
    found = locate(path)
    if found.is_dir():
        mapped = any(found.glob("*/x.npy"))
        return f"{'csv' if _tables(found) else 'npy' if mapped else 'images'}:{path}"
    if found.suffix.lower() not in {".npz", ".csv", SUFFIX}:
        raise DataError(f"{path}: expected an .npz, .csv or .parquet file, or a folder of such tables or of images")
    return f"{'npz' if found.suffix.lower() == '.npz' else 'csv'}:{path}"


def csv_paths(names: str) -> list[Path]:
    """The files of a csv source: those named, csv or parquet, and all of a folder."""
    paths: list[Path] = []
    for name in names.split(","):
        found = locate(name)
        paths += map(_not_special, _tables(found)) if found.is_dir() else [found]
        if found.is_dir() and not _tables(found):
            raise DataError(f"{found}: no csv or parquet files in this folder")
    return paths


def _tables(folder: Path) -> list[Path]:
    """The csv and parquet files of a folder."""
    return sorted((*folder.glob("*.csv"), *folder.glob(f"*{SUFFIX}")))


def npz(path: str | Path, kind: Kind | None = None) -> Pool:
    """The samples of an npz file: x_train, y_train, x_test, y_test or x, y; raises DataError if it cannot be used.

    `kind` says what x holds, as `data.kind` does.
    """
    return npz_pools([locate(str(path))], kind)[0]


def read_outside(settings: DataSettings) -> tuple[Pool, ...]:
    """The pools of the source `streams.ood_global`, of which no silo has data; none if it is not set.

    Raises ConfigurationError if a part of it is a part of the silos' own source.
    """
    name = settings.streams.ood_global
    if not name:
        return ()
    if shared := _places(name) & _places(settings.source):
        raise ConfigurationError(
            f"data.streams.ood_global = {name!r} is of data.source = {settings.source!r} too ({sorted(shared)[0]}): "
            "expected what no silo knows"
        )
    return tuple(pool for part in source_parts(name) for pool in _read_part(part, settings).pools)


def _places(source: str) -> set[str]:
    """The files and folders that a source is read from, as absolute paths however they were written."""
    places = set()
    for part in source_parts(source):
        kind, _, rest = part.partition(":")
        names = rest.split(",") if kind == "npz" else [rest]
        places |= {str(locate(name).resolve()) for name in names} if kind in {"npz", "npy", "images"} else {part}
    return places


def read(settings: DataSettings) -> DataSource:
    """All that the source of a configuration holds; images of different domains can differ in shape.

    Only images of a folder or the hub have `settings.size` already. Raises DataError for what cannot be used, naming
    file, value and expectation; ConfigurationError for "silos", which no single machine can read.
    """
    check_type(settings, DataSettings, "settings", "DataSettings")
    if settings.source == "silos":
        raise ConfigurationError(
            "data.source = 'silos': every silo reads its own; for a federation on Flower (`caveat flower init`)"
        )
    if not settings.source.startswith("csv:"):
        parts = source_parts(settings.source)
        sources = [_read_part(part, settings) for part in parts]
        return sources[0] if len(parts) == 1 else _joined(parts, sources)
    if settings.target is None:
        raise ConfigurationError(f"data.target is missing: source {settings.source!r} needs the column to predict")
    paths = csv_paths(settings.source.removeprefix("csv:"))
    return csv_source(paths, Reading.of(settings), settings.lazy)


def read_own(settings: DataSettings, silo: SiloId) -> Pool:
    """The pool of one silo, from a source of its own or from the part of one that has the silo's name.

    Its classes, and categories where it is a table, are its own, whatever other parts have. Raises DataError.
    """
    kind, _, rest = settings.source.partition(":")
    if kind == "images":
        pool = own_image_pool(locate(rest), silo, settings.size, settings.exif_rotation, settings.lazy)
    elif kind == "npy":
        pool = own_npy_pool(locate(rest), silo, settings.kind)
    elif kind == "npz":
        pool = own_npz_pool(_own_file([locate(name) for name in rest.split(",")], silo), settings.kind)
    elif kind == "csv" and settings.target is not None:
        path = _own_file(csv_paths(rest), silo)
        pool = csv_source([path], Reading.of(settings)._replace(silo=None), settings.lazy).pools[0]
    elif kind == "digits":
        pool = digits()
    else:
        raise ConfigurationError(f"data.source = {settings.source!r} is none that one silo can read: expected {OWN}")
    return dataclasses.replace(pool, domain=silo)


def own_files(settings: DataSettings, silo: SiloId) -> tuple[Path, ...]:
    """The files that `read_own` reads, those of its folder if it is one. Raises DataError where there are none."""
    kind, _, rest = settings.source.partition(":")
    if kind == "digits":
        return ()
    if kind in ("csv", "npz"):
        return (_own_file(csv_paths(rest) if kind == "csv" else [locate(name) for name in rest.split(",")], silo),)
    return tuple(sorted(path for path in locate(rest).rglob("*") if path.is_file()))


def _own_file(paths: Sequence[Path], silo: SiloId) -> Path:
    stems = [path.stem for path in paths]
    if len(set(stems)) < len(stems):
        raise DataError(f"several files are called {max(stems, key=stems.count)!r}: expected one silo each")
    return the_one_of(dict(zip(stems, paths, strict=True)), silo, ", ".join(map(str, paths)))


def _joined(parts: Sequence[str], sources: Sequence[DataSource]) -> DataSource:
    """One source of several, written like `parts`. Raises DataError if domains share a name or classes differ."""
    pools = [pool for source in sources for pool in source.pools]
    domains = [pool.domain for pool in pools]
    if len(set(domains)) < len(domains):
        twice = max(domains, key=domains.count)
        raise DataError(f"{JOIN.join(parts)}: several domains are called {twice!r}, expected one name each")
    classes = pools[0].classes
    for part, source in zip(parts, sources, strict=True):
        if source.pools[0].classes != classes:
            raise DataError(
                f"{part} has {_listed(source.pools[0].classes)} but {parts[0]} {_listed(classes)}; expected the same"
            )
    return DataSource(tuple(pools), sources[0].given)


def _listed(classes: Sequence[str]) -> str:
    return f"{len(classes)} classes ({', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''})"


def _read_part(part: str, settings: DataSettings) -> DataSource:
    kind, _, rest = part.partition(":")
    if kind == "npz":
        return DataSource(npz_pools([locate(name) for name in rest.split(",")], settings.kind))
    if kind == "images":
        pools = image_pools(locate(rest), settings.size, settings.exif_rotation, settings.lazy)
        return DataSource(pools, given=True)
    if kind == "npy":
        return DataSource(npy_pools(locate(rest), settings.kind), given=True)
    return DataSource(hub_pools(rest, settings.size) if kind == "hub" else (digits(),))
