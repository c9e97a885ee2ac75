"""TrFedDis' loss and heads against its paper's formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import ADAM, assert_same, model
from scipy.integrate import quad
from scipy.special import digamma
from scipy.stats import beta
from torch import Tensor, nn
from trfeddis_formulas import FUSED, STILL, built, context, first_training, loss, normed, said, terms

from caveat.core import Decision, Tensors, seeded
from caveat.core.quantity import Quantity
from caveat.methods import TrFedDis
from caveat.methods.trfeddis import as_prediction, evidential_loss, likeness
from caveat.nn.encoders import Model
from caveat.training.modules import snapshot

WEIGHTED = {"disentangling": 0.7, "evidential": 1.3, "cross_entropy": 0.4}


# The loss


@pytest.mark.parametrize(("round", "anneal_rounds", "annealed"), [
    (0, None, 0), (5, None, 0.5), (9, None, 0.9), (1, 4, 0.25), (4, 4, 1), (9, 4, 1),
])  # fmt: skip
@pytest.mark.parametrize("method", FUSED, ids=lambda m: f"{m.fusion}-{m.trust}")
def test_the_loss_is_eq_13(method: TrFedDis, round: int, anneal_rounds: int | None, annealed: float) -> None:
    method = replace(method, rounds=10, anneal_rounds=anneal_rounds, **WEIGHTED)
    for scale in (1, 10):
        expected = terms(method, said(scale), annealed)
        found = float(loss(method, round, *said(scale)))
        assert found == pytest.approx(sum(WEIGHTED[name] * expected[name] for name in expected), rel=1e-11)


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_weight_of_zero_takes_out_its_term_and_nothing_else(name: str) -> None:
    method = TrFedDis(rounds=10, **WEIGHTED)
    for round in (0, 6):
        expected = WEIGHTED[name] * terms(method, said(), round / 10)[name]
        found = loss(method, round, *said()) - loss(replace(method, **{name: 0}), round, *said())
        assert float(found) == pytest.approx(expected, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("evidence", [(0.5, 3.0), (7.0, 0.2), (40.0, 40.0)])
@pytest.mark.parametrize("label", [0, 1])
def test_the_evidential_loss_is_what_its_integrals_are(evidence: tuple[float, float], label: int) -> None:
    """Of two classes, the probability of one is distributed as Beta(alpha); the uniform distribution is Beta(1, 1)."""
    alpha = [1 + evidence[label], 1 + evidence[1 - label]]
    expected, _ = quad(lambda p: -np.log(p) * beta.pdf(p, *alpha), 0, 1)
    wrong, _ = quad(lambda p: beta.pdf(p, 1, alpha[1]) * beta.logpdf(p, 1, alpha[1]), 0, 1)
    log_evidence, y = torch.tensor([evidence], dtype=torch.float64).log(), torch.tensor([label])
    for annealed in (0, 1):
        found = float(evidential_loss(log_evidence, y, annealed))
        assert found == pytest.approx(expected + annealed * wrong, rel=1e-7)


def test_bars_have_the_prior_evidence_of_eight_classes() -> None:
    """However many there are, also after fusion: e1 + e2 + e1 e2 / 8."""
    target = Quantity(tuple(range(65)), tuple(range(64)), (1 / 64,) * 64, 4096)
    method = replace(TrFedDis(), training=TrFedDis().training.smoothed(target))
    assert (method.prior, TrFedDis().prior) == (0.125, 1.0)
    one, other = torch.rand(2, 3, 64, dtype=torch.float64) * 20
    fused = as_prediction(
        method.fuse([(each / 0.125).log() for each in (one, other)]), Decision.LOCAL, torch.zeros(3), 0.125
    )
    evidence = one + other + one * other / 8
    torch.testing.assert_close(fused.probs, (evidence + 0.125) / (evidence.sum(1, keepdim=True) + 8))
    torch.testing.assert_close(fused.uncertainty["vacuity"], 8 / (evidence.sum(1) + 8))
    torch.testing.assert_close(fused.log_evidence, evidence.sum(1).log())
    nothing = torch.full((1, 64), -torch.inf, dtype=torch.float64)
    expected = float(digamma(8) - digamma(0.125))
    assert float(evidential_loss(nothing, torch.tensor([5]), 1, 0.125)) == pytest.approx(expected)


def test_gradients_of_the_loss_are_those_of_its_differences() -> None:
    for method in FUSED:
        hidden, logits, y = said(3, n=3)
        parts = hidden.requires_grad_(), logits.requires_grad_()
        method = replace(method, rounds=10, **WEIGHTED)
        objective = partial(loss, method, 7, y=y)
        assert torch.autograd.gradcheck(objective, parts, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", FUSED, ids=lambda m: f"{m.fusion}-{m.trust}")
def test_loss_and_gradients_hold_at_extreme_logits(method: TrFedDis, dtype: torch.dtype) -> None:
    """All patterns of -80 and 80 for both heads and three classes, and hidden units as far apart."""
    logits = torch.cartesian_prod(*[torch.tensor([-80.0, 80.0], dtype=dtype)] * 6).view(64, 2, 3).transpose(0, 1)
    hidden = torch.tensor([[80.0, -80.0], [-80.0, 80.0]], dtype=dtype)[:, None].repeat(1, 64, 1)
    y = torch.zeros(64, dtype=torch.long)
    found = loss(replace(method, rounds=1), 1, hidden.requires_grad_(), logits.requires_grad_(), y)
    found.backward()  # type: ignore[no-untyped-call]
    expected = terms(method, (hidden.double(), logits.double(), y), 1)
    assert found.item() == pytest.approx(sum(expected.values()), rel=1e-5 if dtype == torch.float32 else 1e-11)
    assert hidden.grad is not None
    assert logits.grad is not None
    assert torch.cat([hidden.grad.flatten(), logits.grad.flatten()]).isfinite().all()
    # Where both heads give the label nothing, they learn to give it more.
    lost = (logits[:, :, 0] < 0).all(0)
    assert lost.sum() == 16
    assert (logits.grad[:, lost, 0] <= 0).all()
    assert (logits.grad[:, lost & (logits[:, :, 1] > 0).any(0), 0].sum(0) < 0).all()


# The heads


def test_likeness_is_one_and_without_gradient_for_equal_heads() -> None:
    """Softmax does not see a constant that is added to all hidden units either."""
    hidden, _, _ = said()
    hidden[1] = hidden[0] + 3
    found = likeness(hidden.requires_grad_())
    found.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found.detach(), torch.ones(7, dtype=torch.float64))
    assert hidden.grad is not None
    assert hidden.grad.abs().max() < 1e-12


def test_likeness_has_a_gradient_that_parts_heads_which_are_not_equal() -> None:
    hidden, _, _ = said(seed=1)
    found = likeness(hidden.requires_grad_())
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert ((found > 0) & (found < 1)).all()
    assert torch.equal(likeness(hidden.flip(0)), found)
    assert hidden.grad is not None
    assert (likeness(hidden - 0.01 * hidden.grad) < found).all()


def drawn(head: Tensors) -> Tensor:
    """All weights of a head's linear layers: drawn twice, no two are the same."""
    return torch.cat([tensor.flatten() for tensor in head.values() if tensor.ndim == 2])


