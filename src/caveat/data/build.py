"""Make the silos of a configuration: read, partition, split, shift and encode its sources."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..core import ConfigurationError, Data, DataError, Silo, SiloId, check_silo_name, key
from ..core.devices import FLOAT
from ..core.errors import one_of
from ..core.quantity import Quantity
from ..core.settings import check_seed, check_type
from ..core.silo import positive_class
from .checks import check_usual
from .groups import check_groups, one_per_group, own_parts, samples_of, unit_count, unit_labels, unit_times
from .lazy_rows import LazyRows, PartRows, lazy_inputs
from .ood_streams import hold_out, unknown_inputs, with_streams
from .partitions import deal, mislabeled, partition
from .pools import Array, DataSource, Index, LabelArray, Pool
from .preparation import SequenceFormat, check_normalize, normalized, sequences_of
from .quantities import labels_of, target_of
from .settings import DataSettings, Normalize, Partition, Shift
from .silos import Silos
from .sources import parsed, places, read_source
from .sources.image_folders import ImageFormat, check_image_memory, common_format
from .splits import NAMES, Rearrange, Splits, development_splits, reserve_test, together
from .standardization import Scaling, check_standardize, scalings
from .subgroups import Subgrouping, Subgroups, splits_of, warn_of_empty
from .tables.encoding import Encoder, TableLayout, common_layout, fit_encoders
from .tables.reference import reference_of
from .transforms import apply_shift, augmented, check_lazy, check_noise, domain_name, shifts_per_silo, spread


def load(settings: DataSettings, seed: int) -> Silos:
    """Make the silos that a configuration describes; they depend on the files, the settings and the seed only. Raises
    DataError for unusable data, ConfigurationError for settings that do not fit the data."""
    check_seed(seed)
    source = read(settings)
    return make_silos(source.pools, source.given, settings, seed, read_outside(settings))


def read(settings: DataSettings) -> DataSource:
    """Read the source of a configuration; images of different domains can differ in shape.

    Only images from folders or the hub have `settings.size` already. Raises DataError for unusable data, naming file,
    value and expectation; ConfigurationError for "on_site", which no single machine can read.
    """
    check_type(settings, DataSettings, "settings", "DataSettings")
    return read_source(settings.source, settings)


def read_outside(settings: DataSettings) -> tuple[Pool, ...]:
    """Read the pools of `ood.global_source`; none if it is not set. Raises ConfigurationError if it shares a file or
    folder with the silos' own source."""
    name = settings.ood.global_source
    if not name:
        return ()
    if shared := places(name) & places(settings.source):
        raise ConfigurationError(
            f"data.ood.global_source = {name!r} shares {sorted(shared)[0]} with data.source = {settings.source!r}: "
            "expected data of no silo"
        )
    return tuple(pool for part in parsed(name) for pool in part.read(settings).pools)


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


