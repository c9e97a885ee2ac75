"""Targets that are numbers or times to an event: the bars of a target, and the interpretation of outputs per bar."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from ..uncertainty import binned_distributions as binned
from ..uncertainty.histograms import beside
from .errors import ConfigurationError


@dataclass(frozen=True)
class Quantity:
    """A number to predict, as a distribution over C ordered bars. The model has an output per bar."""

    predicts: ClassVar[str] = "quantity"
    """The value of `data.predict`."""

    edges: tuple[float, ...]
    """(C + 1,) ascending edges of the bars."""
    means: tuple[float, ...]
    """(C,) means of the training targets in each bar."""
    shares: tuple[float, ...]
    """(C,) shares of the training targets in each bar."""
    targets: int
    """Number of training targets."""
    name: str = ""
    """The column of targets, if it has a name."""
    declared: bool = False
    """Whether the bars have equal widths in a declared range, independently of the targets."""
    standardized: bool = False
    """Whether silos standardize their targets, so that bars are in standard deviations from a silo's mean, see
    `placed`."""

    @classmethod
    def of(cls, silos: Iterable[Tensor], name: str = "", bounds: tuple[float, float] | None = None) -> Self:
        """Return the bars for the training targets (n,) of each silo, see `fitting`."""
        values = list(silos)
        return cls.counted(lambda grid: torch.stack([cls.sums(y, grid) for y in values]).sum(0), name, bounds)

    @classmethod
    def counted(
        cls, count: Callable[[Tensor], Tensor], name: str = "", bounds: tuple[float, float] | None = None
    ) -> Self:
        """Return the bars, given a function that returns the sums over silos for a grid, see `fitting`."""
        fitting = cls.fitting(name, bounds)
        grid = next(fitting)
        while True:
            try:
                grid = fitting.send(count(grid))
            except StopIteration as done:
                return cast(Self, done.value)

    @classmethod
    def fitting(cls, name: str = "", bounds: tuple[float, float] | None = None) -> Generator[Tensor, Tensor, Self]:
        """Yield grids, for each of which the caller sends the sum over silos of their `sums`, and return the bars. With
        `bounds`, the bars have equal widths between the bounds, and depend only on the number of targets. Raises
        ValueError if all targets are equal."""
        added = yield torch.zeros(0, dtype=torch.float64)
        count = int(added[0])
        size = cls._size(count)
        found = cls._even(size, *bounds) if bounds else cls._fitted((yield from binned.counted(added[-3:])), size)
        edges, means, shares = (tuple(each.tolist()) for each in found)
        return cls(edges, means, shares, count, name, bounds is not None)

    @staticmethod
    def sums(y: Tensor, grid: Tensor) -> Tensor:
        """Return what a silo sends about its training targets (n,): `moments` for an empty grid, else `cells`."""
        return binned.cells(y, grid) if len(grid) else binned.moments(y)

    @staticmethod
    def _size(count: int) -> int:
        return binned.number_of_bars(count)

    @staticmethod
    def _even(size: int, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return edges, means and shares of bars of equal widths."""
        edges = torch.linspace(low, high, size + 1, dtype=torch.float64)
        return edges, (edges[1:] + edges[:-1]) / 2, torch.full((size,), 1 / size, dtype=torch.float64)

    @staticmethod
    def _fitted(found: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        return binned.fitted(found, size)

    @property
    def classes(self) -> tuple[str, ...]:
        """(C,) names of the bars."""
        return tuple(f"{a:.9g} to {b:.9g}" for a, b in zip(self.edges, self.edges[1:], strict=False))

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        edges, means, shares = (torch.tensor(each, dtype=torch.float64) for each in
                                (self.edges, self.means, self.shares))  # fmt: skip
        return edges, means, shares

    @cached_property
    def reference(self) -> Tensor:
        """(1, C) float64: the distribution of all training targets, used as a prediction without a model."""
        return self._tensors[2][None]

    def placed(self, own: Mapping[str, Tensor]) -> Self:
        """Return the bars at a silo, in the unit of its targets, given "unit" in `own`, see `unit_of`. Unless silos
        standardize, these are the same bars."""
        if not self.standardized:
            return self
        mean, scale = own["unit"].tolist()
        edges, means = (tuple(mean + scale * each for each in own) for own in (self.edges, self.means))
        return replace(self, edges=edges, means=means, standardized=False)

    def loss(self, log_probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) losses of log-probabilities (N, C) for labels (N,) from `bar`."""
        table = beside(self.smoothed, log_probs).to(log_probs.dtype)
        return -(table[y] * log_probs).sum(-1)

    @cached_property
    def smoothed(self) -> Tensor:
        """(C, C) float32: for a target in each bar, the probabilities with which the loss compares outputs."""
        return binned.smoothed(self._tensors[2], self.targets)

    def bar(self, y: Tensor) -> Tensor:
        """Return (N,) int64, the bars that contain numbers (N,)."""
        return binned.place(beside(self._tensors[0], y), y)

    def quantile(self, probs: Tensor, level: float | Tensor) -> Tensor:
        """Return (N,) quantiles of distributions (N, C) at a level, or at levels (N,)."""
        return binned.quantile(probs.double(), beside(self._tensors[0], probs), level)

    def mean(self, probs: Tensor) -> Tensor:
        """Return (N,) means of distributions (N, C)."""
        edges, means, _ = (beside(each, probs) for each in self._tensors)
        return binned.moment(probs.double(), edges, means)[0]

    def spread(self, probs: Tensor) -> Tensor:
        """Return (N,) standard deviations of distributions (N, C)."""
        edges, means, _ = (beside(each, probs) for each in self._tensors)
        return binned.moment(probs.double(), edges, means)[1]

    def cdf(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) or (N, M) probabilities that the quantity is at most y (N,) or (N, M)."""
        return binned.cdf(probs.double(), beside(self._tensors[0], probs), y)

    def crps(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) continuous ranked probability scores of y (N,)."""
        return binned.crps(probs.double(), beside(self._tensors[0], probs), y)

    def surprise(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) negative log-densities at y (N,), in nats."""
        return binned.surprise(probs.double(), beside(self._tensors[0], probs), y)

    def nonconformity(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) nonconformity scores of y (N,), the probabilities of numbers with a higher density than y."""
        return binned.nonconformity(probs.double(), beside(self._tensors[0], probs), y)

    def interval(self, probs: Tensor, limit: Tensor) -> Tensor:
        """Return (N, 2) intervals of the numbers whose nonconformity is at most `limit`."""
        return binned.interval(probs.double(), beside(self._tensors[0], probs), beside(limit.double(), probs))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `figures`, including the ends of intervals."""
        return tuple(self.figures(self.reference, torch.zeros(1, 2)))

    def figures(self, probs: Tensor, interval: Tensor | None = None) -> dict[str, Tensor]:
        """Return the reported values of distributions (N, C) and intervals (N, 2), by name, (N,) each: `value` (the
        median), `mean`, `low` and `high` (if there are intervals), and `spread`."""
        ends = {} if interval is None else {"low": interval[:, 0], "high": interval[:, 1]}
        return {"value": self.quantile(probs, 0.5), "mean": self.mean(probs), **ends, "spread": self.spread(probs)}


@dataclass(frozen=True)
class Times(Quantity):
    """A time to an event, as a distribution over C ordered bars. The last bar is after all events of the training data.

    Observed times (N,) are float64. Times of events are not negative, and censored times have a negative sign (-0.0 is
    censored at 0). The label of an event is its bar; the label of a censored time is its bar plus C.
    """

    predicts: ClassVar[str] = "time"

    event: str = "event"
    """The column with 1 for an event, or 0 if the time is censored."""
    horizons: tuple[float, ...] = ()
    """Times for which predictions have a risk, the probability of the event until this time."""

    @staticmethod
    def sums(y: Tensor, grid: Tensor) -> Tensor:
        times, event = observed(y)
        if len(grid):
            return torch.cat([binned.cells(times[event], grid), binned.cells(times[~event], grid)[:1]])
        return torch.cat([event.sum().double()[None], binned.moments(times)])  # bars depend on the number of events

    @staticmethod
    def _size(count: int) -> int:
        if count == 0:
            raise ValueError("no events")
        return binned.number_of_bars(count)

    @staticmethod
    def _even(size: int, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
        inner = torch.linspace(low, high, size, dtype=torch.float64)
        edges, means = torch.cat([inner, inner[-1:] * (1 + binned.TAIL)]), (inner[1:] + inner[:-1]) / 2
        return edges, torch.cat([means, inner[-1:]]), torch.full((size,), 1 / size, dtype=torch.float64)

    @staticmethod
    def _fitted(found: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        return binned.fitted_times(found, size)

    @property
    def classes(self) -> tuple[str, ...]:
        return (*super().classes[:-1], f"after {self.end:.9g}")

    @property
    def end(self) -> float:
        """The start of the last bar, until which survival is known."""
        return self.edges[-2]

    @cached_property
    def later(self) -> Tensor:
        """(C, C) float32: for a time that is censored in each bar, the share of each bar that is later."""
        return binned.later(len(self.means))

    def loss(self, log_probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) losses. For an event, this is the smoothed cross-entropy. For a censored time, it is the negative
        log-probability that the event is later, which includes half of the bar of the censored time."""
        size = len(self.means)
        after = beside(self.later, log_probs).to(log_probs.dtype).log()[y % size]
        return torch.where(y < size, super().loss(log_probs, y % size), -(log_probs + after).logsumexp(-1))

    def bar(self, y: Tensor) -> Tensor:
        times, event = observed(y)
        return super().bar(times) + len(self.means) * (~event)

    def survival(self, probs: Tensor, times: Tensor) -> Tensor:
        """Return (N, M) probabilities that the event is later than times (M,) or (N, M). They are constant from `end`
        on."""
        times = times.double().expand(len(probs), -1).clamp_max(self.end)
        return 1 - super().cdf(probs, times)

    def cdf(self, probs: Tensor, y: Tensor) -> Tensor:
        return 1 - self.survival(probs, y[:, None])[:, 0]

    def risk(self, probs: Tensor, horizon: float) -> Tensor:
        """Return (N,) probabilities that the event happens until a horizon."""
        return self.cdf(probs, probs.new_full((len(probs),), horizon))

    def quantile(self, probs: Tensor, level: float | Tensor) -> Tensor:
        """Return (N,) quantiles of distributions (N, C). A quantile is infinite if it is not before `end`."""
        found = super().quantile(probs, level)
        return torch.where(found >= self.end, torch.inf, found)

    def nonconformity(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) nonconformity scores, the probabilities that the events are after the observed times (N,)."""
        return (1 - self.cdf(probs, y.abs())).masked_fill(~probs.isfinite().all(1), torch.inf)

    def interval(self, probs: Tensor, limit: Tensor) -> Tensor:
        """Return (N, 2) intervals: lower bounds, up to which survival has a probability of at least `limit`, and
        infinity. A lower bound is at most `end`."""
        level = (1 - beside(limit.double(), probs)).clamp(0, 1).reshape(-1).expand(len(probs))
        low = super().quantile(probs, level).clamp_max(self.end).masked_fill(~probs.isfinite().all(1), 0.0)
        return torch.stack([low, torch.full_like(low, torch.inf)], 1)

    def figures(self, probs: Tensor, interval: Tensor | None = None) -> dict[str, Tensor]:
        """Return the reported values for a time: `median`, the lower bound `low`, a risk such as `risk_365` for each
        horizon, and `spread`."""
        found = super().figures(probs, interval)
        risks = {f"risk_{horizon:.9g}": self.risk(probs.double(), horizon) for horizon in self.horizons}
        low = {"low": found["low"]} if interval is not None else {}
        return {"median": found["value"], **low, **risks, "spread": found["spread"]}


def restored(event: str = "", horizons: Iterable[float] = (), **known: Any) -> Quantity:
    """Return the target with stored values: a quantity, or a time if `event` is not empty. Raises ValueError unless
    there are ascending edges, and a mean and a share for each bar."""
    known |= {key: tuple(known[key]) for key in ("edges", "means", "shares")}
    edges, size = known["edges"], len(known["means"])
    if len(edges) != size + 1 or len(known["shares"]) != size or tuple(sorted(set(edges))) != edges:
        raise ValueError("expected ascending edges, and a mean and a share for each bar")
    if event:
        return Times(**known, event=event, horizons=tuple(horizons))
    return Quantity(**known)


def unit_of(values: Tensor) -> Tensor:
    """Return (2,) float64: the mean and the standard deviation of a silo's training targets (n,). If all targets are
    equal, the second number is 1."""
    found = values.double().cpu().numpy()  # unlike torch's sums, NumPy's do not depend on the number of threads
    if not len(found):
        return torch.tensor([0.0, 1.0], dtype=torch.float64)
    mean, scale = float(found.mean()), float(found.std())
    constant = scale <= 10 * torch.finfo(torch.float64).eps * abs(mean)
    return torch.tensor([mean, 1.0 if constant else scale], dtype=torch.float64)


def observed(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return times (N,), and (N,) bool whether the event happened, from observed times (N,) with signs."""
    return y.abs(), ~y.signbit()


def check_classes_only(target: Quantity | None, what: str, instead: str = "") -> None:
    """Raise ConfigurationError if the target of a run is a quantity or a time. `what` is the command or key that needs
    classes, and `instead` is advice."""
    if target is not None:
        raise ConfigurationError(
            f"{what} needs classes, but the target{f' {target.name!r}' * bool(target.name)} is a "
            f"{target.predicts} (data.predict = {target.predicts!r}){instead and f'; {instead}'}",
            "data.predict",
        )
