"""Measure which methods detect rows of a table that are far from all others.

There are three hospitals (UCI heart disease). Every numeric column of the test rows is shifted by a number of standard
deviations, up or down at random. Prints for each method the accuracy on unchanged rows, and for each distance the AUROC
of an uncertainty between shifted and own rows (mean over silos; below 0.5, the method is more certain of shifted rows)
and the fraction of shifted rows for which `switch` abstains. Values are means over seeds.

CAVEAT_DATA=DIR python benchmarks/far.py
"""

from __future__ import annotations

from statistics import mean
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import caveat
from caveat.core import Silo

HOSPITALS = ("cleveland", "hungarian", "va")
DISTANCES = (5, 20)
SEEDS = (0, 1, 2)
NUMBERS = 10
"""Different values that a column of numbers has at least; those with fewer are codes."""
TRAINING = caveat.Training(local_epochs=2, batch_size=16, lr=0.003)
MODEL = caveat.ModelSettings(name="mlp", width=32, features=16, hidden=32, dropout=0.2)
FEDPN: dict[str, Any] = {"layers": 8, "personal_epochs": 10, "personal_steps": 0}
ROWS = {
    "fedavg": (caveat.FedAvg(), "epistemic"),
    "fedavg, total": (caveat.FedAvg(), "total"),
    "uefl": (caveat.UEFL(), "total"),
    "trfeddis": (caveat.TrFedDis(), "vacuity"),
    "fedpn": (caveat.FedPN(**FEDPN), "log_evidence"),
    "fedpn, as released": (caveat.FedPN(**FEDPN), "dirichlet_entropy"),
    "fedpn, normalised": (caveat.FedPN(**FEDPN, normalize=True), "log_evidence"),
}
"""A method, and the uncertainty that it is to notice by."""


def moved(silo: Silo, distance: float) -> Tensor:
    """The test inputs with every column of numbers moved."""
    x = silo.test.x.clone()
    columns = [c for c in range(x.shape[1]) if len(silo.train.x[:, c].unique()) > NUMBERS]
    signs = torch.randn(len(x), len(columns), generator=torch.Generator().manual_seed(0)).sign()
    x[:, columns] += distance * signs * silo.train.x[:, columns].std(0)
    return x


def measure(method: caveat.FedAvg, score: str, seed: int) -> list[float]:
    """Accuracy, then AUROC and share of abstentions for each distance."""
    paths = ",".join(f"uci_heart_{name}.csv" for name in HOSPITALS)
    split = caveat.data.Split(train=0.8, validation=0.1, calibration=0.1)
    silos = caveat.data.load(caveat.data.DataSettings(source=f"csv:{paths}", target="disease", split=split), seed)
    uncertainty = caveat.Uncertainty(policy="switch", score=score)
    run = caveat.run(
        silos, method, rounds=15, seed=seed, training=TRAINING, model=MODEL, uncertainty=uncertainty, every=100
    )
    found = [run.summary["mean"]["accuracy"]]
    for distance in DISTANCES:
        ranked, left = [], []
        for silo in silos:
            predict = run.predictor(silo.name)
            own, far = predict(silo.test.x), predict(moved(silo, distance))
            label = [0] * len(own) + [1] * len(far)
            ranked.append(roc_auc_score(label, torch.cat([own.score(score), far.score(score)])))
            left.append((far.decision == caveat.Decision.ABSTAIN).double().mean().item())
        found += [mean(ranked), mean(left)]
    return found


def main() -> None:
    heads = "".join(f"  {f'{distance} sd: AUROC':>14} {'abstains':>9}" for distance in DISTANCES)
    print(f"{'':18} {'by':17} {'accuracy':>8}{heads}")
    for name, (method, score) in ROWS.items():
        accuracy, *far = (mean(column) for column in zip(*(measure(method, score, s) for s in SEEDS), strict=True))
        shown = "".join(f"  {ranked:14.2f} {left:9.0%}" for ranked, left in zip(far[::2], far[1::2], strict=True))
        print(f"{name:18} {score:17} {accuracy:8.1%}{shown}", flush=True)


if __name__ == "__main__":
    main()
