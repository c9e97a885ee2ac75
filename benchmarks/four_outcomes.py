"""Measure FedPN's decisions for known, ambiguous and unknown inputs (Table 1 of the paper), by label noise.

A fraction of MNIST's labels of the digits 5 to 9 is drawn again among these five, and 20 silos have 3 class draws each.
A silo's test inputs are known and clean (its own digits from 0 to 4), known and noisy (5 to 9, at silos with two or
more of these labels, so that they are ambiguous there), or unknown (digits 0 to 4 of other silos). For each kind, the
script prints the fractions that the silo answers with its own model, passes on to the global model, and abstains from.
It also prints the AUROC in percent of aleatoric uncertainty and log-evidence of the silo's own model for noisy against
clean inputs and for unknown against clean ones. Thresholds are from calibration data: `handover_rate` 0.1,
`abstain_rate` 0.05; inputs above 0.5 nats are ambiguous.

    CAVEAT_DATA=DIR python benchmarks/four_outcomes.py [ROUNDS]        about 10 minutes on 2 cores
"""

from __future__ import annotations

import sys

import torch
from label_noise import NOISY, noisy_mnist
from sklearn.metrics import roc_auc_score
from torch import Tensor

import caveat
from caveat.data.settings import OodSettings

SHARES = (0.0, 0.25, 0.5, 1.0)
KINDS = ("known, clean", "known, noisy", "unknown")
LOCAL, GLOBAL, ABSTAIN = caveat.Decision.LOCAL, caveat.Decision.GLOBAL, caveat.Decision.ABSTAIN


def kinds_of(silo: caveat.data.Silo) -> dict[str, Tensor]:
    """Test inputs of each kind at a silo, of some none."""
    x, y = silo.test.x, silo.test.y
    ambiguous = (silo.train.y[silo.train.y >= NOISY].unique()).numel() > 1
    unknown = silo.streams["ood_local"]
    return {
        "known, clean": x[y < NOISY],
        "known, noisy": x[y >= NOISY] if ambiguous else x[:0],
        "unknown": unknown.x[unknown.y < NOISY],
    }


def measure(share: float, rounds: int) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Shares of decisions by kind, and AUROCs by what is told from what."""
    silos = noisy_mnist(0, share, OodSettings(local="classes"))
    method = caveat.FedPN(rounds=rounds, density_trains_encoder=True)
    training = caveat.Training(local_steps=20, lr=0.003, lr_decay=0.97)
    model = caveat.ModelSettings(name="lenet5", features=16, hidden=48, dropout=0)
    decided = caveat.Uncertainty(
        policy="switch", score="log_evidence", handover_rate=0.1, max_aleatoric=0.5, false_alarm_rate=0
    )
    result = caveat.run(silos, method, model=model, training=training, uncertainty=decided, workers=2, every=1000)
    decisions: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    scores: dict[tuple[str, str], list[Tensor]] = {
        (kind, name): [] for kind in KINDS for name in ("aleatoric", "log_evidence")
    }
    for silo in silos:
        for kind, x in kinds_of(silo).items():
            if len(x):
                decisions[kind].append(result.predictor(silo.name)(x).decision)
                own = result.answers(silo.name)(x)[LOCAL]
                for name in ("aleatoric", "log_evidence"):
                    scores[kind, name].append(own.score(name))
    found = {kind: torch.cat(each) for kind, each in decisions.items()}
    shares = {
        kind: torch.stack([(each == one).double().mean() for one in (LOCAL, GLOBAL, ABSTAIN)])
        for kind, each in found.items()
    }
    told = {
        f"{kind}, {name}": auroc(torch.cat(scores["known, clean", name]), torch.cat(scores[kind, name]))
        for kind in KINDS[1:]
        for name in ("aleatoric", "log_evidence")
    }
    return shares, told


def auroc(low: Tensor, high: Tensor) -> float:
    labels = torch.cat([torch.zeros(len(low)), torch.ones(len(high))])
    return float(roc_auc_score(labels, torch.cat([low, high])))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    print("| noise | inputs | own | federation's | abstains | aleatoric | log-evidence |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for share in SHARES:
        shares, told = measure(share, rounds)
        for kind, each in shares.items():
            figures = [f"{100 * value:.0f} %" for value in each.tolist()]
            figures += [
                f"{100 * told[f'{kind}, {name}']:.0f}" if kind != KINDS[0] else ""
                for name in ("aleatoric", "log_evidence")
            ]
            print(f"| {share:.0%} | {kind} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
