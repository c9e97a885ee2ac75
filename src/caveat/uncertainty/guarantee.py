"""Which share of inputs can be answered with few errors, as a promise that holds with a stated confidence.

A policy answers an input when its rank of uncertainty (`quantiles.ranks`) is at most a limit. Silos count, for each
limit of a fixed grid, how many calibration inputs they would answer and how many of them wrongly; counts add up over
silos, and a sequence of tests on the sums finds the largest limit whose selective risk, P(wrong | answered), is at
most what was promised. The limit that merely looks best on the calibration inputs breaks the promise in a quarter to
a half of cases.

The tests are fixed-sequence tests (Bauer, 1991; Learn then Test, Angelopoulos et al., arXiv 2110.01052) of exact
Clopper-Pearson bounds (SGR, Geifman & El-Yaniv, NeurIPS 2017), chained by the fallback procedure (Wiens, 2003).

What is promised: of inputs drawn like the calibration inputs (silos mixed in the same proportions), with everything
else fixed before calibration (models, ranks, the grid), at most `risk` of the answered ones are wrong, but for an
unlucky calibration sample, which has probability at most 1 - confidence. It says nothing about a single silo: for
that, test the silo's own counts. A test is exact where every calibration input is drawn from the mixture, since the
errors among A answered are then binomial. With fixed numbers per silo the errors scatter less than that, which makes
a test conservative to first order in 1 / n (Hoeffding, 1956, bounds Poisson-binomial tails by binomial ones); that is
no theorem here, but enumeration over pairs of silos found no case where the error exceeds its level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta, nbinom
from torch import Tensor

GRID = 100
"""Limits per grid."""


def limits(size: int = GRID) -> Tensor:
    """The grid j / J for j = 1 .. J, float64, correctly rounded: `rank <= limit` is decided as in the counts."""
    return torch.arange(1, size + 1, dtype=torch.float64) / size


def counts(used_rank: Tensor, wrong: Tensor, size: int = GRID) -> Tensor:
    """(2, J) float64: per limit, the inputs with rank (n,) <= limit and the wrong (n,) bool ones among them."""
    return policy_counts(used_rank, None, wrong, None, size)


def policy_counts(
    r_local: Tensor | None,
    r_global: Tensor | None,
    wrong_local: Tensor | None,
    wrong_global: Tensor | None,
    size: int = GRID,
) -> Tensor:
    """(2, J) float64: per limit, the inputs answered and those answered wrongly, by one or two models.

    The policy: the local model answers where r_local <= limit, else the global one where r_global <= limit, else
    nobody. So as the limit grows an input may pass from the global model to the local one, and errors may come and
    go. All tensors are (n,), ranks in (0, 1] (hence the last column of row 0 is n), None for a model that is not at
    hand. Counts of disjoint sets of inputs add up. Raises ValueError where ranks or lengths do not fit.
    """
    models = [(r, w) for r, w in ((r_local, wrong_local), (r_global, wrong_global)) if r is not None and w is not None]
    if not models or (r_local is None) != (wrong_local is None) or (r_global is None) != (wrong_global is None):
        raise ValueError("each model needs both its ranks and what it got wrong, and there must be one model at least")
    n = len(models[0][0])
    if any(tensor.shape != (n,) for model in models for tensor in model):
        raise ValueError(f"shapes {[tuple(tensor.shape) for model in models for tensor in model]} are not all ({n},)")
    # Model by model in order of precedence: it answers from its own column up to where a preceding one takes over.
    change = torch.zeros(2, size + 1, dtype=torch.float64)
    taken = torch.full((n,), size)
    for rank, wrong in models:
        if not ((rank > 0) & (rank <= 1)).all():
            raise ValueError("ranks must lie in (0, 1]: see caveat.uncertainty.quantiles.ranks")
        column = torch.searchsorted(limits(size), rank.double().contiguous()).minimum(taken)
        each = torch.stack([torch.ones(n, dtype=torch.float64), wrong.double()])
        change.index_add_(1, column, each).index_add_(1, taken, -each)
        taken = column
    return change[:, :size].cumsum(1)


def clopper_pearson_upper(errors: Tensor, answered: Tensor, delta: float) -> Tensor:
    """The exact upper bound at level `delta` on an error rate, from `errors` of `answered`; float64, same shape.

    Clopper & Pearson (1934), one-sided: the rate at which so few errors have probability delta. It is 1 where all
    are wrong or nothing was answered. Raises ValueError for delta outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, but must lie in (0, 1)")
    e, a = np.asarray(errors, dtype=np.float64), np.asarray(answered, dtype=np.float64)
    right = a - e
    return torch.as_tensor(np.where(right > 0, beta.ppf(1 - delta, e + 1, np.maximum(right, 1)), 1.0))


def answers_needed(errors: int, risk: float, delta: float) -> int:
    """The fewest answers, `errors` of them wrong, whose Clopper-Pearson bound is at most `risk`.

    The bound is at most `risk` when Binomial(answers, risk) <= errors has probability at most delta: when the number
    of right answers before error number errors + 1, negative binomial, is rarely so large.
    """
    return errors + 1 + int(nbinom.ppf(1 - delta, errors + 1, risk))


