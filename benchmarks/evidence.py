"""Whether probabilities of FedPN are better if evidence is scaled before a temperature is applied.

    python benchmarks/evidence.py SEED...

Trains FedPN on the rotated digits of the recipe `digits`, and fits both to one half of the pooled validation splits and
judges them on the other half, for three random halves. With evidence e and class shares f, probabilities are those of
Dir(1 + s e f) to the power b. Prints per model quantiles of log-evidence on validation splits, negative log-likelihood
and ECE there, and the figures of the run's summary on test splits.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

import caveat
from caveat import config
from caveat.core import Prediction
from caveat.metrics import figures, measure

SETTINGS = (
    "method.name=fedpn", "rounds=12", "training.local_epochs=3", "model.width=8", "baselines=[]", "engine.workers=1",
)  # fmt: skip
SCALES = [2.0**k for k in range(-8, 13)]
POWERS = [2.0 ** (k / 4) for k in range(-16, 25)]
QUANTILES = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
HALVINGS = 3


def probabilities(p: Tensor, evidence: Tensor, scale: float, power: float) -> Tensor:
    """(N, C) from the Dirichlet means (N, C), which determine the class shares f, and the evidence (N, 1)."""
    classes = p.shape[1]
    shares = ((p * (classes + evidence) - 1) / evidence).clamp_min(1e-12)
    return (power * (1 + scale * evidence * shares).log()).softmax(1)


def nll(p: Tensor, y: Tensor) -> float:
    return float(-p.gather(1, y[:, None]).clamp_min(1e-12).log().mean())


def judged(p: Tensor, evidence: Tensor, y: Tensor, scales: Sequence[float]) -> tuple[float, float]:
    """NLL and ECE of what is fitted to the other half, means over random halves."""
    found = []
    for draw in range(HALVINGS):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(draw))
        half, parts = len(y) // 2, torch.zeros_like(p)
        for fit, judge in ((order[:half], order[half:]), (order[half:], order[:half])):
            tried = [(nll(probabilities(p[fit], evidence[fit], s, b), y[fit]), s, b) for s in scales for b in POWERS]
            parts[judge] = probabilities(p[judge], evidence[judge], *min(tried)[1:])
        found.append((nll(parts, y), figures(measure(Prediction.from_logits(parts.log()[None]), y))["ece"]))
    first, second = (sum(each) / HALVINGS for each in zip(*found, strict=True))
    return first, second


def main(seeds: Sequence[int]) -> None:
    warnings.simplefilter("ignore")
    for seed in seeds:
        asked = config.load("digits", [*SETTINGS, f"seed={seed}"])
        silos = caveat.data.load(asked.data, seed)
        run = caveat.run(
            silos, asked.build_method(), model=asked.model, seed=seed, every=10**6, uncertainty=asked.uncertainty
        )
        summary = run.summary
        for whose in ("global", "local"):
            each = [run.answers(s.name)(s.validation.x)[caveat.Decision[whose.upper()]] for s in silos]
            p, y = torch.cat([a.uncalibrated.double() for a in each]), torch.cat([s.validation.y for s in silos])
            log_evidence = torch.cat([a.log_evidence for a in each if a.log_evidence is not None]).double()
            told = [f"{v:.1f}" for v in log_evidence.quantile(QUANTILES).tolist()]
            print(f"seed {seed}, {whose}: log-evidence of 5, 25, 50, 75, 95 % of {len(y)} inputs {', '.join(told)};")
            print(f"  below 0: {float((log_evidence < 0).double().mean()):.3f}")
            for name, scales in (("temperature", [1.0]), ("evidence and temperature", SCALES)):
                loss, error = judged(p, log_evidence.exp()[:, None], y, scales)
                print(f"  {name}: NLL {loss:.3f}, ECE {error:.3f}", flush=True)
        for name in ("switch", "global", "local"):
            pooled = summary["models"][name]["pooled"]
            told = [f"{key} {pooled[key]:.3f}" for key in ("accuracy", "nll", "ece", "auroc_error")]
            print(f"  test, {name}: {', '.join(told)}")
        print(f"  test, ECE by chance: at most {summary['pooled']['ece_null']['upper']:.3f}")
        print("  temperatures:", {name: round(value, 2) for name, value in summary["temperature"].items()})
        print("  warnings:", [each["kind"] for each in summary.get("warnings", ())], flush=True)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]])
