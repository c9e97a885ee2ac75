"""Optimisers at the server against a few lines of NumPy, their neutral settings, and what they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import TINY, one_error, sets
from commands import caveat as command
from federations import ADAM, FAST, METHODS, Federation, assert_same, assert_same_states, flat
from numpy.typing import NDArray
from scipy.optimize import minimize

import caveat
from caveat import config
from caveat.core import ConfigurationError, Method, Payload
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays
from caveat.methods import FedAvg, FedBN, Local, TrFedDis
from caveat.wrappers.aggregation import (
    FIRST,
    SECOND,
    Rule,
    combined,
    geometric_weights,
    krum_weights,
    silos_needed,
    squared_distances,
)
from caveat.wrappers.privacy import Private
from caveat.wrappers.server_optimizers import ServerOptimizer, Stepping

Array = NDArray[np.float64]
SETTINGS: list[dict[str, Any]] = [
    {"optimizer": "momentum", "beta1": 0.7, "lr": 0.5},
    {"optimizer": "adagrad", "beta1": 0.3, "lr": 0.05, "tau": 0.02},
    {"optimizer": "adam", "beta1": 0.8, "beta2": 0.9, "lr": 0.05, "tau": 0.02},
    {"optimizer": "yogi", "beta1": 0.8, "beta2": 0.9, "lr": 0.05, "tau": 0.02},
]
ids = [str(settings["optimizer"]) for settings in SETTINGS]


def algorithm2(settings: dict[str, Any], x: Array, means: list[Array]) -> Array:
    """Reddi et al., Algorithm 2, from x and the silos' mean models of each round, written anew; and FedAvgM."""
    beta1, beta2, tau = settings["beta1"], settings.get("beta2", 0.0), settings.get("tau", 0.0)
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    for mean in means:
        delta = mean - x
        if settings["optimizer"] == "momentum":
            m = beta1 * m + delta
            x = x + settings["lr"] * m
            continue
        m = beta1 * m + (1 - beta1) * delta
        if settings["optimizer"] == "adagrad":
            v = v + delta**2
        if settings["optimizer"] == "adam":
            v = beta2 * v + (1 - beta2) * delta**2
        if settings["optimizer"] == "yogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        x = x + settings["lr"] * m / (np.sqrt(v) + tau)
    return x


@pytest.mark.parametrize("settings", SETTINGS, ids=ids)
def test_steps_are_those_of_the_algorithm(settings: dict[str, Any], tmp_path: Path) -> None:
    federation = Federation(ServerOptimizer(**settings).around(FedAvg(rounds=4, training=ADAM)), tmp_path)
    before, means = federation.server["model"], list[dict[str, torch.Tensor]]()
    federation.run(after=lambda done, server: means.append(done.replies.mean("model")))
    parameters = dict(federation.context.module.named_parameters())
    for name, tensor in federation.server["model"].items():
        if name in parameters:
            given = [mean[name].double().numpy() for mean in means]
            expected = algorithm2(settings, before[name].double().numpy(), given)
            np.testing.assert_allclose(tensor.numpy(), expected, rtol=2e-4, atol=2e-6)
            assert not torch.allclose(tensor, means[-1][name], atol=1e-6)
        else:  # statistics and counters of BatchNorm
            assert torch.equal(tensor, means[-1][name])
    assert {name for name in before if name not in parameters} == {
        "encoder.1.running_mean", "encoder.1.running_var", "encoder.1.num_batches_tracked",
    }  # fmt: skip


def test_no_optimiser_is_the_method_itself() -> None:
    method = FedAvg()
    assert ServerOptimizer().around(method) is method


def test_no_momentum_with_a_rate_of_1_is_fedavg_but_for_rounding(tmp_path: Path) -> None:
    plain = Federation(FedAvg(rounds=3, training=FAST), tmp_path / "plain").run()
    method = ServerOptimizer(optimizer="momentum", beta1=0.0, lr=1.0).around(FedAvg(rounds=3, training=FAST))
    found = Federation(method, tmp_path / "server").run()
    for name, tensor in flat({"model": plain["model"]}).items():
        torch.testing.assert_close(flat(found)[name], tensor, rtol=1e-5, atol=1e-6)


LINEAR = [method for method in METHODS if all(step.linear for step in method.schedule() if step.trains)]
LINEAR = [method for method in LINEAR if method.federated]
ADAMS = ServerOptimizer(optimizer="adam")


