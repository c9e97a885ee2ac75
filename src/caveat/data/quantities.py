"""Quantities and times as targets: their values, and bars.

Splits are drawn before the bars are known, because bars depend on the training targets of all silos. Until then, all
labels are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from ..core import ConfigurationError, DataError, Refused
from ..core.quantity import Quantity, Times, observed, unit_of
from ..uncertainty.binned_distributions import CELLS
from .raw_samples import Array, Index, Pool, shown
from .tables.cell_formats import TRUTH, number
from .tables.files import Sheet, missing
from .tables.reading_settings import NUMERIC, CsvFormat

Fit = TypeVar("Fit", bound=Quantity | None)
CLASSES = ("first bar", "other bars")
"""Placeholders for the classes of a pool until its targets become bars."""
MOST = 10**9
"""Maximum number of targets in the sums of a silo."""
SLACK = 1e-6
"""Allowed relative rounding error in sums of targets."""


def with_values(pool: Pool, values: Array) -> Pool:
    """Return the pool with `values` (N,) as targets."""
    return replace(pool, y=np.zeros(len(values), np.int64), classes=CLASSES, value=values)


def valued(pool: Pool, values: Any, predict: str) -> Pool:
    """Return the pool with the `numbers` of the values as targets. Raises DataError unless each input has a target."""
    where = pool.origin or f"silo {pool.domain!r}"
    found = numbers(values, where, predict)
    if len(found) != len(pool.x):
        raise DataError(f"{where}: targets have shape {found.shape}, expected one for each of {len(pool.x)} inputs")
    return with_values(pool, found)


def numbers(values: Any, where: str, predict: str) -> Array:
    """Return quantities (N,) or, from times and events (N, 2), observed times (N,). Raises DataError for other
    values."""
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{where}: targets have dtype {np.asarray(values).dtype}, expected numbers") from None
    columns, wanted = ((), "(N,)") if predict == "quantity" else ((2,), "(N, 2), that is, times and events,")
    if not found.ndim or found.shape[1:] != columns:
        raise DataError(f"{where}: targets have shape {found.shape}, expected {wanted} for data.predict = {predict!r}")
    if (wrong := np.flatnonzero(~np.isfinite(found.reshape(len(found), -1)).all(1))).size:
        raise DataError(f"{where}: target {wrong[0]} is {found[wrong[0]]}, expected finite numbers")
    return found if predict == "quantity" else _observed(found, where)


def _observed(found: Array, where: str) -> Array:
    times: Array = found[:, 0]
    events: Array = found[:, 1]
    if (wrong := np.flatnonzero((times < 0) | ~np.isin(events, (0, 1)))).size:
        raise DataError(
            f"{where}: target {wrong[0]} has time {times[wrong[0]]:g} and event {events[wrong[0]]:g}, expected a time "
            "of at least 0, and event 1, or 0 if the time is censored"
        )
    return np.where(events == 1, times, -times)


def column_values(sheets: Sequence[Sheet], target: str, csv_format: CsvFormat, event: str | None = None) -> Array:
    """Return the targets (N,) of tables; with a column `event`, they are observed times. Raises Refused for cells other
    than finite numbers, times below 0, and events other than 0, 1, true and false."""
    if event is None:
        return _cells(sheets, target, csv_format, "a number because data.predict = 'quantity'")
    times = _cells(sheets, target, csv_format, "a time of at least 0 because data.predict = 'time'", lambda t: t >= 0)
    wanted = "1, or 0 if censored, because the column is data.event"
    happened = _cells(sheets, event, csv_format, wanted, lambda e: e in (0, 1), _event)
    return np.where(happened == 1, times, -times)


def _event(text: str, decimal: str) -> float | None:
    return TRUTH.get(text.lower(), number(text, decimal))


def _cells(
    sheets: Sequence[Sheet],
    name: str,
    csv_format: CsvFormat,
    wanted: str,
    fits: Callable[[float], bool] = math.isfinite,
    parse: Callable[[str, str], float | None] = number,
) -> Array:
    found = []
    for sheet in sheets:
        decimal = "." if sheet.stores_numbers(name) else csv_format.of(sheet.path.stem).decimal
        for row, text in enumerate(sheet.column(name)):
            value = None if missing(text) else parse(text, decimal)
            if value is None or not math.isfinite(value) or not fits(value):
                told = f"{sheet.path}, line {sheet.lines[row]}: {name!r} is {shown(text)}, expected {wanted}"
                raise Refused(told, "reading", name)
            found.append(value)
    return np.array(found)


def kind_of(settings: Any) -> type[Quantity]:
    """Return the kind of the target."""
    return Times if settings.predict == "time" else Quantity


def own_sums(values: Array, settings: Any, grid: Sequence[float] = ()) -> tuple[tuple[float, ...], ...]:
    """Return the sums over training targets (n,) that a silo sends for the bars (see `Quantity.sums`). With a declared
    range, they are only the number of targets, or of events. Raises DataError for a target outside the range, and for
    an invalid grid."""
    y = torch.from_numpy(values)
    y = _in_unit(y, y, settings.standardize_target == "silo")
    _check_range([y], settings)
    if grid and (len(grid) != CELLS + 1 or list(grid) != sorted(set(grid)) or not np.isfinite(grid).all()):
        raise DataError(f"invalid grid of {len(grid)} edges, expected {CELLS + 1} finite edges in increasing order")
    found = kind_of(settings).sums(y, torch.tensor(grid, dtype=torch.float64))
    found = found[None, :1] if settings.range is not None else found.reshape(-1, found.shape[-1])
    return tuple(tuple(row) for row in found.tolist())


def summed(sums: Iterable[Sequence[Sequence[float]]], settings: Any, grid: Sequence[float]) -> Tensor:
    """Return the sum over silos of the sums that they sent. Raises DataError for invalid sums, see `checked_sums`."""
    total = torch.stack([checked_sums(each, settings, grid) for each in sums]).sum(0)
    return total if grid else total[0]


def checked_sums(
    sums: Sequence[Sequence[float]], settings: Any, grid: Sequence[float], first: Sequence[Sequence[float]] = ()
) -> Tensor:
    """Return the sums that a silo sent, after checking them. `first` are the sums that it sent before there was a grid,
    if known. Raises DataError for numbers that are not the sums of any targets, or not the sums of the same targets as
    `first`."""
    found, kind = torch.tensor(sums, dtype=torch.float64), kind_of(settings)
    form = kind.sums(torch.zeros(0), torch.tensor(grid, dtype=torch.float64))
    shape = (1, 1) if settings.range is not None else form.reshape(-1, form.shape[-1]).shape
    if found.shape != shape:
        raise DataError(f"sums of targets have shape {tuple(found.shape)}, expected {tuple(shape)}")
    counts = found[::2] if grid else found[:, :1]
    if bool(((counts < 0) | (counts != counts.floor()) | (counts > MOST)).any()):
        told = f"from {counts.min():g} to {counts.max():g}"
        raise DataError(f"sums of targets have counts {told}, expected whole numbers from 0 to {MOST:,}")
    if why := _wrong_cells(found, grid, first, kind) if grid else _wrong_moments(found[0]):
        raise DataError(f"impossible sums of targets: {why}")
    return found


def _wrong_moments(found: Tensor) -> str:
    """Return why no targets have the moments `found`, or "" if some have them. With a range, the only moment is a
    count. Otherwise, they are the number of targets, sum and sum of squares, for times after the number of events."""
    if len(found) == 1:
        return ""
    count, total, squares = found[-3:].tolist()
    if not found[0] <= count <= MOST or count % 1:
        return f"{found[0]:.0f} events among {count:g} targets"
    if len(found) == 4 and total < 0:
        return "the sum of times is below 0"
    least = total * total / max(count, 1)
    fits = least <= squares * (1 + SLACK) and (count or not squares)
    return "" if fits else "the sum of squares does not fit the number and the sum"


def _wrong_cells(found: Tensor, grid: Sequence[float], first: Sequence[Sequence[float]], kind: type[Quantity]) -> str:
    """Return why no targets have the sums by cell `found` and the moments `first`, or "" if some have them."""
    edges, (counts, totals) = torch.tensor(grid, dtype=torch.float64), found[:2]
    room = SLACK * counts * edges.abs().max()
    high, low = totals - counts * edges[1:] - room, counts * edges[:-1] - totals - room
    if bool((high[:-1] > 0).any()) or bool((low[1:] > 0).any()) or bool(totals[counts == 0].any()):
        return "the sum of a cell does not fit the edges of the cell"
    if not first:
        return ""
    told = [first[0][0]] if kind is Quantity else [first[0][0], first[0][1] - first[0][0]]
    if found[::2].sum(1).tolist() != told:
        return f"{found[::2].sum():.0f} targets, but {sum(told):.0f} in the first sums"
    apart = float(totals.sum()) - first[0][-2]
    far = apart > room.sum() if kind is Times else abs(apart) > room.sum() + SLACK * abs(first[0][-2])
    return "their total differs from the first sums" if far else ""


def rows_told(first: Sequence[Sequence[float]], settings: Any) -> int | None:
    """Return the number of training targets in a silo's first sums; None if these only contain the number of events."""
    if not first or (settings.range is not None and kind_of(settings) is Times):
        return None
    return int(first[0][0] if settings.range is not None else first[0][-3])


