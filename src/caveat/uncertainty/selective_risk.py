"""The largest share of inputs that can be answered with few errors, guaranteed at a confidence level.

A policy answers an input if its rank of uncertainty (`ranks`) is at most a limit. Silos count, for each limit of a
fixed grid, how many calibration inputs they would answer and how many of them wrongly; counts add up over silos, and a
sequence of tests on the sums finds the largest limit whose selective risk, P(wrong | answered), is at most `risk`.
Without tests, the limit that looks best on the calibration inputs violates the bound in a quarter to a half of cases.

The tests are fixed-sequence tests (Bauer, 1991; Learn then Test, Angelopoulos et al., arXiv 2110.01052) of exact
Clopper-Pearson bounds (SGR, Geifman & El-Yaniv, NeurIPS 2017), chained by the fallback procedure (Wiens, 2003).

The guarantee: of inputs drawn like the calibration inputs (silos mixed in the same proportions), with everything else
fixed before calibration (models, ranks, the grid), at most `risk` of the answered ones are wrong, except for an unlucky
calibration sample, which has probability at most 1 - confidence. Counts of the whole federation guarantee nothing for a
single silo, which needs its own counts. A test is exact if every calibration input is drawn from the mixture, because
then the errors among A answered inputs are binomial. With fixed numbers per silo the errors vary less, which makes a
test conservative to first order in 1 / n (Hoeffding, 1956, bounds Poisson-binomial tails by binomial ones). This is not
proven here, but an enumeration over pairs of silos found no case where the error exceeds its level. The counts of one
silo are binomial.

Ranks: a group of silos (the federation, the silos of a domain, one silo) compares scores with the quantiles of its own
validation scores, one list of J edges per model: an input's rank is (k + 1) / J if k edges lie below its score, and
limit j / J answers the inputs whose rank is at most j / J. Scores of a silo are ranked among the scores of its whole
group, so an easy silo answers more inputs than a hard one at the same limit.

On MNIST, USPS, MNIST-M and gray SVHN the federation's guarantee at 5 % and 90 % answers 66 % of inputs this way and
24 % by ranks among each silo's own scores (`benchmarks/guarantee.py`, with `--rank own`). On FedAvg, FedPer and FML,
isotonic regression of errors on validation labels, with or without an offset per silo, was no better than ranks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from . import histograms
from .histograms import beside
from .statistical_tests import beta_quantile, negative_binomial_quantile

GRID = 100
"""Number of limits of a grid."""


def limits(size: int = GRID) -> Tensor:
    """Return the grid j / J for j = 1 .. J, float64, correctly rounded: `rank <= limit` is decided as in the counts."""
    return torch.arange(1, size + 1, dtype=torch.float64) / size


def score_edges(name: str, histogram: Tensor, size: int = GRID) -> Tensor:
    """Return (J,) float64 ascending: quantiles j / J of the scores in a histogram (4096,), as upper edges of bins.

    The last edge is the largest number, so ranks are at most 1. Without scores, all other edges are the smallest
    number, so all ranks are 1.
    """
    histogram = histogram.cpu()
    index = torch.searchsorted(histogram.double().cumsum(0), histogram.sum() * limits(size))
    found = histograms.edges(name)[1:][index.clamp_max(len(histogram) - 1)]
    found[-1] = torch.inf
    if not histogram.any():
        found[:-1] = -torch.inf
    return found.nan_to_num()


def ranks(edges: Tensor, scores: Tensor) -> Tensor:
    """Return (N,) float64 in (0, 1], the ranks of scores (N,) among edges (J,); NaN has rank 1."""
    edges = beside(edges, scores)
    below = torch.searchsorted(edges, scores.double().nan_to_num(nan=torch.inf, posinf=torch.inf).contiguous())
    return beside(limits(len(edges)), scores)[below.clamp_max(len(edges) - 1)]


def counts(used_rank: Tensor, wrong: Tensor, size: int = GRID) -> Tensor:
    """Return (2, J) float64: per limit, the number of inputs with rank (n,) <= limit, and how many of these are `wrong`
    (n,) bool."""
    return policy_counts(used_rank, None, wrong, None, size)


def policy_counts(
    r_local: Tensor | None,
    r_global: Tensor | None,
    wrong_local: Tensor | None,
    wrong_global: Tensor | None,
    size: int = GRID,
) -> Tensor:
    """Return (2, J) float64: per limit, the numbers of answers and of wrong answers, by one or two models.

    The policy: the local model answers if r_local <= limit, else the global one if r_global <= limit, else none. So as
    the limit grows, an input may pass from the global model to the local one, and the number of errors may rise or
    fall. All tensors are (n,), ranks in (0, 1], or infinite for an input that a model never answers; None for a missing
    model. Counts are on the CPU, and counts of disjoint sets of inputs add up. Raises ValueError for invalid ranks or
    lengths.
    """
    pairs = (r_local, wrong_local), (r_global, wrong_global)
    models = [(r.cpu(), w.cpu()) for r, w in pairs if r is not None and w is not None]
    if not models or (r_local is None) != (wrong_local is None) or (r_global is None) != (wrong_global is None):
        raise ValueError("expected both ranks and errors of each model, and at least one model")
    n = len(models[0][0])
    if any(tensor.shape != (n,) for model in models for tensor in model):
        found = [tuple(tensor.shape) for model in models for tensor in model]
        raise ValueError(f"ranks and errors have the shapes {found}, expected ({n},) for all")
    # In order of precedence: a model answers from its own column up to the column where a preceding model takes over.
    change = torch.zeros(2, size + 1, dtype=torch.float64)
    taken = torch.full((n,), size)
    for rank, wrong in models:
        if not ((rank > 0) & ((rank <= 1) | rank.isposinf())).all():
            raise ValueError("ranks must lie in (0, 1], or be infinite")
        column = torch.searchsorted(limits(size), rank.double().contiguous()).minimum(taken)
        each = torch.stack([torch.ones(n, dtype=torch.float64), wrong.double()])
        change.index_add_(1, column, each).index_add_(1, taken, -each)
        taken = column
    return change[:, :size].cumsum(1)


@dataclass(frozen=True)
class Guarantee:
    """The largest limit whose selective risk is at most `risk` with probability `confidence_level`, if there is one."""

    limit: float | None
    """Answer if rank <= limit; None if no limit can be guaranteed."""
    risk: float
    confidence_level: float
    answered: int
    """Number of calibration inputs answered at the limit or, without a limit, at the start that came closest."""
    errors: int
    """Number of these answers that are wrong."""
    total: int
    """Number of calibration inputs."""
    upper: float
    """Clopper-Pearson bound on the risk of these answers, at the level of the test."""
    needed: int = 0
    """Without a limit: number of additional error-free answers with which that start would have passed."""
    enough: int = 0
    """Approximate number of calibration inputs needed to answer more, from `inputs_needed` if less than half of the
    inputs are answered; 0 if unknown."""
    enough_share: float = 0.0
    """The share of inputs that would be answered with `enough` calibration inputs."""
    tolerance: float | None = None
    """For a quantity: the largest error with which a prediction still counts as correct."""

    @property
    def coverage(self) -> float:
        """The share of calibration inputs that are answered."""
        return self.answered / self.total if self.limit is not None else 0.0

    @property
    def statement(self) -> str:
        """The guarantee in words."""
        size = "" if self.tolerance is None else f" larger than {self.tolerance:.6g}"
        promise = f"with at most {_percent(self.risk)} errors{size}"
        confidence = f"at {_percent(self.confidence_level)} confidence"
        if self.limit is None:
            return (
                f"no share of inputs can be answered {promise} {confidence} from {self.total:,} calibration inputs: "
                f"{self.errors:,} of the {self.answered:,} most certain are wrong, "
                f"and at least {self.needed:,} more error-free {'one is' if self.needed == 1 else 'ones are'} needed "
                "there"
            )
        # Rounded, but 100 % means all.
        share = _percent(min(round(self.answered / self.total, 3), 0.999 if self.answered < self.total else 1.0))
        inputs = f"{self.answered:,} of {self.total:,} calibration inputs"
        found = f"({inputs}, {self.errors:,} wrong)"
        return f"answers {share} of inputs {promise} among them, {confidence} {found}"


def starting_columns(total: int, risk: float, confidence: float, size: int = GRID) -> dict[int, float]:
    """Return the columns where the sequences start, and the share of delta = 1 - confidence that each uses.

    With many inputs, they start where about enough are answered to pass despite 2 errors, and at 1/4 and 1/2 (or at
    1/2), with equal shares. With fewer, they start where enough are answered to pass without an error at .3 delta, and
    with one error at .7 delta; with fewer still, where enough are answered to pass without an error at delta.

    A start may depend on the number of inputs n, which reveals nothing about errors. It must depend neither on the
    errors nor on the counts A of answered inputs: given only A[j], the errors at j are binomial with the risk at j, but
    given other columns, too, they are not. "The first column with A[j] >= 45" is biased: it is reached where, by
    chance, many inputs were drawn between two limits, and their risk may differ. Ranks are almost uniform, so n times a
    limit is about the number of answers.

    Reasons: a sequence that starts where no error is allowed stops at the first unlucky input of a good model; one that
    starts late fails if only few inputs can be answered. Of 76 schemes with one to five starts on 24 simulated
    federations (one model, six risk functions, 200 to 10,000 inputs) the best had a mean coverage of 0.553, three equal
    starts 0.552, a single start that allows one error 0.38, and the true best limit 0.75. The start at 1/4 is for two
    models, where the most certain inputs may have a higher risk than the next. For few inputs, 10 schemes were compared
    on six silos of digits, by coverage relative to the best limit: with 100 inputs the pair reaches .86, .89, .46, .50,
    0, 0, and a start that allows 2 errors .16, .15, 0, .01, 0, 0.
    """
    quarter, half = math.ceil(size / 4) - 1, math.ceil(size / 2) - 1
    delta = 1 - confidence
    for later in ([quarter, half], [half]):
        share = 1 / (1 + len(later))
        early = _column(answers_needed(2, risk, share * delta), total, size)
        if early < CLEAR * later[0]:
            return dict.fromkeys([early, *later], share)
    first, second = (_column(answers_needed(k, risk, share * delta), total, size) for k, share in enumerate(PAIR))
    if first < second < math.ceil(ROOM * size) - 1:
        return {first: PAIR[0], second: PAIR[1]}
    return {_column(answers_needed(0, risk, delta), total, size): 1.0}


HALF = 0.5
"""Share of answered inputs below which a guarantee estimates the inputs needed to answer more."""
CLEAR = 0.75
"""Share of the next start below which the first one must lie for both to be useful."""
PAIR = (0.3, 0.7)
"""Shares of delta for a start that allows no error and for one that allows one error."""
ROOM = 0.9
"""Maximum share of inputs that the second of the pair may need; hardly any model passes with more."""


def fixed_sequence(
    counts: Tensor, risk: float, confidence: float, starts: Mapping[int, float] | None = None, total: int | None = None
) -> Guarantee:
    """Return the largest guaranteed limit, from the (2, J) sums over silos of `policy_counts`.

    From each of the starts (columns, with shares of delta = 1 - confidence that sum to at most 1; by default
    `starting_columns`) limits are tested upwards, until one fails or the next start is reached. Each start adds its
    share of delta, and a sequence without a failure passes its level on to the next. The probability that a limit with
    too high a risk is accepted is at most delta, whether or not risk grows with the limit. Proof: before the first
    false acceptance, no sequence that contains a limit with too high a risk has been completed. So the first such limit
    of each sequence is tested at most at the levels of its own start and of the starts just before it without such
    limits; these groups of starts are disjoint, and their levels sum to at most delta.

    `total` is the number of inputs, by default the number that the last limit answers. Raises ValueError for invalid
    counts and for numbers outside their range.
    """
    if not (0 < risk < 1 and 0 < confidence < 1):
        raise ValueError(f"risk ({risk}) and confidence ({confidence}) must lie strictly between 0 and 1")
    counts = counts.cpu()
    answered, errors = _checked(counts)
    size, total = len(answered), int(answered[-1]) if total is None else total
    if total < answered[-1]:
        raise ValueError(f"total = {total}, but {int(answered[-1])} inputs are answered")
    starts = dict(sorted((starting_columns(total, risk, confidence, size) if starts is None else starts).items()))
    columns = list(starts)
    if not columns or columns[0] < 0 or columns[-1] >= size:
        raise ValueError(f"starts {columns} are not columns of a grid of {size} limits")
    if min(starts.values()) <= 0 or sum(starts.values()) > 1 + 1e-9:
        raise ValueError(f"starts have shares {list(starts.values())}, expected positive numbers, in total at most 1")

    def outcome(column: int, level: float, limit: float | None, needed: int) -> Guarantee:
        a, e = answered[column], errors[column]
        upper = float(clopper_pearson_upper(e, a, level))
        return Guarantee(limit, risk, confidence, int(a), int(e), total, upper, needed)

    accepted: Guarantee | None = None
    refused: list[Guarantee] = []
    level = 0.0
    for start, stop in zip(columns, [*columns[1:], size], strict=True):
        level += (1 - confidence) * starts[start]
        passes = bounded(errors[start:stop], answered[start:stop], risk, level)
        passed = int(passes.long().cumprod(0).sum())
        if passed:
            column = start + passed - 1
            accepted = outcome(column, level, float(limits(size)[column]), 0)
        else:
            needed = answers_needed(int(errors[start]), risk, level) - int(answered[start])
            refused.append(outcome(start, level, None, needed))
        if passed < stop - start:
            level = 0.0
    found = accepted or min(refused, key=lambda guarantee: guarantee.needed)
    if found.coverage >= HALF or not total:
        return found
    enough, share = inputs_needed(counts, total, risk, 1 - confidence)
    return replace(found, enough=enough, enough_share=share)


def _column(answers: int, total: int, size: int) -> int:
    """Return the first column at which this number of answers is expected from `total` inputs, or the last column."""
    return min(math.ceil(size * answers / max(total, 1)), size) - 1


def _checked(counts: Tensor) -> tuple[Tensor, Tensor]:
    if counts.ndim != 2 or len(counts) != 2 or not counts.shape[1]:
        raise ValueError(f"counts have shape {tuple(counts.shape)}, expected (2, J): answered and wrong inputs")
    answered, errors = counts.double()
    if not ((errors >= 0) & (errors <= answered)).all() or (answered.diff() < 0).any() or counts.isinf().any():
        raise ValueError(
            "inconsistent counts: expected 0 <= wrong <= answered, and answers that do not decrease with the limit"
        )
    return answered, errors


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"


def clopper_pearson_upper(errors: Tensor, answered: Tensor, delta: float) -> Tensor:
    """Return the exact upper bound at level `delta` on an error rate, from `errors` of `answered`; float64, same shape.

    Clopper & Pearson (1934), one-sided: the rate at which at most this number of errors has probability delta. It is 1
    if all answers are wrong or there are none. Raises ValueError for delta outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, but must lie in (0, 1)")
    e, a = np.asarray(errors, dtype=np.float64), np.asarray(answered, dtype=np.float64)
    right = a - e
    return torch.as_tensor(np.where(right > 0, beta_quantile(1 - delta, e + 1, np.maximum(right, 1)), 1.0))


