"""Fusion against exact fractions, its algebra, and what must hold where logarithms and gradients are infinite."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import mpmath
import pytest
import torch
from torch import Tensor

from caveat.uncertainty import dirichlet, opinions
from caveat.uncertainty.opinions import FUSIONS, additive, averaging, conflict, dempster, discount

INF = math.inf
VACUOUS = torch.full((3,), -INF, dtype=torch.float64)


def of(*evidence: float) -> Tensor:
    return torch.tensor(evidence, dtype=torch.float64).log()


def some(seed: int, *shape: int) -> Tensor:
    return 6 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masses(evidence: list[int]) -> tuple[list[Fraction], Fraction]:
    """Beliefs and vacuity, exactly."""
    total = Fraction(len(evidence) + sum(evidence))
    return [e / total for e in evidence], len(evidence) / total


def eq8(a: list[int], b: list[int]) -> tuple[list[Fraction], Fraction, Fraction]:
    """Fused beliefs, fused vacuity and conflict as the paper writes them, exactly."""
    (b1, u1), (b2, u2) = masses(a), masses(b)
    c = sum((x * y for i, x in enumerate(b1) for j, y in enumerate(b2) if i != j), Fraction(0))
    return [(x * y + x * u2 + y * u1) / (1 - c) for x, y in zip(b1, b2, strict=True)], u1 * u2 / (1 - c), c


PAIRS = [([5, 1, 1], [2, 0, 7]), ([99, 0, 1], [0, 99, 1]), ([0, 0, 0, 0], [3, 1, 4, 1]), ([1, 10**9], [10**12, 3])]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_dempster_against_exact_fractions(first: list[int], second: list[int]) -> None:
    beliefs, u, c = eq8(first, second)
    a, b = of(*first), of(*second)
    fused = dempster(a, b)
    assert opinions.belief(fused).tolist() == pytest.approx([float(x) for x in beliefs], rel=1e-13, abs=0)
    assert float(opinions.vacuity(fused)) == pytest.approx(float(u), rel=1e-13, abs=0)
    assert float(conflict(a, b)) == pytest.approx(float(c), rel=1e-13, abs=0)
    assert float(opinions.log_agreement(a, b).exp()) == pytest.approx(float(1 - c), rel=1e-13, abs=0)


@pytest.mark.parametrize("trust", [0.0, 0.25, 0.5, 1.0])
def test_discount_against_exact_fractions(trust: float) -> None:
    beliefs, _ = masses([5, 1, 0])
    found = discount(of(5, 1, 0), trust)
    assert opinions.belief(found).tolist() == pytest.approx([float(Fraction(trust) * b) for b in beliefs])
    assert float(opinions.vacuity(found)) == pytest.approx(float(1 - Fraction(trust) * sum(beliefs)))


def test_discount_at_its_ends() -> None:
    a = some(0, 20, 5) * 10
    assert torch.equal(discount(a, 1), a)
    assert torch.equal(discount(a, 0), torch.full_like(a, -INF))
    assert torch.equal(opinions.discounted(a, a.flip(0), 1.0), dempster(a, a.flip(0)))


def test_each_input_has_its_own_trust() -> None:
    a, trust = some(1, 3, 4), torch.tensor([0, 0.3, 1], dtype=torch.float64)
    assert torch.equal(discount(a, trust), torch.stack([discount(x, float(t)) for x, t in zip(a, trust, strict=True)]))


@pytest.mark.parametrize("trust", [-0.1, 1.1, math.nan])
def test_trust_is_a_share(trust: float) -> None:
    with pytest.raises(ValueError, match="trust"):
        discount(VACUOUS, trust)


@pytest.mark.parametrize("name", FUSIONS)
def test_order_of_two_does_not_matter(name: str) -> None:
    a, b = some(2, 50, 4), some(3, 50, 4)
    assert torch.equal(FUSIONS[name](a, b), FUSIONS[name](b, a))


@pytest.mark.parametrize("fuse", [dempster, additive])
def test_order_of_three_does_not_matter(fuse: Callable[[Tensor, Tensor], Tensor]) -> None:
    a, b, c = some(4, 50, 4), some(5, 50, 4), some(6, 50, 4)
    torch.testing.assert_close(fuse(fuse(a, b), c), fuse(a, fuse(b, c)), rtol=0, atol=1e-13)


def test_averaging_is_not_associative() -> None:
    a, b, c = of(8.0), of(4.0), of(2.0)
    assert float(averaging(averaging(a, b), c).exp()) == pytest.approx(4)
    assert float(averaging(a, averaging(b, c)).exp()) == pytest.approx(5.5)


def test_only_averaging_ignores_copies() -> None:
    a = of(5, 1, 1)
    torch.testing.assert_close(averaging(a, a), a)
    assert additive(a, a).exp().tolist() == pytest.approx([10, 2, 2])
    assert dempster(a, a).exp().tolist() == pytest.approx([10 + 25 / 3, 2 + 1 / 3, 2 + 1 / 3])


def test_the_vacuous_opinion() -> None:
    a = torch.cat([some(7, 20, 3), of(1, 0, 2)[None], VACUOUS[None]])
    assert torch.equal(dempster(a, VACUOUS), a)
    assert torch.equal(additive(a, VACUOUS), a)
    torch.testing.assert_close(averaging(a, VACUOUS), a - math.log(2))
    assert torch.equal(conflict(a, VACUOUS), torch.zeros(22, dtype=torch.float64))
    assert torch.equal(discount(VACUOUS, 0.5), VACUOUS)
    assert opinions.vacuity(VACUOUS) == 1
    assert opinions.belief(VACUOUS).tolist() == [0, 0, 0]
    assert opinions.log_alpha(VACUOUS).tolist() == [0, 0, 0]


def test_copies_of_one_opinion_count_as_evidence() -> None:
    """Why sources that share a backbone must not be fused by Dempster's rule."""
    once = of(5, 1, 1)
    fused = [once]
    for _ in range(4):
        fused.append(dempster(fused[-1], once))
    assert [round(float(opinions.vacuity(f)), 3) for f in fused] == [0.300, 0.115, 0.046, 0.018, 0.007]
    likely = [float(dirichlet.Dirichlet(opinions.log_alpha(f)).mean[0]) for f in fused]
    assert [round(p, 2) for p in (likely[0], likely[-1])] == [0.60, 0.95]
    assert all(x < y for x, y in pairwise(likely))


