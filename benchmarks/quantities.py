"""Bars beside a Gaussian head and a squared-error head in the same training loop; numbers of bars; targets that each
silo standardizes.

Run: CAVEAT_DATA=DIR python benchmarks/quantities.py rates|heads|bars|standardize|methods [DATA,...] [--seeds 0,1,2,3,4]

DIR contains UCI's Auto MPG, Abalone and Parkinsons Telemonitoring (the target motor_UPDRS, without total_UPDRS) with a
table per silo: mpg_usa.csv (by origin), abalone_M.csv (by sex), parkinsons_1.csv (by patient), and so on.

Every figure is a mean over silos of test inputs, then over seeds. Intervals are those of paired differences over seeds
(Student's t, 95 %). `rates` prints the validation CRPS (squared: RMSE) of each learning rate on seeds 100 and 101,
which no table uses; RATES contains the best. `standardize` compares values of `data.standardize_target` on validation
data of the same two seeds, each with its best learning rate. `methods` compares each method with FedAvg with 8 and
with 64 bars, with the learning rate that is best on validation data of seed 100.
"""

import argparse
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

import torch
from scipy.stats import t
from torch import Tensor, nn

import caveat
from caveat import data
from caveat.core import Payload
from caveat.core.errors import Diverged
from caveat.core.settings import frozen_settings
from caveat.methods.registry import METHODS
from caveat.nn.models import ModelSettings
from caveat.training.fit import Loss
from caveat.uncertainty import binned_distributions as binned

DATA = ("diabetes", "mpg", "abalone", "parkinsons")
TARGETS = {"mpg": "mpg", "abalone": "rings", "parkinsons": "motor_UPDRS"}
ROUNDS = 30
TRAINING = caveat.Training(batch_size=16, local_epochs=2)
TRIED = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
RATES: dict[tuple[str, str], float] = {
    ("diabetes", "bars"): 0.0003,
    ("diabetes", "gaussian"): 0.0001,
    ("diabetes", "squared"): 0.0001,
    ("mpg", "bars"): 0.03,
    ("mpg", "gaussian"): 0.01,
    ("mpg", "squared"): 0.03,
    ("abalone", "bars"): 0.001,
    ("abalone", "gaussian"): 0.003,
    ("abalone", "squared"): 0.01,
    ("parkinsons", "bars"): 0.00003,
    ("parkinsons", "gaussian"): 0.00003,
    ("parkinsons", "squared"): 0.001,
}
"""By data and head, chosen by `rates`. For parkinsons, bars and the Gaussian head have the smallest rate."""
SOURCES = {
    "bars": caveat.Uncertainty(mc_samples=1, temperature_scaling=False, familiarity=False),
    "bars, both": caveat.Uncertainty(familiarity=False),
}
"""Predictions: one pass, and with a temperature and 20 passes of MC dropout (the default)."""
BOTH, ONE_PASS = "bars, both", "one pass"
HEADS = ("gaussian", "squared")
FEW, MANY = "8", "64"
SGD = {"scaffold": (0.01, 0.03, 0.1, 0.3), "feddc": (0.01, 0.03, 0.1, 0.3)}
"""Learning rates of the methods that need SGD; the others use Adam."""
STANDARDIZED = "bars, standardized"