def bounded(errors: Tensor, answered: Tensor, risk: float, delta: float) -> Tensor:
    """Return whether Clopper and Pearson's bound is at most `risk`: bool, same shape; false if nothing was answered.

    This follows from the definition of the bound, without computing it: at rate `risk`, at most this number of errors
    has a probability of at most delta.
    """
    e, a = np.asarray(errors, dtype=np.float64), np.asarray(answered, dtype=np.float64)
    right = a - e
    # P(Binomial(a, risk) <= e), as an incomplete beta function.
    return torch.as_tensor((right > 0) & (betainc(np.maximum(right, 1), e + 1, 1 - risk) <= delta))


@cache
def answers_needed(errors: int, risk: float, delta: float) -> int:
    """Return the smallest number of answers, `errors` of them wrong, whose Clopper-Pearson bound is at most `risk`.

    The bound is at most `risk` if Binomial(answers, risk) <= errors has probability at most delta. The number of right
    answers before error number errors + 1 is negative binomial.
    """
    return errors + 1 + negative_binomial_quantile(1 - delta, errors + 1, risk)


SURE = 0.1
"""The share of inputs that `inputs_needed` assumes if no limit is known to be good enough."""


def inputs_needed(counts: Tensor, total: int, risk: float, delta: float) -> tuple[int, float]:
    """Return about how many inputs a guarantee needs instead of `total`, and the share of them that it would answer.

    Consider all limits of counts (2, J) with clearly fewer errors than `risk` allows (one error added, and a tenth of
    the risk in reserve). Take the one that answers most, and multiply its answers and errors until the bound at level
    `delta` is at most `risk`. Without such a limit, assume one error among the most certain `SURE` of inputs. This is
    an estimate from few inputs, for a message and not for a test.
    """
    answered, errors = np.asarray(counts, dtype=np.float64)
    able = np.flatnonzero((answered > 0) & (errors + 1 <= 0.9 * risk * answered))
    if len(able):
        a, e = answered[able[-1]], errors[able[-1]] + 1
        factors = np.geomspace(1, 1000, 121)
        # Whole numbers, because the bound needs counts.
        enough = bounded(torch.tensor(np.ceil(factors * e)), torch.tensor(np.floor(factors * a)), risk, delta).numpy()
        if enough.any():
            return _rounded(total * factors[np.argmax(enough)]), float(a / total)
    return _rounded(answers_needed(1, risk, delta) / SURE), SURE


def _rounded(number: float) -> int:
    """Round up to two digits."""
    unit = int(10 ** max(math.floor(math.log10(number)) - 1, 0))
    return math.ceil(number / unit) * unit
