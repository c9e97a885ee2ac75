"""
Time series, and silos with different sensors
=============================================

The sensor of one silo uses different units. FedBN keeps batch normalization at the silo; FedAvg averages it.
"""

from sklearn.datasets import load_digits
from torch import Tensor, nn

import caveat

x, y = load_digits(return_X_y=True)
series = x.reshape(-1, 8, 8) / 16  # 8 steps with 8 channels
parts = {"north": (series[0::3], y[0::3]), "south": (5 * series[1::3], y[1::3]), "west": (series[2::3], y[2::3])}
silos = caveat.data.from_arrays(parts, kind="series")


class Encoder(nn.Module):
    """Series (N, T, C) to tokens (N, T, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(8, 32, 3, padding=1), nn.BatchNorm1d(32), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.transpose(1, 2)).transpose(1, 2)


class SeriesCNN(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * shape[0], classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


# %%
# One seed does not show which method is better: see the example on comparing methods.

for method in (caveat.FedAvg(rounds=10), caveat.FedBN(rounds=10)):
    run = caveat.run(silos, method, model=SeriesCNN, every=10)
    accuracies = {each["name"]: round(each["test"]["accuracy"], 3) for each in run.summary["silos"]}
    print(f"{type(method).__name__:7} {run.summary['mean']['accuracy']:.3f} {accuracies}")
