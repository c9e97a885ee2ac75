"""How far figures move if silos count scores and probabilities in fewer bins, beside their standard errors.

    CAVEAT_DATA=DIR python benchmarks/coarse_bins.py

Compares figures over the test inputs of all silos, without bins ("exact"), with the 4,096 bins of thresholds, and with
fewer: FedPN at the four hospitals of examples/hospitals, and FedAvg on rotated digits. "sent" marks what silos send, in
brackets are the tolerances by which a figure may differ from the exact one. The standard error is over test inputs, and
absent for figures without `contributions`. Takes a minute on one core.

    python benchmarks/coarse_bins.py rows

Simulates a binary classifier (log-odds of mean -1 or 1 and standard deviation 1.5, by class), and compares the AUROC of
errors by the entropy with the exact one, by the number of rows of a silo and of bins. Takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import hospitals
import torch
from torch import Tensor

import caveat
from caveat import metrics
from caveat.config import load
from caveat.uncertainty import histograms

COUNTS = (4096, 2048, 1024, 512, 256)
FIGURES = ("auroc_error", "aurc", "augrc", "coverage_at_5", "risk_at_80")
OF_CLASSES = ("auroc", "average_precision")


def heart() -> caveat.Run:
    method, model = hospitals.rows()["fedpn"]()
    return caveat.run(hospitals.silos(0), method, model=model, seed=0, every=1000)


def digits() -> caveat.Run:
    silos = caveat.data.load(load("digits").data, 0)
    method = caveat.FedAvg(rounds=8, training=caveat.Training(local_epochs=6, lr=0.003))
    return caveat.run(silos, method, seed=0, every=1000)


def rows(run: caveat.Run) -> Iterator[list[str]]:
    """The figures of every score, then those of classes."""
    asked = [(run.predictor(silo.name)(silo.test.x), silo.test.y) for silo in run.silos]
    each = [metrics.contributions(*found) for found in asked]
    wrong = torch.cat([found.label != y for found, y in asked])
    for name in asked[0][0].scores:
        scores = torch.cat([found.scores[name] for found, _ in asked]).double()
        binned = [exact(scores, wrong), *(sent(name, scores, wrong, run, count) for count in COUNTS)]
        found = [metrics.errors({f"score.{name}": sums}, name) for sums in binned]
        for figure in FIGURES:
            values = torch.cat([of[figure] for of in each if figure in of and name == "total"] or [torch.zeros(0)])
            error = f"{values.std() / len(values) ** 0.5:.3f}" if len(values) else ""
            if figure in found[0]:
                at = COUNTS.index(histograms.measured_bins(name)) + 1
                said = [text(one, figure) + " sent" * (k == at) for k, one in enumerate(found)]
                yield [f"{figure} of {name}", *said, error]
    sums = metrics.merge(metrics.class_sums(*found) for found in asked)
    ranked = metrics.classification({**sums, "ranks": exact_ranks(asked)}), metrics.classification(sums)
    for figure in OF_CLASSES:
        yield [figure, text(ranked[0], figure), f"{text(ranked[1], figure)} sent", *[""] * len(COUNTS)]


def sent(name: str, scores: Tensor, wrong: Tensor, run: caveat.Run, count: int) -> Tensor:
    classes = len(run.summary["classes"])
    counts = torch.stack([histograms.histogram(name, scores[rows], classes) for rows in (~wrong, wrong)])
    return histograms.coarser(counts, count)


def exact(scores: Tensor, positive: Tensor) -> Tensor:
    """A histogram with a bin per value."""
    found, place = scores.unique(return_inverse=True)
    counts = [torch.bincount(place[rows], minlength=len(found)) for rows in (~positive, positive)]
    return torch.stack(counts).double()


def exact_ranks(asked: list[tuple[caveat.Prediction, Tensor]]) -> Tensor:
    probs, y = torch.cat([found.probs.double() for found, _ in asked]), torch.cat([y for _, y in asked])
    ranked = range(1 if probs.shape[1] == 2 else 0, probs.shape[1])
    each = [exact(probs[:, c].logit(), y == c) for c in ranked]
    most = max(len(counts[0]) for counts in each)
    return torch.stack([torch.nn.functional.pad(counts, (most - len(counts[0]), 0)) for counts in each])


def text(found: Mapping[str, float], figure: str) -> str:
    tolerance = found.get(f"{figure}_tolerance")
    return f"{found[figure]:.4f}" + ("" if tolerance is None else f" ({tolerance:.4f})")


def by_rows() -> None:
    """Root mean squared errors of binning, beside the standard deviation of the exact figure, over 300 draws."""
    counts = (2048, 1024, 512, 256, 128, 64, 32)
    head = ["rows", "standard deviation", *(f"{count:,} bins" for count in counts), "bins that count one row"]
    print(f"| {' | '.join(head)} |\n|{'---:|' * len(head)}")
    for n in (20, 60, 300, 3000):
        generator, exact_ones, errors, single = torch.Generator().manual_seed(n), [], [], []
        while len(exact_ones) < 300:
            y = torch.rand(n, generator=generator) < 0.45
            odds = torch.randn(n, generator=generator, dtype=torch.float64) * 1.5 + torch.where(y, 1.0, -1.0)
            probs = torch.stack([odds.neg().sigmoid(), odds.sigmoid()], 1)
            total, wrong = -(probs * probs.log()).sum(1), (odds > 0) != y
            if not 0 < wrong.sum() < n:
                continue
            counted = torch.stack([histograms.histogram("total", total[rows], 2) for rows in (~wrong, wrong)])
            binned = [histograms.coarser(counted, count) for count in counts]
            right, *found = (metrics.errors({"score.total": each}, "total") for each in (exact(total, wrong), *binned))
            exact_ones.append(right["auroc_error"])
            errors.append([each["auroc_error"] - right["auroc_error"] for each in found])
            single.append([float((each == 1).sum() / (each > 0).sum()) for each in binned])
        rms, alone = torch.tensor(errors).square().mean(0).sqrt(), torch.tensor(single).mean(0)
        spread = torch.tensor(exact_ones).std()
        shares = f"{alone[1]:.0%} of 1,024; {alone[4]:.0%} of 128"
        print(f"| {n:,} | {spread:.3f} | {' | '.join(f'{each:.4f}' for each in rms)} | {shares} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["rows"]:
        by_rows()
        sys.exit()
    for made in (heart, digits):
        head = [made.__name__, "exact", *(f"{count:,}" for count in COUNTS), "standard error"]
        print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for row in rows(made()):
            print(f"| {' | '.join(row)} |", flush=True)
