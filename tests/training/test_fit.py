"""Schedules, clipping, parts of epochs, class weights: reference values, and what is refused in one line."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import ADAM, METHODS, Federation, assert_same, assert_same_states, silo
from sampled import sampled
from torch import Tensor, nn

import caveat
from caveat import config
from caveat.core import ConfigurationError, Method, Payload, SiloContext
from caveat.core.settings import frozen_settings
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays
from caveat.files import read_payload
from caveat.methods import FedAvg, FedBABU, FedPN, PerFedAvg
from caveat.training.fit import Loss, Training, balanced
from caveat.training.modules import snapshot
from caveat.wrappers.ensembles import Ensemble
from caveat.wrappers.training_options import Balanced, trained

NEUTRAL: dict[str, Any] = {
    "clip_norm": None, "lr_schedule": "exponential", "warmup": 0, "optimizer_state": "reset", "class_weights": "none",
    "label_smoothing": 0.0,
}  # fmt: skip


def site_of(module: nn.Module, **more: Any) -> SiloContext:
    return replace(silo(0, torch.Generator().manual_seed(0)).context(module), **more)


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(2, 3)


def test_what_is_left_out_is_what_is_neutral() -> None:
    assert {name: getattr(Training(), name) for name in NEUTRAL} == NEUTRAL


# What stays as it is


def test_no_gradient_is_computed_of_what_stays_and_the_rest_has_the_same_bits() -> None:
    def trained_head(given: frozenset[str]) -> nn.Sequential:
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
        optimized = {"3.weight", "3.bias"}
        zeroed = None if given else (lambda name, g: g if name in optimized else torch.zeros_like(g))
        training = Training(batch_size=4, lr=0.1, optimizer="sgd")
        training.fit(site_of(module), lambda x, y: F.cross_entropy(module(x), y), zeroed, given)
        return module

    body = frozenset({"0.weight", "0.bias", "1.weight", "1.bias"})
    found, expected = trained_head(body), trained_head(frozenset())
    assert_same({"model": snapshot(found)}, {"model": snapshot(expected)})
    assert all((p.grad is None) == (name in body) for name, p in found.named_parameters())
    assert all(p.requires_grad for p in found.parameters())


# Learning rates


def rates(training: Training, rounds: int) -> list[float]:
    return [training.rate(site_of(nn.Identity(), round=t, horizon=rounds)) for t in range(rounds)]


def test_a_cosine_is_torch_s() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
    expected = []
    for _ in range(7):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates(Training(lr=0.3, lr_schedule="cosine"), 7) == pytest.approx(expected)


def test_warm_up_grows_in_equal_steps_to_the_whole_rate_and_the_cosine_begins_then() -> None:
    assert rates(Training(lr=0.8, warmup=3), 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    found = rates(Training(lr=0.8, warmup=3, lr_schedule="cosine"), 7)
    assert found == pytest.approx([0.2, 0.4, 0.6, *rates(Training(lr=0.8, lr_schedule="cosine"), 4)])
    decayed = rates(Training(lr=0.8, lr_decay=0.5, lr_hold=2, warmup=1), 5)
    assert decayed == pytest.approx([0.4, 0.8, 0.8, 0.4, 0.2])


def test_rounds_after_training_have_the_rate_of_its_last_round() -> None:
    training = Training(lr=0.8, lr_schedule="cosine")
    after = training.rate(site_of(nn.Identity(), round=5, horizon=5))
    assert after == rates(training, 5)[-1] > 0


def rates_seen(method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rate of every training at the first silo."""
    seen = []
    rate = Training.rate

    def note(self: Training, context: SiloContext) -> float:
        if context.id == "silo-0":
            seen.append(rate(self, context))
        return rate(self, context)

    monkeypatch.setattr(Training, "rate", note)
    Federation(method, tmp_path).run()
    return seen


def test_a_cosine_knows_how_many_rounds_of_training_a_method_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = replace(ADAM, lr_schedule="cosine", lr=0.01)
    expected = [0.01 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]
    found = rates_seen(FedBABU(rounds=4, training=training, fine_tune_epochs=1), tmp_path / "one", monkeypatch)
    assert found == pytest.approx([*expected, expected[-1]])
    found = rates_seen(Ensemble(FedAvg(rounds=4, training=training), ensemble_size=2), tmp_path / "two", monkeypatch)
    assert found == pytest.approx(expected * 2)


# Clipping


def test_the_whole_gradient_of_a_step_is_clipped_after_it_was_corrected() -> None:
    module = linear()
    context = site_of(module)
    before, norm = snapshot(module), 0.05
    training = Training(local_steps=1, batch_size=len(context.train), optimizer="sgd", lr=1.0, clip_norm=norm)
    training.fit(context, lambda x, y: F.cross_entropy(module(x), y), lambda name, gradient: 3 * gradient)
    moved = torch.cat([(snapshot(module)[name] - before[name]).flatten() for name in before])
    assert float(moved.norm()) == pytest.approx(norm, rel=1e-4)
    reference = linear()
    F.cross_entropy(reference(context.train.x), context.train.y).backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat([p.grad.flatten() for p in reference.parameters() if p.grad is not None])
    torch.testing.assert_close(moved, -norm * gradient / gradient.norm(), atol=1e-6, rtol=1e-4)


