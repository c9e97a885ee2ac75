"""The registry of data sources, parsing of their names, and joining of several sources."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ...core import ConfigurationError, DataError, SiloId
from ..raw_samples import DataSource, Pool
from .array_files import DigitsSource, NpySource, NpzSource
from .base import Source, SourceSettings, locate
from .hub import HubSource
from .image_folders import ImageSource
from .tables import DiabetesSource, TableSource


class EachSilosOwnSource(Source):
    """A placeholder: every silo of a federation over Flower reads its own source."""

    name = "on_site"
    form = "on_site"
    about = "every silo reads its own data: for a federation across machines (caveat flower init)"
    keys = (NpzSource.keys | ImageSource.keys | TableSource.keys) - {
        "silo_column",
        "label_codes",
        "rename_columns",
        "files",
    }
    for_one_silo = False
    alone = "every silo reads its own data"

    def read(self, settings: SourceSettings) -> DataSource:
        raise ConfigurationError(
            "data.source = 'on_site' is only for a federation over Flower, in which every silo reads its own data; "
            "create its project with `caveat flower init`"
        )


SOURCES: dict[str, type[Source]] = {
    kind.name: kind
    for kind in (
        DigitsSource,
        DiabetesSource,
        NpzSource,
        TableSource,
        NpySource,
        ImageSource,
        HubSource,
        EachSilosOwnSource,
    )
}
"""All sources by name. A bare path is read by the first one that recognizes it."""
JOIN = " + "
"""The separator of joined sources."""
FORMS = ", ".join(kind.form for kind in SOURCES.values() if kind is not EachSilosOwnSource)
HELP = (
    f'{FORMS}; or several sources other than csv, each with one or more domains, joined by "{JOIN}"; or on_site: every '
    "silo of a federation over Flower reads its own data."
)
"""The help text of `data.source`."""


def parsed(source: str, key: str = "source") -> tuple[Source, ...]:
    """Parse a source into its joined parts, usually one; `key` is its key in `[data]`, for messages. Raises
    ConfigurationError unless all parts are valid and can be joined."""
    texts = source.split(JOIN)
    parts = tuple(_parsed(text, source, key, len(texts) > 1) for text in texts)
    if alone := next((part for part in parts if part.alone and (len(parts) > 1 or key != "source")), None):
        raise ConfigurationError(
            f"data.{key} = {source!r}: {alone.name} cannot be joined or used for out-of-distribution inputs, because "
            f"{alone.alone}",
            f"data.{key}",
        )
    given = next((part for part in parts if part.in_silos), None)
    if given is not None and key == "source" and any(type(part) is not type(given) for part in parts):
        raise ConfigurationError(
            f"data.{key} = {source!r}: {str(given)!r} is divided into silos and can only be joined with "
            "sources of the same kind",
            f"data.{key}",
        )
    return parts


def _parsed(text: str, source: str, key: str, joined: bool) -> Source:
    name, _, place = text.partition(":")
    kind = SOURCES.get(name)
    if kind is None or bool(place) != (":" in kind.form):
        raise ConfigurationError(
            f"data.{key} = {source!r}{f', part {text!r}' * joined}: expected {FORMS}, or several sources joined by "
            f"{JOIN!r}{'; or on_site' * (key == 'source')}",
            f"data.{key}",
        )
    return kind(place)


def guess(path: str, *more: str) -> str:
    """Return the source of one bare path or of several, joined by " + "; a source is returned unchanged."""
    parts = [part for each in (path, *more) for part in each.split(JOIN)]
    if len(parts) > 1:
        found = list(map(guess, parts))
        tables = f"{TableSource.name}:"
        if all(each.startswith(tables) for each in found):  # one source with several files
            return tables + ",".join(each.removeprefix(tables) for each in found)
        return JOIN.join(found)
    name, colon, _ = path.partition(":")
    if name in SOURCES and (colon or ":" not in SOURCES[name].form):
        return path
    if kind := kind_of(locate(path)):
        return str(kind(path))
    raise DataError(f"{path}: expected an .npz, .csv or .parquet file, or a folder of tables, images or npy files")


def kind_of(path: Path) -> type[Source] | None:
    """Return the kind of source of an existing file or folder; None if no source recognizes it."""
    return next((kind for kind in SOURCES.values() if kind.recognizes(path)), None)


def read_source(source: str, settings: SourceSettings, key: str = "source") -> DataSource:
    """Read a source, or several joined; images of different domains can differ in shape. Raises DataError for unusable
    data, and if domains of joined sources share a name or classes differ."""
    parts = parsed(source, key)
    sources = [part.read(settings) for part in parts]
    if len(parts) == 1:
        return sources[0]
    pools = tuple(pool for each in sources for pool in each.pools)
    domains = [pool.domain for pool in pools]
    if len(set(domains)) < len(domains):
        raise DataError(
            f"{source}: several domains are called {max(domains, key=domains.count)!r}, expected different names"
        )
    classes = pools[0].classes
    for part, each in zip(parts, sources, strict=True):
        if each.pools[0].classes != classes:
            raise DataError(
                f"{part} has {_listed(each.pools[0].classes)}, but {parts[0]} has {_listed(classes)}; expected the "
                "same classes"
            )
    return DataSource(pools, sources[0].given)


def _listed(classes: Sequence[str]) -> str:
    return f"{len(classes)} classes ({', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''})"


def read_silo(settings: SourceSettings, silo: SiloId) -> Pool:
    """Read the pool of one silo, from its own source or from the part of a source that has the silo's name. Classes and
    categories are the silo's own, independent of other parts. Raises DataError."""
    return dataclasses.replace(source_of_silo(settings.source).read_silo(settings, silo), domain=silo)


def silo_files(settings: SourceSettings, silo: SiloId) -> tuple[Path, ...]:
    """Return the files that `read_silo` reads. Raise DataError if the silo has no file."""
    return source_of_silo(settings.source).silo_files(silo)


def source_of_silo(source: str) -> Source:
    """Parse the source of one silo. Raise ConfigurationError for several, and for one that no silo can read."""
    part, *others = parsed(source)
    if others or not part.for_one_silo:
        forms = ", ".join(kind.form for kind in SOURCES.values() if kind.for_one_silo)
        raise ConfigurationError(f"data.source = {source!r} cannot be read by a single silo: expected one of {forms}")
    return part


def places(source: str) -> set[str]:
    """Return the files and folders of a source as absolute paths."""
    found = set[str]()
    for part in parsed(source):
        found |= {str(path.resolve()) for path in part.paths()} or {str(part)}
    return found