@pytest.mark.parametrize("method", LINEAR, ids=lambda method: type(method).__name__)
@pytest.mark.long
def test_every_method_of_means_has_the_same_bits_with_two_workers_and_after_an_interruption(
    method: Method, tmp_path: Path
) -> None:
    wrapped = ADAMS.around(method)
    whole = Federation(wrapped, tmp_path / "whole")
    whole.run()
    first = Federation(wrapped, tmp_path / "cut", workers=2)
    first.run(stop=2)
    second = Federation(wrapped, tmp_path / "cut")
    second.server = first.server
    assert_same(whole.server, second.run(start=2))
    assert_same_states(whole.states(), second.states())
    assert bool(whole.server[SECOND])
    assert FIRST not in wrapped.broadcast(whole.server)


OTHERS = [method for method in METHODS if method.federated and method not in LINEAR]


@pytest.mark.parametrize("method", OTHERS, ids=lambda method: type(method).__name__)
def test_methods_that_need_more_than_means_are_refused(method: Method) -> None:
    with pytest.raises(ConfigurationError, match=rf"server\.optimizer = 'adam' does not fit '{method.name}'") as e:
        ADAMS.around(method)
    assert e.value.key == "server.optimizer"


def test_where_nothing_is_federated_there_is_nothing_to_optimise() -> None:
    method = Local()
    assert ADAMS.around(method) is method


def test_parameters_of_a_part_of_the_module_are_found(tmp_path: Path) -> None:
    federation = Federation(ADAMS.around(TrFedDis(rounds=1, training=FAST)), tmp_path)
    assert federation.server[FIRST].keys() == federation.server["model"].keys()
    normed = Federation(ADAMS.around(FedBN(rounds=1, training=FAST)), tmp_path / "bn")
    assert not any("encoder.1" in name for name in normed.server[FIRST])


def test_defaults_are_those_that_the_help_names() -> None:
    found = {name: ServerOptimizer(optimizer=name).around(FedAvg()) for name in ("momentum", "adagrad", "adam")}  # type: ignore[arg-type]
    assert [(each.lr, each.beta1) for each in found.values() if isinstance(each, Stepping)] == [
        (1.0, 0.9), (0.01, 0.0), (0.01, 0.9),
    ]  # fmt: skip


def test_noise_goes_on_top_of_it(tmp_path: Path) -> None:
    wrapped = Private(ADAMS.around(FedAvg(rounds=2, training=ADAM)), clip_norm=1.0, noise_multiplier=0.3, silos=3)
    server = Federation(wrapped, tmp_path).run()
    assert all(bool(tensor.isfinite().all()) for tensor in flat(server).values())
    assert wrapped.covers == ("train",)


@pytest.mark.parametrize(
    "settings",
    [{"lr": 1.0}, {"optimizer": "momentum", "beta2": 0.9}, {"optimizer": "momentum", "tau": 0.1},
     {"optimizer": "adagrad", "beta2": 0.9}],
)  # fmt: skip
def test_what_an_optimiser_does_not_read_is_refused(settings: dict[str, Any]) -> None:
    key = list(settings)[-1]
    with pytest.raises(ConfigurationError, match=rf"server\.{key} = .* is not used by server\.optimizer"):
        ServerOptimizer(**settings)


# In runs


@pytest.fixture(scope="module")
def silos() -> Silos:
    draw = np.random.default_rng(0)
    y = np.arange(80) % 2
    return from_arrays({name: (draw.normal(size=(80, 3)) + y[:, None], y) for name in "ab"})


def test_a_call_in_python_takes_it_and_keeps_it(silos: Silos, tmp_path: Path) -> None:
    given = {"rounds": 2, "training": caveat.Training(batch_size=8)}
    with_adam = caveat.run(silos, FedAvg(), out=tmp_path / "adam", server=ADAMS, **given)  # type: ignore[arg-type]
    plain = caveat.run(silos, FedAvg(), out=tmp_path / "plain", **given)  # type: ignore[arg-type]
    for name, optimizer in (("adam", "adam"), ("plain", "none")):
        spec = json.loads((tmp_path / name / "run.json").read_text())["spec"]
        assert spec["server"]["optimizer"] == optimizer
    one, other = (run.predictor("a")(run.silos.named("a").test.x).probs for run in (with_adam, plain))
    assert not torch.equal(one, other)
    with pytest.raises(ConfigurationError, match=r"expected a caveat\.ServerOptimizer"):
        caveat.run(silos, FedAvg(), server="adam")  # type: ignore[arg-type]


@pytest.mark.usefixtures("nowhere")
def test_a_configuration_keeps_it_and_refuses_what_it_does_not_fit(tmp_path: Path) -> None:
    found = config.load(None, ["server.optimizer=yogi", "server.tau=0.1"])
    assert config.loads(config.dump(found), "again") == found
    tiny = [item for item in TINY if not item.startswith("method")]
    result = command("run", *sets(*tiny, "method.name=uefl", "server.optimizer=adam"), "--out", tmp_path / "run")
    assert "server.optimizer = 'adam' does not fit 'uefl'" in one_error(result, 2)
    assert not (tmp_path / "run").exists()


