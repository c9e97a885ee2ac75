"""Compare policies that choose between or mix two models, on the output of `cells.py`.

    python benchmarks/policies.py OUT [--methods ditto fedrod ...] [--seeds 0 1 2] [--strengths 0 5 20 100]

Every policy answers all test inputs. Accuracy and negative log-likelihood (nats) are means over silos, then methods,
seeds and federations; AUGRC is the area under the generalized risk-coverage curve of errors ranked by entropy. "over
local" is the change of a policy's loss relative to that of the local model alone, in percent: the mean over federations
with a 95 % interval from a bootstrap over federations and, within them, over cells; and the number of federations with
a lower loss. `--strengths` compares strengths of the blend's shrinkage instead, for seeds that no table uses.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from new_classes import Array, entropy, silos_of
from numpy.typing import NDArray

from caveat.uncertainty import linear_pool
from caveat.uncertainty.histograms import finite_sample_quantile

FLOOR = 1e-6
"""Smallest probability of a label in the likelihood."""
Probs = dict[str, dict[str, Array]]
"""By set and model, probabilities (N, C)."""


class Case:
    """A cell of a method with two models: probabilities and labels by silo."""

    def __init__(self, path: Path) -> None:
        self.probs: list[Probs] = []
        self.labels: list[dict[str, NDArray[np.int64]]] = []
        for silo in silos_of(path):
            sets = ("validation", "calibration", "test")
            self.probs.append({s: {m: silo.get(f"{s}/{m}/probs") for m in ("global", "local")} for s in sets})
            self.labels.append({s: silo.get(f"{s}/y").astype(np.int64) for s in sets})
        self.curves = [curve(p["validation"], y["validation"]) for p, y in zip(self.probs, self.labels, strict=True)]
        self.shared = linear_pool.shared_weight(torch.stack(self.curves).sum(0))

    def answers(self, k: int, strengths: Sequence[float]) -> dict[str, Array]:
        """Return the probabilities (N, C) of each policy for a silo's test inputs."""
        probs, own = self.probs[k], self.curves[k]
        local, other = probs["test"]["local"], probs["test"]["global"]
        limit = finite_sample_quantile(torch.from_numpy(entropy(probs["calibration"]["local"])), 0.9)
        known, surer = entropy(local) <= limit, entropy(local) <= entropy(other)
        found = {
            "local": local,
            "global": other,
            "switch": np.where(known[:, None], local, other),
            "best": local if float(own[-1]) <= float(own[0]) else other,
            "surer": np.where(surer[:, None], local, other),
            "blend": mixed(local, other, linear_pool.own_weight(own, self.shared)),
            "plain mean": mixed(local, other, 0.5),
            "federation's weight": mixed(local, other, self.shared),
        }
        for strength in strengths:
            weight = linear_pool.own_weight(own, self.shared, strength)
            found[f"strength {strength:g}"] = mixed(local, other, weight)
        return found


def curve(probs: dict[str, Array], y: NDArray[np.int64]) -> torch.Tensor:
    return linear_pool.curve(*(torch.from_numpy(probs[model]) for model in ("local", "global")), torch.from_numpy(y))


def mixed(local: Array, other: Array, weight: float) -> Array:
    return weight * local + (1 - weight) * other


def augrc(wrong: NDArray[np.bool_], score: Array) -> float:
    """Return the mean over thresholds of the share of inputs that are answered wrongly (Traub et al., 2024)."""
    ordered = wrong[np.argsort(score, kind="stable")]
    return float((np.cumsum(ordered) / len(ordered)).mean())


MEASURES = ("accuracy", "nll", "augrc")


def measured(probs: Array, y: NDArray[np.int64]) -> Array:
    wrong = probs.argmax(1) != y
    nll = -np.log(probs[np.arange(len(y)), y].clip(FLOOR)).mean()
    return np.array([1 - wrong.mean(), nll, augrc(wrong, entropy(probs))])


def of_case(case: Case, strengths: Sequence[float]) -> dict[str, Array]:
    """Return by policy the means over silos of `MEASURES`; of the oracle, the accuracy only."""
    found: dict[str, list[Array]] = defaultdict(list)
    for k, labels in enumerate(case.labels):
        y, answers = labels["test"], case.answers(k, strengths)
        for name, probs in answers.items():
            found[name].append(measured(probs, y))
        either = (answers["local"].argmax(1) == y) | (answers["global"].argmax(1) == y)
        found["oracle"].append(np.array([either.mean(), np.nan, np.nan]))
    return {name: np.mean(each, 0) for name, each in found.items()}


ByFederation = Mapping[str, Sequence[Mapping[str, Array]]]


def interval(cells: ByFederation, name: str, than: str, measure: int) -> tuple[float, float, float, int]:
    """Return the mean relative change over federations in percent, its 95 % interval, and how many improve."""
    rng = np.random.default_rng(0)
    changes = {
        f: np.array([100 * (c[name][measure] / c[than][measure] - 1) for c in each]) for f, each in cells.items()
    }
    per = {f: each.mean() for f, each in changes.items()}
    draws = [
        np.mean([rng.choice(changes[f], len(changes[f])).mean() for f in rng.choice(list(changes), len(changes))])
        for _ in range(2000)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.mean(list(per.values()))), float(low), float(high), sum(each < 0 for each in per.values())


def table(cells: ByFederation) -> str:
    names = list(next(iter(cells.values()))[0])
    lines = [
        "| policy | accuracy | NLL | AUGRC | NLL over local, % | better | AUGRC over local, % | better |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        means = np.mean([np.mean([cell[name] for cell in each], 0) for each in cells.values()], 0)
        row = [name, f"{means[0]:.3f}"[1:], *("" if np.isnan(v) else f"{v:.3f}" for v in means[1:])]
        for measure in (1, 2):
            if name in ("local", "oracle"):
                row += ["", ""]
                continue
            mean, low, high, better = interval(cells, name, "local", measure)
            row += [f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]", f"{better}/{len(cells)}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def by_federation(cells: ByFederation) -> str:
    names = list(next(iter(cells.values()))[0])
    lines = [f"| NLL | {' | '.join(cells)} |", f"| --- |{' ---: |' * len(cells)}"]
    for name in (name for name in names if name != "oracle"):
        values = [np.mean([cell[name][1] for cell in each]) for each in cells.values()]
        lines.append(f"| {name} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--methods", nargs="+", default=["ditto", "fedrod", "apfl", "trfeddis"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--strengths", nargs="+", type=float, default=[])
    given = parser.parse_args()
    cells: dict[str, list[dict[str, Array]]] = defaultdict(list)
    seeds = defaultdict(set)
    for path in sorted(given.out.glob("*.npz")):
        name, method, seed = path.stem.split(".")
        if method in given.methods and int(seed) in given.seeds:
            cells[name].append(of_case(Case(path), given.strengths))
            seeds[method].add(int(seed))
    made = "; ".join(f"{method}: {len(each)} seeds" for method, each in sorted(seeds.items()))
    print(f"{sum(map(len, cells.values()))} cells of {len(cells)} federations ({made})\n")
    print(table(cells))
    print(f"\n{by_federation(cells)}")


if __name__ == "__main__":
    main()
