"""Reproduce FedPN's Figure 2: three Gaussians, of which the middle one has random labels among K classes.

The density in the middle should not depend on K; its true logarithm is ln(1/3) - ln(2 pi 0.1^2) = 1.67. It does not
fall with the corrected loss (eq. 8), but does with the original one (eq. 5).

    python benchmarks/density_toy.py        about 6 minutes on one core
"""

from __future__ import annotations

import statistics

import torch
from torch import nn

from caveat import FedPN, Training
from caveat.core import Data, SiloContext
from caveat.nn.encoders import Model, Tokens
from caveat.nn.posterior_network import log_evidence

CENTERS = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
EACH = 600
"""Samples of a Gaussian."""
SEEDS = 3


def log_density(classes: int, method: FedPN, seed: int) -> float:
    """In the centre of the middle Gaussian, after training."""
    torch.manual_seed(seed)
    x = torch.cat([center + 0.1 * torch.randn(EACH, 2) for center in CENTERS])
    y = torch.cat([torch.zeros(EACH), torch.ones(EACH), torch.arange(EACH) % classes]).long()
    head = nn.Sequential(nn.Flatten(), nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, classes))
    network = method.build(Model(Tokens(), head, tokens=1, features=2))
    data = Data(x, y)
    Training(local_epochs=30, batch_size=64, lr=0.003).fit(
        SiloContext("silo", data, data, data, network), method.objective(network.posterior, network.encoder)
    )
    shares = torch.bincount(y, minlength=classes) / len(y)
    with torch.no_grad():
        evidence = network.posterior(CENTERS[2].view(1, 1, 2), shares.log())[1]
    return float(evidence - log_evidence(torch.tensor(0.0), 2))


def main() -> None:
    torch.set_num_threads(1)
    losses = {
        "eq. 8": FedPN(normalize=False, floor=-50),
        "eq. 5": FedPN(normalize=False, floor=-50, stop_gradient="none", gamma=0),
    }
    print("median over seeds of ln p in the middle; true value 1.67")
    for classes in (3, 10, 50, 200):
        found = {
            name: statistics.median(log_density(classes, method, seed) for seed in range(SEEDS))
            for name, method in losses.items()
        }
        print(f"K = {classes:3}  " + "  ".join(f"{name}: {value:6.2f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
