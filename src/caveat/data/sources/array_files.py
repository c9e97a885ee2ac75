"""Sources of arrays: scikit-learn's digits, npz files, and memory-mapped npy files."""

import dataclasses
import math
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from ...core import DataError, DataWarning, SiloId
from ...core.devices import memory
from ..checks import check_classes, input_array, label_array, paired, whole_numbers
from ..groups import placed
from ..lazy_rows import ArrayRows, JoinedRows
from ..quantities import CLASSES, valued
from ..raw_samples import Array, DataSource, Kind, LabelArray, Pool
from ..tables.reading_settings import NUMERIC, Reading
from .base import Source, SourceSettings, file_of_silo, locate, the_one_of

LARGE = 1 << 28
"""Maximum size in bytes of arrays whose compression ratio is not checked."""
WHOLE = "inputs of {} are read as features; set data.kind to 'tokens' if they are ids, otherwise to 'features'"
"""The warning for two-dimensional whole numbers without a kind."""
PARTS = ("x", "y", "x_test", "y_test")
"""The names of a silo's arrays, in order."""
SPLIT_PARTS = ("train", "val", "test")
"""The suffixes of names of arrays, in the order in which they are joined."""
MOST_EXPANDED = 200
"""Maximum compression ratio: images are compressed to a tenth at best."""


class DigitsSource(Source):
    name = form = "digits"
    about = "1,797 handwritten digits of 8x8 pixels that come with scikit-learn"

    def read(self, settings: SourceSettings) -> DataSource:
        return DataSource((digits(),))

    def read_silo(self, settings: SourceSettings, silo: SiloId) -> Pool:
        return digits()


class NpzSource(Source):
    name = "npz"
    form = "npz:PATH[,PATH...]"
    about = "arrays x_train, y_train, x_test, y_test, or x, y; with several files, each is a domain"
    keys = frozenset({"kind", "groups", "time", "predict", "event", "horizons", "range", "standardize_target"})
    suffixes = (".npz",)

    def read(self, settings: SourceSettings) -> DataSource:
        return DataSource(npz_pools(self.paths(), settings.kind, settings.reading))

    def read_silo(self, settings: SourceSettings, silo: SiloId) -> Pool:
        """Read the pool of one silo's file, whose labels need not be 0, 1, 2, ... Its classes are those named in the
        file, or else the labels that occur."""
        path = file_of_silo(self.paths(), silo)
        arrays = read_npz(path)
        x, y, x_test, y_test = _parts(arrays, str(path))
        if "classes" in arrays:
            classes = _class_names(arrays, path)
        else:
            y = label_array(y, str(path))
            numbers = np.unique(y)
            if y_test is not None:
                y_test = label_array(y_test, f"{path} (test)")
                numbers = np.union1d(numbers, y_test)
                y_test = np.searchsorted(numbers, y_test)
            y, classes = np.searchsorted(numbers, y), [str(number) for number in numbers]
        pools = pools_of([(x, y, x_test, y_test)], [path.stem], [str(path)], classes, settings.kind)
        return _placed(pools, [arrays], settings.reading)[0]


class NpySource(Source):
    name = "npy"
    form = "npy:DIR"
    about = "DIR/SILO/x.npy and y.npy, read on access: arrays larger than memory"
    keys = frozenset({"kind", "groups", "time", "predict", "event", "horizons", "range", "standardize_target"})
    in_silos = True

    def read(self, settings: SourceSettings) -> DataSource:
        """Read a pool per folder with x.npy and y.npy, and optionally x_test.npy and y_test.npy, by name."""
        (folder,) = self.paths()
        silos = _npy_folders(folder)
        if not silos:
            raise DataError(f"{folder}: no folders with x.npy and y.npy, expected SILO/x.npy and SILO/y.npy")
        return DataSource(_npy_pools(silos, settings), given=True)

    def read_silo(self, settings: SourceSettings, silo: SiloId) -> Pool:
        """Read one silo from the folder itself, the only folder in it, or the folder with the silo's name."""
        (folder,) = self.paths()
        if not (folder / "x.npy").exists():
            folder = the_one_of({path.name: path for path in _npy_folders(folder)}, silo, str(folder))
        return _npy_pools([folder], settings)[0]

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        return path.is_dir() and any(path.glob("*/x.npy"))


