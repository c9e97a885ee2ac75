"""Silos from files and data frames in Python, with the keys of `[data]`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import DataError
from ..core.settings import check_seed, check_type
from .build import load, make_silos
from .settings import DataSettings
from .silo_collection import Silos
from .sources import guess
from .sources.tables import sheets_source
from .tables.declarations import DictionaryColumn, LabelCode, OwnColumn, OwnFile, as_lists
from .tables.frames import categories_of, dates_of, is_frame, sheets_of


def from_files(path: str | Path, *more: str | Path, seed: int = 0, **settings: Any) -> Silos:
    """Make silos from files or folders, or from a source such as "images:DIR", like `[data]` of a configuration.

    `settings` are keys of `[data]`, such as `target="outcome"` and `silo_column="ward"` for tables; by default each
    table is a silo. Raises DataError for unusable data, ConfigurationError for settings.

    >>> silos = caveat.data.from_files("north.csv", "south.csv", target="outcome")
    """
    source = guess(str(path), *map(str, more))
    return load(table_settings(source, settings), seed)


def from_frames(frames: Any, *, target: str, seed: int = 0, **settings: Any) -> Silos:
    """Make silos from data frames (pandas, polars or similar) by name, or from one frame with `silo_column`.

    Columns are prepared like the columns of csv files: numbers, texts and categories, with missing values. Dates and
    times become days since 1970-01-01. `target` is the column of labels; `settings` are other keys of `[data]` for
    tables, such as `categorical=["ward"]`. A silo's predictor takes a frame, too, whose columns may be in another
    order. Raises DataError naming silo, row and column.

    >>> silos = caveat.data.from_frames({"north": north, "south": south}, target="outcome")
    """
    check_seed(seed)
    if not is_frame(frames):
        check_type(frames, Mapping, "frames", "a mapping from names to data frames, such as {'north': frame}")
        if not frames:
            raise DataError("no silos, expected at least one name with its data frame")
    sheets = sheets_of({"data": frames} if is_frame(frames) else frames)
    wanted = table_settings("csv:frames", {"target": target, **settings})
    others = (target, wanted.silo_column, *wanted.numeric)
    declared = [name for name in categories_of(sheets) if name not in others]
    reading = wanted.reading._replace(
        categorical=tuple(dict.fromkeys((*wanted.reading.categorical, *declared))),
        numeric=tuple(dict.fromkeys((*wanted.reading.numeric, *(set(dates_of(sheets)) - {*others, *declared})))),
    )
    found = sheets_source(sheets, reading, given=not is_frame(frames))
    return make_silos(found.pools, found.given, wanted, seed)


def table_settings(source: str, settings: Mapping[str, Any]) -> DataSettings:
    """Return keys of `[data]` as settings, with lists as tuples and tables converted as in a configuration."""
    kinds = {"dictionary": DictionaryColumn, "label_codes": LabelCode, "rename_columns": OwnColumn, "files": OwnFile}
    made: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in as_lists(dict(settings)).items()
    }
    for key in kinds.keys() & made.keys():
        made[key] = tuple(kinds[key](**each) if isinstance(each, dict) else each for each in made[key])
    return DataSettings(source=source, **made)
