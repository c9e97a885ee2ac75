"""Draw the samples of each silo: which pool they are from, and which split each one is in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core import ConfigurationError, DataError, SiloId, check_silo_name, key
from ..core.errors import one_of
from ..core.text import plural
from .equal_rows import together
from .groups import check_groups, one_per_group, own_parts, samples_of, unit_count, unit_labels, unit_times
from .partitions import deal, partition
from .raw_samples import Index, LabelArray, Pool
from .settings import DataSettings, Partition
from .splits import Rearrange, Splits, development_splits, reserve_test


class Domain(NamedTuple):
    """A pool, and the names of the silos that share its samples."""

    pool: Pool
    name: str
    """Prefix of the names of shifted domains; empty if the shifts alone distinguish domains."""
    silos: list[SiloId]


@dataclass(frozen=True, eq=False)
class SiloIndices:
    """The samples of a silo in a pool, before they are shifted and encoded."""

    name: SiloId
    domain: Domain
    indices: Splits
    """Per split, positions in the domain's pool."""

    @property
    def pool(self) -> Pool:
        return self.domain.pool


def own_indices(pool: Pool, settings: DataSettings, seed: int, rearrange: Rearrange | None = None) -> SiloIndices:
    """Draw the splits of a pool that is one silo; `rearrange` changes them afterwards."""
    (domain,) = given_silos([pool], settings)
    (silo,) = draw_silos(domain, *held_back(domain, settings, seed), settings, seed, rearrange)
    return silo


def given_silos(pools: Sequence[Pool], settings: DataSettings) -> list[Domain]:
    """Return a domain with one silo for each pool."""
    names = [pool.domain for pool in pools]
    for name in names:
        check_silo_name(name)
    if settings.n_silos not in (None, len(pools)):
        raise ConfigurationError(
            f"data.n_silos = {settings.n_silos}, but the data are divided into {len(pools)} silos: {', '.join(names)}"
        )
    if settings.partition.scheme != "iid":
        raise ConfigurationError(
            f"data.partition.scheme = {settings.partition.scheme!r} has no effect: the data are already divided "
            "into silos; remove the key"
        )
    return [Domain(pool, pool.domain, [pool.domain]) for pool in pools]


def made_silos(pools: Sequence[Pool], settings: DataSettings) -> list[Domain]:
    """Return a domain for each pool, with the names of the silos to make from it."""
    made = len(settings.partition.silo_classes) * len(pools)
    silos = settings.n_silos or max(len(settings.shift.angles), len(settings.shift.noise_std)) or made or len(pools)
    if settings.n_silos is None and silos == 1:
        raise ConfigurationError(
            "data.n_silos is missing: this source is not divided into silos; set the number of silos to make"
            + ", or data.silo_column" * bool(pools[0].table)
        )
    if silos % len(pools):
        raise ConfigurationError(
            f"data.n_silos = {silos} for {len(pools)} domains, expected a multiple of {len(pools)}"
        )
    each = silos // len(pools)
    width = len(str(silos - 1))
    names = [f"silo-{number:0{width}d}" for number in range(silos)]
    shifted = settings.shift.angles or settings.shift.noise_std
    return [
        Domain(pool, "" if shifted and len(pools) == 1 else pool.domain, names[number * each : (number + 1) * each])
        for number, pool in enumerate(pools)
    ]


def held_back(domain: Domain, settings: DataSettings, seed: int) -> tuple[Index, Index]:
    """Return the units (samples or groups) of a domain's pool for development, and the units for the test."""
    pool = domain.pool
    check_groups(pool)
    if pool.own_test:
        return own_parts(pool)
    if len(pool.y) < 2:
        raise DataError(f"{pool.domain}: {len(pool.y)} samples, expected at least 4 for the four splits")
    rng = generator(seed, "reserve", domain.silos[0])
    return reserve_test(unit_count(pool), settings.split.test, rng, unit_times(pool))


def _known(y: LabelArray, index: Index) -> Index:
    return index[y[index] >= 0]