def digits() -> Pool:
    """Return the 1,797 grayscale 8x8 images of scikit-learn's `load_digits`, scaled from 0..16 to 0..255."""
    from sklearn.datasets import load_digits  # importing scikit-learn takes a second

    bunch = load_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    return Pool(x, bunch.target.astype(np.int64), tuple(str(c) for c in range(10)), "digits", origin="digits")


def read_npz(path: Path) -> dict[str, Array]:
    """Read all arrays of an npz file. Raise DataError if it is damaged, pickled, or larger than memory."""
    try:
        with path.open("rb") as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise DataError(f"{path}: found a single array, expected an npz file of named arrays")
            # NumPy warns of headers that are refused later or read correctly.
            with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(file) as archive:
                members = {name: member for member in archive.infolist() if (name := _name(member))}
                _check_members(path, archive, members)
                return {name: _array(archive, member) for name, member in members.items()}
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"{path}: the arrays do not fit into memory, expected smaller ones") from None
    except Exception as error:  # zipfile, zlib and numpy raise many types for damaged files
        why = str(error) or type(error).__name__
        told = "not a readable npz file; it may be truncated or contain pickled objects"
        raise DataError(f"{path}: {told} ({why})") from error


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy") if member.filename.endswith(".npy") else ""


def _check_members(path: Path, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> None:
    """Raise DataError for arrays with equal names, and for arrays that are too large, before reading any."""
    names = Counter(map(_name, archive.infolist()))
    doubled = [name for name in members if names[name] > 1]
    if doubled:
        raise DataError(f"{path}: {names[doubled[0]]} arrays are called {doubled[0]!r}, expected one")
    # Reading a member never yields more than its stated size.
    inside, outside = sum(member.file_size for member in members.values()), path.stat().st_size
    if inside > max(LARGE, MOST_EXPANDED * outside):
        raise DataError(
            f"{path}: the file of {outside / 1e6:,.1f} MB contains {inside / 1e6:,.0f} MB of arrays, more than "
            f"{MOST_EXPANDED} times as much; if this is intended, save the arrays uncompressed with np.savez"
        )
    if inside > memory():
        raise DataError(
            f"{path} contains {inside / 1e9:,.0f} GB of arrays, but this machine has {memory() / 1e9:,.0f} GB of memory"
        )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Read an array. Raise ValueError if its header claims a wrong size, before memory is allocated."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version in headers:
            shape, _, dtype = headers[version](file)
            claimed, there = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
            if claimed != there and not dtype.hasobject:
                raise ValueError(f"{member.filename} claims an array of {claimed:,} bytes but has {there:,}")
    with archive.open(member) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _class_names(arrays: dict[str, Array], path: Path) -> list[str]:
    names = arrays["classes"]
    if names.ndim != 1:
        raise DataError(f"{path}: array 'classes' has shape {names.shape}, expected one name per class")
    try:
        return list(map(str, np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names.astype(str)))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: array 'classes' contains bytes that are not UTF-8 ({error.object!r})") from None


def npz(path: str | Path, kind: Kind | None = None) -> Pool:
    """Read an npz file with x_train, y_train, x_test, y_test or x, y. Raise DataError if it is unusable. `kind` is the
    kind of x, as in `data.kind`."""
    return npz_pools([locate(str(path))], kind)[0]


def npz_pools(paths: Sequence[Path], kind: Kind | None = None, reading: Reading | None = None) -> tuple[Pool, ...]:
    """Read one pool per file; class indices are the same in all."""
    contents = [read_npz(path) for path in paths]
    parts = [_parts(arrays, str(path)) for arrays, path in zip(contents, paths, strict=True)]
    names = [_class_names(arrays, path) for arrays, path in zip(contents, paths, strict=True) if "classes" in arrays]
    if any(other != names[0] for other in names[1:]):
        raise DataError(f"{paths[0]} and other files have different class names in array 'classes', expected the same")
    domains = [path.stem for path in paths]
    if len(set(domains)) < len(domains):
        raise DataError(f"several files are called {max(domains, key=domains.count)!r}, expected different names")
    predict = None if reading is None else reading.predict
    if reading is not None and reading.event:
        parts = [
            _with_events(part, _named(reading.event, arrays, "data.event", str(path)), str(path))
            for part, arrays, path in zip(parts, contents, paths, strict=True)
        ]
    pools = pools_of(parts, domains, [str(path) for path in paths], names[0] if names else None, kind, predict)
    return pools if reading is None else _placed(pools, contents, reading)


def _with_events(
    part: tuple[Array, Array, Array | None, Array | None], events: Array, origin: str
) -> tuple[Array, Array, Array | None, Array | None]:
    """Return arrays (x, y, test x, test y) whose y are times and events (N, 2), from the events of all inputs."""
    x, y, x_test, y_test = part
    count = len(y) + (0 if y_test is None else len(y_test))
    if len(events) != count:
        raise DataError(f"{origin}: {len(events)} events for {count} inputs, expected one event per input")
    own, test = events[: len(y)], events[len(y) :]
    return x, np.column_stack([y, own]), x_test, None if y_test is None else np.column_stack([y_test, test])


def _placed(pools: Sequence[Pool], contents: Sequence[Mapping[str, Array]], reading: Reading) -> tuple[Pool, ...]:
    """Add the arrays named by `data.groups` and `data.time` to pools."""
    found: dict[str, dict[SiloId, Array] | None] = {"groups": None, "time": None}
    for key, name in ((key, getattr(reading, key)) for key in found):
        if name is not None:
            found[key] = {
                pool.domain: _named(name, arrays, f"data.{key}", pool.origin)
                for pool, arrays in zip(pools, contents, strict=True)
            }
    return tuple(placed(pools, found["groups"], found["time"]))


def _named(name: str, arrays: Mapping[str, Array], key: str, origin: str) -> Array:
    """Return the array of a name, or its parts for training and test; raise DataError if there is none."""
    parts = [name] if "x" in arrays else [f"{name}_{part}" for part in SPLIT_PARTS if f"x_{part}" in arrays]
    if (lacking := next((part for part in parts if part not in arrays), None)) is not None:
        there = ", ".join(sorted(arrays))
        raise DataError(f"{origin}: no array {lacking!r}, expected one because {key} = {name!r}; found {there}")
    if (wrong := next((part for part in parts if arrays[part].ndim != 1), None)) is not None:
        raise DataError(f"{origin}: array {wrong!r} of {key} has shape {arrays[wrong].shape}, expected one dimension")
    return np.concatenate([arrays[part] for part in parts])


def pools_of(
    parts: Sequence[tuple[Array, Array, Array | None, Array | None]],
    domains: Sequence[str],
    origins: Sequence[str],
    classes: Sequence[str] | None,
    kind: Kind | None = None,
    predict: str | None = None,
) -> tuple[Pool, ...]:
    """Make pools from arrays (x, y, test x, test y), with consistent labels. Inputs can still differ in shape; see
    `image_folders.common_format`. If `predict` is "quantity", y are numbers; if it is "time", times and events (N, 2).
    """
    if predict is not None and predict in NUMERIC:
        values = [np.concatenate([np.asarray(y) for y in (own, test) if y is not None]) for _, own, _, test in parts]
        unlabeled = [
            (x, _zeros(y), x_test, None if y_test is None else _zeros(y_test)) for x, y, x_test, y_test in parts
        ]
        made = pools_of(unlabeled, domains, origins, CLASSES, kind)
        return tuple(valued(pool, each, predict) for pool, each in zip(made, values, strict=True))
    pools, labels = [], []
    for (x, y, x_test, y_test), domain, origin in zip(parts, domains, origins, strict=True):
        if kind is None and whole_numbers(x):
            warnings.warn(f"{origin}: {WHOLE.format(x.dtype)}", DataWarning, stacklevel=2)
        x, y = _inputs(x, origin, kind), label_array(y, origin)
        paired(x, y, origin)
        labels.append((origin, y))
        own_test = 0
        if x_test is not None and y_test is not None:
            of_test = f"{origin} (test)"
            x_test, y_test = _inputs(x_test, of_test, kind), label_array(y_test, of_test)
            paired(x_test, y_test, of_test)
            labels.append((of_test, y_test))
            if x_test.shape[1:] != x.shape[1:]:
                shapes = f"inputs have shape {x.shape[1:]}, but test inputs have shape {x_test.shape[1:]}"
                raise DataError(f"{origin}: {shapes}; expected the same")
            x, y, own_test = _joined(x, x_test), np.concatenate([y, y_test]), len(y_test)
        pools.append(Pool(x, y, (), domain, own_test, origin=origin))
    trained = np.concatenate([pool.y[: pool.development] for pool in pools])
    names = check_classes(labels, classes, trained)
    return tuple(dataclasses.replace(pool, classes=names) for pool in pools)


def _zeros(y: Array) -> LabelArray:
    return np.zeros(len(y), np.int64)


def _inputs(x: Array, origin: str, kind: Kind | None) -> Array:
    if not isinstance(x, np.memmap) or not len(x):
        return input_array(x, origin, kind)
    return cast(Array, ArrayRows(x, partial(input_array, kind=kind), origin))


def _joined(x: Array, x_test: Array) -> Array:
    if isinstance(x, np.ndarray) and isinstance(x_test, np.ndarray):
        return np.concatenate([x, x_test])
    return cast(Array, JoinedRows(x, x_test))


def _parts(arrays: dict[str, Array], origin: str) -> tuple[Array, Array, Array | None, Array | None]:
    if {"x", "y"} <= arrays.keys():
        return arrays["x"], arrays["y"], None, None
    if not {"x_train", "y_train"} <= arrays.keys():
        raise DataError(f"{origin}: found arrays {sorted(arrays)}, expected x_train, y_train, x_test, y_test or x, y")
    for x, y in (("x_val", "y_val"), ("x_test", "y_test")):
        if (x in arrays) != (y in arrays):
            raise DataError(f"{origin} has only one of {x} and {y}, expected both or neither")
    x_train, y_train = arrays["x_train"], arrays["y_train"]
    if "x_val" in arrays:
        for name, val in (("x", arrays["x_val"]), ("y", arrays["y_val"])):
            if val.shape[1:] != arrays[f"{name}_train"].shape[1:]:
                raise DataError(
                    f"{origin}: samples of {name}_val and {name}_train have different shapes, expected one shape"
                )
        paired(x_train, y_train, f"{origin} (train)")
        paired(arrays["x_val"], arrays["y_val"], f"{origin} (val)")
        x_train = np.concatenate([x_train, arrays["x_val"]])
        y_train = np.concatenate([y_train, arrays["y_val"]])
    return x_train, y_train, arrays.get("x_test"), arrays.get("y_test")


def _npy_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: a file, expected a folder with SILO/x.npy and SILO/y.npy")
    return sorted(path for path in folder.iterdir() if (path / "x.npy").exists())


def _npy_pools(silos: Sequence[Path], settings: SourceSettings) -> tuple[Pool, ...]:
    parts, others = [], []
    for silo in silos:
        y = np.array(_mapped(silo / "y.npy"))
        tested = (silo / "x_test.npy").exists()
        test = (_mapped(silo / "x_test.npy"), np.array(_mapped(silo / "y_test.npy"))) if tested else (None, None)
        parts.append((_mapped(silo / "x.npy"), y, *test))
        ends = {"train": "", "test": "_test"} if tested else {"train": ""}
        names = ("x", settings.reading.groups, settings.reading.time, settings.reading.event)
        others.append({
            f"{name}_{part}": np.asarray(_mapped(silo / f"{name}{end}.npy"))
            for part, end in ends.items() for name in names if name is not None
        })  # fmt: skip
    if event := settings.reading.event:
        parts = [
            _with_events(part, _named(event, other, "data.event", str(silo)), str(silo))
            for part, other, silo in zip(parts, others, silos, strict=True)
        ]
    pools = pools_of(parts, [silo.name for silo in silos], [str(silo) for silo in silos], None, settings.kind,
                     settings.reading.predict)  # fmt: skip
    return _placed(pools, others, settings.reading)


def _mapped(path: Path) -> Array:
    try:
        found: object = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        expected = (
            f"both x{path.stem[1:]}.npy and y{path.stem[1:]}.npy"
            if path.stem in PARTS
            else "an array for data.groups, data.time or data.event"
        )
        raise DataError(f"{path}: no such file, expected {expected}") from None
    except Exception as error:  # numpy raises many types for damaged files and pickled objects
        raise DataError(f"{path}: not a readable npy file ({error})") from None
    if not isinstance(found, np.ndarray):
        raise DataError(f"{path} contains several arrays; expected a .npy file with one array")
    return found
