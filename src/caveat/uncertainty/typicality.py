"""How typical an input is of a silo: conformal p-values, from its ranks among the silo's calibration inputs.

The p-value of an input is the rank of its distances (`caveat.uncertainty.familiarity`) among the distances of the
silo's own calibration split (Bates et al., Testing for Outliers with Conformal p-values, Annals of Statistics 2023,
arXiv 2104.08279).

An answer's sureness is the rank of its uncertainty among the uncertainties of the answers to the same calibration
inputs, and an input's nearness is the rank of its distance to the nearest training input
(`caveat.uncertainty.novelty`). One test of all three, the typicality, raises the alarm: distance, uncertainty and
novelty, in units of the calibration inputs, are the sides of a box, whose diagonal is ranked. So the rate of false
alarms of all three together is at most that of one test, and no part of the rate is lost, as it would be if three tests
shared it.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from .histograms import beside

SCORE = "unfamiliar"
"""The name of the score among `Prediction.scores`."""
TYPICAL = 0.9
"""The quantile of own inputs that is one unit above their median."""
LEAST_UNIT = 0.05
"""The smallest unit of a stage, since all own inputs may be equally far, as in a collapsed model."""
FARTHEST = 1000.0
"""Log-distance of inputs with features that are not finite; no other distance is as large."""
STEP = 1e-4
"""Log-distances and logarithms of uncertainties are rounded to multiples of this, which far exceeds rounding errors."""
BESIDE_NOVELTY = 0.75
"""Weight of the square of an uncertainty relative to that of a novelty: both grow for inputs of new classes."""
MOST = 4.0
"""Maximum of an uncertainty in its units, so that no answer outweighs an input that is far from all data."""
SMALLEST, LARGEST = 1e-12, 1e30
"""Smallest unit and largest magnitude of an uncertainty, which may have any scale."""
BLOCK = 2**16
"""Maximum number of comparisons of new inputs with calibration inputs at once."""
SORTED = 4
"""Mean number of new inputs with the same units from which on sorting calibration inputs is faster than comparing."""


@wrap_torch_function(lambda calibration, new: (calibration, new))
def conformal(calibration: Tensor, new: Tensor) -> Tensor:
    """Return (N,) float64 p-values in (0, 1] of new inputs, low for inputs unlike the calibration inputs.

    `calibration` (n, S) and `new` (N, S) are log-distances at S stages. This is full conformal prediction: a new input
    is one of the n + 1 that determine the units of every stage, by median and 90 % quantile, and its largest distance
    in these units is ranked among all n + 1. For an input that is exchangeable with the calibration inputs, P(p <= a)
    <= a for every a. The smallest p is 1 / (n + 1), so with fewer than 19 calibration inputs no p is as low as 0.05.
    """
    if calibration.device.type != "cpu":  # a few numbers per input, in blocks that would wait for a device
        return beside(conformal(calibration.cpu(), new.cpu()), new)
    return _p_values(_by_stage(calibration), _by_stage(new), LEAST_UNIT, _largest)


def conformal_directly(calibration: Tensor, new: Tensor) -> Tensor:
    """Return the bit-identical result of `conformal` without loops: each new input is compared with all others."""
    return _p_values_directly(_by_stage(calibration), _by_stage(new), LEAST_UNIT, _largest)


@wrap_torch_function(lambda *given, **_: given)
def typicality(
    calibration: Tensor, scores: Tensor, new: Tensor, new_scores: Tensor, *, novelty: bool = False
) -> Tensor:
    """Return (N,) float64 p-values in (0, 1] of new inputs, low for inputs that are far, novel or answered uncertainly.

    Like `conformal`, with (n,) and (N,) uncertainties of answers in addition to the log-distances at S stages. The
    ranked number is the root of the sum of the squares of the largest distance and of the uncertainty, each in its
    units and at least 0, and the uncertainty at most `MOST`. With `novelty`, the last log-distances are the distances
    to the nearest training input. They are a separate summand, and the summand of the uncertainty is multiplied by
    `BESIDE_NOVELTY`.
    """
    if calibration.device.type != "cpu":
        parts = (each.cpu() for each in (calibration, scores, new, new_scores))
        return beside(typicality(*parts, novelty=novelty), new)
    both = _with_scores(calibration, scores), _with_scores(new, new_scores)
    return _p_values(*both, _least_units(len(both[0])), _diagonal if novelty else _hypotenuse)


def typicality_directly(
    calibration: Tensor, scores: Tensor, new: Tensor, new_scores: Tensor, *, novelty: bool = False
) -> Tensor:
    """Return the bit-identical result of `typicality` without loops."""
    both = _with_scores(calibration, scores), _with_scores(new, new_scores)
    return _p_values_directly(*both, _least_units(len(both[0])), _diagonal if novelty else _hypotenuse)


def sureness(scores: Tensor, new: Tensor) -> Tensor:
    """Return (N,) float64 p-values in (0, 1] of uncertainties (N,), low for those above most `scores` (n,) of the same
    model for calibration inputs. Scores are higher for less certain answers; NaN is the least certain."""
    ordered = settled_scores(scores).sort().values
    less = torch.searchsorted(ordered, settled_scores(new))
    return (1 + len(ordered) - less).double() / (len(ordered) + 1)


def least(rate: float) -> int:
    """Return the number of calibration inputs from which on a p-value can be as low as a rate above 0."""
    return math.ceil(1 / rate - 1 - 1e-9)


def score(calibration: Tensor, new: Tensor) -> Tensor:
    """Return (N,) float64 scores, larger for inputs less like the calibration inputs. 0 is their median at every stage,
    and 1 their 90 % quantile. Unlike a p-value, the score keeps growing beyond all calibration inputs."""
    calibration, new = settled(calibration), settled(new)
    if not len(calibration):
        return new.amax(1).double()
    median, unit = _units(calibration.sort(0).values)
    return ((new - median) / unit).amax(1).double()


def benjamini_hochberg(p: Tensor, rate: float) -> Tensor:
    """Return (N,) bool: the discoveries of Benjamini & Hochberg (1995) among p-values (N,), of which an expected share
    of at most `rate` is false.

    Valid for conformal p-values that share their calibration inputs (Bates et al., Annals of Statistics 2023).
    """
    ordered, count = p.double().sort().values, len(p)
    passing = ordered <= rate * torch.arange(1, count + 1, dtype=torch.float64, device=p.device) / max(count, 1)
    if not passing.any():
        return torch.zeros_like(p, dtype=torch.bool)
    return p.double() <= ordered[passing.nonzero()[-1, 0]]


def units(numbers: Tensor, least: float) -> Tensor:
    """Return (2,) float32: the median of settled numbers (n,), and the unit, from there to their 90 % quantile."""
    low, high = (numbers.sort().values[k] for k in _ends(len(numbers)))
    return torch.stack([low, (high - low).clamp_min(least)])


def joint(distances: Sequence[Tensor], nearest: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest (N,) of distances in their `units`, 0 without stages, and the square (N,) of what `typicality`
    ranks, from these, a distance to the nearest training input and an uncertainty in its unit; float64."""
    *stages, near, unsure = (each.double() for each in (*distances, nearest, score))
    far = _largest(stages) if stages else torch.zeros_like(unsure)
    return far, _diagonal([far, near, unsure])


