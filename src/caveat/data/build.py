"""Make the silos of a configuration: read, partition, split, shift and encode its sources."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ..core import ConfigurationError, Data, DataError, Silo, SiloId
from ..core.devices import FLOAT
from ..core.quantity import Quantity
from ..core.settings import check_seed, check_type
from ..core.silo import positive_class
from .augmentation import augmented
from .checks import check_usual
from .groups import samples_of
from .lazy_rows import LazyRows, PartRows, lazy_inputs
from .ood_streams import hold_out, unknown_inputs, with_streams
from .partitions import mislabeled
from .preprocessing import SequenceFormat, check_normalize, normalized, sequences_of
from .quantities import labels_of, target_of
from .raw_samples import Array, DataSource, Pool
from .series_standardization import Scaling, check_standardize, scalings
from .settings import DataSettings, Normalize, Shift
from .shifts import apply_shift, check_lazy, check_noise, domain_name, shifts_per_silo, spread
from .silo_collection import Silos
from .silo_indices import SiloIndices, draw_silos, generator, given_silos, held_back, made_silos
from .sources import parsed, places, read_source
from .sources.image_folders import ImageFormat, check_image_memory, common_format
from .splits import NAMES
from .subgroups import Subgrouping, Subgroups, splits_of, warn_of_empty
from .tables.drift_reference import reference_of
from .tables.encoding import Encoder, TableLayout, common_layout, fit_encoders


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
            "expected data that belong to no silo"
        )
    return tuple(pool for part in parsed(name) for pool in part.read(settings).pools)


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
    unusual = check_usual(pools)
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
        raise ConfigurationError("data.shift.angles: only images can be rotated, but these inputs are not images")
    check_noise(pools[0], settings.shift, sequence_format)
    check_standardize(pools[0], settings.standardize)
    check_normalize(images, settings.normalize)
    domains = given_silos(pools, settings) if given else made_silos(pools, settings)
    parts = [held_back(domain, settings, seed) for domain in domains]
    chosen = [
        silo
        for domain, (development, test) in zip(domains, parts, strict=True)
        for silo in draw_silos(domain, development, test, settings, seed)
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
    silos = replace(silos, unusual=unusual)
    if subgroups is not None:
        warn_of_empty(subgroups, silos, pools)
    tests = [samples_of(pool, test) for pool, (_, test) in zip(pools, parts, strict=True)]
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
            reference=reference_of(raw[name]["calibration"], encoder.table, generator(seed, "reference", name)),
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
                y = mislabeled(y, share, len(first.classes), generator(seed, "wrong labels", silo.name))
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
    rng = generator(seed, "noise", silo.name, split)
    if not silo.pool.table:
        return apply_shift(x, *shifted, rng)
    numbers = [i for i, column in enumerate(silo.pool.table) if column.categories is None]
    x[:, numbers] = apply_shift(x[:, numbers], *shifted, rng)
    return x