def draw_silos(
    domain: Domain,
    development: Index,
    test_part: Index,
    settings: DataSettings,
    seed: int,
    rearrange: Rearrange | None = None,
) -> list[SiloIndices]:
    """Draw the splits of a domain's silos; no unit (a sample or a group) is in two silos or in two splits."""
    pool = domain.pool
    y, time = unit_labels(pool), unit_times(pool)
    try:
        trains, tests = _share_out(domain, y, _known(y, development), _known(y, test_part), settings, seed)
    except DataError as error:
        raise DataError(f"{pool.domain or 'data'}: {error}{_of_groups(pool)}") from error
    chosen = []
    for name, mine, test in zip(domain.silos, trains, tests, strict=True):
        rng, order = generator(seed, "split", name), None if time is None else time[mine]
        splits = development_splits(len(mine), settings.split, name, rng, order)
        indices: Splits = {split: mine[index] for split, index in splits.items()} | {"test": test}
        indices = {split: _known(pool.y, samples_of(pool, units)) for split, units in indices.items()}
        if rearrange is not None:
            indices = rearrange(pool, indices)
        if pool.table and pool.groups is None and settings.duplicates == "together":
            indices = together(pool, indices)
        once = {split: generator(seed, "group", name, split) for split in ("calibration", "test")}
        counted = {split: one_per_group(pool, indices[split], rng) for split, rng in once.items()}
        chosen.append(SiloIndices(name, domain, {**indices, **counted}))
    return chosen


def _silo_classes(partition: Partition, classes: Sequence[str], silos: int) -> list[list[int]]:
    """Return the explicit classes of each silo of a domain, by number. Raises ConfigurationError for other classes."""
    chosen, key = partition.silo_classes, "data.partition.silo_classes"
    if chosen and len(chosen) != silos:
        raise ConfigurationError(f"{key} has the classes of {len(chosen)} silos, expected {silos}", key)
    if unknown := [name for names in chosen for name in names if name not in classes]:
        raise ConfigurationError(f"{key} names {unknown[0]!r}: no such class{one_of(unknown[0], classes)}", key)
    return [[classes.index(name) for name in names] for names in chosen]


def _of_groups(pool: Pool) -> str:
    return "" if pool.groups is None else " (data.groups is set, so each group counts as one sample)"


def _share_out(
    domain: Domain, labels: LabelArray, development: Index, held_out: Index, settings: DataSettings, seed: int
) -> tuple[list[Index], list[Index]]:
    """Return, for each silo of a domain, its units for development and for the test, from units with `labels`."""
    pool, names = domain.pool, domain.silos
    silos, samples, tests = len(names), settings.samples_per_silo, settings.test_per_silo
    if tests == "all":
        tests = None
    elif tests is None and samples is not None:
        tests = min(max(1, samples // 4), len(held_out) // silos)
    if tests is not None and not 0 < silos * tests <= len(held_out):
        each = max(tests, 1)  # 0 if there are fewer samples than silos
        raise DataError(
            f"{silos} silos with {plural(each, 'test sample')} each need {silos * each} test samples, but there are "
            f"only {len(held_out)}"
        )
    y, rng = labels[development], generator(seed, "partition", names[0])
    shares = None
    if silos > 1 or settings.partition.scheme != "iid":
        chosen = _silo_classes(settings.partition, pool.classes, silos)
        trains, shares = partition(settings.partition, y, len(pool.classes), silos, samples, rng, chosen)
    elif samples is not None and samples > len(y):
        raise DataError(f"data.samples_per_silo = {samples}, but there are only {len(y)} samples")
    else:
        trains = deal(y, silos, samples, None, rng)
    # A separate generator: the test labels must not affect later draws.
    dealt = deal(labels[held_out], silos, tests, shares, generator(seed, "test", names[0]))
    return [development[part] for part in trains], [held_out[part] for part in dealt]


def generator(seed: int, *purpose: object) -> np.random.Generator:
    """Return the generator of a purpose of data, such as the splits of a silo."""
    return np.random.default_rng(key(seed, "data", *purpose))
