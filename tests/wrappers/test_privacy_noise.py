"""Clipping and noise at the silo, and what they amount to, against closed forms."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import ADAM, FAST, METHODS, WRAPPED, Federation, assert_same, assert_same_states, flat
from scipy.optimize import brentq
from scipy.stats import kstest, norm

from caveat.core import ConfigurationError, Method, Payload, Replies, Round, SiloContext, State, Update
from caveat.methods import FML, FMLU, FedAvg, FedBABU, FedBN, Local, TrFedDis
from caveat.secure.fixed_point import sum_in_the_clear, threshold
from caveat.wrappers.choice_policies import Switched
from caveat.wrappers.privacy import Privacy, Private, composed, epsilon, epsilon_against_server, normal
from caveat.wrappers.temperature_scaling import TemperatureScaled

PLAIN = FedAvg(rounds=3, training=ADAM)
SECRET = 2**127 + 12345


class Uniform(FedAvg):
    """FedAvg in which every silo counts once."""

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        return server | {"model": replies.mean("model", [1.0] * len(replies))}


def one_update(
    method: Method, folder: Path, t: int = 0, secret: int = SECRET, **shift: float
) -> tuple[Payload, Update]:
    """What one silo was sent and sends in round t, on fresh data and with fixed random numbers."""
    federation = Federation(method, folder)
    down = next(iter(method.schedule())).broadcast(federation.server)
    if shift:
        down = {"model": {n: t + shift["by"] if t.is_floating_point() else t for n, t in down["model"].items()}}
    torch.manual_seed(0)
    context = replace(federation.place.context("silo-1", t), secret=secret)
    step = list(method.schedule())[t]
    return down, step.task(down, method.init_silo(context), context)[0]


def change(down: Payload, update: Update) -> torch.Tensor:
    """All that moved, as one float64 vector."""
    sent = flat(update.payload)
    return torch.cat([
        (tensor.double() - flat(down)[name].double()).flatten()
        for name, tensor in sent.items() if tensor.is_floating_point()
    ])  # fmt: skip


def test_an_update_is_clipped_to_its_norm_and_keeps_its_direction(tmp_path: Path) -> None:
    down, plain = one_update(PLAIN, tmp_path / "plain")
    _, clipped = one_update(Private(PLAIN, clip_norm=0.125, noise_multiplier=0.0, silos=3), tmp_path / "clipped")
    whole, small = change(down, plain), change(down, clipped)
    assert whole.norm() > 0.25
    assert float(small.norm()) == pytest.approx(0.125, rel=1e-5)  # what is sent is float32
    assert float(small @ whole / small.norm() / whole.norm()) == pytest.approx(1, abs=1e-9)


def test_without_noise_and_with_a_wide_clip_it_is_the_base_with_uniform_weights(tmp_path: Path) -> None:
    """Bitwise but for counters: the difference of two float32 numbers of like size is exact in float64."""
    uniform = Federation(Uniform(rounds=3, training=ADAM), tmp_path / "uniform").run()
    private = Federation(Private(PLAIN, clip_norm=1e9, noise_multiplier=0.0, silos=3), tmp_path / "private").run()
    for name, tensor in uniform["model"].items():
        if tensor.is_floating_point():
            torch.testing.assert_close(private["model"][name], tensor, rtol=1e-6, atol=1e-12)
        else:
            assert private["model"][name] == 0  # a counter of batches tells how many examples there are


def test_replies_say_nothing_of_the_number_of_examples(tmp_path: Path) -> None:
    _, update = one_update(Private(PLAIN, clip_norm=1.0, noise_multiplier=1.0, silos=3), tmp_path)
    assert update.examples == 1
    assert update.payload["model"]["encoder.1.num_batches_tracked"] == 0


def test_noise_has_the_deviation_that_adds_up_to_the_multiplier(tmp_path: Path) -> None:
    clip, noise, silos = 0.5, 2.0, 4
    down, clipped = one_update(Private(PLAIN, clip, 0.0, silos), tmp_path / "clipped")
    _, noised = one_update(Private(PLAIN, clip, noise, silos), tmp_path / "noised")
    added = change(down, noised) - change(down, clipped)
    standard = added / (noise * clip / math.sqrt(silos))
    assert kstest(standard.numpy(), "norm").pvalue > 0.01
    assert len(standard.unique()) > 0.99 * len(standard)


def test_standard_normal_numbers() -> None:
    z = normal(torch.Size([400, 500]), "a")
    assert kstest(z.flatten().numpy(), "norm").pvalue > 0.01
    assert z.dtype == torch.float64
    assert torch.equal(z, normal(torch.Size([400, 500]), "a"))
    other = normal(torch.Size([400, 500]), "b")
    assert abs(float(torch.corrcoef(torch.stack([z.flatten(), other.flatten()]))[0, 1])) < 0.01
    assert normal(torch.Size([]), "a").shape == ()
    assert normal(torch.Size([0, 3]), "a").shape == (0, 3)


def test_a_repeated_order_gets_the_same_bits_and_any_other_another_draw(tmp_path: Path) -> None:
    method = Private(PLAIN, clip_norm=1e-6, noise_multiplier=1e6, silos=1)  # all noise, of deviation 1

    def noise(folder: str, **others: float) -> torch.Tensor:
        return change(*one_update(method, tmp_path / folder, **others))  # type: ignore[arg-type]

    first = noise("first")
    assert torch.equal(first, noise("again"))
    for name, others in {"secret": {"secret": 1}, "round": {"t": 1}, "order": {"by": 1e-3}}.items():
        other = noise(name, **others)
        assert float((first - other).std()) == pytest.approx(math.sqrt(2), rel=0.2), name


def test_a_resumed_run_equals_an_uninterrupted_one_noise_included(tmp_path: Path) -> None:
    method = TemperatureScaled(Private(PLAIN, clip_norm=0.5, noise_multiplier=0.5, silos=3))
    whole = Federation(method, tmp_path / "whole")
    whole.run()
    cut = Federation(method, tmp_path / "cut")
    cut.run(stop=1)
    before = cut.server
    cut.run(start=1, stop=2)
    again = Federation(method, tmp_path / "cut", workers=2)
    again.server = before
    assert_same(whole.server, again.run(start=1))
    assert_same_states(whole.states(), again.states())


@pytest.mark.parametrize("method", [FedBN(rounds=2, training=FAST), FedBABU(rounds=2, training=FAST)])
def test_tensors_that_stay_at_a_silo_still_do(method: FedAvg, tmp_path: Path) -> None:
    _, plain = one_update(method, tmp_path / "plain")
    _, update = one_update(Private(method, clip_norm=1.0, noise_multiplier=1.0, silos=3), tmp_path / "private")
    assert flat(update.payload).keys() == flat(plain.payload).keys()
    assert any(name not in flat(update.payload) for name in ("model/encoder.1.weight", "model/head.1.weight"))


def test_a_variance_stays_above_zero_whatever_the_noise(tmp_path: Path) -> None:
    federation = Federation(Private(PLAIN, clip_norm=1.0, noise_multiplier=50.0, silos=3), tmp_path)
    server = federation.run()
    assert (server["model"]["encoder.1.running_var"] > 0).all()
    drawn = [done.replies.mean("model")["encoder.1.running_var"] for done in federation.done]
    assert any((variance < 0).any() for variance in drawn)


def test_rounds_after_training_pass_through_and_are_named() -> None:
    babu = Private(FedBABU(rounds=2), clip_norm=1.0, noise_multiplier=1.0, silos=3)
    assert babu.covers == ("train",)
    around = Private(Switched(TemperatureScaled(PLAIN)), clip_norm=1.0, noise_multiplier=1.0, silos=3)
    assert around.covers == ("train",)
    addresses = [step.address for step in around.schedule()]
    assert addresses[:4] == ["train"] * 3 + ["base.base.temperature"]
    assert addresses[-1] == "base.calibrate"


ALLOWED = {
    "local",
    "fedavg",
    "fedprox",
    "fedbn",
    "moon",
    "distrans",
    "fedsr",
    "fedper",
    "fedrep",
    "fedbabu",
    "perfedavg",
    "apfl",
    "ditto",
    "fedrod",
    "fedala",
    "trfeddis",
}


@pytest.mark.parametrize("method", METHODS + WRAPPED, ids=lambda method: type(method).__name__)
def test_methods_that_need_more_than_a_mean_are_refused(method: Method) -> None:
    if method.name in ALLOWED or (method.name == "fmlu" and not method.weigh_mean):  # type: ignore[attr-defined]
        assert Private(method, clip_norm=1.0, noise_multiplier=1.0, silos=3).covers == ("train",)
    else:
        with pytest.raises(ConfigurationError, match=rf"do not fit '{method.name}', whose .*task '(train|tell)'"):
            Private(method, clip_norm=1.0, noise_multiplier=1.0, silos=3)


def test_mutual_learning_fits_if_its_mean_has_no_weights_of_its_own() -> None:
    for method in (FML(weights="examples"), FMLU(weights="examples", weigh_mean=False)):
        assert Private(method, clip_norm=1.0, noise_multiplier=1.0, silos=3).covers == ("train",)
    with pytest.raises(ConfigurationError, match="'fmlu'"):
        Private(FMLU(weights="examples"), clip_norm=1.0, noise_multiplier=1.0, silos=3)


def test_a_method_that_sends_what_it_was_not_sent_is_refused_before_it_does(tmp_path: Path) -> None:
    class Talkative(FedAvg):
        def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
            update, after = super().train(down, state, context)
            return Update(update.payload | {"labels": {"mean": context.train.y.float().mean()}}, 1), after

    with pytest.raises(ConfigurationError, match="a silo sends labels/mean"):
        one_update(Private(Talkative(rounds=1, training=FAST), clip_norm=1.0, noise_multiplier=1.0, silos=3), tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_norm": 0.0},
        {"clip_norm": math.inf},
        {"clip_norm": math.nan},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"silos": 0},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    (name, value) = next(iter(wrong.items()))
    with pytest.raises(ConfigurationError, match=re.escape(f"{name} = {value}")):
        Private(PLAIN, **({"clip_norm": 1.0, "noise_multiplier": 1.0, "silos": 3} | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [Local(rounds=2, training=FAST), TrFedDis(rounds=2, training=FAST)])
def test_others_run_with_noise(method: Method, tmp_path: Path) -> None:
    federation = Federation(Private(method, clip_norm=1.0, noise_multiplier=0.1, silos=3), tmp_path)
    server = federation.run()
    assert all(tensor.isfinite().all() for tensor in flat(server).values())
    assert [done.step.linear for done in federation.done] == ["silos"] * 2
    assert isinstance(federation.done[0].step, Round)


# What it amounts to.


def exact(multipliers: list[float], delta: float) -> float:
    """Balle & Wang, ICML 2018, theorem 8; Gaussian mechanisms compose to one (Dong, Roth & Su, 2022, corollary 3.3)."""
    mu = math.sqrt(sum(1 / m**2 for m in multipliers))

    def excess(e: float) -> float:
        return float(norm.cdf(mu / 2 - e / mu) - math.exp(e + norm.logcdf(-mu / 2 - e / mu)) - delta)

    return 0.0 if excess(0) <= 0 else brentq(excess, 0, mu**2 / 2 + 40 * mu)


def renyi(multipliers: list[float], delta: float) -> float:
    """Mironov, CSF 2017, proposition 3 for the Gaussian's RDP(a) = a / (2 m^2), at the order for which it is least."""
    rho = sum(1 / (2 * m**2) for m in multipliers)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