def settled(distances: Tensor) -> Tensor:
    """Return log-distances, float32 and finite, without the digits that depend on how many inputs are processed at
    once. An input that equals a calibration input in all its features has to tie with it, whatever the batch."""
    finite = distances.nan_to_num(nan=FARTHEST, posinf=FARTHEST, neginf=-FARTHEST).clamp(-FARTHEST, FARTHEST)
    return ((finite.double() / STEP).round() * STEP).float()


def settled_scores(scores: Tensor) -> Tensor:
    """Return uncertainties, float32 and finite, without the digits that depend on how many inputs are processed at
    once. They are rounded in proportion, because all uncertainties of a sure model are small."""
    finite = scores.double().nan_to_num(nan=LARGEST, posinf=LARGEST, neginf=-LARGEST).clamp(-LARGEST, LARGEST)
    logs = ((finite.abs() / SMALLEST).log1p() / STEP).round() * STEP
    return (finite.sign() * logs.expm1() * SMALLEST).float()


def _by_stage(distances: Tensor) -> Tensor:
    """Return (S, N) of (N, S), `settled`: a stage's numbers are adjacent, and there are few stages."""
    return settled(distances.T.contiguous())


def _with_scores(distances: Tensor, scores: Tensor) -> Tensor:
    """Return (S + 1, N): `_by_stage`, and the uncertainties of answers (N,)."""
    return torch.cat([_by_stage(distances), settled_scores(scores)[None]])


def _least_units(numbers: int) -> Tensor:
    """Return the smallest units (S + 1, 1) of the stages and of the uncertainty."""
    return torch.tensor([*[LEAST_UNIT] * (numbers - 1), SMALLEST])[:, None]


Join = Callable[[Sequence[Tensor]], Tensor]
"""A function from numbers in units, a tensor per stage, to the numbers that are ranked."""


def _largest(parts: Sequence[Tensor]) -> Tensor:
    """Return the largest of distances."""
    return reduce(torch.maximum, parts)


