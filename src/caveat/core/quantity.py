"""A target that is a number: its bars, and what outputs over these bars mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..uncertainty import bars
from ..uncertainty.histograms import beside
from .errors import ConfigurationError


@dataclass(frozen=True)
class Quantity:
    """A number to predict, as a distribution over C ordered bars; the model has an output per bar."""

    edges: tuple[float, ...]
    """(C + 1,) ascending."""
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

    @classmethod
    def of(cls, silos: Iterable[Tensor], name: str = "", bounds: tuple[float, float] | None = None) -> Quantity:
        """Return the bars for the training targets (n,) of each silo, from sums over silos. With `bounds`, bars have
        equal widths between these, and only the number of targets is used. Raises ValueError if all are equal."""
        values = list(silos)
        count = sum(map(len, values))
        if bounds is not None:
            size = bars.number_of_bars(count)
            edges = torch.linspace(*bounds, size + 1, dtype=torch.float64)
            means, shares = (edges[1:] + edges[:-1]) / 2, torch.full((size,), 1 / size, dtype=torch.float64)
        else:
            added = torch.stack([bars.moments(y) for y in values]).sum(0)
            grid = torch.stack([bars.cells(y, added) for y in values]).sum(0)
            edges, means, shares = bars.fitted(grid, bars.number_of_bars(count))
        return cls(
            tuple(edges.tolist()), tuple(means.tolist()), tuple(shares.tolist()), count, name, bounds is not None
        )

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
        """(1, C) float64: the distribution of all training targets, as a prediction without a model."""
        return self._tensors[2][None]

    @cached_property
    def smoothed(self) -> Tensor:
        """(C, C) float32: for a target in each bar, the probabilities that the loss compares outputs with."""
        return bars.smoothed(self._tensors[2], self.targets)

    def bar(self, y: Tensor) -> Tensor:
        """Return (N,) int64 bars of numbers (N,)."""
        return bars.place(beside(self._tensors[0], y), y)

    def quantile(self, probs: Tensor, level: float) -> Tensor:
        """Return (N,) quantiles of distributions (N, C)."""
        return bars.quantile(probs.double(), beside(self._tensors[0], probs), level)

    def mean(self, probs: Tensor) -> Tensor:
        """Return (N,) means of distributions (N, C)."""
        edges, means, _ = (beside(each, probs) for each in self._tensors)
        return bars.moment(probs.double(), edges, means)[0]

    def spread(self, probs: Tensor) -> Tensor:
        """Return (N,) standard deviations of distributions (N, C)."""
        edges, means, _ = (beside(each, probs) for each in self._tensors)
        return bars.moment(probs.double(), edges, means)[1]

    def cdf(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) probabilities of at most y (N,)."""
        return bars.cdf(probs.double(), beside(self._tensors[0], probs), y)

    def crps(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) continuous ranked probability scores of y (N,)."""
        return bars.crps(probs.double(), beside(self._tensors[0], probs), y)

    def surprise(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return (N,) nats: minus the log-density at y (N,)."""
        return bars.surprise(probs.double(), beside(self._tensors[0], probs), y)

    def interval(self, probs: Tensor, limit: Tensor) -> Tensor:
        """Return (N, 2) intervals of the numbers of at most this surprise."""
        return bars.interval(probs.double(), beside(self._tensors[0], probs), beside(limit.double(), probs))


def check_classes_only(target: Quantity | None, what: str) -> None:
    """Raise ConfigurationError if the target of a run is a quantity, for a command or key that needs classes."""
    if target is not None:
        raise ConfigurationError(
            f"{what} needs classes, but the target{f' {target.name!r}' * bool(target.name)} is a quantity "
            "(data.predict = 'quantity')",
            "data.predict",
        )