@pytest.mark.parametrize(
    ("noise", "replies", "delta"),
    [(1, [4], 1e-5), (5, [3] * 50, 1e-5), (20, [2, 3, 4] * 10, 1e-6), (1, [4] * 20, 1e-3)],
)
def test_epsilon_is_between_the_exact_one_and_the_textbook_conversion(
    noise: float, replies: list[int], delta: float
) -> None:
    multipliers = [noise * math.sqrt((m - 1) / 4) for m in replies]
    found = epsilon(noise, replies, 4, delta)
    assert exact(multipliers, delta) <= found <= renyi(multipliers, delta)
    assert found <= 1.15 * exact(multipliers, delta)


def test_one_silo_against_the_server_has_the_noise_of_one() -> None:
    assert epsilon_against_server(4.0, 10, 4, 1e-5) == pytest.approx(epsilon(4.0, [2] * 10, 4, 1e-5))
    assert epsilon_against_server(4.0, 10, 4, 1e-5) >= exact([2.0] * 10, 1e-5)


def test_more_noise_fewer_rounds_and_more_replies_give_a_smaller_epsilon() -> None:
    middle = epsilon(2.0, [3] * 5, 4, 1e-5)
    assert epsilon(3.0, [3] * 5, 4, 1e-5) < middle < epsilon(2.0, [3] * 6, 4, 1e-5)
    assert epsilon(2.0, [4] * 5, 4, 1e-5) < middle < epsilon(2.0, [3] * 5, 4, 1e-7)
    assert epsilon(2.0, [], 4, 1e-5) == 0