def test_a_clip_that_no_gradient_reaches_changes_no_bit(tmp_path: Path) -> None:
    found = []
    for clip in (None, 1e6):
        federation = Federation(FedAvg(rounds=2, training=replace(ADAM, clip_norm=clip)), tmp_path / str(clip))
        found.append(federation.run())
    assert_same(*found)


# Parts of epochs


@pytest.mark.parametrize(("epochs", "batches"), [(0.5, 5), (0.01, 1), (1, 10), (1.5, 15), (2.04, 20), (0.26, 3)])
def test_a_part_of_an_epoch_is_so_many_of_its_batches(epochs: float, batches: int) -> None:
    torch.manual_seed(0)
    found = [batch.tolist() for batch in Training(local_epochs=epochs, batch_size=10).batches(100)]
    torch.manual_seed(0)
    whole = [batch.tolist() for batch in Training(local_epochs=3, batch_size=10).batches(100)]
    assert found == whole[:batches]
    assert len(found) == batches


def test_whole_epochs_stay_whole_numbers() -> None:
    assert repr(Training(local_epochs=2.0).local_epochs) == "2"
    assert "local_epochs = 2\n" in config.dump(config.load(None, ["training.local_epochs=2"]))
    assert "local_epochs = 0.5\n" in config.dump(config.load(None, ["training.local_epochs=0.5"]))


# Losses


def test_balanced_weights_are_those_of_the_formula() -> None:
    y = torch.tensor([0] * 6 + [2] * 3 + [3] * 1)
    assert balanced(y) == pytest.approx((10 / 18, 0.0, 10 / 9, 10 / 3))
    assert sum(balanced(y)[label] for label in y.tolist()) == pytest.approx(10)


def test_weighted_and_smoothed_cross_entropy_by_its_formula() -> None:
    generator = np.random.default_rng(0)
    logits, y = generator.normal(size=(7, 4)), np.array([0, 1, 1, 3, 0, 2, 1])
    weights, share = np.array([0.5, 2.0, 1.0, 3.0]), 0.2
    log = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    hard = -weights[y] * log[np.arange(7), y]
    soft = -(weights * log).sum(1) / 4
    expected = ((1 - share) * hard + share * soft).sum() / weights[y].sum()
    training = Training(class_weights=tuple(weights), label_smoothing=share)
    found = training.cross_entropy(torch.from_numpy(logits), torch.from_numpy(y))
    assert float(found) == pytest.approx(expected)


def test_classes_that_a_silo_has_none_of_count_nothing() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 0, 0, 1])
    found = Training(class_weights=balanced(y)).cross_entropy(logits, y)
    each = F.cross_entropy(logits, y, reduction="none")
    assert float(found) == pytest.approx(float((each[:3].mean() + each[3]) / 2), rel=1e-5)


def test_balanced_is_the_silo_s_own_list_of_weights(tmp_path: Path) -> None:
    """With one silo, whose weights can be given as a list."""
    data = {"silo-0": silo(0, torch.Generator().manual_seed(1))}
    weights = balanced(data["silo-0"].train.y)
    assert max(weights) > 1.2
    found = []
    for name, given in (("balanced", "balanced"), ("list", weights), ("none", "none")):
        method = trained(FedAvg(rounds=2, training=replace(ADAM, class_weights=given)))
        assert isinstance(method, Balanced) == (name == "balanced")
        found.append(Federation(method, tmp_path / name, data=data).run())
    assert_same(found[0], found[1])
    assert not torch.equal(found[0]["model"]["head.1.weight"], found[2]["model"]["head.1.weight"])


WEIGHED = [m for m in METHODS if type(m).__name__ not in ("FML", "FMLU", "TrFedDis", "FedPN", "FedRoD")]


@pytest.mark.parametrize("method", sampled(WEIGHED), ids=lambda method: type(method).__name__)
def test_every_method_with_a_cross_entropy_balances_it_in_all_its_rounds(method: Any, tmp_path: Path) -> None:
    changed = replace(method, training=replace(method.training, class_weights="balanced", label_smoothing=0.1))
    whole = Federation(trained(changed), tmp_path / "whole")
    whole.run()
    plain = Federation(method, tmp_path / "plain")
    plain.run()
    states, usual = whole.states(), plain.states()
    moved = [not torch.equal(a, b) for a, b in _pairs(whole.server, plain.server)]
    moved += [not torch.equal(a, b) for name in states for a, b in _pairs(states[name], usual[name])]
    assert any(moved)
    other = Federation(trained(changed), tmp_path / "other", workers=2)
    assert_same(whole.server, other.run())
    assert_same_states(states, other.states())


