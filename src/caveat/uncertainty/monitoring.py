"""Monitoring of served inputs and outcomes: the chance of ever raising a false alarm is at most a given rate. Evidence
is the wealth of a bettor who cannot win in expectation if inputs have not changed, so it ever exceeds 1 / a with a
probability of at most a (Ville's inequality), however often it is read. Bets are on the rank of a new input among n
calibration inputs. p-values that share their calibration inputs are dependent, so bets that assume uniform p-values
raise false alarms without bound. Given the past, the t-th rank of exchangeable inputs is among the k lowest with
probability (k + c) / (n + t), if c past inputs were among them (Polya's urn). Bets begin at every input, with weights
that sum to less than 1, so a late change is detected, too (Shiryaev's mixture).

For indefinite use, bets of 1 begin at every input instead (Shiryaev and Roberts; e-detectors, Shin et al. 2024, arXiv
2203.03532): the mean number of inputs until the evidence reaches N is at least N. After an alarm, the bets start again.

An urn adapts to a change that it does not detect soon. From `LARGE` calibration inputs on, its wealth is therefore
averaged with the wealth of bets against an upper confidence bound of the probability, which holds with a share `SPENT`
of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .statistical_tests import beta_quantile

Array = NDArray[np.float64]
CUTS, COLUMN_CUTS = (0.02, 0.05, 0.1, 0.2, 0.4), (0.02, 0.1, 0.3)
"""Shares of the lowest ranks that are bet on."""
STAKES = np.array((0.05, 0.25, 0.8))
"""Shares of the wealth that are bet."""
LARGE, SPENT = 100, 0.25
CAP = 1e200
"""Largest wealth of a bet."""


def weight(t: int) -> float:
    """Return the weight of bets that begin at input t, from 0; the sum over all t is less than 1."""
    return 0.93 / ((t + 3) * math.log(t + 3) ** 2)


class Bets:
    """Wealth of bets on events (..., K), each with all `STAKES`, that begin at every time."""

    def __init__(self, *events: int) -> None:
        self.wealth = np.zeros((*events, len(STAKES)))
        self.logs, self.low = np.zeros_like(self.wealth), np.zeros_like(self.wealth)
        """Logarithms of the products of all payoffs, and the lowest so far."""
        self.since = np.zeros(self.wealth.shape, np.int64)
        """The number of inputs when the logarithm was lowest: the likely change."""

    def settle(self, t: int, odds: Array, endless: bool = False) -> None:
        """Pay out bets on input t, from 0. `odds` of events: 1 / probability if they happened, else 0; 1 for no bet."""
        payoff = 1 - STAKES + STAKES * odds[..., None]
        start = (1 if endless else weight(t)) / (odds.shape[-1] * len(STAKES))
        self.wealth = np.minimum((self.wealth + start) * payoff, CAP)
        self.logs += np.log(payoff)
        lower = self.logs < self.low
        self.low = np.where(lower, self.logs, self.low)
        self.since = np.where(lower, t + 1, self.since)

    @property
    def total(self) -> Any:
        """The wealth (...) of the bets of each stream, summed over events and stakes."""
        return self.wealth.sum((-2, -1))

    def change(self, rows: slice = slice(None)) -> int:
        """Return the number of inputs before the likely change, by the bet that has won most since."""
        won = (self.logs - self.low)[rows]
        return int(self.since[rows].flat[int(won.argmax())])


class Monitor:
    """Evidence from inputs in order. `restore` continues from `state` with bit-identical results."""

    t: int
    """Number of inputs so far."""
    endless: bool
    """Whether bets of 1 begin at every input."""

    @property
    def evidence(self) -> Any:
        """The evidence, which exceeds 1 / rate with a probability of at most `rate` if nothing has changed."""
        raise NotImplementedError

    def begin_anew(self) -> None:
        """Discard all bets, but keep the counts of past inputs."""
        for bets in (each for each in vars(self).values() if isinstance(each, Bets)):
            for name, each in vars(bets).items():
                setattr(bets, name, np.full_like(each, self.t if name == "since" else 0))

    def arrays(self) -> dict[str, tuple[Any, str]]:
        """Return the object that holds each array of the state, and the array's name in it."""
        bets = {name: each for name, each in vars(self).items() if isinstance(each, Bets)}
        own = {name: (self, name) for name in ("counts", "seen", "errors") if hasattr(self, name)}
        return own | {f"{of}.{name}": (each, name) for of, each in bets.items() for name in vars(each)}

    def state(self) -> dict[str, Any]:
        """Return numbers and lists of numbers, which JSON stores exactly."""
        return {"t": self.t} | {name: getattr(*at).tolist() for name, at in self.arrays().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Raises ValueError for the state of another monitor."""
        arrays = self.arrays()
        if state.keys() != {"t", *arrays}:
            raise ValueError(f"the state has {', '.join(map(str, state))}, expected t, {', '.join(arrays)}")
        for name, (owner, attribute) in arrays.items():
            before = getattr(owner, attribute)
            try:
                given = np.array(state[name], before.dtype)
            except (TypeError, ValueError):
                given = np.array(np.nan)
            if given.shape != before.shape or not np.isfinite(given).all():
                raise ValueError(f"{name}: expected finite numbers of shape {before.shape}")
            setattr(owner, attribute, given)
        self.t = int(state["t"])


def _lowest(cuts: Sequence[float], n: int) -> Array:
    return np.unique(np.maximum(1, np.floor(np.array(cuts) * (n + 1)))).astype(np.float64)


class RankMonitor(Monitor):
    """Evidence that inputs are unlike n calibration inputs, from their ranks 1 to n + 1, low for unusual inputs. With
    `streams`, each of this number of independent streams of inputs has its own evidence."""

    def __init__(self, n: int, rate: float, *streams: int, endless: bool = False) -> None:
        self.n, self.t, self.k, self.endless = n, 0, _lowest(CUTS, n), endless
        self.counts, self.urn = np.zeros((*streams, len(self.k))), Bets(*streams, len(self.k))
        self.fixed = Bets(*streams, len(self.k)) if n >= LARGE and not endless else None
        self.bound = beta_quantile(1 - SPENT * rate / len(self.k), self.k, n + 1 - self.k)

    def add(self, rank: ArrayLike) -> None:
        """Add an input to each stream. Raises ValueError for an impossible rank."""
        ranks = np.asarray(rank)[..., None]
        if not ((ranks >= 1) & (ranks <= self.n + 1)).all():
            raise ValueError(f"rank {rank!r}, expected a rank from 1 to {self.n + 1}")
        low = (ranks <= self.k).astype(np.float64)
        self.urn.settle(self.t, low * (self.n + 1 + self.t) / (self.k + self.counts), self.endless)
        if self.fixed is not None:
            self.fixed.settle(self.t, low / self.bound)
        self.counts += low
        self.t += 1

    @property
    def evidence(self) -> Any:
        """The evidence (...), which exceeds 1 / rate with a probability of at most `rate` if nothing has changed."""
        return self.urn.total if self.fixed is None else (1 - SPENT) * (self.urn.total + self.fixed.total) / 2

    @property
    def change(self) -> int:
        later = self.fixed is not None and self.fixed.total > self.urn.total
        return self.fixed.change() if later and self.fixed is not None else self.urn.change()


@dataclass(frozen=True)
class KnownValues:
    """Values of a column in calibration rows, ascending, and the number of rows that lack it."""

    values: tuple[float, ...]
    missing: int


class ColumnMonitor(Monitor):
    """Evidence that rows (D,) are unlike the calibration rows, from each column: a value's rank among the known values,
    low or high, and whether it is missing. Ties are broken at random, by numbers that depend on `seed` and the row."""

    def __init__(self, known: Sequence[KnownValues], seed: int, *, endless: bool = False) -> None:
        self.known, self.seed, self.t, self.endless = known, seed, 0, endless
        jitter = np.random.default_rng([seed, 0])
        self.values = [np.array(each.values) for each in known]
        self.jitters = [jitter.random(len(values)) for values in self.values]
        self.lacks = [np.sort(jitter.random(each.missing)) for each in known]
        self.has = [np.sort(jitter.random(len(each.values))) for each in known]
        count = 4 * len(COLUMN_CUTS)
        self.counts, self.seen = np.zeros((len(known), count)), np.zeros(len(known))
        self.bets = Bets(len(known) * count)
        n = np.array([len(each.values) for each in known])[:, None]
        every = n + np.array([each.missing for each in known])[:, None]
        cuts = np.tile(COLUMN_CUTS, 2)
        self.sizes = np.hstack([np.broadcast_to(n, (len(known), 1)), every])
        self.k = np.hstack([np.maximum(1, np.floor(cuts * (each + 1))) for each in (n, every)])

    def add(self, row: ArrayLike) -> None:
        """Add a row (D,), with NaN for missing values. Raises ValueError for a different number of columns."""
        x = np.asarray(row, np.float64)
        if x.shape != (len(self.known),):
            raise ValueError(f"the row has shape {x.shape}, expected ({len(self.known)},)")
        u = np.random.default_rng([self.seed, self.t + 1]).random((2, len(x)))
        there, ranks = ~np.isnan(x), np.empty((len(x), 2))
        for i, value in enumerate(x):
            if there[i]:
                alike = self.values[i] == value
                ranks[i, 0] = 1 + (self.values[i] < value).sum() + (self.jitters[i][alike] < u[0, i]).sum()
                ranks[i, 1] = 1 + len(self.lacks[i]) + np.searchsorted(self.has[i], u[1, i])
            else:
                ranks[i] = 1, 1 + np.searchsorted(self.lacks[i], u[1, i])
        half = len(COLUMN_CUTS)
        happened = np.empty_like(self.counts)
        for j in (0, 1):
            rank, size, k = ranks[:, j, None], self.sizes[:, j, None], self.k[:, 2 * half * j : 2 * half * (j + 1)]
            happened[:, 2 * half * j : 2 * half * j + half] = rank <= k[:, :half]
            happened[:, 2 * half * j + half : 2 * half * (j + 1)] = rank > size + 1 - k[:, half:]
        inputs = np.repeat(np.stack([self.seen, np.full(len(x), self.t)], 1), 2 * half, axis=1)
        odds = happened * (np.repeat(self.sizes, 2 * half, axis=1) + 1 + inputs) / (self.k + self.counts)
        odds[~there, : 2 * half], happened[~there, : 2 * half] = 1, 0
        self.bets.settle(self.t, odds.ravel(), self.endless)
        self.counts += happened
        self.seen += there
        self.t += 1

    @property
    def evidence(self) -> float:
        """The evidence, which exceeds 1 / rate with a probability of at most `rate` if nothing has changed."""
        return float(self.bets.total)

    @property
    def by_column(self) -> Array:
        """The part (D,) of the evidence from each column."""
        found: Array = self.bets.wealth.reshape(len(self.known), -1).sum(1)
        return found

    def of_values(self, column: int) -> bool:
        """Return whether a column's evidence comes from its values, and not from missing values."""
        parts = self.bets.wealth.reshape(len(self.known), 2, -1).sum(2)[column]
        return bool(parts[0] >= parts[1])

    def change(self, column: int) -> int:
        count = 4 * len(COLUMN_CUTS)
        return self.bets.change(slice(column * count, (column + 1) * count))


class OutcomeMonitor(Monitor):
    """Evidence that answers are wrong with a probability above `risk`, given the past. Intervals by a quantile of n
    calibration inputs (`ranked_among`) miss an outcome with this probability on average over calibration inputs; given
    the past, they miss it with the urn's probability."""

    def __init__(self, risk: float, ranked_among: int | None = None, *, endless: bool = False) -> None:
        self.risk, self.t, self.errors, self.bets, self.endless = risk, 0, np.zeros(()), Bets(1), endless
        self.n = ranked_among

    def add(self, wrong: bool) -> None:
        risk: Any = self.risk
        if self.n is not None:
            risk = (math.floor(self.risk * (self.n + 1) + 1e-9) + self.errors) / (self.n + 1 + self.t)
        self.bets.settle(self.t, np.array([wrong / risk]), self.endless)
        self.errors = self.errors + wrong
        self.t += 1

    @property
    def evidence(self) -> float:
        """The evidence; it exceeds 1 / rate with a probability of at most `rate` if errors are as rare as promised."""
        return float(self.bets.total)

    @property
    def change(self) -> int:
        return self.bets.change()