def _in_unit(values: Tensor, train: Tensor, standardized: bool) -> Tensor:
    """Return values (N,), in standard deviations from the mean of the training targets if `standardized`."""
    if not standardized:
        return values
    mean, scale = unit_of(train).unbind()
    return (values - mean) / scale


def labels_of(values: Tensor, train: Tensor, target: Quantity) -> Tensor:
    """Return the labels (N,) of a silo's targets, given the targets of its training split."""
    return target.bar(_in_unit(values, train, target.standardized))


def _check_range(values: Sequence[Tensor], settings: Any) -> None:
    """Raise DataError for a target outside the declared range."""
    if (bounds := settings.range) is None:
        return
    known = [observed(each)[0] if settings.predict == "time" else each for each in values if len(each)]
    ends = min(float(each.min()) for each in known), max(float(each.max()) for each in known)
    if ends[0] < bounds[0] or ends[1] > bounds[1]:
        raise DataError(
            f"targets from {ends[0]:g} to {ends[1]:g} exceed data.range = [{bounds[0]:g}, {bounds[1]:g}]; expected "
            "a range that contains all of them"
        )


def target_of(training: Iterable[tuple[Pool, Index]], settings: Any) -> Quantity | None:
    """Return the bars for the training targets of silos, from their sums; None for classes. Raises DataError if all
    targets are equal, or if one is outside the declared range, ConfigurationError for a horizon after all events."""
    values = [torch.from_numpy(pool.value[index]) for pool, index in training if pool.value is not None]
    if not values:
        return None
    values = [_in_unit(each, each, settings.standardize_target == "silo") for each in values]
    _check_range(values, settings)
    return fitted(lambda: kind_of(settings).of(values, settings.target or "", settings.range), settings)


