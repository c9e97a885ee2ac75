"""Why TrFedDis suffers from many bars: its loss with one change at a time, with 8 and with 64 bars on Auto MPG.

Run: CAVEAT_DATA=DIR python benchmarks/evidence_over_bars.py [ROW,...] [--data mpg] [--seeds 102,103,104,105,106]

Prints the CRPS on validation data, the mean over silos and seeds, with 8 and with 64 bars, and the difference in
percent of the former, with its 95 % interval over seeds (Student's t); also the difference with 64 bars from the loss
of the paper. Each row has, for each number of bars, the
learning rate with the lowest CRPS on validation data of seed 100. DIR contains the tables of
`benchmarks/quantities.py`.
"""

import argparse
import math
import warnings
from dataclasses import replace
from functools import cache
from statistics import fmean, stdev

import torch
import torch.nn.functional as F
from quantities import ROUNDS, SOURCES, TRAINING, silos
from scipy.stats import t
from torch import Tensor

import caveat
from caveat.core import Answers, Decision, Payload, Prediction, SiloContext, State
from caveat.core.errors import Diverged
from caveat.core.settings import frozen_settings
from caveat.methods.trfeddis import TwoHeads, likeness
from caveat.training.fit import BarTraining, Loss
from caveat.training.modules import in_batches

TRIED = (0.003, 0.01, 0.03)
TUNING = 100
FEW, MANY = 8, 64


@frozen_settings
class Changed(caveat.TrFedDis):
    """TrFedDis with prior evidence of `strength` in total over all bars, the penalty on evidence for wrong bars times
    `penalty`, and one-hot or smoothed labels; by default the loss of the paper."""

    strength: float = 0.0
    """0: one per bar."""
    penalty: float = 1.0
    per_bar: bool = False
    """Whether the penalty is divided by the number of bars, relative to 8."""
    smooth: bool = False

    def objective_of(self, module: TwoHeads, round: int) -> Loss:
        annealed = min(1.0, round / self.rounds)
        training = self.training
        assert isinstance(training, BarTraining)
        table = training.target.smoothed

        def loss(x: Tensor, y: Tensor) -> Tensor:
            hidden, logits = module(x)
            wanted = (table[y] if self.smooth else F.one_hot(y, logits.shape[-1])).double()
            value = self.cross_entropy * sum(-(wanted * each.log_softmax(-1)).sum(-1).mean() for each in logits)
            for each in self.opinions(logits) if self.evidential else ():
                value = value + self.evidential * self.evidence_loss(each, wanted, annealed).mean()
            return value + self.disentangling * annealed * likeness(hidden).mean()

        return loss

    def weight(self, evidence: Tensor) -> float:
        return self.strength or float(evidence.shape[-1])

    def opinions(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the evidence (N, C) of the global and of the local head, and of both by Dempster's rule."""
        one, other = F.softplus(logits.double())
        return one, other, one + other + one * other / self.weight(one)

    def evidence_loss(self, evidence: Tensor, wanted: Tensor, annealed: float) -> Tensor:
        bars = evidence.shape[-1]
        least = self.weight(evidence) / bars
        alpha = evidence + least
        expected = (wanted * (torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha))).sum(-1)
        wrong = alpha * (1 - wanted) + least * wanted
        total = wrong.sum(-1)
        divergence = torch.lgamma(total) - torch.lgamma(wrong).sum(-1)
        divergence = divergence - math.lgamma(least * bars) + bars * math.lgamma(least)
        rate = torch.digamma(wrong) - torch.digamma(total)[:, None]
        divergence = divergence + ((wrong - least) * rate).sum(-1)
        share = FEW / bars if self.per_bar else 1.0
        return expected + annealed * self.penalty * share * divergence

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        module = self.load(down, state, context).eval()
        ours, _, fused = self.opinions(in_batches(lambda part: module(part)[1], x, dim=1))
        least = self.weight(ours) / ours.shape[-1]
        found = {Decision.GLOBAL: ours, Decision.LOCAL: fused}
        return {
            whose: replace(made, uncertainty=made.uncertainty | {"conflict": torch.zeros(len(x)).double()})
            for whose, each in found.items()
            for made in [Prediction.from_dirichlet((each + least).log(), whose, each.sum(-1).log())]
        }


PAPER = "prior 1 per bar (paper)"
ROWS = {
    "FedAvg": None,
    PAPER: {},
    "prior 8 in all (caveat)": {"strength": 8.0},
    "no penalty": {"penalty": 0.0},
    "penalty / bars": {"per_bar": True},
    "no evidential loss": {"evidential": 0.0},
    "smoothed labels": {"smooth": True},
}
"""Changes of the paper's loss, whose prior evidence is 1 for each bar."""


@cache
def crps(row: str, data: str, bars: int, lr: float, seed: int) -> float:
    """Return the mean CRPS of silos on validation data, infinite where training diverges."""
    keys, training = ROWS[row], replace(TRAINING, lr=lr)
    made = caveat.FedAvg(ROUNDS, training) if keys is None else Changed(rounds=ROUNDS, training=training, **keys)
    found = silos(data, seed, bars)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = caveat.run(
                found, made, model=caveat.ModelSettings(name="mlp"), seed=seed, every=10**6, n_silos=len(found),
                uncertainty=SOURCES["bars"], vectorized="on",
            )  # fmt: skip
        except Diverged:
            return math.inf
        each = [(run.predictor(silo.name)(silo.validation.x), silo.values["validation"].double()) for silo in found]
        return fmean(float(said.target.crps(said.probs, y).mean()) for said, y in each)


def best(row: str, data: str, bars: int) -> float:
    return min(TRIED, key=lambda lr: crps(row, data, bars, lr, TUNING))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", default=",".join(ROWS))
    parser.add_argument("--data", default="mpg")
    parser.add_argument("--seeds", default="102,103,104,105,106")
    given = parser.parse_args()
    seeds = [int(each) for each in given.seeds.split(",")]
    print("| loss | learning rates | 8 bars | 64 bars | difference in % | 64 bars, against the paper in % |")
    print("| --- | --- | ---: | ---: | --- | --- |")
    for row in given.rows.split(","):
        rates = [best(row, given.data, bars) for bars in (FEW, MANY)]
        few, many = ([crps(row, given.data, bars, lr, seed) for seed in seeds]
                     for bars, lr in zip((FEW, MANY), rates, strict=True))  # fmt: skip
        paper = [crps(PAPER, given.data, MANY, best(PAPER, given.data, MANY), seed) for seed in seeds]
        told = f"{rates[0]:g}, {rates[1]:g} | {fmean(few):.2f} | {fmean(many):.2f} | {percent(few, many)}"
        print(f"| {row} | {told} | {percent(paper, many)} |", flush=True)


def percent(before: list[float], after: list[float]) -> str:
    """Return the paired difference in percent of the mean before, with its interval."""
    added = [100 * (b - a) / fmean(before) for a, b in zip(before, after, strict=True)]
    half = float(t.ppf(0.975, len(added) - 1)) * stdev(added) / math.sqrt(len(added))
    return f"{fmean(added):+.1f} ({fmean(added) - half:+.1f} to {fmean(added) + half:+.1f})"


if __name__ == "__main__":
    main()