def test_the_page_of_settings_is_frozen() -> None:
    with pytest.raises(AttributeError):
        replace(ADAMS).lr = 1.0  # type: ignore[misc]


RULES: tuple[Rule, ...] = ("median", "trimmed_mean", "geometric_median", "krum")


def payloads(count: int, seed: int = 0) -> list[Payload]:
    """Replies with two groups, a counter and an empty tensor, around 3."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "model": {
                "w": 3 + torch.randn(4, 5, generator=generator), "count": torch.tensor(k),
                "none": torch.zeros(0, 2),
            },
            "more": {"b": torch.randn(3, generator=generator, dtype=torch.float64)},
        }
        for k in range(count)
    ]  # fmt: skip


def flattened(payload: Payload) -> np.ndarray:
    tensors = [t for _, group in sorted(payload.items()) for _, t in sorted(group.items()) if t.is_floating_point()]
    return torch.cat([t.double().reshape(-1) for t in tensors]).numpy()


@pytest.mark.parametrize("count", [5, 6])
def test_median_and_trimmed_mean_are_those_of_each_coordinate(count: int) -> None:
    found = payloads(count)
    values = np.stack([flattened(each) for each in found])
    np.testing.assert_allclose(flattened(combined("median", found, 1)), np.median(values, 0), rtol=1e-6)
    middle = np.sort(values, 0)[2:-2]
    np.testing.assert_allclose(flattened(combined("trimmed_mean", found, 2)), middle.mean(0), rtol=1e-6)


def test_the_geometric_median_has_the_least_sum_of_distances() -> None:
    found = payloads(7)
    values = np.stack([flattened(each) for each in found])
    least = minimize(lambda z: np.linalg.norm(values - z, axis=1).sum(), values.mean(0), tol=1e-10)
    mine = flattened(combined("geometric_median", found, 1))
    assert np.linalg.norm(values - mine, axis=1).sum() <= least.fun * (1 + 1e-6)
    np.testing.assert_allclose(mine, least.x, atol=1e-3)


def test_the_geometric_median_of_replies_that_are_all_the_same_is_that_one() -> None:
    found = [payloads(1)[0] for _ in range(3)]
    np.testing.assert_allclose(flattened(combined("geometric_median", found, 1)), flattened(found[0]), rtol=1e-6)
    assert geometric_weights(torch.zeros(4, 4, dtype=torch.float64)) == [0.25] * 4


def test_krum_takes_the_silo_whose_nearest_others_are_nearest() -> None:
    found = payloads(7, seed=1)
    values = np.stack([flattened(each) for each in found])
    apart = ((values[:, None] - values[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(found).numpy(), apart, rtol=1e-6, atol=1e-12)
    scores = [np.sort(np.delete(row, k))[: 7 - 2 - 2].sum() for k, row in enumerate(apart)]
    assert krum_weights(torch.tensor(apart), 2) == [float(k == int(np.argmin(scores))) for k in range(7)]
    assert flattened(combined("krum", found, 2)).tolist() == values[int(np.argmin(scores))].tolist()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("times", [1e5, -10.0, -1e12])
def test_one_malicious_silo_of_seven_stays_within_the_others(rule: Rule, times: float) -> None:
    found = payloads(7)
    honest = np.stack([flattened(each) for each in found[1:]])
    for tensors in found[0].values():
        for name, tensor in tensors.items():
            tensors[name] = tensor * times if tensor.is_floating_point() else tensor
    moved = np.linalg.norm(flattened(combined(rule, found, 1)) - honest.mean(0))
    assert moved <= np.linalg.norm(honest - honest.mean(0), axis=1).max()


@pytest.mark.parametrize("rule", RULES)
def test_types_shapes_and_counters_stay(rule: Rule) -> None:
    found = payloads(5)
    after = combined(rule, found, 1)
    assert list(after) == list(found[0])
    for group, tensors in found[0].items():
        assert {name: (t.shape, t.dtype) for name, t in after[group].items()} == {
            name: (t.shape, t.dtype) for name, t in tensors.items()
        }
    assert after["model"]["count"] == 0


@pytest.mark.parametrize(("rule", "least"), [("median", 5), ("trimmed_mean", 5), ("geometric_median", 5), ("krum", 7)])
def test_too_few_replies_are_refused(rule: Rule, least: int) -> None:
    assert silos_needed(rule, 2) == least
    combined(rule, payloads(least), 2)
    with pytest.raises(ValueError, match=f"{least - 1} payloads, but .* needs at least {least}"):
        combined(rule, payloads(least - 1), 2)