def test_a_round_without_noise_from_others_promises_nothing() -> None:
    assert epsilon(1.0, [3, 1], 3, 1e-5) == math.inf
    assert epsilon(0.0, [3], 3, 1e-5) == math.inf
    assert epsilon_against_server(0.0, 1, 3, 1e-5) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(ConfigurationError, match="delta"):
        epsilon(1.0, [3], 3, delta)


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigurationError, match=r"pip install \"caveat\[privacy\]\""):
        epsilon(1.0, [3], 3, 1e-5)


def test_the_smallest_secure_sum_has_all_of_the_noise_without_one_of_its_silos() -> None:
    """Of seven silos, five are enough: the sum of four silos' noise, in fixed point, has the whole deviation."""
    clip, noise, silos = 0.5, 2.0, 7
    privacy = Privacy(clip_norm=clip, noise_multiplier=noise, where="sum")
    private = privacy.around(PLAIN, privacy.shares(silos, threshold(silos)))
    assert isinstance(private, Private)
    assert private.silos + 1 == threshold(silos) == 5
    names = [f"silo-{k}" for k in range(private.silos)]
    shares = {
        name: {"model": {"w": (private.deviation * normal(torch.Size([20_000]), name)).float()}} for name in names
    }
    _, total = sum_in_the_clear(shares, dict.fromkeys(names, 1), silos)
    standard = total.sums["model"]["w"] / (noise * clip)
    assert kstest(standard.numpy(), "norm").pvalue > 0.01
    # Of a normal sample's variance, the relative standard deviation is sqrt(2 / n) = .01.
    assert float(standard.var()) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("replies", [5, 6, 7])
def test_epsilon_of_a_secure_sum_is_at_most_that_of_the_multiplier(replies: int) -> None:
    """Conservative at the threshold: a silo that knows its own noise faces the noise of all others in the sum."""
    shares = Privacy(clip_norm=1.0, where="sum").shares(7, threshold(7))
    found = epsilon(3.0, [replies] * 10, shares, 1e-5)
    assert found == pytest.approx(composed([3.0 * math.sqrt((replies - 1) / 4)] * 10, 1e-5))
    assert found <= composed([3.0] * 10, 1e-5) < epsilon_against_server(3.0, 10, 7, 1e-5)
