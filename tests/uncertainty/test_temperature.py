"""Federated temperature scaling against scipy on pooled data, far starts and degenerate inputs."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from caveat.uncertainty.temperature import (
    HIGHEST,
    LOWEST,
    ROUNDS,
    SearchState,
    advance,
    converged,
    proposal,
    start,
    statistics,
)

Part = tuple[Tensor, Tensor]


def draw(n: int = 600, classes: int = 5, spread: float = 2.0, seed: int = 0) -> Part:
    """Logits, and labels drawn from them: the optimum is near b = 1."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator).flatten()


def fit(*silos: Part) -> SearchState:
    """The federated rounds."""
    state = start()
    while not converged(state):
        parts = [statistics(log_probs, y, proposal(state)) for log_probs, y in silos]
        state = advance(state, torch.stack(parts).sum(0))
    return state


def optimum(log_probs: Tensor, y: Tensor) -> float:
    """The b that minimises the pooled nll: scipy narrows it down, and bisection finds where the gradient changes sign.

    The gradient is autograd's, of torch's own cross-entropy.
    """

    def nll(u: float) -> float:
        return float(torch.nn.functional.cross_entropy(log_probs * math.exp(u), y, reduction="sum"))

    def gradient(u: float) -> float:
        b = torch.tensor(math.exp(u), dtype=torch.float64, requires_grad=True)
        torch.nn.functional.cross_entropy(b * log_probs, y, reduction="sum").backward()
        return float(b.grad)

    near = minimize_scalar(nll, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded").x
    low, high = near - 0.1, near + 0.1
    assert gradient(low) < 0 < gradient(high)
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if gradient(middle) < 0 else (low, middle)
    return math.exp(low)


def test_statistics_are_the_derivatives_of_the_nll() -> None:
    log_probs, y = draw(40)
    b = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    nll = torch.nn.functional.cross_entropy(b * log_probs, y, reduction="sum")
    (first,) = torch.autograd.grad(nll, b, create_graph=True)
    (second,) = torch.autograd.grad(first, b)
    expected = torch.stack([torch.tensor(40.0, dtype=torch.float64), nll, first, second]).detach()
    torch.testing.assert_close(statistics(log_probs, y, 0.7), expected)


def test_statistics_of_logits_are_those_of_log_probabilities() -> None:
    log_probs, y = draw(40)
    torch.testing.assert_close(statistics(log_probs.log_softmax(1), y, 3.0), statistics(log_probs, y, 3.0))


def test_silos_merged_are_silos_pooled() -> None:
    log_probs, y = draw(301)
    cuts = [slice(0, 0), slice(0, 7), slice(7, 100), slice(100, 301)]
    merged = torch.stack([statistics(log_probs[cut], y[cut], 1.3) for cut in cuts]).sum(0)
    torch.testing.assert_close(merged, statistics(log_probs, y, 1.3))
    assert proposal(fit(*[(log_probs[cut], y[cut]) for cut in cuts])) == pytest.approx(proposal(fit((log_probs, y))))


@pytest.mark.parametrize("scale", [1.0, 20.0, 0.05, 300.0, 0.004])
@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_that_of_the_pooled_inputs(scale: float, seed: int) -> None:
    """From far away too: with logits times 20, plain Newton from b = 1 goes to about -220."""
    log_probs, y = draw(spread=(0.5, 2.0, 6.0)[seed], seed=seed)
    log_probs = log_probs * scale
    state = fit((log_probs[:50], y[:50]), (log_probs[50:], y[50:]))
    assert proposal(state) == pytest.approx(optimum(log_probs, y), rel=1e-6)
    assert state["rounds"] <= 15


def test_a_newton_step_that_overshoots_is_taken_back() -> None:
    """Confident logits and a few wrong labels: from the flat side of the nll Newton leaves the range of b."""
    log_probs, y = draw(spread=2.0, seed=4)
    log_probs = log_probs * 20
    _, nll, gradient, curvature = statistics(log_probs, y, 1.0).tolist()
    assert 1.0 - gradient / curvature < -100
    state, lowest = start(), math.inf
    visited = []
    while not converged(state):
        visited.append(proposal(state))
        sums = statistics(log_probs, y, proposal(state))
        lowest = min(lowest, float(sums[1]))
        state = advance(state, sums)
    assert all(LOWEST <= b <= HIGHEST for b in visited)
    assert float(statistics(log_probs, y, proposal(state))[1]) <= lowest * (1 + 1e-12) < nll


def test_data_of_any_scale_and_size_end_in_time_at_the_optimum() -> None:
    generator = torch.Generator().manual_seed(0)
    for seed in range(150):
        n, classes = (int(torch.randint(2, high, (), generator=generator)) for high in (80, 8))
        scale = 10 ** float(7 * torch.rand((), generator=generator) - 3.5)
        log_probs, y = draw(n, classes, 3.0, seed)
        state = fit((scale * log_probs, y))
        assert state["rounds"] < ROUNDS
        b = proposal(state)
        # The gradient changes sign at b, or b is the end of the range that the gradient points to.
        below, above = (float(statistics(scale * log_probs, y, b * factor)[2]) for factor in (1 - 1e-6, 1 + 1e-6))
        assert below <= 0 or b == LOWEST  # 0 where the likelihood of all labels has rounded to 1
        assert above >= 0 or b == HIGHEST


def test_silos_that_answer_nonsense_cannot_keep_it_going() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        state, rounds = start(), 0
        while not converged(state):
            noise = torch.randn(4, generator=generator, dtype=torch.float64)
            state, rounds = advance(state, noise), rounds + 1
        assert rounds <= ROUNDS
        assert LOWEST <= proposal(state) <= HIGHEST


def test_all_right_goes_to_the_upper_end_and_all_wrong_to_the_lower() -> None:
    log_probs, _ = draw()
    assert proposal(fit((log_probs, log_probs.argmax(1)))) == HIGHEST
    assert proposal(fit((log_probs, log_probs.argmin(1)))) == LOWEST


def test_where_nothing_can_be_learnt_the_model_stays_as_it_is() -> None:
    certain = torch.tensor([[0.0, -math.inf]]).expand(5, 2)
    for log_probs, y in [
        (torch.empty(0, 3), torch.empty(0, dtype=torch.int64)),
        (torch.zeros(4, 3), torch.arange(4) % 3),
        (torch.randn(4, 3), torch.full((4,), -1)),
        (certain, torch.zeros(5, dtype=torch.int64)),
    ]:
        state = fit((log_probs, y))
        assert proposal(state) == 1
        assert state["rounds"] == 1


def test_labels_of_no_class_are_left_out() -> None:
    log_probs, y = draw(50)
    outside = torch.cat([y, torch.full((50,), -1)])
    assert torch.equal(statistics(log_probs.repeat(2, 1), outside, 0.5), statistics(log_probs, y, 0.5))


def test_impossible_classes_stay_impossible() -> None:
    log_probs, y = draw(50)
    wider = torch.cat([log_probs, torch.full((50, 2), -math.inf)], 1)
    torch.testing.assert_close(statistics(wider, y, 0.001), statistics(log_probs, y, 0.001))


@pytest.mark.parametrize(("dtype", "nats"), [(torch.float32, 103.28), (torch.float64, 744.44)])
def test_a_label_that_was_impossible_costs_the_least_that_it_can(dtype: torch.dtype, nats: float) -> None:
    sums = statistics(torch.tensor([[0.0, -math.inf, -math.inf]], dtype=dtype), torch.tensor([1]), 1.0)
    assert sums.tolist() == pytest.approx([1, nats, nats, 0], abs=0.01)


def test_states_are_values() -> None:
    log_probs, y = draw(50)
    before = start()
    advance(before, statistics(log_probs, y, 1.0))
    assert before == start()
    assert all(value.dtype == torch.float64 and value.shape == () for value in before.values())


def test_numbers_that_are_not_finite_are_refused() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not finite"):
            statistics(torch.tensor([[0.0, bad]]), torch.tensor([0]), 1.0)
        with pytest.raises(ValueError, match="four finite sums"):
            advance(start(), torch.tensor([1.0, bad, 0.0, 0.0]))
