"""The functions that users call to make silos: from a configuration, a pool, their own arrays, or on demand."""

from __future__ import annotations

from ..core import ConfigurationError
from ..core.settings import check_seed, check_type
from .assembly import make_silos
from .pools import DataSource, Pool
from .settings import DataSettings
from .silos import Silos
from .sources import parsed, places, read_source


def load(settings: DataSettings, seed: int) -> Silos:
    """The silos that a configuration describes; a function of the files, the settings and the seed alone.

    Raises DataError for data that cannot be used, ConfigurationError for settings that do not fit it.
    """
    check_type(settings, DataSettings, "settings", "DataSettings")
    check_seed(seed)
    source = read(settings)
    return make_silos(source.pools, source.given, settings, seed, read_outside(settings))


def read(settings: DataSettings) -> DataSource:
    """All that the source of a configuration holds; images of different domains can differ in shape.

    Only images of a folder or the hub have `settings.size` already. Raises DataError for what cannot be used, naming
    file, value and expectation; ConfigurationError for "silos", which no single machine can read.
    """
    check_type(settings, DataSettings, "settings", "DataSettings")
    return read_source(settings.source, settings)


def read_outside(settings: DataSettings) -> tuple[Pool, ...]:
    """The pools of the source `streams.ood_global`, of which no silo has data; none if it is not set.

    Raises ConfigurationError if a part of it is a part of the silos' own source.
    """
    name = settings.streams.ood_global
    if not name:
        return ()
    if shared := places(name) & places(settings.source):
        raise ConfigurationError(
            f"data.streams.ood_global = {name!r} is of data.source = {settings.source!r} too ({sorted(shared)[0]}): "
            "expected what no silo knows"
        )
    return tuple(pool for part in parsed(name) for pool in part.read(settings).pools)