def fitted(fit: Callable[[], Fit], settings: Any) -> Fit:
    """Return bars, if any, with the event and the horizons of the settings. Raises DataError if `fit` raises ValueError
    because all targets are equal, ConfigurationError for a horizon after all events."""
    try:
        target = fit()
    except ValueError:
        raise DataError(
            "the training data have no events, or all events at the same time; expected events at different times"
            if kind_of(settings) is Times
            else "all training targets are equal, expected different numbers"
        ) from None
    if not isinstance(target, Times):
        standardized = settings.standardize_target == "silo"
        return target if target is None else cast(Fit, replace(target, standardized=standardized))
    if late := [each for each in settings.horizons if each > target.end]:
        raise ConfigurationError(
            f"data.horizons = {list(settings.horizons)}: no training event is later than {target.end:g}, so the "
            f"risk at {late[0]:g} is unknown",
            "data.horizons",
        )
    return cast(Fit, replace(target, event=settings.event or "event", horizons=settings.horizons))


def check_predict(settings: Any) -> None:
    """Raise ConfigurationError for keys of `[data]` that contradict the kind of target."""
    if settings.range is not None:
        low, high = settings.range
        why = ""
        if settings.predict not in NUMERIC:
            why = "expected data.predict = 'quantity' or 'time'"
        elif low >= high:
            why = "expected the lower value first"
        elif settings.predict == "time" and low:
            why = "expected 0 as the lowest time"
        if why:
            raise ConfigurationError(f"data.range = [{low:g}, {high:g}]: {why}", "data.range")
    if settings.standardize_target != "none" and settings.predict != "quantity":
        why = ", because the times of all silos begin at 0" if settings.predict == "time" else ""
        raise ConfigurationError(
            f"data.standardize_target = {settings.standardize_target!r} needs data.predict = 'quantity'{why}",
            "data.standardize_target",
        )
    for key in ("event", "horizons"):
        if getattr(settings, key) and settings.predict != "time":
            given = getattr(settings, key)
            shown_value = list(given) if isinstance(given, tuple) else given
            raise ConfigurationError(f"data.{key} = {shown_value!r} needs data.predict = 'time'", f"data.{key}")
    if settings.predict == "time" and not settings.event:
        raise ConfigurationError(
            "data.event is missing: data.predict = 'time' needs a column that is 1 for an event and 0 if censored",
            "data.event",
        )
    if settings.predict not in NUMERIC:
        return
    ood = settings.ood
    given = {
        "classes": settings.classes, "label_codes": settings.label_codes, "positive_class": settings.positive_class,
        "label_noise": settings.label_noise, "ood": (ood.local != "none", ood.global_source, ood.held_out_classes),
        "partition.scheme": settings.partition.scheme != "iid",
    }  # fmt: skip
    for key, value in given.items():
        if any(value) if isinstance(value, tuple) else value:
            raise ConfigurationError(
                f"data.{key} is for classes, but data.predict = {settings.predict!r}", f"data.{key}"
            )
