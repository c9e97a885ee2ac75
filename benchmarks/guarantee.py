"""Measure the guarantees of `guaranteed` with a finished run's models, over many draws of calibration data.

    CAVEAT_DATA=DIR python benchmarks/guarantee.py RUN [RUN...] [--resplits 1000] [--sizes 100 200 240 400]

The script predicts every silo's validation, calibration and test inputs once and pools them. Each resplit draws
validation and calibration inputs from this pool with replacement, so the true error rate is known exactly. For each
number of calibration inputs per silo, it prints the mean fraction that the federation's guarantee answers, relative to
the best common threshold of raw scores with known labels (`--rank own` ranks within silos), the fraction of resplits in
which the guarantee is violated or there is none, and the same for every silo's own guarantee. It takes about a minute
for a run and size at 1,000 resplits. The run must have the policy "always", for example

    caveat run benchmarks/four_digits.toml --out RUN
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import caveat
from caveat.engines.silos_on_device import one_thread
from caveat.uncertainty.histograms import bins, edges, histogram
from caveat.uncertainty.selective_risk import GRID, fixed_sequence, policy_counts, ranks, score_edges

RISK, CONFIDENCE = 0.05, 0.9
SPLITS = ("validation", "calibration", "test")


class Pool(NamedTuple):
    """A silo's inputs: by model, their scores and whether the answer is wrong."""

    scores: dict[str, Tensor]
    wrong: dict[str, Tensor]

    def drawn(self, index: Tensor) -> Pool:
        return Pool(*({name: each[index] for name, each in part.items()} for part in self))

    def __len__(self) -> int:
        return len(next(iter(self.scores.values())))


def pools(run: caveat.Run, score: str) -> dict[str, Pool]:
    found = {}
    for silo in run.silos:
        data = [getattr(silo, split) for split in SPLITS]
        answers = run.answers(silo.name)(torch.cat([each.x for each in data]))
        y = torch.cat([each.y for each in data])
        named = {whose.name.lower(): answer for whose, answer in answers.items()}
        found[silo.name] = Pool(
            {name: answer.score(score) for name, answer in named.items()},
            {name: answer.label != y for name, answer in named.items()},
        )
    return found


def counted(pool: Pool, by: dict[str, Tensor]) -> Tensor:
    """(2, J): what each limit answers, and what of it is wrong."""
    rank = {name: ranks(by[name], scores) for name, scores in pool.scores.items()}
    return policy_counts(rank.get("local"), rank.get("global"), pool.wrong.get("local"), pool.wrong.get("global"))


def oracle(silos: Sequence[Pool], score: str) -> float:
    """What the best threshold of raw scores answers, the same for all these silos and models, each silo alike."""
    inner = edges(score)[1:].nan_to_num()
    fine = torch.zeros(2, len(inner), dtype=torch.float64)
    for pool in silos:
        at = {name: bins(score, scores) for name, scores in pool.scores.items()}
        rank = {name: (each.double() + 1) / len(inner) for name, each in at.items()}
        fine += policy_counts(
            rank.get("local"), rank.get("global"), pool.wrong.get("local"), pool.wrong.get("global"), len(inner)
        ) / (len(pool) * len(silos))
    kept = fine[1] <= RISK * fine[0]
    return float(fine[0][kept].max()) if kept.any() else 0.0


class Tally:
    """What came of one promise over resplits."""

    def __init__(self) -> None:
        self.answered: list[float] = []
        self.broken = self.nothing = 0

    def add(self, counts: Tensor, total: int, truth: Tensor) -> None:
        """Test counts, and see what the limit means for what they were drawn from: shares (2, J)."""
        limit = fixed_sequence(counts, RISK, CONFIDENCE, total=total).limit
        if limit is None:
            self.nothing += 1
            self.answered.append(0.0)
            return
        answered, wrong = truth[:, round(limit * GRID) - 1].tolist()
        self.answered.append(answered)
        self.broken += wrong > RISK * answered

    def row(self, best: float) -> str:
        mean, n = float(np.mean(self.answered)), len(self.answered)
        share = f"{mean / best:.2f}" if best else "-"
        return f"{best:.3f} | {mean:.3f} | {share} | {self.broken / n:.3f} | {self.nothing / n:.3f}"


def resplit(silos: dict[str, Pool], score: str, size: int, resplits: int, own: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    together, alone = Tally(), {name: Tally() for name in silos}
    for _ in range(resplits):
        seen, calibration = (
            {n: pool.drawn(torch.randint(len(pool), (size,), generator=generator)) for n, pool in silos.items()}
            for _ in range(2)
        )
        counts = {
            name: {model: histogram(score, scores) for model, scores in pool.scores.items()}
            for name, pool in seen.items()
        }
        each = {name: {m: score_edges(score, c) for m, c in by.items()} for name, by in counts.items()}
        models = next(iter(counts.values()))
        pooled = {m: score_edges(score, torch.stack([by[m] for by in counts.values()]).sum(0)) for m in models}
        summed, truth = torch.zeros(2, GRID, dtype=torch.float64), torch.zeros(2, GRID, dtype=torch.float64)
        for name, pool in silos.items():
            by = each[name] if own else pooled
            summed += counted(calibration[name], by)
            truth += counted(pool, by) / (len(pool) * len(silos))
            alone[name].add(counted(calibration[name], each[name]), size, counted(pool, each[name]) / len(pool))
        together.add(summed, size * len(silos), truth)
    print(f"| {size} | all together | {together.row(oracle(list(silos.values()), score))} |")
    for name, tally in alone.items():
        print(f"| {size} | {name} | {tally.row(oracle([silos[name]], score))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--resplits", type=int, default=1000, help="draws of validation and calibration inputs [1000]")
    parser.add_argument("--sizes", type=int, nargs="+", default=[240], help="calibration inputs of a silo [240]")
    parser.add_argument("--score", default="total", help="the uncertainty to limit [total]")
    parser.add_argument("--rank", choices=["pooled", "own"], default="pooled", help="what the federation ranks by")
    given = parser.parse_args()
    for folder in given.runs:
        with one_thread():
            silos = pools(caveat.load(folder), given.score)
            print(f"\n{folder}: {100 * RISK:g} % errors at {100 * CONFIDENCE:g} %, {given.resplits} resplits\n")
            print("| calibration inputs of a silo | promise of | oracle | answered | of oracle | broken | nothing |")
            print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
            for size in given.sizes:
                resplit(silos, given.score, size, given.resplits, given.rank == "own")


if __name__ == "__main__":
    main()