def test_conflict_is_not_vacuity() -> None:
    a, b = of(99, 0, 1), of(0, 99, 1)
    assert round(float(opinions.vacuity(dempster(a, b))), 3) == 0.015
    assert round(float(conflict(a, b)), 3) == 0.943


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("log_m", [0.0, math.log(1e8), math.log(1e15), 150.0])
def test_total_conflict(log_m: float, dtype: torch.dtype) -> None:
    """p = 1/2 each, u = K / (K + 2 m), 1 - C = K (K + 2 m) / (K + m)^2, where the textbook form divides 0 by 0."""
    a = torch.tensor([log_m, -INF, -INF], dtype=dtype)
    b = a[[1, 0, 2]]
    fused = dempster(a, b)
    with mpmath.workdps(200):
        m = mpmath.exp(float(a[0]))
        log_u = float(mpmath.log(3 / (3 + 2 * m)))
        agreement = 3 * (3 + 2 * m) / (3 + m) ** 2
        log_agreement, c = float(mpmath.log(agreement)), float(1 - agreement)
    # An error of the logarithm, hence relative to its size of at most 150.
    close = 300 * torch.finfo(dtype).eps
    assert opinions.belief(fused)[0] == opinions.belief(fused)[1]
    assert float(opinions.log_vacuity(fused)) == pytest.approx(log_u, abs=close)
    assert float(opinions.log_agreement(a, b)) == pytest.approx(log_agreement, abs=close)
    assert float(conflict(a, b)) == pytest.approx(c, rel=close, abs=0)
    if log_m > 15:
        assert dirichlet.Dirichlet(opinions.log_alpha(fused)).mean.tolist() == pytest.approx([0.5, 0.5, 0], abs=1e-6)