@pytest.mark.parametrize("plain", [model, normed])
def test_both_heads_of_a_new_model_are_drawn_by_themselves(plain: Callable[[], Model]) -> None:
    module = built(plain())
    own, common = snapshot(module.own), snapshot(module.common.head)
    assert own.keys() == common.keys()
    assert (drawn(own) != drawn(common)).all()
    assert_same({"model": snapshot(module.common)}, {"model": snapshot(plain())})


@pytest.mark.parametrize("plain", [model, normed])
def test_the_halves_of_both_heads_are_the_model_s(plain: Callable[[], Model]) -> None:
    module = built(plain()).eval()
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    hidden, logits = module(x)
    assert hidden.shape == (2, 9, 8)
    assert torch.equal(logits[0], module.common(x))
    assert torch.equal(logits[1], module.own(module.common.encoder(x)))
    for units, each in zip(hidden, (module.common.head, module.own), strict=True):
        (first, *_) = (part for part in each if isinstance(part, nn.Linear))
        before = first(module.common.encoder(x).flatten(1))  # a fresh BatchNorm changes next to nothing
        torch.testing.assert_close(units, nn.functional.gelu(before), atol=1e-4, rtol=1e-4)


def test_a_silo_s_own_head_is_drawn_before_its_first_training_whatever_is_in_the_workspace_and_then_kept() -> None:
    method, used = TrFedDis(training=STILL), built(normed())
    ADAM.fit(context(used), method.objective_of(used, 1))
    (sent, state), (sent_again, state_again) = (first_training(method, module) for module in (built(normed()), used))
    assert_same(sent, sent_again)
    assert_same(state, state_again)
    _, other = first_training(method, used, "another silo")
    for own in (state["own"], other["own"]):
        assert (drawn(own) != drawn(snapshot(normed().head))).all()
    assert (drawn(state["own"]) != drawn(other["own"])).all()
    _, after = method.train(sent, state, context(built(normed())))
    torch.testing.assert_close(drawn(after["own"]), drawn(state["own"]), atol=1e-6, rtol=0)


def test_the_loss_of_disentangling_parts_the_heads() -> None:
    found = []
    for disentangling in (0.0, 1.0):
        module = built(model())
        method = TrFedDis(disentangling=disentangling, anneal_rounds=1)
        with seeded(0):
            replace(ADAM, local_steps=60).fit(context(module), method.objective_of(module, 1))
        with torch.no_grad():
            found.append(float(likeness(module.eval()(context(module).train.x)[0]).mean()))
    assert found[1] < found[0] / 2
