"""Partitions of a pool into silos, at random or with label skew, and label noise."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core import ConfigurationError, DataError
from .raw_samples import Index, LabelArray
from .settings import Partition

MINIMUM = 10
TRIES = 100
Shares = NDArray[np.float64]
"""(classes, silos): each silo's share of each class; zeros for a class that no silo has."""


def partition(
    labels: Partition,
    y: LabelArray,
    classes: int,
    silos: int,
    per_silo: int | None,
    rng: np.random.Generator,
    chosen: Sequence[Sequence[int]] = (),
) -> tuple[list[Index], Shares | None]:
    """Return positions in `y` for each silo, and the shares for distributing a test part (None for iid).

    `chosen` are the classes of each silo if `labels.silo_classes` names them. Raises DataError if no draw gives every
    silo `labels.minimum` samples of two classes or more; one class is enough if the settings can give a silo only one.
    """
    least = MINIMUM if labels.minimum is None else labels.minimum
    wanted = least if per_silo is None else per_silo
    if len(y) < silos * wanted:
        raise DataError(
            f"{silos} silos with at least {wanted} samples each need {silos * wanted} samples, but there "
            f"are only {len(y)}"
        )
    if labels.scheme == "iid":
        return deal(y, silos, per_silo, None, rng), None
    draws = {"classes": _classes, "draws": _draws, "dirichlet": _dirichlet}
    if labels.scheme == "pfllib":
        draw = _pfllib(labels, np.bincount(y, minlength=classes), silos)
    else:
        draw = _chosen(chosen, classes) if chosen else draws[labels.scheme](labels, classes, silos)
    several = 1 if chosen or labels.scheme == "pfllib" or labels.per_silo == 1 else 2
    for _ in range(TRIES):
        shares = draw(rng)
        parts = deal(y, silos, per_silo, shares, rng)
        if all(len(part) >= least and len(np.unique(y[part])) >= several for part in parts):
            return parts, shares
    raise DataError(
        f"none of {TRIES} draws of partition {labels.scheme!r} gave each of {silos} silos at least {least} of "
        f"{len(y)} samples{' and two classes' * (several > 1)}: use fewer silos, more samples, or a larger alpha or "
        "per_silo"
    )


def deal(
    y: LabelArray, silos: int, per_silo: int | None, shares: Shares | None, rng: np.random.Generator
) -> list[Index]:
    """Return disjoint positions in `y` for each silo, by the shares of each class, or equally without shares.
    `per_silo` is the number of samples per silo, on average if there are shares; None uses all samples."""
    order = rng.permutation(len(y))
    if shares is not None:
        order = order[shares[y[order]].sum(axis=1) > 0]
    if per_silo is not None:
        order = order[: silos * per_silo]
    if shares is None:
        return [np.sort(part) for part in np.array_split(order, silos)]
    parts: list[list[Index]] = [[] for _ in range(silos)]
    for label in np.unique(y[order]):
        members = order[y[order] == label]
        cuts = np.rint(np.cumsum(shares[label])[:-1] * len(members)).astype(int)
        for silo, part in enumerate(np.split(members, cuts)):
            parts[silo].append(part)
    return [np.sort(np.concatenate([*part, np.empty(0, np.int64)])) for part in parts]


def _dirichlet(labels: Partition, classes: int, silos: int) -> Callable[[np.random.Generator], Shares]:
    alpha = 0.5 if labels.alpha is None else labels.alpha
    return lambda rng: rng.dirichlet([alpha] * silos, classes)


def _pfllib(labels: Partition, counts: LabelArray, silos: int) -> Callable[[np.random.Generator], Shares]:
    """Draw as PFLlib's `separate_data(partition="dir")`: Dirichlet shares for silos still below their even share."""
    alpha, even = 0.1 if labels.alpha is None else labels.alpha, counts.sum() / silos

    def draw(rng: np.random.Generator) -> Shares:
        shares, sizes = np.zeros((len(counts), silos)), np.zeros(silos)
        for label, count in enumerate(counts):
            drawn = rng.dirichlet([alpha] * silos) * (sizes < even)
            if drawn.sum() > 0:  # tiny shares of a small alpha may all be 0
                shares[label] = drawn / drawn.sum()
            else:
                shares[label, np.argmin(sizes)] = 1
            sizes += np.diff(np.rint(np.cumsum(shares[label]) * count), prepend=0)
        return shares

    return draw


def _chosen(chosen: Sequence[Sequence[int]], classes: int) -> Callable[[np.random.Generator], Shares]:
    owners = np.zeros((classes, len(chosen)))
    for silo, labels in enumerate(chosen):
        owners[list(labels), silo] = 1
    return lambda rng: np.asarray(owners / np.maximum(owners.sum(axis=1, keepdims=True), 1), dtype=np.float64)


def _classes(labels: Partition, classes: int, silos: int) -> Callable[[np.random.Generator], Shares]:
    per_silo = 2 if labels.per_silo is None else labels.per_silo
    if per_silo > classes:
        raise ConfigurationError(f"data.partition.per_silo = {per_silo}, but the data have only {classes} classes")

    def draw(rng: np.random.Generator) -> Shares:
        owners = np.zeros((classes, silos))
        for silo in range(silos):
            # The classes that the fewest silos have so far, ties at random, so all are used evenly.
            rarest = np.lexsort((rng.random(classes), owners.sum(axis=1)))
            owners[rarest[:per_silo], silo] = 1
        return np.asarray(owners / np.maximum(owners.sum(axis=1, keepdims=True), 1), dtype=np.float64)

    return draw


def _draws(labels: Partition, classes: int, silos: int) -> Callable[[np.random.Generator], Shares]:
    """Draw as FedPN does: all classes once, and other draws at random, shuffled and distributed to the silos."""
    per_silo = 3 if labels.per_silo is None else labels.per_silo

    def draw(rng: np.random.Generator) -> Shares:
        more = max(0, silos * per_silo - classes)
        cards = rng.permutation(np.concatenate([np.arange(classes), rng.integers(classes, size=more)]))
        drawn = np.zeros((classes, silos))
        np.add.at(drawn, (cards[: silos * per_silo], np.repeat(np.arange(silos), per_silo)), 1)
        return np.asarray(drawn / np.maximum(drawn.sum(axis=1, keepdims=True), 1), dtype=np.float64)

    return draw


def mislabeled(y: LabelArray, share: float, classes: int, rng: np.random.Generator) -> LabelArray:
    """Return the labels with a share of them (rounded) replaced by another class, drawn uniformly."""
    wrong = rng.choice(len(y), round(share * len(y)), replace=False)
    changed = y.copy()
    changed[wrong] = (y[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return changed
