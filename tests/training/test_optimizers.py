"""Optimisers against torch's own classes, bit by bit, and what they do not import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from caveat.training.optimizers import SGD, Adam, AdamW, Optimizer

CASES: list[tuple[type[Optimizer], type[torch.optim.Optimizer], dict[str, float]]] = [
    (SGD, torch.optim.SGD, {"lr": 1e-3}),
    (SGD, torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.1}),
    (Adam, torch.optim.Adam, {"lr": 1e-2}),
    (Adam, torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    (AdamW, torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    (AdamW, torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.0}),
]


def trained(make: Callable[[Mapping[str, nn.Parameter]], Any]) -> dict[str, torch.Tensor]:
    """A network of a frozen, an unused and two convolutional parameters in channels-last after a few steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 5), nn.Linear(2, 2))
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameters = {name: p for name, p in module.named_parameters() if name != "2.bias"}
    optimizer = make(parameters)
    for _ in range(5):
        optimizer.zero_grad()
        module[:3](torch.randn(6, 1, 8, 8)).square().sum().backward()
        optimizer.step()
    return {name: p.detach() for name, p in module.named_parameters()}


@pytest.mark.parametrize(("ours", "theirs", "settings"), CASES)
def test_steps_are_those_of_torch_to_the_bit(
    ours: Callable[..., Optimizer], theirs: Callable[..., torch.optim.Optimizer], settings: dict[str, float]
) -> None:
    expected = trained(lambda parameters: theirs(parameters.values(), fused=True, **settings))
    for name, tensor in trained(lambda parameters: ours(parameters, **settings)).items():
        assert torch.equal(tensor, expected[name]), name


TRAINING = """
import sys, torch
from caveat.core import Data, SiloContext
from caveat.training.fit import Training
module = torch.nn.Linear(2, 1)
data = Data(torch.zeros(4, 2), torch.zeros(4))
for optimizer in ("sgd", "adam", "adamw"):
    Training(optimizer=optimizer).fit(SiloContext("a", data, data, data, module), lambda x, y: module(x).sum())
print("torch._dynamo" in sys.modules)
"""


def test_training_does_not_import_torchs_compiler() -> None:
    found = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