def _hypotenuse(parts: Sequence[Tensor]) -> Tensor:
    """Return the square of the hypotenuse of the largest distance and the uncertainty, which is the last part."""
    *stages, score = parts
    return _largest(stages).clamp_min(0).square() + score.clamp(0, MOST).square()


def _diagonal(parts: Sequence[Tensor]) -> Tensor:
    """Return the square of the diagonal of a box: the largest distance, the novelty, and the uncertainty."""
    *stages, near, score = parts
    across = near.clamp_min(0).square() + BESIDE_NOVELTY * score.clamp(0, MOST).square()
    return _largest(stages).clamp_min(0).square() + across


def _p_values(calibration: Tensor, new: Tensor, least: Tensor | float, join: Join) -> Tensor:
    """Return (N,) p-values of (S, N) new numbers among (S, n), joined in units that are at least (S, 1) or a scalar."""
    n = calibration.shape[1]
    if not n:
        return torch.ones(new.shape[1], dtype=torch.float64)
    low, unit, alike = _units_with(calibration, new, least)
    own = _of_each(new, low, unit, join)
    # Few units differ: most new inputs lie outside the calibration inputs near the quantiles.
    units, which = torch.unique(alike, return_inverse=True)
    first = torch.empty(len(units), dtype=torch.long)
    first[which] = torch.arange(len(which))  # any of those that share units
    if len(units) * n <= BLOCK and SORTED * len(units) <= len(own):
        ordered = _of_all(calibration, low[:, first], unit[:, first], join).sort(1).values
        parts = zip(*(torch.split(each, max(1, BLOCK // n)) for each in (which, own)), strict=True)
        less = [torch.searchsorted(ordered.index_select(0, local), mine[:, None])[:, 0] for local, mine in parts]
        return (1 + n - torch.cat(less).double()) / (n + 1)
    at_least = []
    for local, mine in zip(*(torch.split(each, max(1, BLOCK // n)) for each in (which, own)), strict=True):
        used, local = torch.unique(local, return_inverse=True)
        theirs = _of_all(calibration, low[:, first[used]], unit[:, first[used]], join)
        at_least.append((theirs.index_select(0, local) >= mine[:, None]).sum(1))
    return (1 + torch.cat(at_least).double()) / (n + 1)


def _p_values_directly(calibration: Tensor, new: Tensor, least: Tensor | float, join: Join) -> Tensor:
    n = calibration.shape[1]
    if not n:
        return torch.ones(new.shape[1], dtype=torch.float64)
    low, unit, _ = _units_with(calibration, new, least)
    own = _of_each(new, low, unit, join)
    at_least = (_of_all(calibration, low, unit, join) >= own[:, None]).sum(1).double()
    return (1 + at_least) / (n + 1)


def _of_each(numbers: Tensor, low: Tensor, unit: Tensor, join: Join) -> Tensor:
    """Return the ranked numbers (N,) of (S, N) numbers, in units of each."""
    return join([*((numbers - low) / unit)])


def _of_all(calibration: Tensor, low: Tensor, unit: Tensor, join: Join) -> Tensor:
    """Return the ranked numbers (U, n) of all calibration inputs (S, n), in each of U units (S, U)."""
    stages = zip(calibration, low, unit, strict=True)
    return join([(numbers - median[:, None]) / scale[:, None] for numbers, median, scale in stages])


def _ends(n: int) -> tuple[int, int]:
    """Return which of n ordered numbers, from 0, are their median and their 90 % quantile."""
    return (n - 1) // 2, math.ceil(TYPICAL * n - 1e-9) - 1


def _units(ordered: Tensor) -> tuple[Tensor, Tensor]:
    low, high = (ordered[k] for k in _ends(len(ordered)))
    return low, (high - low).clamp_min(LEAST_UNIT)


def _units_with(calibration: Tensor, new: Tensor, least: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (S, N) medians and units of (S, n) calibration inputs with each new input, as `_units` of both together.
    Also return (N,) marks that are equal only for new inputs with the same units."""
    stages, n = calibration.shape
    ordered = torch.cat([calibration, torch.tensor([[-math.inf, math.inf]]).expand(stages, 2)], 1)
    ordered = ordered.sort(1).values  # padded: the k-th of n + 1 lies between the k-1-th and the k-th of n
    ends = _ends(n + 1)
    low, high = (torch.cat([ordered[:, k + i] for k in ends])[:, None] for i in (0, 1))
    both = torch.cat([new, new])  # for the two quantiles at once
    below, above = both <= low, both >= high
    found = both.clamp(low, high)
    median, top = found[:stages], found[stages:]
    marks = (below.long() << torch.arange(2 * stages)[:, None]).sum(0)
    marks = torch.where((below | above).all(0), marks, -1 - torch.arange(new.shape[1]))
    return median, (top - median).clamp_min(least), marks