@dataclass(frozen=True)
class Guarantee:
    """The largest limit whose selective risk is at most `risk` with probability `confidence`, or that there is none."""

    limit: float | None
    """Answer where rank <= limit; None where no limit can be guaranteed."""
    risk: float
    confidence: float
    answered: int
    """Calibration inputs answered at the limit, or, where there is none, at the start that came closest."""
    errors: int
    """How many of these were wrong."""
    total: int
    """All calibration inputs."""
    upper: float
    """Clopper-Pearson bound on the risk there, at the level of that test."""
    needed: int = 0
    """Where there is no limit: the additional answers without an error with which that start would have passed."""

    @property
    def coverage(self) -> float:
        """The share of calibration inputs that are answered."""
        return self.answered / self.total if self.limit is not None else 0.0

    @property
    def statement(self) -> str:
        """The promise in words."""
        promise = f"with at most {_percent(self.risk)} errors"
        confidence = f"at {_percent(self.confidence)} confidence"
        if self.limit is None:
            return (
                f"no share of inputs can be answered {promise} {confidence} from {self.total:,} calibration inputs: "
                f"{self.errors:,} of the {self.answered:,} most certain are wrong, "
                f"and at least {self.needed:,} more error-free ones are needed there"
            )
        # Rounded down, so that 100 % means all.
        share = _percent(math.floor(1000 * self.answered / self.total) / 1000)
        inputs = f"{self.answered:,} of {self.total:,} calibration inputs"
        return f"answers {share} of inputs {promise} among them, {confidence} ({inputs}, {self.errors:,} wrong)"


def starting_columns(total: int, risk: float, confidence: float, size: int = GRID) -> list[int]:
    """Where the sequences start: where about enough are answered to pass in spite of 2 errors, and at 1/4 and 1/2.

    A start must not be chosen by what is tested there. It may depend on the number of inputs n, since n tells
    nothing about who is wrong. It must depend neither on the errors nor on the counts A of answered inputs: given
    A[j] alone the errors at j are binomial with the risk at j, but given other columns too they are not. "The first
    column with A[j] >= 45" tends to be one where by chance few of the inputs between two limits were drawn, and
    these have a risk of their own. Ranks are about uniform, so that n times a limit is about what is answered.

    Why these: a sequence that starts where no error is allowed stops at the first unlucky input of a good model; one
    that starts late fails where only few inputs can be answered. Of 76 schemes of one to five starts on 24 simulated
    federations (one model, six laws of risk, 200 to 10,000 inputs) the best had a mean coverage of 0.553, this one
    0.552, a single start that allows one error 0.38, and the best limit in truth 0.75. The start at 1/4 is for two
    models, where the surest inputs may have a higher risk than the next.
    """
    quarter, half = math.ceil(size / 4) - 1, math.ceil(size / 2) - 1
    for later in ([quarter, half], [half]):
        early = _column(answers_needed(2, risk, (1 - confidence) / (1 + len(later))), total, size)
        if early < later[0]:
            return [early, *later]
    return [_column(answers_needed(2, risk, 1 - confidence), total, size)]


def fixed_sequence(counts: Tensor, risk: float, confidence: float, starts: Sequence[int] | None = None) -> Guarantee:
    """The largest guaranteed limit, from the (2, J) sums over silos of `policy_counts`.

    From each of m starts (columns; by default `starting_columns`) limits are tested upwards, until one fails or the
    next start is reached. Each start brings the level delta / m, delta = 1 - confidence, and a sequence without a
    failure hands its level on to the next. That some limit is accepted although its risk is too high has probability
    at most delta, whether or not risk grows with the limit: before the first false acceptance, a sequence that holds
    a limit of too high risk has not been completed, so the first such limit of each sequence is tested at most at
    the levels of its own start and of those just before it without such limits; these groups of starts are disjoint,
    and their levels sum to at most delta.

    Raises ValueError where the counts are no counts, or a number lies outside its range.
    """
    if not (0 < risk < 1 and 0 < confidence < 1):
        raise ValueError(f"risk ({risk}) and confidence ({confidence}) must lie strictly between 0 and 1")
    answered, errors = _checked(counts)
    size, total = len(answered), int(answered[-1])
    columns = starting_columns(total, risk, confidence, size) if starts is None else sorted(set(starts))
    if not columns or columns[0] < 0 or columns[-1] >= size:
        raise ValueError(f"starts {columns} are no columns of a grid of {size} limits")

    def outcome(column: int, level: float, limit: float | None, needed: int) -> Guarantee:
        a, e = answered[column], errors[column]
        upper = float(clopper_pearson_upper(e, a, level))
        return Guarantee(limit, risk, confidence, int(a), int(e), total, upper, needed)

    accepted: Guarantee | None = None
    refused: list[Guarantee] = []
    level = 0.0
    for start, stop in zip(columns, [*columns[1:], size], strict=True):
        level += (1 - confidence) / len(columns)
        passes = clopper_pearson_upper(errors[start:stop], answered[start:stop], level) <= risk
        passed = int(passes.long().cumprod(0).sum())
        if passed:
            column = start + passed - 1
            accepted = outcome(column, level, float(limits(size)[column]), 0)
        else:
            needed = answers_needed(int(errors[start]), risk, level) - int(answered[start])
            refused.append(outcome(start, level, None, needed))
        if passed < stop - start:
            level = 0.0
    return accepted or min(refused, key=lambda guarantee: guarantee.needed)


def _column(answers: int, total: int, size: int) -> int:
    """The first column at which so many answers are expected of `total` inputs, or the last."""
    return min(math.ceil(size * answers / max(total, 1)), size) - 1


def _checked(counts: Tensor) -> tuple[Tensor, Tensor]:
    if counts.ndim != 2 or len(counts) != 2 or not counts.shape[1]:
        raise ValueError(f"counts of shape {tuple(counts.shape)}: expected (2, J), the answered and the wrong ones")
    answered, errors = counts.double()
    if not ((errors >= 0) & (errors <= answered)).all() or (answered.diff() < 0).any() or counts.isinf().any():
        raise ValueError("counts are inconsistent: need 0 <= wrong <= answered, and answered growing with the limit")
    return answered, errors


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"
