"""Dropout that is no layer of its own: in attention, in recurrent layers, in code that reads `training`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caveat.nn.dropout import has_dropout, mc_dropout
from caveat.nn.model_checks import check_calls


class Attention(nn.Module):
    """Self-attention over tokens, whose weights are dropped."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=p, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return said


class Recurrent(nn.Module):
    """Two recurrent layers with dropout between them."""

    def __init__(self, p: float, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.layers = kind(8, 8, num_layers=2, dropout=p, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.layers(x)[0]
        return said


class Functional(nn.Module):
    """Dropout as a function, in a method that forward calls; a normalisation beside it."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.norm = p, nn.BatchNorm1d(3)

    def dropped(self, x: Tensor) -> Tensor:
        return (lambda y: F.dropout(y, self.p, self.training))(self.norm(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropped(x)


class Moving(nn.Module):
    """A part that changes its buffer whenever it is in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return x


STAGES: dict[str, Callable[[float], nn.Module]] = {
    "encoder": lambda p: nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=True),
    "encoders": lambda p: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=True), 2, enable_nested_tensor=False
    ),
    "attention": Attention,
    "lstm": Recurrent,
    "gru": lambda p: Recurrent(p, nn.GRU),
    "functional": Functional,
}
each = pytest.mark.parametrize("make", STAGES.values(), ids=STAGES)


def model(stage: nn.Module) -> nn.Module:
    """A model of inputs (N, 3, 8)."""
    return nn.Sequential(nn.Linear(8, 8), stage, nn.Flatten(), nn.Linear(24, 4)).eval()


@each
def test_every_kind_of_dropout_samples_and_leaves_the_model_as_it_was(make: Callable[[float], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = model(make(0.5)), torch.randn(5, 3, 8)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    plain = module(x)
    samples = mc_dropout(module, x, 20)
    assert len(samples) == 20
    assert all(not torch.equal(samples[0], other) for other in samples[1:])
    torch.testing.assert_close(mc_dropout(module, x, 20), samples)
    assert not torch.allclose(mc_dropout(module, x, 20, seed=1), samples)
    assert not any(part.training for part in module.modules())
    torch.testing.assert_close(module(x), plain)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("name", [name for name in STAGES if name != "functional"])
def test_a_probability_of_zero_gives_one_sample(name: str) -> None:
    module, x = model(STAGES[name](0.0)), torch.randn(5, 3, 8)
    assert not has_dropout(module)
    samples = mc_dropout(module, x, 20)
    assert len(samples) == 1
    torch.testing.assert_close(samples[0], module(x))


def test_a_recurrent_layer_has_nothing_to_drop_between() -> None:
    with pytest.warns(UserWarning, match="num_layers=1"):
        assert not has_dropout(nn.LSTM(8, 8, num_layers=1, dropout=0.5))


def test_a_part_that_changes_its_buffers_in_training_stays_in_evaluation() -> None:
    module, x = model(Moving()), torch.randn(5, 3, 8)
    check_calls(module, (3, 8), torch.float32, "model.factory")
    assert not has_dropout(module)
    torch.testing.assert_close(mc_dropout(module, x, 3), module(x)[None])
    assert module[1].seen == 0


def test_normalisation_of_one_s_own_that_reads_training_stays_in_evaluation() -> None:
    class Norm(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if not self.training else x * torch.nan

    module = model(nn.Sequential(Norm(3), Functional(0.5)))
    assert mc_dropout(module, torch.randn(5, 3, 8), 3).isfinite().all()