def make_silos(
    pools: Sequence[Pool],
    given: bool,
    settings: DataSettings,
    seed: int,
    outside: Sequence[Pool] = (),
    sequence_format: SequenceFormat | None = None,
    subgrouping: Subgrouping | None = None,
) -> Silos:
    """Make silos from pools, which are silos already (`given`) or are partitioned; `outside` pools belong to no silo.

    Sources and table columns of the settings are ignored. `sequence_format` is the format that sequences of different
    lengths were padded to, and `subgrouping` assigns samples to subgroups, by default as in the settings.
    """
    settings = settings if pools[0].value is None else replace(settings, predict=settings.predict or "quantity")
    if len(pools[0].classes) < 2:
        where = pools[0].origin or pools[0].domain or "data"
        raise DataError(f"{where}: all labels of all silos are {pools[0].classes[0]!r}, expected two classes or more")
    if any(pool.lazy for pool in pools):
        check_lazy(settings)
    check_usual(pools)
    streams = settings.ood
    image_format = common_format(pools, settings.size, settings.channels)
    image_format = replace(image_format, exif_rotation=settings.exif_rotation)
    if settings.size is not None and not pools[0].lazy:
        count = sum(len(pool.y) for pool in (*pools, *outside))
        check_image_memory(count, settings.size, FLOAT * image_format.shape(pools[0].x)[-1])
    pools = hold_out(pools, streams.held_out_classes)
    positive_class(settings.positive_class, pools[0].classes)
    images = pools[0].images
    if settings.shift.angles and not images:
        raise ConfigurationError("data.shift.angles: only images can be rotated, but these inputs are features")
    check_noise(pools[0], settings.shift, sequence_format)
    check_standardize(pools[0], settings.standardize)
    check_normalize(images, settings.normalize)
    domains = _given(pools, settings) if given else _made(pools, settings)
    held_back = [_held_back(domain, settings, seed) for domain in domains]
    chosen = [
        silo
        for domain, (development, test) in zip(domains, held_back, strict=True)
        for silo in _chosen(domain, development, test, settings, seed)
    ]
    raw = _shifted(chosen, settings.shift, image_format, seed)
    layout = (
        common_layout(pools[0].table, [splits["train"] for splits in raw.values()]) if pools[0].table else TableLayout()
    )
    sequence_format = sequence_format or sequences_of(pools[0])
    wanted = subgrouping or settings.subgrouping
    training = [(silo.pool, silo.indices["train"]) for silo in sorted(chosen, key=lambda silo: silo.name)]
    subgroups = None if wanted is None else wanted.fitted(pools, training)
    target = target_of(training, settings)
    silos = _encoded(chosen, raw, settings, seed, image_format, layout, sequence_format, subgroups, target)
    if subgroups is not None:
        warn_of_empty(subgroups, silos, pools)
    tests = [samples_of(pool, test) for pool, (_, test) in zip(pools, held_back, strict=True)]
    held_out = [pool.x[test[pool.y[test] < 0]] for pool, test in zip(pools, tests, strict=True)]
    unknown = unknown_inputs(held_out if streams.held_out_classes else [], outside, silos, streams.global_source)
    if streams.local == "none" and unknown is None:
        return silos
    return with_streams(silos, ood_local=streams.local, ood_global=unknown, per_silo=streams.per_silo, seed=seed)


def one_silo(
    own: SiloIndices,
    image_format: ImageFormat,
    layout: TableLayout,
    settings: DataSettings,
    seed: int,
    outside: Sequence[Pool] = (),
    target: Quantity | None = None,
) -> Silos:
    """Make the silo of one pool, with the classes, image format, table layout and bars shared with silos elsewhere.
    Without shifts it is bit-identical to the silo that `make_silos` makes from the pools of all silos."""
    check_normalize(own.pool.images, settings.normalize)
    image_format = replace(image_format, exif_rotation=settings.exif_rotation)
    check_standardize(own.pool, settings.standardize)
    raw = _shifted([own], settings.shift, image_format, seed)
    subgroups = None if settings.subgrouping is None else settings.subgrouping.fitted([own.pool])
    silos = _encoded([own], raw, settings, seed, image_format, layout, sequences_of(own.pool), subgroups, target)
    unknown = unknown_inputs([], outside, silos, settings.ood.global_source)
    if unknown is None:
        return silos
    return with_streams(silos, ood_global=unknown, per_silo=settings.ood.per_silo, seed=seed)


def own_indices(pool: Pool, settings: DataSettings, seed: int, rearrange: Rearrange | None = None) -> SiloIndices:
    """Draw the splits of a pool that is one silo; `rearrange` changes them afterwards."""
    (domain,) = _given([pool], settings)
    (silo,) = _chosen(domain, *_held_back(domain, settings, seed), settings, seed, rearrange)
    return silo


def _shifted(
    chosen: Sequence[SiloIndices], shift: Shift, image_format: ImageFormat, seed: int
) -> dict[SiloId, dict[str, Array]]:
    """Return the shifted inputs per silo and split, images in one format."""
    return {
        silo.name: {split: _raw(silo, split, image_format, shifted, seed) for split in NAMES}
        for silo, shifted in zip(chosen, shifts_per_silo(shift, len(chosen)), strict=True)
    }


