"""Subjective-logic opinions and rules that fuse two of them, in logarithms throughout.

An opinion of (...) inputs over K classes is its log-evidence (..., K), ln e_k; -inf is no evidence, and all -inf is the
vacuous opinion. It means alpha = e + 1, S = K + sum_k e_k, beliefs b = e / S and the vacuity u = K / S (TrFedDis, eq. 4
to 6; Josang, Subjective Logic, 2016). All functions keep the dtype of their inputs, are differentiable, and broadcast.
Finite log-evidence gives finite results, which neither overflow nor cancel, and finite gradients; an entry of -inf
receives gradient 0, even if the result is -inf.

Each rule has assumptions. Dempster's rule assumes independent opinions and multiplies evidence on which they agree, so
an opinion fused with its own copy becomes more certain. It also ignores conflict: two opinions that contradict each
other almost completely fuse into one that is almost certain that two classes are equally likely. `conflict` measures
this. More than two opinions can be fused in any order by `dempster` and `additive`, but not by `averaging`.
"""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

NEGLIGIBLE = -37.0
"""Number x below which ln softplus(x) equals x to the precision of float64."""


def softplus_log_evidence(logits: Tensor) -> Tensor:
    """Return ln softplus(logits), elementwise: the evidence of eq. 4; for negative logits, about the logits."""
    direct = _log1p_exp(logits.clamp_min(NEGLIGIBLE)).log()
    return torch.where(logits < NEGLIGIBLE, logits, direct)


def log_alpha(log_evidence: Tensor) -> Tensor:
    """Return ln(1 + e) (..., K), the parameters of the Dirichlet distribution, as in `dirichlet` (eq. 5)."""
    return _log1p_exp(log_evidence)


def log_vacuity(log_evidence: Tensor) -> Tensor:
    """Return ln u = ln K - ln S (...), at most 0."""
    return -_log1p_exp(_log_ratio(log_evidence))


def vacuity(log_evidence: Tensor) -> Tensor:
    """Return u = K / S (...), in [0, 1]: the belief mass without evidence (eq. 6)."""
    return log_vacuity(log_evidence).exp()


def belief(log_evidence: Tensor) -> Tensor:
    """Return b = e / S (..., K), at least 0; with the vacuity they sum to 1 (eq. 6)."""
    log_total = math.log(log_evidence.shape[-1]) - log_vacuity(log_evidence)
    return (_finite(log_evidence) - log_total[..., None]).exp()


def dempster(a: Tensor, b: Tensor) -> Tensor:
    """Fuse two independent opinions by Dempster's rule: ln(e1 + e2 + e1 e2 / K).

    This equals eq. 8, b_k = (b1_k b2_k + b1_k u2 + b2_k u1) / (1 - C) and u = u1 u2 / (1 - C), without its division by
    0 for total conflict. The rule is commutative and associative; the vacuous opinion is neutral.
    """
    a, b = _finite(a), _finite(b)
    return _infinite(torch.logaddexp(torch.logaddexp(a, b), a + b - math.log(a.shape[-1])))


def additive(a: Tensor, b: Tensor) -> Tensor:
    """Fuse two opinions on disjoint data (cumulative fusion): ln(e1 + e2). The rule is commutative and associative; the
    vacuous opinion is neutral."""
    return _infinite(torch.logaddexp(_finite(a), _finite(b)))


def averaging(a: Tensor, b: Tensor) -> Tensor:
    """Fuse two opinions on the same data by averaging: ln((e1 + e2) / 2). The rule is commutative and idempotent, but
    not associative; the vacuous opinion halves the evidence."""
    return additive(a, b) - math.log(2)


def discount(a: Tensor, trust: float | Tensor) -> Tensor:
    """Return the opinion of a source with partial trust: b' = t b and u' = 1 - t sum_k b_k, hence e' = K t b / u'.

    `trust` is one number or (...). 1 leaves the opinion unchanged, 0 makes it vacuous. Below 1, the trust gets
    gradients, too. Raises ValueError for a trust outside [0, 1].
    """
    # A single number stays on the CPU, where reading it does not synchronize.
    trust = torch.as_tensor(trust, dtype=a.dtype)
    if not bool(((trust >= 0) & (trust <= 1)).all()):
        raise ValueError(f"trust is from {trust.min():g} to {trust.max():g}, expected values in [0, 1]")
    # u' / u = 1 + (1 - t) sum e / K, a sum of positive terms.
    log_growth = _log1p_exp(_log(1 - trust) + _log_ratio(a))
    return _infinite(_finite(a) + (_log(trust) - log_growth)[..., None])


def discounted(a: Tensor, b: Tensor, trust: float | Tensor) -> Tensor:
    """Fuse two opinions by Dempster's rule after discounting both."""
    return dempster(discount(a, trust), discount(b, trust))


def conflict(a: Tensor, b: Tensor) -> Tensor:
    """Return C = sum_{i != j} b1_i b2_j (...), in [0, 1]: the belief that two opinions assign to different classes (eq.
    8). It is exact even if it is small, because nothing is subtracted."""
    return (belief(a) * _sums_of_others(belief(b))).sum(-1).clamp_max(1)


def log_agreement(a: Tensor, b: Tensor) -> Tensor:
    """Return ln(1 - C) (...), at most 0, exact even for an almost total conflict."""
    c = conflict(a, b)
    # 1 - C = K (K + sum e) / (S1 S2), in which a small C is lost.
    direct = log_vacuity(a) + log_vacuity(b) - log_vacuity(dempster(a, b))
    return torch.where(c < 0.5, torch.log1p(-c.clamp_max(0.5)), direct)


FUSIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dempster": dempster,
    "additive": additive,
    "averaging": averaging,
}
"""The rules that need only two opinions. `discounted` is a discount followed by any of them."""


def _log1p_exp(x: Tensor) -> Tensor:
    """Return ln(1 + exp x), exact for any x; `softplus` drops exp(-x) from x = 20 on."""
    return -F.logsigmoid(-x)


def _log_ratio(log_evidence: Tensor) -> Tensor:
    """Return ln(sum_k e_k / K) (...), finite."""
    return _finite(log_evidence).logsumexp(-1) - math.log(log_evidence.shape[-1])


def _log(x: Tensor) -> Tensor:
    """Return ln x, finite and without a gradient if x is 0."""
    return torch.where(x > 0, x, 1).log().masked_fill(x <= 0, _floor(x))


def _floor(x: Tensor) -> float:
    """Return a replacement for -inf in sums, where its differences and gradients would be NaN. It absorbs what is added
    to it, and sums of a few such numbers are finite."""
    return torch.finfo(x.dtype).min / 8


def _finite(log_evidence: Tensor) -> Tensor:
    return log_evidence.clamp_min(_floor(log_evidence))


def _infinite(log_evidence: Tensor) -> Tensor:
    return log_evidence.masked_fill(log_evidence <= _floor(log_evidence), -math.inf)


def _sums_of_others(x: Tensor) -> Tensor:
    """Return for each entry of the last axis the sum of all other entries."""
    before = _running_sums(F.pad(x[..., :-1], (1, 0)))
    after = _running_sums(F.pad(x[..., 1:], (0, 1)).flip(-1)).flip(-1)
    return before + after


def _running_sums(x: Tensor) -> Tensor:
    """Return `cumsum` over the last axis; as a product on devices whose `cumsum` is not reproducible."""
    if x.device.type == "cpu":
        return x.cumsum(-1)
    return x @ x.new_ones(x.shape[-1], x.shape[-1]).triu()
