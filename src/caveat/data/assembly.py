"""How pools of samples become silos: partitioned, split, shifted, encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..core import ConfigurationError, Data, DataError, Silo, SiloId, key
from . import partitions, shifts
from .image_format import ImageFormat, common_frame
from .pools import Array, Index, Pool
from .settings import DataSettings, Normalise, Shift
from .silos import Silos, normalised
from .splits import NAMES, development_splits, reserve_test
from .streams import hold_out, unknown_inputs, with_streams
from .table_encoding import Encoder, TableLayout, common_layout, fit_encoders


@dataclass(frozen=True, eq=False)
class SiloIndices:
    """A silo to be: its samples of a pool, before shift and encoding."""

    name: SiloId
    pool: Pool
    indices: dict[str, Index]
    """Per split, positions in the pool."""


def federate(
    pools: Sequence[Pool], given: bool, settings: DataSettings, seed: int, outside: Sequence[Pool] = ()
) -> Silos:
    """Silos from pools that are silos already (`given`) or are to be made into some, and pools `outside` of them all.

    Of the settings, neither sources nor the columns of a table are read.
    """
    streams = settings.streams
    frame = common_frame(pools, settings.size, settings.channels)
    pools = hold_out(pools, streams.hold_out)
    images = pools[0].images
    if settings.shift.angles and not images:
        raise ConfigurationError("data.shift.angles: only images can be rotated, these inputs are features")
    check_normalise(images, settings.normalise)
    named = _given(pools, settings) if given else _made(pools, settings)
    tested = [_held_back(pool, names[0], settings, seed) for pool, names in named]
    plots = [
        plot
        for (pool, names), (development, test) in zip(named, tested, strict=True)
        for plot in _plots(pool, _known(pool, development), _known(pool, test), names, settings, seed)
    ]
    raw = _shifted(plots, settings.shift, frame, seed)
    layout = (
        common_layout(pools[0].table, [splits["train"] for splits in raw.values()]) if pools[0].table else TableLayout()
    )
    silos = _encoded(plots, raw, pools, given, settings, frame, layout)
    held_out = [pool.x[test[pool.y[test] < 0]] for (pool, _), (_, test) in zip(named, tested, strict=True)]
    unknown = unknown_inputs(held_out if streams.hold_out else [], outside, silos, streams.ood_global)
    if streams.ood_local == "none" and unknown is None:
        return silos
    return with_streams(silos, ood_local=streams.ood_local, ood_global=unknown, per_silo=streams.per_silo, seed=seed)


def settle(
    pool: Pool, frame: ImageFormat, layout: TableLayout, settings: DataSettings, seed: int, outside: Sequence[Pool] = ()
) -> Silos:
    """The one silo that a pool is, with the classes, frame and layout that it has in common with silos elsewhere.

    Bitwise what `federate` makes of it beside the pools of those silos, which nothing shifts.
    """
    check_normalise(pool.images, settings.normalise)
    plots = [own_plot(pool, settings, seed)]
    silos = _encoded(plots, _shifted(plots, settings.shift, frame, seed), [pool], True, settings, frame, layout)
    unknown = unknown_inputs([], outside, silos, settings.streams.ood_global)
    if unknown is None:
        return silos
    return with_streams(silos, ood_global=unknown, per_silo=settings.streams.per_silo, seed=seed)


def own_plot(pool: Pool, settings: DataSettings, seed: int) -> SiloIndices:
    """The splits of the one silo that a pool is."""
    ((_, names),) = _given([pool], settings)
    development, test = _held_back(pool, names[0], settings, seed)
    (plot,) = _plots(pool, development, test, names, settings, seed)
    return plot


def check_normalise(images: bool, normalise: Normalise) -> None:
    """Raises ConfigurationError for constants that features are not normalised with."""
    if not images and normalise != Normalise():
        raise ConfigurationError("data.normalise is for images, these inputs are features")


def _shifted(
    plots: Sequence[SiloIndices], shift: Shift, frame: ImageFormat, seed: int
) -> dict[SiloId, dict[str, Array]]:
    """Per silo and split, the inputs in their frame, shifted."""
    shifted = shifts.per_silo(shift, len(plots))
    return {
        plot.name: {split: _raw(plot, split, frame, angle, std, seed) for split in NAMES}
        for plot, (angle, std) in zip(plots, shifted, strict=True)
    }


def _encoded(
    plots: Sequence[SiloIndices],
    raw: Mapping[SiloId, dict[str, Array]],
    pools: Sequence[Pool],
    given: bool,
    settings: DataSettings,
    frame: ImageFormat,
    layout: TableLayout,
) -> Silos:
    """The silos of raw inputs, whose arrays are taken out of `raw`."""
    images = pools[0].images
    tables = {plot.name: plot.pool.table for plot in plots}
    encoders = fit_encoders(tables, {n: x["train"] for n, x in raw.items()}, layout) if layout.columns else {}
    silos = []
    for plot, (angle, std) in zip(plots, shifts.per_silo(settings.shift, len(plots)), strict=True):
        splits = {}
        for split, index in plot.indices.items():
            x = raw[plot.name].pop(split)  # popped, so that raw and normalised inputs are not all in memory together
            splits[split] = Data(
                normalised(x, settings.normalise) if images else torch.from_numpy(_features(x, encoders, plot.name)),
                torch.from_numpy(plot.pool.y[index]),
            )
        domain = shifts.domain_name(settings.shift, angle, std, _base_name(pools, given, settings, plot.pool))
        indices = {split: torch.from_numpy(index) for split, index in plot.indices.items()}
        train, validation, calibration, test = (splits[name] for name in NAMES)
        silos.append(Silo(plot.name, domain, train, validation, calibration, test, indices))
    return Silos(tuple(silos), pools[0].classes, settings.normalise if images else None, encoders, frame)


def _base_name(pools: Sequence[Pool], given: bool, settings: DataSettings, pool: Pool) -> str:
    shifted = settings.shift.angles or settings.shift.noise_std
    return "" if shifted and len(pools) == 1 and not given else pool.domain


def _features(x: Array, encoders: Mapping[SiloId, Encoder], silo: SiloId) -> Array:
    return encoders[silo](x) if encoders else x


def _raw(plot: SiloIndices, split: str, frame: ImageFormat, angle: float, std: float, seed: int) -> Array:
    x = frame(plot.pool.x[plot.indices[split]])
    # A key per split: whatever happens to test samples, the noise of the others stays.
    generator = _generator(seed, "noise", plot.name, split)
    if not plot.pool.table:
        return shifts.apply(x, angle, std, generator)
    numbers = [i for i, column in enumerate(plot.pool.table) if column.categories is None]
    x[:, numbers] = shifts.apply(x[:, numbers], angle, std, generator)
    return x


def _generator(seed: int, *purpose: object) -> np.random.Generator:
    return np.random.default_rng(key(seed, "data", *purpose))


def _given(pools: Sequence[Pool], settings: DataSettings) -> list[tuple[Pool, list[SiloId]]]:
    """Each pool with the name of the silo that it is."""
    names = [pool.domain for pool in pools]
    for name in names:
        if not name or "/" in name or "\0" in name or name in {".", ".."} or len(name.encode()) > 200:
            raise DataError(f"silo name {name!r}: expected a name that can be a folder's, without '/' and not too long")
    if settings.silos not in (None, len(pools)):
        raise ConfigurationError(
            f"data.silos = {settings.silos} but the data comes in {len(pools)}: {', '.join(names)}"
        )
    if settings.labels.partition != "iid":
        raise ConfigurationError(
            f"data.labels.partition = {settings.labels.partition!r} is ignored: the data comes in silos already"
        )
    return [(pool, [pool.domain]) for pool in pools]


def _made(pools: Sequence[Pool], settings: DataSettings) -> list[tuple[Pool, list[SiloId]]]:
    """Each pool with the names of the silos to make of it."""
    silos = settings.silos or max(len(settings.shift.angles), len(settings.shift.noise_std)) or len(pools)
    if settings.silos is None and silos == 1:
        raise ConfigurationError("data.silos is missing: this source does not come in silos, expected how many to make")
    if silos % len(pools):
        raise ConfigurationError(f"data.silos = {silos} for {len(pools)} domains, expected a multiple of {len(pools)}")
    each = silos // len(pools)
    width = len(str(silos - 1))
    names = [f"silo-{number:0{width}d}" for number in range(silos)]
    return [(pool, names[number * each : (number + 1) * each]) for number, pool in enumerate(pools)]


def _held_back(pool: Pool, first: SiloId, settings: DataSettings, seed: int) -> tuple[Index, Index]:
    """Positions to develop with and to test on, of the pool whose first silo is called so."""
    if pool.own_test:
        development, test = np.split(np.arange(len(pool.y)), [pool.development])
        return development, test
    if len(pool.y) < 2:
        raise DataError(f"{pool.domain}: {len(pool.y)} samples, expected at least 4 to make four splits of")
    return reserve_test(pool.y, settings.split.test, _generator(seed, "reserve", first))


def _known(pool: Pool, index: Index) -> Index:
    """The positions whose class is not held out."""
    return index[pool.y[index] >= 0]


def _plots(
    pool: Pool, development: Index, test_part: Index, names: Sequence[SiloId], settings: DataSettings, seed: int
) -> list[SiloIndices]:
    """The silos of one pool, no sample in two of them or in two splits."""
    try:
        trains, tests = _share_out(pool, development, test_part, names, settings, seed)
    except DataError as error:
        raise DataError(f"{pool.domain or 'data'}: {error}") from error
    plots = []
    for name, mine, test in zip(names, trains, tests, strict=True):
        splits = development_splits(pool.y[mine], settings.split, name, _generator(seed, "split", name))
        indices = {split: mine[index] for split, index in splits.items()} | {"test": test}
        plots.append(SiloIndices(name, pool, indices))
    return plots


def _share_out(
    pool: Pool, development: Index, held_out: Index, names: Sequence[SiloId], settings: DataSettings, seed: int
) -> tuple[list[Index], list[Index]]:
    """Positions to develop with and to test on, per silo."""
    silos, samples, tests = len(names), settings.samples_per_silo, settings.test_per_silo
    if tests == "all":
        tests = None
    elif tests is None and samples is not None:
        tests = min(max(1, samples // 4), len(held_out) // silos)
    if tests is not None and not 0 < silos * tests <= len(held_out):
        raise DataError(f"{silos} silos of {tests} test samples, but there are {len(held_out)}")
    y, rng = pool.y[development], _generator(seed, "partition", names[0])
    shares = None
    if silos > 1 or settings.labels.partition != "iid":
        trains, shares = partitions.partition(settings.labels, y, len(pool.classes), silos, samples, rng)
    elif samples is not None and samples > len(y):
        raise DataError(f"{samples} samples wanted, but there are {len(y)}")
    else:
        trains = partitions.deal(y, silos, samples, None, rng)
    # A generator of its own: the test labels must not move what comes after.
    dealt = partitions.deal(pool.y[held_out], silos, tests, shares, _generator(seed, "test", names[0]))
    return [development[part] for part in trains], [held_out[part] for part in dealt]