def _encoded(
    chosen: Sequence[SiloIndices],
    raw: Mapping[SiloId, dict[str, Array]],
    settings: DataSettings,
    seed: int,
    image_format: ImageFormat,
    layout: TableLayout,
    sequence_format: SequenceFormat | None,
    subgroups: Subgroups | None,
    target: Quantity | None = None,
) -> Silos:
    """Encode raw inputs; their arrays are removed from `raw`."""
    masked = sequence_format is not None and sequence_format.masked
    scales = scalings({name: x["train"] for name, x in raw.items()}, settings.standardize, masked)
    first = chosen[0].pool
    tables = {silo.name: silo.pool.table for silo in chosen}
    encoders = fit_encoders(tables, {n: x["train"] for n, x in raw.items()}, layout) if layout.columns else {}
    encoders = {
        name: replace(
            encoder, csv_format=first.csv_format,
            reference=reference_of(raw[name]["calibration"], encoder.table, _generator(seed, "reference", name)),
        )
        for name, encoder in encoders.items()
    }  # fmt: skip
    wrong = spread(settings.label_noise, len(chosen), "data.label_noise")
    silos = []
    for silo, (angle, std), share in zip(chosen, shifts_per_silo(settings.shift, len(chosen)), wrong, strict=True):
        splits, values = {}, {}
        for split, index in silo.indices.items():
            x = raw[silo.name].pop(split)  # popped, so memory never holds all raw and normalized inputs
            finish = _finished(silo, encoders, image_format, settings.normalize, scales)
            y = silo.pool.y[index]
            if target is not None and silo.pool.value is not None:
                values[split], own = (torch.from_numpy(silo.pool.value[i]) for i in (index, silo.indices["train"]))
                y = labels_of(values[split], own, target).numpy()
            if share and split == "train":
                y = mislabeled(y, share, len(first.classes), _generator(seed, "wrong labels", silo.name))
            splits[split] = Data(lazy_inputs(x, finish) if isinstance(x, LazyRows) else finish(x), torch.from_numpy(y))
        domain = domain_name(settings.shift, angle, std, silo.domain.name)
        indices = {split: torch.from_numpy(index) for split, index in silo.indices.items()}
        if settings.augment:
            splits["train"] = augmented(splits["train"], settings.augment, settings.normalize)
        of = {} if subgroups is None else splits_of(subgroups, silo.pool, silo.indices)
        train, validation, calibration, test = (splits[name] for name in NAMES)
        silos.append(Silo(silo.name, domain, train, validation, calibration, test, indices, {}, of, values))
    classes = target.classes if target else first.classes
    return Silos(tuple(silos), classes, settings.normalize if first.images else None, encoders, image_format,
                 sequence_format, positive=settings.positive_class, scalings=scales, subgroups=subgroups,
                 target=target)  # fmt: skip


def _finished(
    silo: SiloIndices,
    encoders: Mapping[SiloId, Encoder],
    image_format: ImageFormat,
    normalize: Normalize,
    scales: Mapping[SiloId, Scaling],
) -> Callable[[Array], Tensor]:
    """Return the function from a silo's raw inputs to model inputs; it also formats images that are read lazily."""
    if silo.pool.images:
        return lambda x: normalized(image_format(x) if silo.pool.lazy else x, normalize)
    if scales:
        return lambda x: scales[silo.name](torch.from_numpy(x))
    return lambda x: torch.from_numpy(encoders[silo.name](x) if encoders else x)


def _raw(silo: SiloIndices, split: str, image_format: ImageFormat, shifted: tuple[float, float], seed: int) -> Array:
    if isinstance(silo.pool.x, LazyRows):
        return cast(Array, PartRows(silo.pool.x, silo.indices[split]))
    x = silo.pool.x[silo.indices[split]]
    x = image_format(x) if silo.pool.images else x
    # One key per split: changes to the test samples do not change the noise of the others.
    generator = _generator(seed, "noise", silo.name, split)
    if not silo.pool.table:
        return apply_shift(x, *shifted, generator)
    numbers = [i for i, column in enumerate(silo.pool.table) if column.categories is None]
    x[:, numbers] = apply_shift(x[:, numbers], *shifted, generator)
    return x


