"""The functions that users call to make silos: from a configuration, a pool, their own arrays, or on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from ..core import ConfigurationError, DataError, SiloId
from ..core.settings import check_seed, check_type
from .assembly import make_silos
from .checks import check_class_list, plain_array
from .pools import Array, DataSource, Kind, Pool, whole_numbers
from .sequences import SequenceFormat, Standardise, sequence_format
from .settings import DataSettings, Labels, Normalise, Shift, Split
from .silos import Silos
from .sources import parsed, places, read_source
from .sources.arrays import pools_of
from .transforms import Augment, augmented

PARTS = ("x", "y", "x_test", "y_test")
"""What the arrays of a silo are called, in their order."""


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


def rotated(
    pool: Pool,
    angles: Sequence[float] = (0, -50, 120),
    silos_per_angle: int = 3,
    samples_per_silo: int | None = None,
    seed: int = 0,
    *,
    test_per_silo: int | Literal["all"] | None = None,
    noise_std: Sequence[float] = (),
    labels: Labels | None = None,
    split: Split | None = None,
    normalise: Normalise | None = None,
) -> Silos:
    """Silos that each rotate their own share of the pool's images by one of the angles, in degrees counter-clockwise.

    `noise_std` has one entry per silo, or a number of entries that divides the silos.
    """
    check_type(pool, Pool, "pool", "a Pool, as caveat.data.digits() is one")
    check_type(angles, (Sequence, np.ndarray), "angles", "a list of degrees")
    check_type(noise_std, (Sequence, np.ndarray), "noise_std", "a list of numbers")
    check_type(silos_per_angle, (int, np.integer), "silos_per_angle", "a whole number")
    check_seed(seed)
    settings = DataSettings(
        silos=len(angles) * silos_per_angle,
        samples_per_silo=samples_per_silo,
        test_per_silo=test_per_silo,
        shift=Shift(angles=tuple(angles), noise_std=tuple(noise_std)),
        labels=labels or Labels(),
        split=split or Split(),
        normalise=normalise or Normalise(),
    )
    return make_silos([pool], False, settings, seed)


def from_arrays(
    silos: Mapping[SiloId, tuple[Any, Any] | tuple[Any, Any, Any, Any]],
    *,
    classes: Sequence[str] | None = None,
    positive: str | None = None,
    seed: int = 0,
    split: Split | None = None,
    normalise: Normalise | None = None,
    shift: Shift | None = None,
    size: int | None = None,
    channels: Literal[1, 3] | None = None,
    kind: Kind | None = None,
    pad: int | None = None,
    length: int | None = None,
    standardise: Standardise = "none",
    augment: str | Sequence[str] | Augment | None = None,
) -> Silos:
    """Silos of one's own arrays: per name (x, y), or (x, y, x_test, y_test) with a test part of its own.

    y is (N,) whole numbers from 0. Without `classes` the largest label of all silos says how many there are. Of two,
    `positive` names the one that figures such as sensitivity are of, by default the second. What x holds says `kind`:

    - "images": uint8 (N, H, W) or (N, H, W, C). They are brought to one shape: `size` x `size` pixels, without which
      they must be of one size, and `channels`, by default 3 where some are coloured.
    - "features": finite numbers (N, D).
    - "tokens": ids from 0, (N, T), or a list of sequences (T,) of any lengths; models take them as int64 (N, T), and
      shorter ones are filled up with the id `pad` (0 by default) at their ends.
    - "series": finite numbers (N, T, C) as they are, or a list of (T, C) of any lengths. Where lengths differ, shorter
      ones are filled up with zeros, and the last of C + 1 channels is a mask: 1 for a step that is real, else 0.
      `standardise` has every channel standardised over the real steps of training splits: "silo" by the silo's own,
      "federation" by those of all silos together.

    T is that of the longest sequence of all silos, or `length`, to which longer ones are cut; so are those to predict.
    Without `kind`, x is features if it has two dimensions, else images; whole numbers in two dimensions other than
    uint8 are refused, since they could be ids. A `numpy.memmap`, as ``numpy.load(path, mmap_mode="r")`` makes one, is
    read as it is needed and never held in memory whole. `augment` changes training batches at random, as `augmented`
    says. Raises DataError naming the silo.
    """
    check_type(silos, Mapping, "silos", "a mapping from names to arrays, such as {'silo-0': (x, y)}")
    check_seed(seed)
    if classes is not None:
        classes = check_class_list(classes, "from_arrays")
    if not silos:
        raise DataError("no silos: expected at least one name with its arrays")
    _check_kind(kind, pad, length)
    origins = [f"silo {name!r}" for name in silos]
    parts = [_four(arrays, name) for name, arrays in silos.items()]
    sequences = None
    mapped = any(isinstance(part, np.memmap) for x, _, x_test, _ in parts for part in (x, x_test))
    if mapped and length is not None:
        raise ConfigurationError("length: arrays that are mapped into memory are read as they are", "length")
    if kind in ("tokens", "series") and not mapped:
        sequences = _common_sequences(parts, origins, kind, pad or 0, length)
        parts = [(sequences(x, of), y, None if x_test is None else sequences(x_test, f"{of} (test)"), y_test)
                 for (x, y, x_test, y_test), of in zip(parts, origins, strict=True)]  # fmt: skip
    parts = [_arrays(part, name, kind) for part, name in zip(parts, silos, strict=True)]
    pools = pools_of(parts, list(silos), origins, classes, kind)
    settings = DataSettings(
        size=size,
        channels=channels,
        positive=positive,
        split=split or Split(),
        normalise=normalise or Normalise(),
        shift=shift or Shift(),
        standardise=standardise,
    )
    made = make_silos(pools, True, settings, seed, sequence_format=sequences)
    return with_augment(made, augment)


def with_augment(silos: Silos, augment: str | Sequence[str] | Augment | None) -> Silos:
    """The silos with their training batches changed at random; as they are without `augment`."""
    if augment is None:
        return silos
    changed = (replace(silo, train=augmented(silo.train, augment, silos.normalise)) for silo in silos)
    return replace(silos, silos=tuple(changed))


def _check_kind(kind: str | None, pad: int | None, length: int | None) -> None:
    """Raises ConfigurationError for a kind that there is not, and for what belongs to another one."""
    if kind not in (None, *get_args(Kind)):
        raise ConfigurationError(f"kind = {kind!r}, expected one of {', '.join(get_args(Kind))}", "kind")
    for name, value, least, owners in (("pad", pad, 0, ("tokens",)), ("length", length, 1, ("tokens", "series"))):
        if value is None:
            continue
        check_type(value, (int, np.integer), name, "a whole number")
        if value < least:
            raise ConfigurationError(f"{name} = {value}, expected at least {least}", name)
        if kind not in owners:
            raise ConfigurationError(f"{name} = {value} is ignored by kind {kind!r}; it belongs to sequences", name)


def _common_sequences(
    parts: Sequence[tuple[Any, Any, Any, Any]],
    origins: Sequence[str],
    kind: Literal["tokens", "series"],
    pad: int,
    length: int | None,
) -> SequenceFormat:
    """The format of the sequences of all silos, those of test parts included."""
    given = [(of, x) for (x, *_), of in zip(parts, origins, strict=True)]
    given += [(f"{of} (test)", x) for (_, _, x, _), of in zip(parts, origins, strict=True) if x is not None]
    return sequence_format(given, kind, pad, length)


def _four(arrays: Sequence[Any], name: SiloId) -> tuple[Any, Any, Any, Any]:
    if not isinstance(name, str):
        raise DataError(f"silo {name!r}: expected a name, which is text")
    if not isinstance(arrays, (tuple, list)):
        raise DataError(f"silo {name!r}: a {type(arrays).__name__}, expected (x, y) or (x, y, x_test, y_test)")
    if len(arrays) not in (2, 4):
        raise DataError(f"silo {name!r}: {len(arrays)} arrays, expected (x, y) or (x, y, x_test, y_test)")
    x, y, *test = arrays
    return (x, y, test[0], test[1]) if test else (x, y, None, None)


def _arrays(
    parts: tuple[Any, Any, Any, Any], name: SiloId, kind: Kind | None
) -> tuple[Array, Array, Array | None, Array | None]:
    """What a silo was given as arrays. Raises DataError for what is none, and for ids without a kind."""
    named = [(f"silo {name!r}: {called}", part) for called, part in zip(PARTS, parts, strict=True) if part is not None]
    x, y, *test = (plain_array(part, where) for where, part in named)
    if kind is None and whole_numbers(x):
        raise DataError(
            f"silo {name!r}: x of {x.dtype} in two dimensions; say kind='tokens' if these are ids of tokens, "
            "kind='features' if they are numbers"
        )
    return (x, y, test[0], test[1]) if test else (x, y, None, None)