def _pairs(one: Payload, other: Payload) -> list[tuple[Tensor, Tensor]]:
    return [(one[group][name], other[group][name]) for group in one for name in one[group]]


# Refusals


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"lr_schedule": "cosine", "lr_decay": 0.9}, "lr_decay"),
        ({"lr_schedule": "cosine", "lr_hold": 3}, "lr_hold"),
        ({"optimizer": "adamw", "momentum": 0.9}, "momentum"),
        ({"optimizer": "sgd", "optimizer_state": "keep"}, "optimizer_state"),
        ({"class_weights": "equal"}, "class_weights"),
        ({"class_weights": (1.0, -1.0)}, "class_weights"),
        ({"class_weights": (0, 0)}, "class_weights"),
        ({"class_weights": ()}, "class_weights"),
        ({"class_weights": (True, 2)}, "class_weights"),
        ({"class_weights": (1e300,)}, "class_weights"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"label_smoothing": 1}, "label_smoothing"),
        ({"warmup": -1}, "warmup"),
    ],
)
def test_what_has_no_meaning_is_refused_by_its_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError, match=key) as raised:
        Training(**settings)
    assert len(str(raised.value).splitlines()) == 1
    assert key in raised.value.problems[0].key


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedpn", "training.class_weights='balanced'"), ("fedpn", "training.optimizer_state='average'"),
        ("fml", "training.label_smoothing=0.1"), ("trfeddis", "training.class_weights=[1, 2]"),
        ("apfl", "training.optimizer_state='average'"), ("trfeddis", "training.optimizer_state='average'"),
        ("scaffold", "training.clip_norm=1"), ("fmlu", "training.optimizer_state='average'"),
        ("fedrod", "training.class_weights='balanced'"), ("fedrod", "training.optimizer_state='average'"),
        ("ditto", "training.optimizer_state='keep'"), ("ifca", "training.optimizer_state='keep'"),
        ("fedproto", "training.optimizer_state='average'"), ("pfedbayes", "training.optimizer_state='average'"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_for_a_method_is_refused_in_one_line(method: str, settings: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{settings.partition('=')[0]} = .* cannot be used with '{method}'"
    ) as e:
        config.load(None, [f"method.name={method}", settings])
    assert len(str(e.value).splitlines()) == 1


# In runs


@pytest.fixture(scope="module")
def silos() -> Silos:
    draw = np.random.default_rng(0)
    y = (draw.random(80) < 0.2).astype(int)
    return from_arrays({name: (draw.normal(size=(80, 3)) + y[:, None], y) for name in "ab"})


def test_as_many_weights_as_classes_are_expected(silos: Silos) -> None:
    with pytest.raises(ConfigurationError, match=r"training\.class_weights has 3 numbers, but there are 2 classes"):
        caveat.run(silos, FedAvg(), training=Training(class_weights=(1, 2, 3), batch_size=8))


@frozen_settings
class Focal(FedAvg):
    """FedAvg of a loss of one's own, as docs/how-to/training.md has it."""

    gamma: float = 2.0
    """How much less an example counts that is easy."""

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        def focal(x: Tensor, y: Tensor) -> Tensor:
            ce = F.cross_entropy(module(x), y, reduction="none")
            return ((1 - torch.exp(-ce)) ** self.gamma * ce).mean()

        return focal


def test_a_loss_of_one_s_own_is_a_subclass_with_an_objective(silos: Silos) -> None:
    training = Training(batch_size=8)
    states = {}
    for name, method in (("plain", FedAvg()), ("focal", Focal()), ("gamma 0", Focal(gamma=0.0))):
        run = caveat.run(silos, method, rounds=1, training=training)
        states[name] = read_payload(run.folder / "model" / "model.safetensors")["model"]
    names = [name for name in states["plain"] if name.endswith("weight")]
    assert all(torch.allclose(states["gamma 0"][name], states["plain"][name], atol=1e-6) for name in names)
    assert any(not torch.allclose(states["focal"][name], states["plain"][name], atol=1e-6) for name in names)


def test_perfedavg_adapts_by_plain_sgd_whatever_trains(tmp_path: Path) -> None:
    training = replace(ADAM, lr_schedule="cosine", warmup=1, optimizer_state="keep")
    federation = Federation(trained(PerFedAvg(rounds=2, training=training)), tmp_path)
    federation.run()
    assert all("own" in state for state in federation.states().values())


def test_fedpn_shares_moments_of_adamw_too(tmp_path: Path) -> None:
    federation = Federation(
        FedPN(rounds=1, training=replace(ADAM, optimizer="adamw"), layers=2, personal_steps=0), tmp_path
    )
    assert federation.run()["moments"]