def _generator(seed: int, *purpose: object) -> np.random.Generator:
    return np.random.default_rng(key(seed, "data", *purpose))


def _given(pools: Sequence[Pool], settings: DataSettings) -> list[Domain]:
    """Return a domain with one silo for each pool."""
    names = [pool.domain for pool in pools]
    for name in names:
        check_silo_name(name)
    if settings.n_silos not in (None, len(pools)):
        raise ConfigurationError(
            f"data.n_silos = {settings.n_silos} but the data are divided into {len(pools)} silos: {', '.join(names)}"
        )
    if settings.partition.scheme != "iid":
        raise ConfigurationError(
            f"data.partition.scheme = {settings.partition.scheme!r} is ignored: the data are already divided into silos"
        )
    return [Domain(pool, pool.domain, [pool.domain]) for pool in pools]


def _made(pools: Sequence[Pool], settings: DataSettings) -> list[Domain]:
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


def _held_back(domain: Domain, settings: DataSettings, seed: int) -> tuple[Index, Index]:
    """Return the units (samples or groups) of a domain's pool for development, and the units for the test."""
    pool = domain.pool
    check_groups(pool)
    if pool.own_test:
        return own_parts(pool)
    if len(pool.y) < 2:
        raise DataError(f"{pool.domain}: {len(pool.y)} samples, expected at least 4 for the four splits")
    rng = _generator(seed, "reserve", domain.silos[0])
    return reserve_test(unit_count(pool), settings.split.test, rng, unit_times(pool))


def _known(y: LabelArray, index: Index) -> Index:
    return index[y[index] >= 0]


def _chosen(
    domain: Domain,
    development: Index,
    test_part: Index,
    settings: DataSettings,
    seed: int,
    rearrange: Rearrange | None = None,
) -> list[SiloIndices]:
    """Draw the splits of a domain's silos; no unit, sample or group, is in two silos or in two splits."""
    pool = domain.pool
    y, time = unit_labels(pool), unit_times(pool)
    try:
        trains, tests = _share_out(domain, y, _known(y, development), _known(y, test_part), settings, seed)
    except DataError as error:
        raise DataError(f"{pool.domain or 'data'}: {error}{_of_groups(pool)}") from error
    chosen = []
    for name, mine, test in zip(domain.silos, trains, tests, strict=True):
        rng, order = _generator(seed, "split", name), None if time is None else time[mine]
        splits = development_splits(len(mine), settings.split, name, rng, order)
        indices: Splits = {split: mine[index] for split, index in splits.items()} | {"test": test}
        indices = {split: _known(pool.y, samples_of(pool, units)) for split, units in indices.items()}
        if rearrange is not None:
            indices = rearrange(pool, indices)
        if pool.table and pool.groups is None and settings.duplicates == "together":
            indices = together(pool, indices)
        once = {split: _generator(seed, "group", name, split) for split in ("calibration", "test")}
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
    return "" if pool.groups is None else " (data.groups is set: samples are groups here)"


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
        raise DataError(
            f"{silos} silos with {tests} test samples each need {silos * tests}, but there are only {len(held_out)}"
        )
    y, rng = labels[development], _generator(seed, "partition", names[0])
    shares = None
    if silos > 1 or settings.partition.scheme != "iid":
        chosen = _silo_classes(settings.partition, pool.classes, silos)
        trains, shares = partition(settings.partition, y, len(pool.classes), silos, samples, rng, chosen)
    elif samples is not None and samples > len(y):
        raise DataError(f"data.samples_per_silo = {samples}, but there are only {len(y)} samples")
    else:
        trains = deal(y, silos, samples, None, rng)
    # A separate generator: the test labels must not affect later draws.
    dealt = deal(labels[held_out], silos, tests, shares, _generator(seed, "test", names[0]))
    return [development[part] for part in trains], [held_out[part] for part in dealt]
