"""Quantities as targets: their values, ranks that splits are stratified by, and bars.

Splits are drawn before the bars are known, because bars depend on the training targets of all silos. So splits are
stratified by the ranks of a silo's own targets, and labels become bars afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..core import ConfigurationError, DataError, Refused
from ..core.quantity import Quantity
from .pools import Array, CsvFormat, Index, LabelArray, Pool, shown
from .tables.files import Sheet, missing
from .tables.formats import number

STRATA = 5
"""Maximum number of groups of ranks that splits are stratified by."""
CLASSES = tuple(f"ranks {k}" for k in range(STRATA))
"""Names of these groups, which are the classes of a pool until its targets become bars."""


def strata(values: Array) -> LabelArray:
    """Return the group (N,) of equally many ranks of each value, equal for equal values: at most 5, of 5 or more."""
    groups = min(max(len(values) // 5, 2), STRATA)
    cuts = np.quantile(values, np.arange(1, groups) / groups)
    return np.searchsorted(cuts, values, side="right").astype(np.int64)


def valued(pool: Pool, values: Any) -> Pool:
    """Return a pool with these values (N,) as its targets. Raises DataError unless they are finite numbers."""
    where = pool.origin or f"silo {pool.domain!r}"
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{where}: targets of {np.asarray(values).dtype}, expected numbers") from None
    if found.ndim != 1 or len(found) != len(pool.x):
        raise DataError(f"{where}: targets of shape {found.shape} for {len(pool.x)} inputs, expected one for each")
    if (wrong := np.flatnonzero(~np.isfinite(found))).size:
        raise DataError(f"{where}: target {wrong[0]} is {found[wrong[0]]}, expected a finite number")
    return replace(pool, y=strata(found), classes=CLASSES, value=found)


def column_values(sheets: Sequence[Sheet], target: str, csv_format: CsvFormat) -> Array:
    """Return the targets (N,) of tables. Raises Refused for a cell that is not a finite number."""
    found = []
    for sheet in sheets:
        decimal = "." if sheet.stores_numbers(target) else csv_format.of(sheet.path.stem).decimal
        for row, text in enumerate(sheet.column(target)):
            value = None if missing(text) else number(text, decimal)
            if value is None or not math.isfinite(value):
                raise Refused(
                    f"{sheet.path}, line {sheet.lines[row]}: {target!r} is {shown(text)}, expected a number because "
                    "data.predict = 'quantity'",
                    "reading",
                    target,
                )
            found.append(value)
    return np.array(found)


def target_of(
    training: Iterable[tuple[Pool, Index]], name: str | None, bounds: tuple[float, float] | None
) -> Quantity | None:
    """Return the bars for the training targets of silos, from sums over them; None for classes. Raises DataError if all
    targets are equal, or if one is outside the declared range."""
    values = [torch.from_numpy(pool.value[index]) for pool, index in training if pool.value is not None]
    if not values:
        return None
    if bounds is not None:
        ends = min(float(each.min()) for each in values), max(float(each.max()) for each in values)
        if ends[0] < bounds[0] or ends[1] > bounds[1]:
            raise DataError(
                f"targets from {ends[0]:g} to {ends[1]:g} exceed data.range = [{bounds[0]:g}, {bounds[1]:g}]; expected "
                "a range that contains all of them"
            )
    try:
        return Quantity.of(values, name or "", bounds)
    except ValueError:
        raise DataError(f"all training targets are {float(values[0][0]):g}, expected different numbers") from None


def check_predict(settings: Any) -> None:
    """Raise ConfigurationError for keys of `[data]` that contradict the kind of target."""
    if settings.range is not None:
        low, high = settings.range
        if settings.predict != "quantity" or low >= high:
            why = "expected the lowest and the highest value" if low >= high else "is for data.predict = 'quantity'"
            raise ConfigurationError(f"data.range = [{low:g}, {high:g}]: {why}", "data.range")
    if settings.predict != "quantity":
        return
    ood = settings.ood
    given = {
        "classes": settings.classes, "label_codes": settings.label_codes, "positive_class": settings.positive_class,
        "label_noise": settings.label_noise, "ood": (ood.local != "none", ood.global_source, ood.held_out_classes),
        "partition.scheme": settings.partition.scheme != "iid",
    }  # fmt: skip
    for key, value in given.items():
        if any(value) if isinstance(value, tuple) else value:
            raise ConfigurationError(f"data.{key} is for classes, but data.predict = 'quantity'", f"data.{key}")
