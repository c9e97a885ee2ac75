"""Measure whether a bias per class improves the probabilities of silos, in addition to the temperature.

Reads the output of `benchmarks/cells.py OUT`: predictions for all inputs of validation and test splits. Prints per
federation, method and model: the mean number of validation inputs n; the standard deviation of silos' biases; the mean
over silos of the negative log-likelihood of test labels in nats, with the temperature alone and with the bias; and the
accuracies in percent. Methods that send nothing have no bias and are omitted.

python benchmarks/class_bias.py OUT [--seed 0]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from caveat.uncertainty import class_bias, temperature

Split = tuple[Tensor, Tensor]


class Row(NamedTuple):
    """Means over the silos of a federation."""

    n: float
    sd: float
    nll: float
    nll_biased: float
    accuracy: float
    accuracy_biased: float


def read(path: Path) -> dict[str, dict[str, dict[str, Split]]]:
    """Return logarithms of unscaled probabilities (n, C) and labels (n,) by model, silo and split."""
    found: dict[str, dict[str, dict[str, Split]]] = {}
    with np.load(path) as arrays:
        for place in arrays.files:
            silo, split, *rest = place.split("/")
            if split in ("validation", "test") and rest[1:] == ["raw"]:
                log_probs = torch.from_numpy(arrays[place]).double().clamp_min(1e-12).log()
                y = torch.from_numpy(arrays[f"{silo}/{split}/y"].astype(np.int64))
                found.setdefault(rest[0], {}).setdefault(silo, {})[split] = log_probs, y
    return found


def scored(logits: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the mean negative log-likelihood, of labels of which a thousandth is random, and the accuracy."""
    share = temperature.CONTAMINATION
    right = (1 - share) * logits.softmax(1).gather(1, y[:, None]) + share / logits.shape[1]
    return -float(right.log().mean()), float((logits.argmax(1) == y).double().mean())


def measured(silos: dict[str, dict[str, Split]]) -> Row:
    own = {name: temperature.curve(*of["validation"]) for name, of in silos.items()}
    rows = {name: class_bias.usable(*of["validation"]) for name, of in silos.items()}
    common, spread = temperature.agreed(
        torch.stack([temperature.message(each) for each in own.values()]).sum(0)
    ).tolist()
    powers = {name: temperature.near(each, 1.0, temperature.SPREAD) for name, each in own.items()}
    sent = [class_bias.message(powers[name] * z, y) for name, (z, y) in rows.items()]
    sd = class_bias.width(torch.stack(sent).sum(0))
    found = []
    for name, of in silos.items():
        b, (z, y), (test, labels) = temperature.near(own[name], common, spread), rows[name], of["test"]
        bias = class_bias.fitted(b * z, y, sd)
        plain, biased = scored(b * test, labels), scored(b * test + (0.0 if bias is None else bias), labels)
        found.append((len(y), sd, plain[0], biased[0], 100 * plain[1], 100 * biased[1]))
    return Row(*np.mean(found, 0))


def rows(folder: Path, seed: int) -> Iterator[tuple[str, Row]]:
    for path in sorted(folder.glob(f"*.{seed}.npz")):
        federation, method, _ = path.stem.split(".")
        for model, silos in read(path).items() if method != "local" else ():
            yield f"{federation}, `{method}`, {model}", measured(silos)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    gains = []
    for name, row in rows(asked.out, asked.seed):
        gains.append((100 * (row.nll_biased / row.nll - 1), row.accuracy_biased - row.accuracy))
        print(
            f"| {name} | {row.n:.0f} | {row.sd:.2f} | {row.nll:.3f}, {row.nll_biased:.3f} | "
            f"{row.accuracy:.1f}, {row.accuracy_biased:.1f} |"
        )
    nll, accuracy = np.array(gains).T
    print(f"{len(nll)} rows: likelihood {nll.mean():+.1f} %, worst {nll.max():+.1f}; {int((nll > 0).sum())} are worse")
    print(f"accuracy {accuracy.mean():+.1f} points, worst {accuracy.min():+.1f}")


if __name__ == "__main__":
    main()
