"""Learning rates with which nothing is learnt: one line that says what to do, wherever numbers break first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import TINY, one_error, sets
from commands import caveat as command
from torch import nn

import caveat
from caveat.core import Payload, Replies, RunError, SiloContext, State, Update
from caveat.core.errors import Diverged
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays
from caveat.engines.executor import SiloError
from caveat.methods import FML, UEFL, FedAvg, FedPN, Local

SMALL = caveat.ModelSettings(name="residual", width=4, hidden=8)


@pytest.fixture(scope="module")
def silos() -> Silos:
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    return from_arrays({name: (draw.integers(0, 256, (60, 8, 8), dtype=np.uint8), y) for name in "ab"})


def failure(silos: Silos, method: Any, lr: float, every: int = 9) -> RunError:
    training = caveat.Training(optimizer="sgd", lr=lr, batch_size=16, local_steps=1)
    with pytest.raises(RunError) as raised:
        caveat.run(
            silos, method, rounds=1, every=every, training=training, model=SMALL,
            uncertainty=caveat.Uncertainty(mc_samples=2),
        )  # fmt: skip
    return raised.value


@pytest.mark.parametrize(
    "method", [Local(), FML(), UEFL(iterations=2, extra_rounds=1), FedPN(layers=4, personal_epochs=1, personal_steps=5)]
)
@pytest.mark.parametrize(("lr", "every"), [(1e4, 1), (1e4, 9), (1e8, 9)])
def test_it_is_one_line_that_says_what_to_do(silos: Silos, method: Any, lr: float, every: int) -> None:
    error = failure(silos, method, lr, every)
    assert isinstance(error, Diverged)
    assert "lower training.lr" in str(error)
    assert len(str(error).splitlines()) == 1


class Breaking(FedAvg):
    """Raises what torch raises of numbers that make no sense."""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        grow(context.module, self.training.lr)
        torch.bincount(torch.tensor([-1]))
        raise AssertionError("torch has counted it")


def grow(module: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(by)


@pytest.mark.parametrize(("lr", "said"), [(1e6, "weights are as large as"), (float("1e30"), "weights are ")])
def test_raw_errors_of_huge_weights_are_named_as_divergence(silos: Silos, lr: float, said: str) -> None:
    error = failure(silos, Breaking(), lr)
    assert isinstance(error, Diverged)
    assert "bincount" in str(error)
    assert said in str(error)
    assert "training diverged; try a lower training.lr" in str(error)


def test_errors_with_ordinary_weights_are_not_named_so(silos: Silos) -> None:
    error = failure(silos, Breaking(), 1.0)
    assert isinstance(error, SiloError)
    assert not isinstance(error, Diverged)
    assert "diverged" not in str(error)


class Confused(FedAvg):
    """A server that cannot compute."""

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        torch.linalg.cholesky(torch.zeros(2, 2))
        return server


def test_a_server_s_error_is_one_line_too(silos: Silos) -> None:
    text = str(failure(silos, Confused(), 0.01))
    assert text.startswith("the server failed in round 1 of the schedule, task 'train': ")
    assert "diverged" not in text
    assert re.search(r" \[at aggregate, .*test_divergence\.py, line \d+\]$", text)


@pytest.mark.usefixtures("nowhere")
def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    given = sets(*TINY, "training.optimizer=sgd", "training.lr=1e8", "rounds=2")
    result = command("run", *given, "--out", tmp_path / "run", "--quiet")
    assert "lower training.lr" in one_error(result, 4)
