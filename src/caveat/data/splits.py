"""Four disjoint splits per silo, a function of the seed, and the record that proves it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from ..core import AugmentedData, Data, DataError, Silo
from .lazy import in_parts
from .pools import Index, LabelArray
from .settings import Split

NAMES = ("train", "validation", "calibration", "test")


def stratified(y: LabelArray, sizes: Sequence[int], rng: np.random.Generator) -> list[Index]:
    """Positions in `y` for parts of the given sizes, each with about the class shares of the whole.

    Every class has a sample in the first part, if that is large enough. What the sizes leave over is dropped.
    """
    order = rng.permutation(len(y))
    place = np.empty(len(y))
    for label in np.unique(y):
        members = order[y[order] == label]
        place[members] = (np.arange(len(members)) + rng.random()) / len(members)
        place[members[0]] = 0  # a rare class could miss the first part otherwise
    by_place = order[np.argsort(place[order], kind="stable")]
    ends = np.cumsum(sizes)
    return [np.sort(by_place[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def reserve_test(y: LabelArray, share: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """Positions to develop with and positions to test on, for a source without a test part of its own."""
    test = min(max(1, round(len(y) * share)), len(y) - 1)
    development, held_out = stratified(y, (len(y) - test, test), rng)
    return development, held_out


def development_splits(y: LabelArray, split: Split, silo: str, rng: np.random.Generator) -> dict[str, Index]:
    """Positions of the splits train, validation and calibration among a silo's labels, without its test split."""
    validation, calibration = (max(1, round(len(y) * share)) for share in (split.validation, split.calibration))
    train = len(y) - validation - calibration
    if train < 1:
        raise DataError(f"silo {silo!r}: {len(y)} samples, expected at least 3 to split beside the test split")
    parts = stratified(y, (train, validation, calibration), rng)
    return dict(zip(NAMES, parts, strict=False))


def hashes(silo: Silo) -> dict[str, str]:
    """SHA-256 of each index array, of a split or a stream, as bytes of little-endian int64."""
    return {
        name: hashlib.sha256(index.numpy().astype("<i8").tobytes()).hexdigest() for name, index in silo.indices.items()
    }


def splits_record(silos: Iterable[Silo], classes: int = 0) -> dict[str, object]:
    """What `splits.json` holds: each silo's domain, and the size, class counts and hash of its splits and streams.

    Counts are of at least `classes` classes, and of all that some silo has.
    """
    silos = list(silos)
    largest = (int(getattr(silo, name).y.max()) for silo in silos for name in NAMES if len(getattr(silo, name)))
    classes = max(classes, 1 + max(largest))
    return {
        silo.name: {"domain": silo.domain, **_splits(silo, classes), **_streams(silo.streams, classes)}
        for silo in silos
    }


def _content(data: Data) -> str:
    """SHA-256 of what a model sees: inputs and labels."""
    digest = hashlib.sha256()
    for part in in_parts(data.x):
        digest.update(part.contiguous().numpy().tobytes())
    digest.update(data.y.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _splits(silo: Silo, classes: int) -> dict[str, object]:
    digest = hashes(silo)
    return {
        name: {
            **_sizes(getattr(silo, name), classes),
            **({"sha256": digest[name]} if name in digest else {}),
            "content_sha256": _content(getattr(silo, name)),
            **_augmented(getattr(silo, name)),
        }
        for name in NAMES
    }


def _augmented(data: Data) -> dict[str, object]:
    """How the batches of a split are changed; empty where they are not."""
    return {"augment": list(data.names)} if isinstance(data, AugmentedData) else {}


def _streams(streams: Mapping[str, Data], classes: int) -> dict[str, object]:
    """The entry "streams" of a silo's record; empty for a silo without streams, whose record has no such entry."""
    entries = {name: _sizes(data, classes) | {"content_sha256": _content(data)} for name, data in streams.items()}
    return {"streams": entries} if entries else {}


def _sizes(data: Data, classes: int) -> dict[str, object]:
    """How many samples there are, and how many of each class; a label of -1 is of no class."""
    return {"examples": len(data), "class_counts": torch.bincount(data.y[data.y >= 0], minlength=classes).tolist()}