def moved(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first two outputs less the third, which a softmax keeps: a standardized mean, and log sigma."""
    z = probs.double().clamp_min(1e-300).log()
    return z[:, 0] - z[:, 2], z[:, 1] - z[:, 2]


@frozen_settings
class Gaussian(caveat.FedAvg):
    """FedAvg with a Gaussian head: its bars are the different targets (at most 256), so a label tells the target."""

    center: float = 0.0
    scale: float = 1.0
    numbers: tuple[float, ...] = ()

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        values = (torch.tensor(self.numbers) - self.center) / self.scale

        def loss(x: Tensor, y: Tensor) -> Tensor:
            out = module(x)
            return self.error(out[:, 0] - out[:, 2], out[:, 1] - out[:, 2], values[y])

        return loss

    def error(self, mean: Tensor, log_sigma: Tensor, y: Tensor) -> Tensor:
        log_sigma = log_sigma.clamp(-6, 6)
        return (log_sigma + 0.5 * ((y - mean) / log_sigma.exp()) ** 2).mean()


class Squared(Gaussian):
    """FedAvg with a squared-error head."""

    def error(self, mean: Tensor, log_sigma: Tensor, y: Tensor) -> Tensor:
        return ((y - mean) ** 2).mean()


def gaussian_crps(mean: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
    """Gneiting & Raftery (2007), equation 21."""
    z = (y - mean) / sigma
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return sigma * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


@contextmanager
def number_of_bars(count: int | None) -> Iterator[None]:
    with patch.object(binned, "number_of_bars", binned.number_of_bars if count is None else lambda targets: count):
        yield


def silos(name: str, seed: int, count: int | None = None, standardize: Any = "none") -> Any:
    """Return the silos of a data set with a number of bars, by default caveat's."""
    with warnings.catch_warnings(), number_of_bars(count):
        warnings.simplefilter("ignore")
        keys: Any = {"predict": "quantity", "standardize_target": standardize}
        if name == "diabetes":
            return data.load(data.DataSettings(source="diabetes", **keys), seed)
        paths = sorted(Path(os.environ["CAVEAT_DATA"]).glob(f"{name}_*.csv"))
        return data.from_files(*paths, target=TARGETS[name], seed=seed, **keys)


@cache
def figures(
    name: str, head: str, seed: int, lr: float, split: str = "test", method: str = "fedavg"
) -> dict[str, float]:
    """Train, and return the mean over silos of CRPS, RMSE and MAE on a split; with MC dropout, also those of one pass
    without a temperature."""
    count = 256 if head in HEADS else int(head) if head.isdigit() else None
    found = silos(name, seed, count, "silo" if head == STANDARDIZED else "none")
    training, chosen = replace(TRAINING, lr=lr), SOURCES.get(head, SOURCES["bars"])
    if head in HEADS:
        numbers = found.target.means
        y = torch.cat([silo.values["train"] for silo in found])
        kind = Gaussian if head == "gaussian" else Squared
        made: Any = kind(ROUNDS, training, center=float(y.mean()), scale=float(y.std()), numbers=numbers)
    else:
        training = replace(training, optimizer="sgd") if method in SGD else training
        made = METHODS[method](rounds=ROUNDS, training=training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = caveat.run(
            found, made, model=ModelSettings(name="mlp"), seed=seed, every=10**6, n_silos=len(found),
            uncertainty=chosen, vectorized="on",
        )  # fmt: skip
        each = []
        for silo in found:
            x, y = getattr(silo, split).x, silo.values[split].double()
            said = run.predictor(silo.name)(x)
            if head in HEADS:
                mean, log_sigma = moved(said.probs)
                mean, sigma = mean * made.scale + made.center, log_sigma.clamp(-6, 6).exp() * made.scale
                crps = gaussian_crps(mean, sigma, y) if head == "gaussian" else (y - mean).abs()
                each.append(errors(mean, mean, crps, y))
            else:
                each.append(errors(said.mean, said.value, said.target.crps(said.probs, y), y))
            if head == BOTH:
                at = run.experiment.at(silo.name)
                (module,) = (module.eval() for _, module in run.experiment.complete_method.loaded(*at))
                probs, bars = module(x).detach().double().softmax(-1), said.target
                single = errors(bars.mean(probs), bars.quantile(probs, 0.5), bars.crps(probs, y), y)
                each[-1] |= {f"{ONE_PASS} {key}": value for key, value in single.items()}
    return {key: fmean(of[key] for of in each) for key in each[0]}


def errors(mean: Tensor, median: Tensor, crps: Tensor, y: Tensor) -> dict[str, float]:
    rmse = math.sqrt(float(((y - mean) ** 2).mean()))
    return {"crps": float(crps.mean()), "rmse": rmse, "mae": float((y - median).abs().mean())}


def rate(name: str, head: str) -> float:
    return RATES[name, head if head in HEADS else "bars"]


def tune(names: list[str], heads: list[str]) -> None:
    for name in names:
        for head in heads:
            by = "rmse" if head == "squared" else "crps"
            tried = {lr: fmean(figures(name, head, s, lr, "validation")[by] for s in (100, 101)) for lr in TRIED}
            best = min(tried, key=lambda lr: tried[lr])
            print(name, head, " ".join(f"{lr:g}: {value:.3f}" for lr, value in tried.items()), "best", best, flush=True)


def ratio(name: str, head: str, other: str, figure: str, seeds: list[int], made: str = "") -> str:
    """Return the ratio of means less 1, with the interval of paired differences, in percent; `made` says how the first
    head predicts."""
    ours = [figures(name, head, s, rate(name, head))[f"{made}{figure}"] for s in seeds]
    theirs = [figures(name, other, s, rate(name, other))[figure] for s in seeds]
    lower = [100 * (a - b) / fmean(theirs) for a, b in zip(ours, theirs, strict=True)]
    half = float(t.ppf(0.975, len(seeds) - 1)) * stdev(lower) / math.sqrt(len(seeds))
    return f"{fmean(lower):+.1f} % ({fmean(lower) - half:+.1f} to {fmean(lower) + half:+.1f})"


def heads(names: list[str], seeds: list[int]) -> None:
    print("| data | head | CRPS | RMSE | MAE |\n| --- | --- | ---: | ---: | ---: |")
    for name in names:
        for head in (BOTH, *HEADS):
            found = [figures(name, head, seed, rate(name, head)) for seed in seeds]
            for made in (f"{ONE_PASS} ", "") if head == BOTH else ("",):
                cells = " | ".join(f"{fmean(f[made + key] for f in found):.3f}" for key in ("crps", "rmse", "mae"))
                print(f"| {name} | {f'bars, {ONE_PASS}' if made else head} | {cells} |", flush=True)
    for name in names:
        for made in (f"{ONE_PASS} ", ""):
            crps, rmse = (ratio(name, BOTH, h, f, seeds, made) for h, f in (("gaussian", "crps"), ("squared", "rmse")))
            told = f"CRPS against Gaussian {crps}, RMSE against squared error {rmse}"
            print(f"\n{name}, bars{', one pass' if made else ''}: {told}", flush=True)


def numbers(names: list[str], seeds: list[int]) -> None:
    for name in names:
        for figure in ("crps", "rmse"):
            print(f"{name}: {figure} of 100 bars against 16 {ratio(name, '100', '16', figure, seeds)}", flush=True)


def standardize(names: list[str], seeds: list[int]) -> None:
    print("| data | `data.standardize_target` | CRPS | MAE | learning rate |\n| --- | --- | ---: | ---: | ---: |")
    for name in names:
        for head, key in (("bars", "none"), (STANDARDIZED, "silo")):
            found = {lr: [figures(name, head, seed, lr, "validation") for seed in (100, 101)] for lr in TRIED[3:7]}
            crps, mae = ({lr: fmean(f[k] for f in each) for lr, each in found.items()} for k in ("crps", "mae"))
            best = min(crps, key=lambda lr: crps[lr])
            print(f"| {name} | {key} | {crps[best]:.2f} | {mae[best]:.2f} | {best:g} |", flush=True)


def validation_crps(name: str, method: str, lr: float) -> float:
    """Return the CRPS on validation data of seed 100, infinite where training diverges."""
    try:
        return figures(name, "bars", 100, lr, "validation", method)["crps"]
    except Diverged:
        return math.inf


def methods(names: list[str], seeds: list[int], chosen: list[str] | None = None) -> None:
    """Print each method's CRPS in percent of FedAvg's, with few and with many bars, and what the latter add."""
    print("| data | method | learning rate | 8 bars | 64 bars | difference |\n| --- | --- | ---: | ---: | ---: | --- |")
    for name in names:
        reference: dict[str, list[float]] = {}
        for method in ("fedavg", *(each for each in chosen or METHODS if each != "fedavg")):
            try:
                tried = {lr: validation_crps(name, method, lr) for lr in SGD.get(method, TRIED[2:7])}
                lr = min(tried, key=lambda lr: tried[lr])
                found = {h: [figures(name, h, s, lr, "test", method)["crps"] for s in seeds] for h in (FEW, MANY)}
            except caveat.CaveatError as error:
                print(f"| {name} | {method} | {error} |", flush=True)
                continue
            reference = reference or found
            few, many = ([100 * a / b for a, b in zip(found[h], reference[h], strict=True)] for h in (FEW, MANY))
            added = [b - a for a, b in zip(few, many, strict=True)]
            half = float(t.ppf(0.975, len(seeds) - 1)) * stdev(added) / math.sqrt(len(seeds))
            told = f"{fmean(added):+.1f} ({fmean(added) - half:+.1f} to {fmean(added) + half:+.1f})"
            print(f"| {name} | {method} | {lr:g} | {fmean(few):.1f} | {fmean(many):.1f} | {told} |", flush=True)


TASKS: dict[str, Callable[[list[str], list[int]], None]] = {
    "heads": heads,
    "bars": numbers,
    "standardize": standardize,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=[*TASKS, "methods", "rates"])
    parser.add_argument("data", nargs="?", default=",".join(DATA))
    parser.add_argument("--heads", default="bars,gaussian,squared")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--methods", default="", help="those of the task methods, by default all")
    given = parser.parse_args()
    names = given.data.split(",")
    seeds = [int(each) for each in given.seeds.split(",")]
    if given.task == "rates":
        tune(names, given.heads.split(","))
    elif given.task == "methods":
        methods(names, seeds, [each for each in given.methods.split(",") if each])
    else:
        TASKS[given.task](names, seeds)


if __name__ == "__main__":
    sys.exit(main())
