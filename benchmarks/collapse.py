"""Count warnings for planted collapses, and for runs that learn.

    CAVEAT_DATA=DIR python benchmarks/collapse.py [--seeds N] [CASE...]
    python benchmarks/collapse.py --simulate

A collapse should cause a warning in every seed, and a healthy run in none. The 83 training inputs of a silo of cancer
are too few to detect shuffled labels at this silo alone. Tables are in CAVEAT_DATA; digits and breast cancer are from
scikit-learn. Prints for each case the number of seeds with a warning, and the kinds of warnings. `--simulate` instead
prints how often labels that do not depend on inputs are called unpredictable, by classes and training inputs.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

import caveat
from caveat.core import Data
from caveat.core.settings import frozen_settings
from caveat.metrics.skill import predictable
from caveat.runs.collapse import LEVEL, unpredictable

Arrays = dict[str, tuple[np.ndarray, np.ndarray]]
FAST = caveat.Training(lr=0.003, local_epochs=3, batch_size=16)


def dealt(x: np.ndarray, y: np.ndarray, seed: int, silos: int = 6) -> Arrays:
    """Rows of one table, dealt out to silos."""
    order = np.random.default_rng(seed).permutation(len(x))
    x = ((x - x.mean(0)) / (x.std(0) + 1e-9)).astype(np.float32)
    return {f"s{k}": (x[order[k::silos]], y[order[k::silos]].astype(np.int64)) for k in range(silos)}


def digits(seed: int) -> Arrays:
    return dealt(*load_digits(return_X_y=True), seed)


def cancer(seed: int) -> Arrays:
    return dealt(*load_breast_cancer(return_X_y=True), seed, 4)


def tables(pattern: str, column: str, above: float | None = None) -> Callable[[int], Arrays]:
    """A silo per file of CAVEAT_DATA; the label is whether a column is above a value, by default its median."""

    def read(seed: int) -> Arrays:
        files = sorted(Path(os.environ["CAVEAT_DATA"]).glob(pattern))
        names = files[0].read_text().split("\n")[0].split(",")
        rows = [np.genfromtxt(file, delimiter=",", skip_header=1) for file in files]
        whole = np.concatenate(rows)
        target, limit = names.index(column), np.nanmedian(whole[:, names.index(column)]) if above is None else above
        mean, std = np.nanmean(whole, 0), np.nanstd(whole, 0) + 1e-9
        x = [np.delete(np.nan_to_num((each - mean) / std), target, 1).astype(np.float32) for each in rows]
        return {
            file.stem: (inputs, (each[:, target] > limit).astype(np.int64))
            for file, inputs, each in zip(files, x, rows, strict=True)
        }

    return read


def shuffled(data: Callable[[int], Arrays], silos: int | None = None) -> Callable[[int], Arrays]:
    """The same with labels shuffled at the first `silos` of the silos."""

    def read(seed: int) -> Arrays:
        random = np.random.default_rng(seed)
        return {
            name: (x, random.permutation(y) if silos is None or k < silos else y)
            for k, (name, (x, y)) in enumerate(data(seed).items())
        }

    return read


@frozen_settings
class DeadCodebook(caveat.UEFL):
    """UEFL whose codewords but one begin where no token comes."""

    def build(self, model: nn.Module) -> nn.Module:
        made = super().build(model)
        made.codebook.shared.data[1:] += 100
        return made


def uefl(kind: type[caveat.UEFL]) -> caveat.UEFL:
    return kind(rounds=6, iterations=1, codewords=32, training=FAST)


SHRINKING: dict[str, Any] = {"gamma": 1, "normalize": False, "density_trains_encoder": True, "floor": -50}
"""Settings of FedPN under which -log p(z) is lowered by shrinking all embeddings."""
FEDAVG = caveat.FedAvg(rounds=10, training=FAST)
Case = tuple[Callable[[int], Arrays], caveat.Method, dict[str, Any]]
PLANTED: dict[str, Case] = {
    "labels shuffled, digits": (shuffled(digits), FEDAVG, {}),
    "labels shuffled, cancer": (shuffled(cancer), FEDAVG, {}),
    "labels shuffled, abalone": (shuffled(tables("abalone_*.csv", "rings")), FEDAVG, {}),
    "labels shuffled at one silo, digits": (shuffled(digits, 1), FEDAVG, {}),
    "labels shuffled at one silo, cancer": (shuffled(cancer, 1), FEDAVG, {}),
    "dead codebook, digits": (digits, uefl(DeadCodebook), {}),
    "embeddings shrunk, digits": (digits, caveat.FedPN(rounds=5, training=FAST, **SHRINKING), {}),
    "rate x 100, digits": (digits, caveat.FedAvg(rounds=10, training=caveat.Training(lr=0.3, local_epochs=3)), {}),
    "rate x 1000, digits": (digits, caveat.FedAvg(rounds=10, training=caveat.Training(lr=3.0, local_epochs=3)), {}),
    "rate / 10,000, digits": (digits, caveat.FedAvg(rounds=10, training=caveat.Training(lr=3e-7)), {}),
}
HEALTHY: dict[str, Case] = {
    "fedavg, digits": (digits, FEDAVG, {}),
    "local, digits": (digits, caveat.Local(rounds=10, training=FAST), {}),
    "uefl, digits": (digits, uefl(caveat.UEFL), {}),
    "fedpn, digits": (digits, caveat.FedPN(rounds=10, training=FAST), {}),
    "fedavg, cancer": (cancer, FEDAVG, {}),
    "fedavg, abalone": (tables("abalone_*.csv", "rings"), FEDAVG, {}),
    "fedavg, mpg": (tables("mpg_*.csv", "mpg"), FEDAVG, {}),
    "fedavg, breast cancer deaths": (tables("tcga_brca_train_*.csv", "died", 0.5), FEDAVG, {}),
}


def warned(case: Case, seed: int) -> list[str]:
    """The kinds of warnings of a run; "failed" if training diverged."""
    data, method, settings = case
    try:
        run = caveat.run(caveat.data.from_arrays(data(seed)), method, seed=seed, every=10**6, **settings)
    except caveat.RunError:
        return ["failed"]
    return [f"{each['kind']}{'' if not each.get('silos') else ' at silos'}" for each in run.summary.get("warnings", ())]


SILOS = (1, 4, 20)
"""Numbers of silos of simulated federations, one of which has shuffled labels."""


def simulated(classes: int, inputs: int, draws: int = 400) -> list[float]:
    """The shares of draws that are called unpredictable, by the number of silos; there is no model."""
    generator, found = torch.Generator().manual_seed(0), np.zeros(len(SILOS))
    no_model = {name: torch.zeros(3, dtype=torch.float64) for name in ("agreement", "ranking")}
    for _ in range(draws):
        x, y = torch.randn(inputs, 20, generator=generator), torch.randint(classes, (inputs,), generator=generator)
        sums = no_model | {"predictable": torch.from_numpy(predictable(Data(x, y), classes))}
        found += [unpredictable(sums, LEVEL / 2 / silos) for silos in SILOS]
    return list(found / draws)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="parts of names of cases")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args()
    if options.simulate:
        for classes in (2, 10):
            for inputs in (60, 100, 150, 200, 300, 500):
                shares = " | ".join(f"{100 * share:.0f} %" for share in simulated(classes, inputs))
                print(f"| {classes} | {inputs} | {shares} |", flush=True)
        return
    warnings.simplefilter("ignore")
    for title, cases in (("planted", PLANTED), ("healthy", HEALTHY)):
        for name, case in cases.items():
            if options.cases and not any(part in f"{title} {name}" for part in options.cases):
                continue
            found = [warned(case, seed) for seed in range(options.seeds)]
            kinds = Counter(kind for each in found for kind in each)
            told = ", ".join(f"{kind} {count}" for kind, count in kinds.items()) or "none"
            print(f"{title:<8} {name:<38} {sum(map(bool, found)):>2} of {options.seeds}  {told}", flush=True)


if __name__ == "__main__":
    main()
