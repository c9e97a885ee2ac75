"""A custom model: a 1-D CNN on series. Each digit is a series of 8 steps with 8 channels, row by row.

python examples/cnn_on_series.py [METHOD ...]
"""

from __future__ import annotations

import sys

from sklearn.datasets import load_digits
from torch import Tensor, nn

import caveat


class Encoder(nn.Module):
    """Series (N, T, C) to tokens (N, T, D). A convolution has channels before steps, tokens the other way round."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.layers(x.transpose(1, 2))
        return seen.transpose(1, 2)


class SeriesCNN(nn.Module):
    """Made for the shape (T, C) of a series and the number of classes."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        steps, channels = shape
        self.encoder = Encoder(channels)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * steps, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x))
        return logits


def silos() -> caveat.data.Silos:
    """Three silos whose sensors differ: in their units, and in the order of channels."""
    x, y = load_digits(return_X_y=True)
    series = x.reshape(-1, 8, 8) / 16
    views = series[0::3], 2 * series[1::3], series[2::3, :, ::-1]
    return caveat.data.from_arrays({f"silo-{k}": (views[k], y[k::3]) for k in range(3)}, kind="series")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["fedavg", "fedbn"]:
        run = caveat.run(silos(), caveat.METHODS[name](rounds=10), model=SeriesCNN)
        print(f"{name}: {run.summary['mean']['accuracy']:.3f}")
