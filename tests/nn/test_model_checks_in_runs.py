"""Runs of models that users bring: what is constant in them, what they draw, and what they are asked."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ACCEPTED, FEATURES, TOKENS
from numpy.typing import NDArray
from torch import Tensor, nn

import caveat
from caveat import Uncertainty
from caveat.core import DataError
from caveat.data.user_data import from_arrays
from caveat.training.fit import Training

QUICK = Training(local_epochs=1, batch_size=16, lr=0.01)
pytestmark = pytest.mark.filterwarnings("ignore:the model has no dropout")


def arrays(shape: tuple[int, ...] = FEATURES, silos: int = 2) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    generator = np.random.default_rng(0)
    y = np.arange(80) % 3
    if shape == TOKENS:
        return {f"s{i}": (generator.integers(0, 6, (80, *shape)) + y[:, None], y) for i in range(silos)}
    return {
        f"s{i}": ((generator.normal(size=(80, *shape)) + y.reshape(-1, *[1] * len(shape))).astype("float32"), y)
        for i in range(silos)
    }


def run(model: Any, method: Any = None, data: Any = None, **more: Any) -> caveat.Run:
    method = method or caveat.FedAvg(rounds=2)
    more = {"training": QUICK, "uncertainty": Uncertainty(mc_samples=5)} | more
    return caveat.run(data or from_arrays(arrays()), method, model=model, **more)


def bits(run: caveat.Run) -> list[bytes]:
    state = run.module("s0").state_dict()
    return [tensor.numpy().tobytes() for tensor in state.values()]


class Masked(nn.Module):
    """Attention that looks back alone, as it is mostly written."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        weights = (h[:, :, None] * h[:, None] + self.mask).softmax(-1)
        found: Tensor = self.last((weights @ h[:, :, None])[:, :, 0])
        return found


