"""The board: the metrics of every row over all federations and seeds, with intervals, flags and contrasts.

A row is a method with a source of uncertainty. Everything is computed from the cells' files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import beta, binom

from ..analysis.statistics import LEVEL, Interval, SeedDifferences, estimate, interval
from ..core import DataError
from ..files.schema import BoardCell, CellSource
from ..uncertainty.statistical_tests import holm
from .cell_files import Arrays, CellPlace, read_arrays, read_cell
from .cell_metrics import RATE, RISK, per_input
from .settings import MAJORITY, BoardSettings

CONFIDENCE = 0.9
"""Confidence level of guarantees."""
IMPROVED = ("nll", "augrc")
"""Metrics that are shown as improvements over the reference, in percent."""
Values = Mapping[str, Sequence[float]]
"""A number per seed, by federation."""


def over_federations(
    values: Values, level: float = LEVEL, least: float = -math.inf, most: float = math.inf
) -> Interval:
    """Return the mean over federations of means over seeds, with its interval for other federations and seeds.

    The ends of the interval are at least `least` and at most `most`.

    The interval resamples federations and, within them, seeds, like the intervals of `caveat compare` resample seeds
    and silos; Student's t allows for the small number of federations (`analysis.statistics.interval`).
    """
    seeds = {k: {str(seed): value for seed, value in enumerate(each)} for k, each in enumerate(values.values())}
    found = interval(seeds, 1 - level)
    low, high = np.clip([found.low, found.high], least, most).tolist()
    return Interval(found.mean, low, high)


def sign_flips(means: Sequence[float]) -> float:
    """Return the exact two-sided p-value of no difference: the share of all signs with a mean of at least this size.

    Federations are exchangeable with their negative if two rows are equal (Fisher's randomization test).
    """
    if len(means) < 2 or not np.isfinite(means).all():
        return math.nan
    signs = np.array(list(product((1, -1), repeat=len(means))))
    return float((np.abs(signs @ np.array(means)) >= abs(sum(means)) * (1 - 1e-12)).mean())


@dataclass(frozen=True)
class CellFigures:
    """The metrics of one row at one place: means over silos."""

    accuracy: float
    nll: float
    augrc: float
    error_auroc: float
    alarms: Mapping[str, float]
    """Shares of inputs with an alarm, by kind of inputs."""
    beyond_chance: bool
    """Whether the calibration error is above the 95 % quantile of a calibrated model's error."""
    answered: int
    wrong: int
    seconds: float
    bytes: int

    @classmethod
    def of(cls, cell: BoardCell, name: str) -> CellFigures:
        found: CellSource = cell.sources[name]
        silos = list(found.silos.values())

        def mean(of: Callable[..., float | None]) -> float:
            known = [value for silo in silos if (value := of(silo)) is not None]
            return fmean(known) if known else math.nan

        kinds = dict.fromkeys(kind for silo in silos for kind in silo.alarms)
        alarms = {
            kind: mean(lambda s, k=kind: s.alarms[k].any if k in s.alarms else None)
            for kind in kinds
        }  # fmt: skip
        kept = [silo.guarantee for silo in silos if silo.guarantee is not None]
        return cls(
            mean(lambda s: s.accuracy), mean(lambda s: s.nll), mean(lambda s: s.augrc), mean(lambda s: s.error_auroc),
            alarms, (found.ece.value or 0.0) > (found.ece.chance95 or 1.0),
            sum(each.answered for each in kept), sum(each.wrong for each in kept),
            cell.seconds["train"] + cell.seconds.get(name, 0.0), found.up + found.down,
        )  # fmt: skip

    @property
    def breaks(self) -> bool:
        """Whether significantly more answered inputs are wrong than the guarantee allows."""
        return self.wrong > 0 and float(beta.ppf(LEVEL, self.wrong, self.answered - self.wrong + 1)) > RISK


def _worse(kind: str) -> Callable[[Iterable[float]], float]:
    """Return the function that selects the worst share of inputs with an alarm: max for own inputs, otherwise min."""
    return max if kind == "own" else min


def improvements(
    ours: Mapping[CellPlace, CellFigures], theirs: Mapping[CellPlace, CellFigures], figure: str
) -> dict[str, list[float]]:
    """Return by federation and seed by how much a row's figure is lower than another's, in percent of the other's mean
    over seeds. If this mean is 0, the percentage is -100, or 0 for equal figures."""
    others: dict[str, dict[int, float]] = {}
    for place, each in theirs.items():
        others.setdefault(place.federation, {})[place.seed] = getattr(each, figure)
    found: dict[str, list[float]] = {}
    for place, each in ours.items():
        if (other := others.get(place.federation, {}).get(place.seed)) is not None:
            lower, scale = other - getattr(each, figure), fmean(others[place.federation].values())
            percent = 100 * lower / scale if scale else -100.0 if lower else 0.0
            found.setdefault(place.federation, []).append(percent)
    return found


@dataclass(frozen=True)
class BoardRow:
    """A method with a source of uncertainty."""

    name: str
    columns: Mapping[str, Interval]
    """accuracy: points more than training alone; nll, augrc: percent better than the reference; new, far, near, own:
    percent of inputs with an alarm; time, traffic: multiples of the reference's; error_auroc: the AUROC of errors, in
    percent."""
    improved: Mapping[str, Values]
    """Improvement over the reference in percent, by metric, federation and seed."""
    times: Values
    """Time as a multiple of the reference's, by federation and seed."""
    wins: Mapping[str, tuple[int, int, int]]
    """Numbers of federations won, lost and undecided against the reference, by metric."""
    flags: tuple[str, ...] = ()
    failed: int = 0
    """Number of failed cells, which have the metrics of the worse trivial row."""


@dataclass(frozen=True)
class Decided:
    """A contrast with its test."""

    claim: str
    a: str
    b: str
    figure: str
    improvement: Interval
    """Improvement in percent; the interval holds for all contrasts together."""
    federations: int
    p: float
    """p-value, corrected for all contrasts."""
    verdict: str


@dataclass(frozen=True, eq=False)
class Board:
    """All cells of some federations and seeds."""

    settings: BoardSettings
    federations: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: Mapping[CellPlace, BoardCell]
    folder: Path
    loaded: dict[tuple[CellPlace, str], tuple[Arrays, Arrays]] = field(default_factory=dict)

    @classmethod
    def read(
        cls, folder: Path, settings: BoardSettings, federations: Iterable[str], methods: Iterable[str],
        seeds: Iterable[int],
    ) -> Board:  # fmt: skip
        """Read the existing cells. Raises DataError for a damaged cell, and if there is no cell of the reference."""
        places = [CellPlace(*each) for each in product(federations, methods, seeds)]
        cells = {place: cell for place in places if (cell := read_cell(folder, place)) is not None}
        done = {(place.federation, place.seed) for place in cells if place.method == settings.reference.split("/")[0]}
        if not done:
            raise DataError(f"{folder} has no cell of {settings.reference}, with which all rows are compared")
        cells = {place: cell for place, cell in cells.items() if (place.federation, place.seed) in done}
        names = tuple(dict.fromkeys(place.federation for place in cells))
        return cls(settings, names, tuple(sorted({place.seed for place in cells})), cells, folder)

    @cached_property
    def names(self) -> list[str]:
        """The names of the rows, as METHOD/SOURCE."""
        return list(dict.fromkeys(f"{p.method}/{source}" for p, cell in self.cells.items() for source in cell.sources))

    def at(self, name: str) -> dict[CellPlace, CellFigures]:
        """Return the metrics of a row by place; a failed cell has the metrics of the worse trivial row."""
        method, _, source = name.partition("/")
        found = {}
        for place, cell in self.cells.items():
            if place.method == method and cell.failed is not None:
                found[place] = self.worst(place)
            elif place.method == method and source in cell.sources:
                found[place] = CellFigures.of(cell, source)
        return found

    def worst(self, place: CellPlace) -> CellFigures:
        """Return the worse of the trivial rows, the majority and training alone, for each metric."""
        alone, source = self.settings.alone.split("/")
        others = [(MAJORITY, "frequencies"), (alone, source)]
        known = [
            CellFigures.of(cell, name)
            for method, name in others
            if (cell := self.cells.get(place._replace(method=method))) is not None and cell.failed is None
        ]
        if not known:
            raise DataError(f"{place} failed, and its replacements, {MAJORITY} and {alone}, are missing or failed, too")
        kinds = dict.fromkeys(kind for each in known for kind in each.alarms)
        return CellFigures(
            min(each.accuracy for each in known), max(each.nll for each in known), max(each.augrc for each in known),
            math.nan, {kind: _worse(kind)(each.alarms.get(kind, 0.0) for each in known) for kind in kinds}, False, 0, 0,
            math.nan, 0,
        )  # fmt: skip

    @cached_property
    def rows(self) -> list[BoardRow]:
        return [self.row(name) for name in self.names]

    def row(self, name: str) -> BoardRow:
        at, base, alone = self.at(name), self.at(self.settings.reference), self.at(self.settings.alone)

        def values(of: Callable[[CellPlace, CellFigures], float]) -> dict[str, list[float]]:
            found: dict[str, list[float]] = {federation: [] for federation in self.federations}
            for place, figures in at.items():
                if not math.isnan(value := of(place, figures)):
                    found[place.federation].append(value)
            return {federation: each for federation, each in found.items() if each}

        def beside(rows: Mapping[CellPlace, CellFigures], place: CellPlace) -> CellFigures | None:
            return next((f for p, f in rows.items() if (p.federation, p.seed) == (place.federation, place.seed)), None)

        def over(place: CellPlace, own: CellFigures, what: str) -> float:
            other = beside(base, place)
            return getattr(own, what) / getattr(other, what) if other is not None and getattr(other, what) else math.nan

        def points(place: CellPlace, own: CellFigures) -> float:
            other = beside(alone, place)
            return 100 * (own.accuracy - other.accuracy) if other is not None else math.nan

        improved = {figure: improvements(at, base, figure) for figure in IMPROVED}
        times = values(lambda p, f: over(p, f, "seconds"))
        shares = {"error_auroc": values(lambda p, f: 100 * f.error_auroc)}
        for kind in ("new", "far", "near", "own"):
            shares[kind] = values(lambda p, f, k=kind: 100 * f.alarms.get(k, math.nan))  # type: ignore[misc]
        columns = {
            "accuracy": over_federations(values(points)),
            "time": over_federations(times, least=0),
            "traffic": over_federations(values(lambda p, f: over(p, f, "bytes")), least=0),
            **{figure: over_federations(each) for figure, each in improved.items()},
            **{kind: over_federations(each, least=0, most=100) for kind, each in shares.items()},
        }
        failed = sum(self.cells[place].failed is not None for place in at)
        return BoardRow(
            name, columns, improved, times,
            {figure: self.counted(name, self.settings.reference, figure) for figure in IMPROVED},
            tuple(self.flags(at)), failed,
        )  # fmt: skip

    def flags(self, at: Mapping[CellPlace, CellFigures]) -> Iterable[str]:
        """Yield the problems of a row; all except a collapse are significant at 5 %."""
        figures = [each for place, each in at.items() if self.cells[place].failed is None]
        rates = np.array([each.alarms.get("own", 0.0) for each in figures])
        if len(rates) > 1 and rates.mean() - 1.645 * rates.std(ddof=1) / math.sqrt(len(rates)) > RATE:
            yield f"false alarms {rates.mean():.1%}"
        for count, chance, what in (
            (sum(each.beyond_chance for each in figures), LEVEL, "miscalibrated"),
            (sum(each.breaks for each in figures), 1 - CONFIDENCE, "guarantee broken"),
        ):
            if count > binom.ppf(1 - LEVEL, len(figures), chance):
                yield f"{what} in {count} of {len(figures)}"
        lower = [p for p, each in at.items() if (m := self._majority(p)) is not None and each.accuracy <= m]
        if lower and next(iter(at)).method != MAJORITY:
            yield f"collapsed in {len(lower)} of {len(at)}"

    def _majority(self, place: CellPlace) -> float | None:
        cell = self.cells.get(place._replace(method=MAJORITY))
        return None if cell is None else CellFigures.of(cell, "frequencies").accuracy

    def counted(self, a: str, b: str, figure: str) -> tuple[int, int, int]:
        """Return on how many federations row a is better, worse or neither, by intervals at 95 % over seeds and test
        inputs (`analysis.statistics.estimate`)."""
        won = lost = open_ = 0
        for federation in self.federations:
            seeds = [found for seed in self.seeds if (found := self.differences(federation, seed, a, b, figure))]
            if not seeds:
                continue
            low, high = estimate(seeds).interval()
            won, lost = won + (high < 0), lost + (low > 0)
            open_ += not (high < 0 or low > 0)
        return won, lost, open_

    def differences(self, federation: str, seed: int, a: str, b: str, figure: str) -> SeedDifferences | None:
        """Return row a's contributions of inputs to a metric minus row b's; None if a cell is missing or failed."""
        (one, source), (other, against) = a.split("/"), b.split("/")
        places = [CellPlace(federation, method, seed) for method in (one, other)]
        for place, name in zip(places, (source, against), strict=True):
            if (cell := self.cells.get(place)) is None or name not in cell.sources:
                return None
        ours, theirs = self._inputs(places[0], source), self._inputs(places[1], against)
        silos = list(self.cells[places[0]].sources[source].silos)
        counts = [len(ours[0][silo]) for silo in silos]
        return SeedDifferences(
            np.concatenate([ours[1][silo] for silo in silos]), np.repeat(np.arange(len(silos)), counts),
            np.concatenate([ours[0][f"{silo}/{figure}"] - theirs[0][f"{silo}/{figure}"] for silo in silos]),
        )  # fmt: skip

    def _inputs(self, place: CellPlace, source: str) -> tuple[Arrays, Arrays]:
        """Return contributions by "SILO/FIGURE" (and the labels by silo), and ids of test inputs by silo."""
        if (place, source) not in self.loaded:
            arrays, kept = read_arrays(self.folder, place), Arrays()
            for name in self.cells[place].sources:
                silos = list(self.cells[place].sources[name].silos)
                kept = {silo: arrays[f"{silo}/y"] for silo in silos}
                for silo in silos:
                    each = per_input(arrays, name, silo)
                    kept |= {f"{silo}/{figure}": each[figure] for figure in IMPROVED}
                self.loaded[place, name] = kept, {silo: arrays[f"{silo}/id"] for silo in silos}
        return self.loaded[place, source]

    @cached_property
    def contrasts(self) -> list[Decided]:
        """The contrasts of the settings whose rows are on the board."""
        asked = [c for c in self.settings.contrasts if c.a in self.names and c.b in self.names]
        found = []
        for each in asked:
            found.append(improvements(self.at(each.a), self.at(each.b), each.figure))
        ps = holm([sign_flips([fmean(each) for each in values.values()]) for values in found])
        level = LEVEL / max(len(asked), 1)
        return [
            Decided(each.claim, each.a, each.b, each.figure, (est := over_federations(values, level)), len(values), p,
                    ("better" if est.mean > 0 else "worse") if p < LEVEL else "not decided")
            for each, values, p in zip(asked, found, ps, strict=True)
        ]  # fmt: skip
