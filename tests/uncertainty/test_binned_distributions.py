"""Distributions over bars: sums that add up, reference values, and intervals that hold for few inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from caveat.core import Prediction
from caveat.core.quantity import Quantity, Times
from caveat.uncertainty import binned_distributions as binned
from caveat.uncertainty.histograms import histogram
from caveat.uncertainty.selective_risk import fixed_sequence, policy_counts, ranks, score_edges
from caveat.uncertainty.sets import threshold

EDGES = torch.tensor([0.0, 1.0, 3.0, 4.0], dtype=torch.float64)
PROBS = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], dtype=torch.float64)


def normal(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_distribution_and_quantiles_are_inverse() -> None:
    y = torch.tensor([2.0, 0.5], dtype=torch.float64)
    assert binned.cdf(PROBS, EDGES, y).tolist() == pytest.approx([0.45, 0.5])
    assert binned.quantile(PROBS, EDGES, 0.45)[0].item() == pytest.approx(2.0)
    assert binned.quantile(PROBS, EDGES, 0.5)[1].item() == pytest.approx(0.5)
    assert binned.quantile(PROBS, EDGES, 1.0)[0].item() == pytest.approx(4.0)


@pytest.mark.parametrize("y", [-1.0, 0.0, 0.3, 1.0, 2.5, 3.9, 4.0, 6.0])
def test_crps_is_the_integral(y: float) -> None:
    z = torch.linspace(-2, 7, 90_001, dtype=torch.float64)
    for row in PROBS:
        below = binned.cdf(row.expand(len(z), -1), EDGES, z)
        wanted = float((below - (z >= y).double()).square().sum() * (z[1] - z[0]))
        found = binned.crps(row[None], EDGES, torch.tensor([y], dtype=torch.float64))
        assert float(found) == pytest.approx(wanted, abs=2e-4)


def test_bars_of_several_silos_are_those_of_all_targets() -> None:
    y = normal(900) * 3 + 40
    together = Quantity.of([y])
    assert Quantity.of([y[:100], y[100:150], y[150:]]) == together
    assert len(together.classes) == 30
    assert max(together.shares) < 2 / 30  # about equal numbers
    assert together.edges[0] < float(y.min())
    assert together.edges[-1] > float(y.max())
    counts = torch.bincount(together.bar(y), minlength=30) / 900
    assert counts.tolist() == pytest.approx(list(together.shares))


def test_few_whole_numbers_have_a_bar_each() -> None:
    y = torch.arange(200, dtype=torch.float64) % 7 + 3
    found = Quantity.of([y])
    assert found.edges == pytest.approx([2.5 + k for k in range(8)])
    assert found.means == pytest.approx([3 + k for k in range(7)])


def test_a_frequent_number_has_its_own_bar() -> None:
    found = Quantity.of([torch.cat([normal(400), torch.zeros(400, dtype=torch.float64)])])
    at = found.shares.index(max(found.shares))
    assert found.means[at] == pytest.approx(0, abs=0.02)
    assert found.shares[at] >= 0.5


def test_equal_targets_and_a_declared_range() -> None:
    with pytest.raises(ValueError, match="equal"):
        Quantity.of([torch.ones(50)])
    found = Quantity.of([torch.ones(50)], bounds=(0, 16))
    assert found.declared
    assert found.edges == pytest.approx([2 * k for k in range(9)])


def test_smoothed_targets_are_gaussian_in_ranks() -> None:
    shares = torch.full((10,), 0.1, dtype=torch.float64)
    found = binned.smoothed(shares, 225).double()  # a standard deviation of .05
    assert found.sum(1).tolist() == pytest.approx([1.0] * 10)
    inner = math.erf(0.05 / 0.05 / math.sqrt(2))
    assert float(found[5, 5]) == pytest.approx(inner, abs=1e-4)
    assert found[3, 4] == pytest.approx(float(found[4, 3]), rel=1e-3)


@pytest.mark.parametrize("probs", [(0.2, 0.6, 0.2), (0.5, 0.1, 0.4), (0.0, 0.2, 0.8), (1.0, 0.0, 0.0)])
def test_intervals_hold_exactly_the_numbers_of_low_nonconformity(probs: tuple[float, ...]) -> None:
    y = torch.linspace(-3, 7, 2001, dtype=torch.float64)
    row = torch.tensor([probs], dtype=torch.float64)
    for limit in (0.1, 0.3, 0.62, 0.9, 0.999, 1.0, 1.1, 1.5):
        low, high = binned.interval(row, EDGES, torch.tensor(limit, dtype=torch.float64))[0].tolist()
        kept = y[binned.nonconformity(row.expand(len(y), -1), EDGES, y) <= limit]
        assert low == pytest.approx(float(kept.min()), abs=0.011)
        assert high == pytest.approx(float(kept.max()), abs=0.011)


def test_nonconformity_is_the_probability_of_denser_numbers() -> None:
    """Densities .2, .25 and .3: the last bar first, from its center; then the second one, from the side of the last."""
    y = torch.tensor([3.5, 4.0, 2.0, 1.0, 0.5, -2.0, math.nan], dtype=torch.float64)
    found = binned.nonconformity(PROBS[:1].expand(6, -1), EDGES, y[:6])
    assert found.tolist() == pytest.approx([0.0, 0.3, 0.55, 0.8, 0.9, 1.5])
    assert binned.nonconformity(torch.full((1, 3), math.nan).double(), EDGES, y[:1]).isinf().all()


def test_intervals_cover_inputs_with_much_noise_as_those_with_little() -> None:
    generator = torch.Generator().manual_seed(0)
    target = Quantity.of([5 * torch.randn(4000, dtype=torch.float64, generator=generator)])
    edges = torch.tensor(target.edges, dtype=torch.float64)
    noise = 1 + 4 * (torch.rand(8000, generator=generator) < 0.1).double()
    center = 3 * torch.randn(8000, dtype=torch.float64, generator=generator)
    y = center + noise * torch.randn(8000, dtype=torch.float64, generator=generator)
    below = torch.special.ndtr((edges[None] - center[:, None]) / noise[:, None])
    below[:, 0], below[:, -1] = 0, 1
    probs = below.diff(dim=1)
    limit = threshold(target.nonconformity(probs[:3000], y[:3000]), 0.9)
    low, high = target.interval(probs, torch.tensor(limit, dtype=torch.float64)).unbind(1)
    held = ((low <= y) & (y <= high)).double()[3000:]
    for of in (1, 5):
        assert float(held[noise[3000:] == of].mean()) == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("far", [1e3, 1e6])
def test_a_target_far_from_all_others_leaves_the_bars_of_the_others(far: float) -> None:
    y = torch.cat([normal(999) + 10, torch.tensor([far], dtype=torch.float64)])
    found = Quantity.of([y[:400], y[400:]])
    assert len(found.means) == 32
    assert max(found.shares) < 0.05
    assert float(found.quantile(found.reference, 0.5)) == pytest.approx(float(y.median()), abs=0.05)
    assert found.edges[0] > 0


def test_a_level_outside_0_to_1_is_refused() -> None:
    target = Quantity.of([normal(100)])
    for level in (90, -0.1, math.nan):
        with pytest.raises(ValueError, match="level"):
            replace(Prediction.from_samples(target.reference[None]), target=target).quantile(level)


def test_intervals_without_a_limit_and_without_probabilities_are_infinite() -> None:
    none = torch.full((1, 3), math.nan, dtype=torch.float64)
    unlimited = torch.tensor(math.inf).double().nan_to_num()
    for found in (
        binned.interval(PROBS[:1], EDGES, unlimited),
        binned.interval(none, EDGES, torch.tensor(1.0).double()),
    ):
        assert found.tolist() == [[-math.inf, math.inf]]


@pytest.mark.parametrize("n", [20, 60, 300])
def test_intervals_cover_with_few_calibration_inputs(n: int) -> None:
    """The model is wrong: its distributions are too narrow and shifted, and new targets exceed all training targets."""
    coverage, trials, generator = 0.9, 400, torch.Generator().manual_seed(n)
    target = Quantity.of([normal(400)])
    held = total = 0
    for _ in range(trials):
        center = torch.randn(n + 50, dtype=torch.float64, generator=generator)
        y = center + 0.8 * torch.randn(n + 50, dtype=torch.float64, generator=generator)
        middle = torch.tensor(target.means)
        probs = (-(middle - center[:, None] - 0.2).square() / 0.5).softmax(1)
        limit = threshold(target.nonconformity(probs[:n], y[:n]), coverage)
        low, high = target.interval(probs[n:], torch.tensor(limit, dtype=torch.float64)).unbind(1)
        held += int(((low <= y[n:]) & (y[n:] <= high)).sum())
        total += 50
    # The coverage of a calibration sample varies by about sqrt(.09 / n), so its mean over trials by:
    error = math.sqrt(0.09 / n / trials + 0.09 / total)
    assert held / total >= coverage - 3 * error
    assert held / total <= coverage + 1 / (n + 1) + 3 * error + 0.01  # not much wider than needed


def test_times_have_equal_falls_of_the_survival_curve_and_a_last_bar() -> None:
    generator = torch.Generator().manual_seed(0)
    time, censored = (torch.empty(4000, dtype=torch.float64).exponential_(1 / s, generator=generator) for s in (50, 70))
    y = torch.where(time <= censored, time, -censored)
    target = Times.of([y[:1000], y[1000:]])
    edges, shares = torch.tensor(target.edges[1:-1]), torch.tensor(target.shares)
    true = torch.exp(-edges / 50)
    assert (1 - shares.cumsum(0)[:-1] - true)[:-5].abs().max() < 0.03
    assert float(shares.sum()) == pytest.approx(1)
    assert target.edges[0] == 0
    events = target.bar(y)[y > 0]
    assert int(events.max()) == len(shares) - 2
    assert (target.bar(y)[y < 0] >= len(shares)).all()
    probs = target.reference
    assert float(target.survival(probs, torch.tensor([1e6]))) == pytest.approx(float(shares[-1]))
    assert target.quantile(probs, 1 - float(shares[-1]) / 2).tolist() == [math.inf]


def test_the_loss_of_a_censored_time_is_that_of_all_later_bars() -> None:
    target = Times.of([torch.arange(1.0, 65.0)])
    size = len(target.means)
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    later = logits.exp()[0, 3:].sum() + logits.exp()[0, 2] / 2
    assert float(target.loss(logits, torch.tensor([size + 2]))) == pytest.approx(-math.log(float(later)), rel=1e-5)
    assert float(target.loss(logits, torch.tensor([2 * size - 1]))) == pytest.approx(-float(logits[0, -1]), rel=1e-5)
    quantity = Quantity.loss(target, logits, torch.tensor([2]))
    assert torch.equal(target.loss(logits, torch.tensor([2])), quantity)
    wanted = [float(logits[0, 2].exp()), float(later)]
    found = binned.likelihood(logits.exp().expand(2, -1), torch.tensor([2, size + 2]))
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)


def test_promises_about_a_tolerance_are_broken_in_at_most_one_of_ten() -> None:
    """200 calibration samples of a model whose spread ranks errors; the risk of each promise on 5,000 new targets."""
    generator = torch.Generator().manual_seed(0)
    target, tolerance, risk = Quantity.of([normal(400)]), 0.8, 0.1
    middle = torch.tensor(target.means)

    def drawn(n: int) -> tuple[Tensor, Tensor]:
        """Return the spreads of n predictions, and whether their medians are wrong."""
        center, noise = torch.randn(n, 2, dtype=torch.float64, generator=generator).unbind(1)
        noise = 0.6 * noise.abs() + 0.1
        y = center + noise * torch.randn(n, dtype=torch.float64, generator=generator)
        probs = (-(middle - center[:, None]).square() / (2 * noise[:, None].square())).softmax(1)
        return target.spread(probs), (target.quantile(probs, 0.5) - y).abs() > tolerance

    edges = score_edges("spread", histogram("spread", drawn(400)[0]))
    spread, wrong = drawn(5000)
    new, base = ranks(edges, spread), float(wrong.double().mean())
    broken = answered = 0
    for _ in range(200):
        spread, false = drawn(300)
        found = fixed_sequence(policy_counts(None, ranks(edges, spread), None, false), risk, 0.9)
        kept = new <= (found.limit or 0.0)
        answered += int(kept.sum())
        broken += bool(kept.any()) and float(wrong[kept].double().mean()) > risk
    assert base > 1.3 * risk
    assert answered > 200 * 2000
    assert broken <= 200 * 0.1 + 2.5 * math.sqrt(200 * 0.1 * 0.9)