METHODS = [
    caveat.FedAvg, caveat.FedProx, caveat.Ditto, caveat.Local, caveat.FedBN, caveat.IFCA, caveat.FedDyn, caveat.APFL,
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_mask_of_infinity_trains_and_stays(method: Any) -> None:
    done = run(Masked, method(rounds=2))
    assert torch.isinf(done.module("s0").get_buffer("mask")).sum() == 28
    assert done.summary["mean"]["accuracy"] > 0.4


@pytest.mark.parametrize("server", ["momentum", "adam"])
def test_a_mask_of_infinity_goes_with_optimisers_at_the_server(server: Any) -> None:
    done = run(Masked, server=caveat.ServerOptimizer(optimizer=server, lr=0.1))
    assert torch.isinf(done.module("s0").get_buffer("mask")).sum() == 28


def test_a_file_of_weights_may_hold_the_mask(tmp_path: Any) -> None:
    torch.save(Masked().state_dict(), tmp_path / "weights.pt")
    settings = caveat.ModelSettings(factory=Masked, weights=str(tmp_path / "weights.pt"))
    assert run(settings).summary["mean"]["accuracy"] > 0.3


@pytest.mark.parametrize("weights", [(0.0, 1.0), (1e-45, 1.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_batch_whose_labels_weigh_nothing_moves_nothing(weights: Any, smoothing: float) -> None:
    training = Training(class_weights=weights, label_smoothing=smoothing)
    logits = torch.randn(6, 2, requires_grad=True)
    loss = training.cross_entropy(logits, torch.zeros(6, dtype=torch.long))
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert not logits.grad.any()
    y = torch.tensor([0, 1, 1, 0, 0, 1])
    expected = nn.functional.cross_entropy(logits, y, torch.tensor(weights), label_smoothing=smoothing)
    assert torch.equal(training.cross_entropy(logits, y), expected)


@pytest.mark.parametrize("vectorized", ["off", "on"])
def test_a_class_of_weight_zero_trains(vectorized: Any) -> None:
    x = np.random.default_rng(0).normal(size=(120, 8)).astype("float32")
    y = np.r_[np.zeros(110, int), np.ones(10, int)]
    training = Training(class_weights=(0.0, 1.0), batch_size=8, local_epochs=1)
    done = run(None, data=from_arrays({"a": (x, y), "b": (x, y)}), training=training, vectorized=vectorized)
    assert np.isfinite(done.summary["mean"]["nll"])


# What users' code draws


def of_numpy(x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.random.normal(0, 0.3, x.shape).astype("float32"))


def of_random(x: Tensor) -> Tensor:
    return x * random.uniform(0.5, 1.5)


class Drawn(nn.Module):
    """Begins with numpy's numbers, and is noisy in training by Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.first.weight.copy_(torch.from_numpy(np.random.randn(8, 8)))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.first(x).relu())
        return found + random.gauss(0, 0.1) if self.training else found


@pytest.mark.parametrize("augment", [of_numpy, of_random])
def test_code_that_draws_gives_the_same_bits_with_one_worker_and_two(augment: Any) -> None:
    data = from_arrays(arrays(silos=4), augment=augment)
    found = []
    for workers in (1, 2, 1, 2):
        random.seed()
        np.random.seed()
        found.append(bits(run(Drawn, data=data, workers=workers)))
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0] != bits(run(Drawn, data=data, seed=1))


def test_silos_draw_other_numbers_and_the_programs_own_go_on() -> None:
    drawn: list[float] = []

    def watched(x: Tensor) -> Tensor:
        drawn.append(np.random.rand())
        drawn.append(random.random())
        return x

    np.random.seed(3)
    random.seed(3)
    run(Drawn, data=from_arrays(arrays(), augment=watched))
    assert len(drawn) > 8
    assert len(set(drawn)) == len(drawn)
    after = np.random.rand(), random.random()
    np.random.seed(3)
    random.seed(3)
    assert after == (np.random.rand(), random.random())


# What they are asked


@pytest.mark.parametrize("name", ["dropout in a block", "noise", "attention, dropout", "transformer", "a counter"])
@pytest.mark.parametrize("source", ["dropout", "laplace", "ensemble"])
def test_answers_of_a_run_do_not_depend_on_the_batch(name: str, source: Any) -> None:
    case = ACCEPTED[name]
    data = from_arrays(arrays(case.shape), kind="series" if len(case.shape) == 2 else None)
    asked = run(case.make, data=data, uncertainty=Uncertainty(mc_samples=5, source=source)).predictor("s0")
    x = data["s0"].test.x
    whole = asked(x).probs
    for size in (1, 3):
        parts = torch.cat([asked(part).probs for part in x.split(size)])
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)


def one_hot(x: Tensor) -> Tensor:
    return nn.functional.one_hot(x, 20).float().sum(1)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(one_hot(x))
        return found


BAG = ACCEPTED["bag of tokens"].make
IDS = {
    "a bag": (BAG, 20, "token id 20, but the model knows ids from 0 to 19; give its nn.EmbeddingBag a row"),
    "a table": (ACCEPTED["transformer of tokens"].make, 31, "token id 31, but the model knows ids from 0 to 19"),
    "one hot": (Counted, 20, "the model cannot look up the id 20"),
    "negative": (BAG, -1, "token id -1, expected ids of at least 0"),
}


@pytest.mark.parametrize("case", IDS)
def test_ids_that_a_model_does_not_know_are_one_sentence(case: str) -> None:
    model, wrong, text = IDS[case]
    data = from_arrays(arrays(TOKENS), kind="tokens")
    asked = run(model, data=data, uncertainty=Uncertainty(mc_samples=2)).predictor("s0")
    x = data["s0"].test.x.clone()
    assert asked(x).probs.isfinite().all()
    x[1, 2] = wrong
    with pytest.raises(DataError) as error:
        asked(x)
    assert text in str(error.value)
    if wrong > 0:
        bad = arrays(TOKENS)
        bad["s1"][0][3, 1] = wrong
        with pytest.raises(DataError) as error:
            run(model, data=from_arrays(bad, kind="tokens"))
        assert text in str(error.value)
