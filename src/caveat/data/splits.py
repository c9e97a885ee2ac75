"""Four disjoint splits per silo, drawn from a seed, and the record of the splits.

The units of a draw are samples, or groups of them (`caveat.data.groups`).
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from ..core import AugmentedData, Data, DataError, Silo
from .lazy_rows import in_parts
from .raw_samples import Array, Index, LabelArray, Pool
from .settings import Split

NAMES = ("train", "validation", "calibration", "test")
PROTECTED = ("test", "calibration", "validation", "train")
"""The splits, in decreasing order of protection from training."""
Splits = Mapping[str, Index]
"""Positions in a pool, per split."""
Rearrange = Callable[[Pool, Splits], Splits]
"""Changes the splits of a pool after they are drawn."""


def draw_parts(count: int, sizes: Sequence[int], rng: np.random.Generator, time: Array | None = None) -> list[Index]:
    """Return positions among `count` units for parts of the given sizes, at random or in the order of `time`. Remaining
    positions are dropped.

    Parts are not stratified by class. Guarantees need calibration and test rows that are drawn like new inputs,
    whatever the training rows are. Stratified parts have the training rows' class frequencies, which a model of a small
    silo has learned, so its errors there are fewer than its errors on new inputs.
    """
    order = rng.permutation(count) if time is None else np.argsort(time, kind="stable")
    return [np.sort(order[end - size : end]) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]


def reserve_test(count: int, share: float, rng: np.random.Generator, time: Array | None = None) -> tuple[Index, Index]:
    """Return positions among `count` units for development and for testing, for a source without a test part."""
    test = min(max(1, round(count * share)), count - 1)
    development, held_out = draw_parts(count, (count - test, test), rng, time)
    return development, held_out


def development_splits(
    count: int, split: Split, silo: str, rng: np.random.Generator, time: Array | None = None
) -> dict[str, Index]:
    """Return positions of the train, validation and calibration splits among the `count` units of a silo that are not
    in its test split."""
    sizes = split.sizes(count)
    if sizes[0] < 1:
        raise DataError(f"silo {silo!r}: {count} samples, expected at least 3 in addition to the test split")
    return dict(zip(NAMES, draw_parts(count, sizes, rng, time), strict=False))


def hashes(silo: Silo) -> dict[str, str]:
    """Return the SHA-256 of the positions of each split and stream, as little-endian int64 bytes."""
    return {name: hashlib.sha256(at.numpy().astype("<i8").tobytes()).hexdigest() for name, at in silo.indices.items()}


def splits_record(silos: Iterable[Silo], classes: int = 0) -> dict[str, object]:
    """Return the content of `splits.json`: each silo's domain, and the size, class counts and hashes of each of its
    splits and streams. Splits of quantities have no class counts. Counts cover at least `classes` classes, and all
    classes that some silo has."""
    silos = list(silos)
    largest = (int(getattr(silo, name).y.max()) for silo in silos for name in NAMES if len(getattr(silo, name)))
    classes = max(classes, 1 + max(largest))
    return {
        silo.name: {"domain": silo.domain, **_splits(silo, classes), **_streams(silo.streams, classes)}
        for silo in silos
    }


def _content(data: Data) -> str:
    digest = hashlib.sha256()
    for part in in_parts(data.x):
        digest.update(part.contiguous().numpy().tobytes())
    digest.update(data.y.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _splits(silo: Silo, classes: int) -> dict[str, object]:
    digest = hashes(silo)
    return {
        name: {
            **(_sizes(getattr(silo, name), classes) if not silo.values else {"examples": len(getattr(silo, name))}),
            **({"sha256": digest[name]} if name in digest else {}),
            "content_sha256": _content(getattr(silo, name)),
            **_augmented(getattr(silo, name)),
            **_subgroups(silo, name),
        }
        for name in NAMES
    }


def _subgroups(silo: Silo, name: str) -> dict[str, object]:
    if name not in silo.subgroups:
        return {}
    return {"subgroups_sha256": hashlib.sha256(silo.subgroups[name].numpy().astype("<i8").tobytes()).hexdigest()}


def _augmented(data: Data) -> dict[str, object]:
    return {"augment": list(data.names)} if isinstance(data, AugmentedData) else {}


def _streams(streams: Mapping[str, Data], classes: int) -> dict[str, object]:
    entries = {name: _sizes(data, classes) | {"content_sha256": _content(data)} for name, data in streams.items()}
    return {"streams": entries} if entries else {}


def _sizes(data: Data, classes: int) -> dict[str, object]:
    return {"examples": len(data), "class_counts": torch.bincount(data.y[data.y >= 0], minlength=classes).tolist()}


def ranks(splits: Splits) -> LabelArray:
    """Return the position in `PROTECTED` of the split of each row, the rows of the most protected split first."""
    return np.repeat(np.arange(len(PROTECTED)), [len(splits[name]) for name in PROTECTED])


def with_ranks(splits: Splits, where: Index, place: LabelArray) -> Splits:
    """Return the splits after moving each row of `where` to the split whose rank is in `place`."""
    found = {name: where[place == rank] for rank, name in enumerate(PROTECTED)}
    return {name: at if np.array_equal(found[name], at) else np.sort(found[name]) for name, at in splits.items()}