def test_small_conflict_is_exact() -> None:
    """Where all belief is on one class, 1 minus the agreement would be rounding."""
    a, b = of(1e12, 1, 0), of(1e12, 0, 3)
    _, _, c = eq8([10**12, 1, 0], [10**12, 0, 3])
    assert float(conflict(a, b)) == pytest.approx(float(c), rel=1e-12, abs=0)
    assert float(opinions.log_agreement(a, b)) == pytest.approx(math.log1p(-float(c)), rel=1e-12, abs=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_evidence_of_logits(dtype: torch.dtype) -> None:
    logits = torch.tensor([-1e4, -200, -37.5, -36.5, -15, -1, 0, 3, 19.9, 20.1, 40, 1e4], dtype=dtype)
    with mpmath.workdps(60):
        expected = [float(mpmath.log(mpmath.log1p(mpmath.exp(float(x))))) for x in logits[1:-1]]
    found = opinions.softplus_log_evidence(logits)
    assert found.tolist() == pytest.approx([-1e4, *expected, math.log(1e4)], rel=4 * torch.finfo(dtype).eps)


def test_masses_sum_to_one_and_are_those_of_the_dirichlet() -> None:
    a = 20 * some(8, 100, 6)
    u, log_alpha = opinions.vacuity(a), opinions.log_alpha(a)
    torch.testing.assert_close(opinions.belief(a).sum(-1) + u, torch.ones_like(u))
    torch.testing.assert_close(opinions.log_vacuity(a).exp(), u)
    torch.testing.assert_close(dirichlet.Dirichlet(log_alpha).vacuity, u, rtol=1e-12, atol=0)
    torch.testing.assert_close(opinions.belief(a) + u[:, None] / 6, dirichlet.Dirichlet(log_alpha).mean)


def test_agreement_is_the_rest_of_conflict() -> None:
    a, b = some(9, 200, 5), some(10, 200, 5)
    torch.testing.assert_close(opinions.log_agreement(a, b).exp(), 1 - conflict(a, b), rtol=0, atol=1e-13)
    assert float(opinions.log_agreement(a, b).max()) <= 0


def every_output(a: Tensor, b: Tensor, trust: Tensor) -> list[Tensor]:
    """Whatever is computed from log-evidence."""
    fused = [*(fuse(a, b) for fuse in FUSIONS.values()), discount(a, trust), opinions.discounted(a, b, trust)]
    of_one = [f(a) for f in (opinions.log_alpha, opinions.belief, opinions.log_vacuity, opinions.vacuity)]
    return [*fused, *of_one, conflict(a, b), opinions.log_agreement(a, b)]


def test_gradients_are_those_of_finite_differences() -> None:
    a, b = (some(seed, 3, 4).div(3).requires_grad_() for seed in (11, 12))
    trust = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: tuple(every_output(*x)), (a, b, trust))
    logits = torch.tensor([-300, -30, -1, 0, 4, 25, 300], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(opinions.softplus_log_evidence, logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_huge_and_tiny_evidence_stays_finite(dtype: torch.dtype) -> None:
    """Forward and backward."""
    ends = torch.tensor([-200.0, 0, 200], dtype=dtype)
    a = torch.cartesian_prod(ends, ends, ends).requires_grad_()
    b = a.detach().flip(0).requires_grad_()
    trust = torch.linspace(0.01, 0.99, 27, dtype=dtype, requires_grad=True)
    for output in every_output(a, b, trust):
        assert output.isfinite().all()
        gradients = torch.autograd.grad(output.sum(), (a, b, trust), allow_unused=True, materialize_grads=True)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
def test_no_evidence_is_no_trap_for_gradients(trust: float, dtype: torch.dtype) -> None:
    """-inf beside -inf, beside a number, and all of an opinion: nothing is NaN, and what is -inf gets gradient 0."""
    a = torch.tensor([[-INF, 1, -INF], [-INF, -INF, -INF], [2, 0, -INF]], dtype=dtype, requires_grad=True)
    b = torch.tensor([[-INF, -INF, 3], [-INF, -INF, -INF], [0, 9, 1]], dtype=dtype, requires_grad=True)
    share = torch.tensor(trust, dtype=dtype, requires_grad=True)
    for output in every_output(a, b, share):
        assert not output.isnan().any()
        to_a, to_b, to_share = torch.autograd.grad(
            output.sum(), (a, b, share), allow_unused=True, materialize_grads=True
        )
        assert to_a[a.isinf()].eq(0).all()
        assert to_b[b.isinf()].eq(0).all()
        assert all(bool(gradient.isfinite().all()) for gradient in (to_a, to_b, to_share))


def test_a_nan_is_not_mistaken_for_no_evidence() -> None:
    a = torch.tensor([math.nan, 1.0])
    assert all(bool(fuse(a, a)[0].isnan()) for fuse in FUSIONS.values())
    assert discount(a, 0.5).isnan().all()
