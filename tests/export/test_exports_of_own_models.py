"""Models of one's own are exported too, as far as their layers have a form in operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import caveat
from caveat import Uncertainty, export_model
from caveat.export.export_model import ask_onnx

pytest.importorskip("onnxruntime")
QUICK = caveat.Training(local_epochs=1, batch_size=32, lr=0.01)


class Recurrent(nn.Module):
    """Ids of tokens through an embedding and a recurrent layer, whose code writes into parts of tensors."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM] = nn.GRU) -> None:
        super().__init__()
        self.embedding, self.layer, self.last = nn.Embedding(20, 6), kind(6, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.layer(self.embedding(x))[0][:, -1])
        return found


class Attention(nn.Module):
    """Series through a layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.layer(self.first(x)).mean(1))
        return found


def convolutions() -> nn.Module:
    """Images through layers that the models of caveat do not have."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, groups=1, bias=False), nn.GroupNorm(2, 8), nn.Hardswish(inplace=True),
        nn.AvgPool2d(2), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(8, 2),
    )  # fmt: skip


def inputs(kind: str, count: int) -> NDArray[Any]:
    generator = np.random.default_rng(count)
    if kind == "tokens":
        return generator.integers(1, 20, (count, 5))
    if kind == "series":
        return generator.normal(size=(count, 6, 3)).astype(np.float32)
    return generator.integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)


@pytest.mark.filterwarnings("ignore:the model has no dropout")
@pytest.mark.parametrize(("kind", "model"), [
    ("tokens", Recurrent), ("tokens", lambda: Recurrent(nn.LSTM)), ("series", Attention), ("images", convolutions),
], ids=["GRU", "LSTM", "attention", "convolutions"])  # fmt: skip
def test_layers_of_all_kinds_say_the_same(kind: Any, model: Any, tmp_path: Path) -> None:
    y = np.arange(80) % 2
    silos = caveat.data.from_arrays({"a": (inputs(kind, 80), y), "b": (inputs(kind, 80), y)}, kind=kind)
    settings = caveat.ModelSettings(name="own", factory=model)
    method = caveat.FedAvg(rounds=1, training=QUICK)
    run = caveat.run(silos, method, model=settings, every=10, uncertainty=Uncertainty(mc_samples=3))
    found = ask_onnx(export_model(run, "a", out=tmp_path / "model.onnx"), inputs(kind, 100))
    expected = run.predictor("a")(inputs(kind, 100))
    np.testing.assert_allclose(found["probs"], expected.probs.numpy(), atol=1e-5)
    assert expected.familiarity is not None
    assert (found["familiarity"] != expected.familiarity.numpy()).sum() <= 1


class Frozen(nn.Module):
    """An encoder to tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found.transpose(1, 2)


def test_a_frozen_encoder_goes_along(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = inputs("images", 80), np.arange(80) % 2
    silos = caveat.data.from_arrays({"a": (x, y), "b": (x, y)})
    settings = caveat.ModelSettings(name="encoder", encoder=Frozen, frozen=True, hidden=4)
    run = caveat.run(silos, caveat.FedAvg(rounds=1, training=QUICK), model=settings, every=10)
    found = ask_onnx(export_model(run, "a", out=tmp_path / "model.onnx"), x)
    np.testing.assert_allclose(found["probs"], run.predictor("a")(x).probs.numpy(), atol=1e-5)
