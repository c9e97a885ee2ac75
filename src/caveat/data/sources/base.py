"""The interface of data sources, and the lookup of their files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ...core import DataError, SiloId
from ...core.errors import MissingError, cut, short_repr
from ..raw_samples import DataSource, Kind, Pool
from ..tables.reading_settings import Reading

ROOT = "CAVEAT_DATA"
"""The environment variable with the folder in which relative paths are looked up."""


class SourceSettings(Protocol):
    """The settings of `[data]` that sources read; see `DataSettings`."""

    @property
    def source(self) -> str: ...
    @property
    def kind(self) -> Kind | None: ...
    @property
    def size(self) -> int | None: ...
    @property
    def exif_rotation(self) -> bool: ...
    @property
    def lazy(self) -> bool: ...
    @property
    def reading(self) -> Reading: ...


@dataclass(frozen=True)
class Source(ABC):
    """A data source, written as its name or as NAME:PLACE. To add one, write a subclass, and add it to `SOURCES`."""

    place: str = ""
    """The path, several paths joined by commas, or the name after the colon; empty if the source has none."""
    name: ClassVar[str]
    form: ClassVar[str]
    """The source's syntax, for messages and lists: "npz:PATH[,PATH...]". Without a colon it has no place."""
    about: ClassVar[str]
    """One line for `caveat list datasets`."""
    keys: ClassVar[frozenset[str]] = frozenset()
    """The keys of `[data]` that this source reads, except those that every source reads."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """The suffixes of files that this source reads."""
    in_silos: ClassVar[bool] = False
    """Whether its pools are always silos, not domains to partition."""
    predicts: ClassVar[str] = "classes"
    """The kind of target without `data.predict`."""
    for_one_silo: ClassVar[bool] = True
    """Whether a silo of a federation can use it as its own source."""
    alone: ClassVar[str] = ""
    """Why the source cannot be joined with other sources or used for out-of-distribution inputs; empty if it can."""

    def __str__(self) -> str:
        return f"{self.name}:{self.place}" if self.place else self.name

    @abstractmethod
    def read(self, settings: SourceSettings) -> DataSource:
        """Read all pools. Raises DataError for unusable data, ConfigurationError for settings that do not fit them."""

    def read_silo(self, settings: SourceSettings, silo: SiloId) -> Pool:
        """Read the pool of one silo, with its own classes and categories, independent of other silos."""
        raise NotImplementedError(f"{self.name} has `for_one_silo` but no `read_silo`")

    def paths(self) -> list[Path]:
        """Return the files and folders of the source. Raise MissingError if one does not exist."""
        names = self.place.split(",") if "," in self.form else [self.place]
        return [locate(name) for name in names if self.place]

    def silo_files(self, silo: SiloId) -> tuple[Path, ...]:
        """Return the files that `read_silo` reads: all files of a folder, or the silo's file."""
        paths = self.paths()
        folders = [path for path in paths if path.is_dir()]
        if folders or not paths:
            return tuple(sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()))
        return (file_of_silo(paths, silo),)

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        """Return whether an existing path, given without the name of a source, is read by this source."""
        return path.is_file() and path.suffix.lower() in cls.suffixes


def locate(path: str) -> Path:
    """Return an existing file or folder: the path itself, or the one below `$CAVEAT_DATA`. Raises MissingError if there
    is none, DataError for other kinds of files, such as a pipe."""
    try:
        here = Path(path.strip()).expanduser()
    except RuntimeError:  # "~name" with an unknown user
        raise MissingError(f"{short_repr(path.strip())}: unknown user") from None
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


def the_one_of(named: Mapping[str, Path], silo: str, origin: str) -> Path:
    """Return the only file or folder, or the one with the silo's name. Raise DataError if there is none."""
    if len(named) == 1:
        return next(iter(named.values()))
    if silo not in named:
        found = ", ".join(list(named)[:10]) or "nothing"
        raise DataError(
            f"{origin}: found {found}; expected a single file or folder, or one with the silo's name, {silo!r}"
        )
    return named[silo]


def file_of_silo(paths: Sequence[Path], silo: SiloId) -> Path:
    """Return the only file, or the one with the silo's name. Raise DataError for two files with the same name."""
    stems = [path.stem for path in paths]
    if len(set(stems)) < len(stems):
        raise DataError(f"several files are called {max(stems, key=stems.count)!r}, expected different names")
    return the_one_of(dict(zip(stems, paths, strict=True)), silo, ", ".join(map(str, paths)))
