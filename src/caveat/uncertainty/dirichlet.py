"""Uncertainty of Dirichlet distributions over class probabilities, in closed form.

A higher value means less certain, except for `kl_to_symmetric`, which grows with the evidence.

All functions take `log_alpha` (..., K), the natural logarithms of the K parameters, and return float64, (...) unless
stated otherwise; entropies and divergences are in nats. The textbook formulas subtract numbers that agree in all digits
if alpha0 exceeds about 1e15 (1e6 in float32); here the terms are arranged so that nothing cancels, and no parameter is
too large. Everything is differentiable.
"""

import math
from functools import cached_property

import torch
from torch import Tensor

LARGE = math.log(20)
"""log alpha above which asymptotic series are used; their first omitted term is below 1e-13 of the sum."""
SMALLEST = -690.0
"""log alpha below which 1 / alpha would overflow; it is clipped there."""
NO_EVIDENCE = 0.9
"""Vacuity above which an input has hardly any evidence."""


class Dirichlet:
    """Dirichlet distributions with `log_alpha` (..., K); their measures share the special functions."""

    def __init__(self, log_alpha: Tensor) -> None:
        self.classes = log_alpha.shape[-1]
        self.log_mean, self.log_alpha0 = _normalize(log_alpha)
        # The special functions are needed for each parameter and for alpha0, which is the last.
        self.log_x = torch.cat([log_alpha.double(), self.log_alpha0[..., None]], -1)

    @cached_property
    def mean(self) -> Tensor:
        """The expected class probabilities, (..., K)."""
        return self.log_mean.exp()

    @cached_property
    def entropy(self) -> Tensor:
        """The Shannon entropy of the mean, the total uncertainty; exact also for an almost certain mean."""
        return -(self.mean * self.log_mean).sum(-1)

    @cached_property
    def mutual_information(self) -> Tensor:
        """The mutual information of label and class probabilities, the epistemic uncertainty.

        It is about (K - 1) / (2 alpha0) for a large alpha0. With g(x) = psi(x + 1) - ln x it is sum_k p_k g(alpha_k) -
        g(alpha0), which avoids subtracting the two entropies.
        """
        return ((self.mean * self.excess[..., :-1]).sum(-1) - self.excess[..., -1]).clamp_min(0)

    @cached_property
    def expected_entropy(self) -> Tensor:
        """The expected Shannon entropy of the class probabilities, the aleatoric uncertainty; at most `entropy`."""
        # Each form is exact where the other one cancels: for alpha0 < 1, nearly all of the total is epistemic.
        remainder = self.entropy - self.mutual_information
        direct = (self.mean * (self.digamma[..., -1:] - self.digamma[..., :-1])).sum(-1)
        return torch.minimum(torch.where(self.log_alpha0 < 0, direct, remainder), self.entropy).clamp_min(0)

    @cached_property
    def dirichlet_entropy(self) -> Tensor:
        """The differential entropy of the distribution itself: highest, -lgamma(K), for alpha = 1 throughout.

        It may be negative. With t(x) = lgamma(x) - (x - 1) psi(x) + x, in which the leading terms at infinity cancel,
        it is sum_k t(alpha_k) - t(alpha0) - (K - 1) psi(alpha0).
        """
        term = _term(self.log_x, self.digamma)
        digamma0 = self.log_alpha0 + self.excess[..., -1] - _reciprocal(self.log_alpha0)
        return term[..., :-1].sum(-1) - term[..., -1] - (self.classes - 1) * digamma0

    @property
    def vacuity(self) -> Tensor:
        """K / alpha0, in subjective logic the belief mass without evidence; 1 for alpha = 1 throughout."""
        return (math.log(self.classes) - self.log_alpha0).exp()

    @cached_property
    def digamma(self) -> Tensor:
        """psi(min(x, 20) + 1): (..., K + 1)."""
        return torch.digamma(self.log_x.clamp_max(LARGE).exp() + 1)

    @cached_property
    def excess(self) -> Tensor:
        return _excess(self.log_x, self.digamma)


def kl_to_symmetric(log_alpha: Tensor, prior: float = 1.0) -> Tensor:
    """Return the KL divergence from a symmetric Dirichlet distribution, KL(Dir(alpha) || Dir(prior)), at least 0. By
    default, that is the uniform one. The error is K ln K times the precision of float64, so rounding dominates only at
    alpha = prior itself."""
    found, size = Dirichlet(log_alpha), log_alpha.shape[-1]
    if prior == 1:
        return (-found.dirichlet_entropy - math.lgamma(size)).clamp_min(0)
    # E ln p_k = psi(alpha_k) - psi(alpha0), with psi(x) = g(x) + ln x - 1 / x.
    expected = found.excess + found.log_x - _reciprocal(found.log_x)
    normalizer = size * math.lgamma(prior) - math.lgamma(size * prior)
    cross = normalizer - (prior - 1) * (expected[..., :-1] - expected[..., -1:]).sum(-1)
    return (cross - found.dirichlet_entropy).clamp_min(0)


def _normalize(log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the mean (..., K) and of alpha0 (...). The sum leaves out the largest parameter, which
    makes the logarithm of a probability close to one exact."""
    log_alpha = log_alpha.double()
    top, index = log_alpha.max(-1, keepdim=True)
    others = (log_alpha - top).exp().scatter(-1, index, 0.0)
    log_sum = others.sum(-1, keepdim=True).log1p()
    return log_alpha - top - log_sum, (top + log_sum).squeeze(-1)


def _branches(log_x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log x for x <= 20, 1 / x for x >= 20, and which of them applies; elsewhere both are finite."""
    return log_x.clamp_max(LARGE), _reciprocal(log_x.clamp_min(LARGE)), log_x > LARGE


def _reciprocal(log_x: Tensor) -> Tensor:
    """Return 1 / x, always finite."""
    return (-log_x.clamp_min(SMALLEST)).exp()


def _excess(log_x: Tensor, digamma: Tensor) -> Tensor:
    """Return g(x) = psi(x + 1) - ln x, which falls from infinity at 0 like -ln x and to 0 at infinity like 1 / (2 x).
    `digamma` is that of x + 1, needed up to x = 20."""
    small, r, is_large = _branches(log_x)
    square = r * r
    series = r * (1 / 2 - r * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240))))
    return torch.where(is_large, series, digamma - small)


def _term(log_x: Tensor, digamma: Tensor) -> Tensor:
    """Return t(x) = lgamma(x) - (x - 1) psi(x) + x.

    For small x, it uses lgamma and psi of x + 1, which have no pole at 0, and for large x the Bernoulli numbers B_n:
    ln(2 pi x) / 2 + 1 / 2 - 1 / (2 x) + the sum over even n of B_n (x / (n - 1) - 1 / n) / x^n.
    """
    small, r, is_large = _branches(log_x)
    x = small.exp()
    exact = torch.lgamma(x + 1) - small - (x - 1) * digamma + 1 - _reciprocal(small) + x
    square = r * r
    odd = r * (-1 / 3 - square * (1 / 90 - square * (1 / 210 - square / 210)))
    even = -square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    series = (math.log(2 * math.pi) + 1 + log_x.clamp_min(LARGE)) / 2 + odd + even
    return torch.where(is_large, series, exact)
