"""Compare scores for detecting new classes, from the output of `cells.py --features`.

    python benchmarks/new_classes.py OUT [--methods fedavg ditto ...] [--seeds 0 1 2] [--levels]

Each score is of the model with which a silo answers. AUROC is that of the silo's test inputs against inputs of a kind,
and an alarm is a conformal p-value of at most 5 % among the silo's calibration inputs; both are means over silos, then
methods, seeds and federations. "chosen elsewhere" is the gain over the entropy of the score that is best on all other
federations. `--levels` needs no features: it prints alarms for splits of the 5 % between unfamiliar inputs and
uncertain answers, for one test of both, and caveat's own alarms by name.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from sklearn.metrics import roc_auc_score

import caveat

Array = NDArray[np.float64]
Scores = dict[str, Array]
"""By set of inputs, a score per input, higher for inputs unlike the silo's own."""
KINDS = {"new": ("new",), "near": ("near",), "far": ("far_noise", "far_other")}
RATE = 0.05
ALARMS = (caveat.Reason.UNFAMILIAR, caveat.Reason.NOVEL, caveat.Reason.UNSURE)
MOST = 4.0
"""Units that a score counts at most in a sum of squares."""


class Silo:
    """The arrays of one silo in a cell, by set of inputs."""

    def __init__(self, cell: Mapping[str, Array], name: str) -> None:
        keys = [key.split("/") for key in cell if key.startswith(f"{name}/")]
        self.sets = sorted({key[1] for key in keys if len(key) > 2} - {"train", "validation"})
        self.whose = "local" if any(key[2:3] == ["local"] for key in keys) else "global"
        self.get: Callable[[str], Array] = lambda path: cell[f"{name}/{path}"].astype(np.float64)

    def of(self, what: str) -> Scores:
        return {name: self.get(f"{name}/{self.whose}/{what}") for name in self.sets}

    def features(self) -> tuple[Array, NDArray[np.int64], Scores, Array]:
        """Return features of training inputs, their labels, those of other sets, and the last layer with its bias."""
        h = {name: self.get(f"{name}/h") for name in self.sets}
        return self.get("train/h"), self.get("train/y").astype(int), h, self.get("layer")


def entropy(p: Array) -> Array:
    return -(p * np.log(np.clip(p, 1e-30, 1))).sum(1)


def normalized(h: Array) -> Array:
    return h / np.linalg.norm(h, axis=1, keepdims=True).clip(1e-12)


NEAREST = (1, 5, 10, 25)


def neighbours(train: Array, h: Scores) -> dict[str, Scores]:
    """The distance to the k-th nearest training row on the unit sphere (Sun et al., ICML 2022), by score."""
    rows, found = normalized(train), {f"kNN, k = {k}": Scores() for k in NEAREST}
    for name, each in h.items():
        near = np.sort(
            np.partition(-(normalized(each) @ rows.T), min(NEAREST[-1], len(rows) - 1), 1)[:, : NEAREST[-1]], 1
        )
        for k, scores in zip(NEAREST, found.values(), strict=True):
            scores[name] = near[:, min(k, near.shape[1]) - 1]
    return found


def inverse(centred: Array) -> Array:
    covariance, width = centred.T @ centred / len(centred), centred.shape[1]
    return np.linalg.inv(0.9 * covariance + (0.1 * np.trace(covariance) / width + 1e-9) * np.eye(width))


def squared(h: Array, means: Array, precision: Array) -> Array:
    """Return (N, C) squared distances of rows (N, D) to means (C, D)."""
    root = np.linalg.cholesky(precision)
    rows, centres = h @ root, means @ root
    return (rows**2).sum(1)[:, None] + (centres**2).sum(1) - 2 * rows @ centres.T


def mahalanobis(train: Array, y: NDArray[np.int64], h: Scores) -> tuple[Scores, Scores]:
    """The smallest distance to a class (Lee et al., 2018), and less that to all classes (Ren et al., 2021)."""
    classes, which = np.unique(y, return_inverse=True)
    means, mean = np.stack([train[y == c].mean(0) for c in classes]), train.mean(0)
    within, around = inverse(train - means[which]), inverse(train - mean)
    plain = {name: squared(each, means, within).min(1) for name, each in h.items()}
    relative = {name: plain[name] - squared(each, mean[None], around)[:, 0] for name, each in h.items()}
    return plain, relative


def vim(train: Array, h: Scores, logits: Callable[[Array], Array]) -> Scores:
    """Residual outside the main half of directions in units of the largest logit, and energy (Wang et al., 2022)."""
    mean = train.mean(0)
    values, vectors = np.linalg.eigh((train - mean).T @ (train - mean))
    rest = vectors[:, : len(values) // 2]
    residual = {name: np.linalg.norm((each - mean) @ rest, axis=1) for name, each in h.items()}
    scale = logits(train).max(1).mean() / max(np.linalg.norm((train - mean) @ rest, axis=1).mean(), 1e-9)
    return {name: scale * residual[name] - logsumexp(logits(each), axis=1) for name, each in h.items()}


def p_values(own: Array, new: Array) -> Array:
    """Return conformal p-values of scores among those of calibration inputs."""
    less = np.searchsorted(np.sort(own), new, side="left")
    return (1 + len(own) - less) / (len(own) + 1)


def fisher(*parts: Scores) -> Scores:
    """Minus the sum of the logarithms of p-values."""
    return {
        name: -sum(np.log(p_values(part["calibration"], part[name])) for part in parts)  # type: ignore[misc]
        for name in parts[0]
    }


def squares(*parts: tuple[Scores, float]) -> Scores:
    """The sum of weights times squares of scores in units: 0 at the median of calibration inputs, 1 at their 90 %
    quantile, and all but the first at most `MOST`.
    """
    found = {name: np.zeros(len(each)) for name, each in parts[0][0].items()}
    for i, (scores, weight) in enumerate(parts):
        most = MOST if i else np.inf
        low, high = np.quantile(scores["calibration"], [0.5, 0.9])
        for name, each in scores.items():
            found[name] += weight * ((each - low) / max(high - low, 1e-9)).clip(0, most) ** 2
    return found


def hypotenuse(far: Scores, unsure: Scores) -> Scores:
    return squares((far, 1.0), (unsure, 1.0))


def scores_of(silo: Silo) -> dict[str, Scores]:
    """Return all scores of a silo's inputs, by name."""
    train, y, h, layer = silo.features()
    keep = y >= 0
    train, y = train[keep], y[keep]

    def logits(x: Array) -> Array:
        return x @ layer[:, :-1].T + layer[:, -1]

    probs = silo.of("probs")
    found = {"entropy": {name: entropy(p) for name, p in probs.items()}}
    found["largest probability"] = {name: 1 - p.max(1) for name, p in probs.items()}
    found["unfamiliar"] = silo.of("unfamiliar")
    found["energy"] = {name: -logsumexp(logits(each), axis=1) for name, each in h.items()}
    top = np.quantile(train, 0.9)
    found["ReAct"] = {name: -logsumexp(logits(each.clip(max=top)), axis=1) for name, each in h.items()}
    plain = {name: softmax(logits(each), axis=1) for name, each in h.items()}
    found["GEN"] = {name: (p.clip(1e-12) ** 0.1 * (1 - p).clip(1e-12) ** 0.1).sum(1) for name, p in plain.items()}
    found |= neighbours(train, h)
    found["Mahalanobis"], found["relative Mahalanobis"] = mahalanobis(train, y, h)
    found["ViM"] = vim(train, h, logits)
    near, unsure, far = found["kNN, k = 1"], found["entropy"], found["unfamiliar"]
    found["log p: unfamiliar + entropy"] = fisher(far, unsure)
    found["log p: kNN + entropy"] = fisher(near, unsure)
    found["log p: Mahalanobis + entropy"] = fisher(found["Mahalanobis"], unsure)
    found["log p: unfamiliar + kNN"] = fisher(far, near)
    found["log p: unfamiliar + kNN + entropy"] = fisher(far, near, unsure)
    found["squares: unfamiliar + entropy"] = hypotenuse(far, unsure)
    found["squares: unfamiliar + kNN"] = hypotenuse(far, near)
    found["squares: unfamiliar + kNN + entropy"] = squares((far, 1.0), (near, 1.0), (unsure, 1.0))
    logs = {name: np.log(2 * (1 + each).clip(0) + 1e-3) / 2 for name, each in near.items()}
    for weight in (1.0, 0.75, 0.5):
        name = f"squares: unfamiliar + log kNN + {weight:g} entropy"
        found[name] = squares((far, 1.0), (logs, 1.0), (unsure, weight))
    found["squares: unfamiliar + (kNN + entropy)"] = hypotenuse(far, found["log p: kNN + entropy"])
    found["squares: unfamiliar + (Mahalanobis + entropy)"] = hypotenuse(far, found["log p: Mahalanobis + entropy"])
    return found


SURE = 0.9
"""Largest probability from which an answer looks certain."""
Figures = dict[tuple[str, str], list[float]]
"""By score, and "KIND" for AUROC or "KIND alarms": a number per silo."""


def figures(silo: Silo) -> Figures:
    found: Figures = defaultdict(list)
    for score, sets in scores_of(silo).items():
        own, test = sets["calibration"], sets["test"]
        found[score, "own alarms"].append(float((p_values(own, test) <= RATE).mean()))
        for kind, names in KINDS.items():
            for name in (name for name in names if name in sets and len(sets[name])):
                labels = np.repeat([0, 1], [len(test), len(sets[name])])
                both = np.nan_to_num(np.concatenate([test, sets[name]]), posinf=1e30, neginf=-1e30)
                found[score, kind].append(float(roc_auc_score(labels, both)))
                found[score, f"{kind} alarms"].append(float((p_values(own, sets[name]) <= RATE).mean()))
    return found


def sure(silo: Silo) -> float:
    """Return the share of inputs of new classes that get an answer that looks certain; NaN without new classes."""
    probs = silo.of("probs").get("new")
    return float("nan") if probs is None else float((probs.max(1) > SURE).mean())


def levels(silo: Silo) -> Figures:
    """Return alarms if the rate is split: ranks to the p-value of `unfamiliar`, the rest to that of the entropy; and if
    one test of both has it.
    """
    found: Figures = defaultdict(list)
    far, unsure = silo.of("unfamiliar"), {name: entropy(p) for name, p in silo.of("probs").items()}
    both, n = hypotenuse(far, unsure), len(far["calibration"])
    ranks = int(RATE * (n + 1) + 1e-9)

    def rank(scores: Scores, name: str) -> Array:
        return p_values(scores["calibration"], scores[name]) * (n + 1) - 0.5

    for kind, names in {"own": ("test",), **KINDS}.items():
        for name in (name for name in names if name in unsure and len(unsure[name])):
            for share in (1.0, 0.8, 0.5, 0.2, 0.0):
                first = round(share * ranks)
                alarm = (rank(far, name) <= first) | (rank(unsure, name) <= ranks - first)
                found[f"{share:.0%} to unfamiliar", f"{kind} alarms"].append(float(alarm.mean()))
            found["one test of both", f"{kind} alarms"].append(float((rank(both, name) <= ranks).mean()))
            reason = silo.of("reason")[name]
            told = {f"named {each.name.lower()}": reason == each for each in ALARMS}
            for alarms, given in (("caveat's", np.isin(reason, ALARMS)), *told.items()):
                found[alarms, f"{kind} alarms"].append(float(given.mean()))
    return found


def silos_of(path: Path) -> list[Silo]:
    with np.load(path) as file:
        cell = dict(file)
    return [Silo(cell, name) for name in dict.fromkeys(key.split("/")[0] for key in cell)]


def means(found: list[Figures]) -> dict[tuple[str, str], float]:
    """Return means over the silos of each, then over all of them."""
    keys = dict.fromkeys(key for each in found for key in each)
    return {key: float(np.mean([np.mean(each[key]) for each in found if key in each])) for key in keys}


COLUMNS = ("new", "near", "far", "own alarms", "new alarms", "near alarms", "far alarms")


def table(by_federation: Mapping[str, Mapping[tuple[str, str], float]]) -> str:
    rows = list(dict.fromkeys(score for each in by_federation.values() for score, _ in each))
    columns = [c for c in COLUMNS if any((row, c) in each for row in rows for each in by_federation.values())]
    lines = [f"| score | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for row in rows:
        values = [np.mean([each[row, c] for each in by_federation.values() if (row, c) in each]) for c in columns]
        lines.append(f"| {row} | " + " | ".join(f"{value:.3f}"[1:] for value in values) + " |")
    return "\n".join(lines)


def chosen_elsewhere(by_federation: Mapping[str, Mapping[tuple[str, str], float]]) -> str:
    """Return gains of AUROC of new classes over the entropy, of the score that is best on all other federations."""
    known = {name: each for name, each in by_federation.items() if ("entropy", "new") in each}
    scores = [score for score, kind in next(iter(known.values())) if kind == "new"]
    gains = {s: {name: each[s, "new"] - each["entropy", "new"] for name, each in known.items()} for s in scores}
    lines, picked = [], []
    for name in known:
        best = max(scores, key=lambda s: np.mean([gain for other, gain in gains[s].items() if other != name]))
        picked.append(gains[best][name])
        lines.append(f"{name}: {best}, {picked[-1]:+.3f}")
    lines.append(f"mean gain, chosen elsewhere: {np.mean(picked):+.3f}")
    by_mean = sorted(scores, key=lambda s: -np.mean(list(gains[s].values())))[:5]
    for s in by_mean:
        each = ", ".join(f"{name} {gain:+.3f}" for name, gain in gains[s].items())
        lines.append(f"{s}: {np.mean(list(gains[s].values())):+.3f} ({each})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "ditto", "fedrod", "trfeddis", "local"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--levels", action="store_true")
    given = parser.parse_args()
    cells: dict[str, list[Figures]] = defaultdict(list)
    measure, certain = levels if given.levels else figures, list[float]()
    for path in sorted(given.out.glob("*.npz")):
        name, method, seed = path.stem.split(".")
        if method in given.methods and int(seed) in given.seeds:
            merged: Figures = defaultdict(list)
            for silo in silos_of(path):
                certain.append(sure(silo))
                for key, values in measure(silo).items():
                    merged[key] += values
            cells[name].append(merged)
    print(f"{sum(map(len, cells.values()))} cells of {len(cells)} federations: {', '.join(cells)}\n")
    by_federation = {name: means(found) for name, found in cells.items()}
    print(table(by_federation))
    print(f"\n{np.nanmean(certain):.0%} of inputs of new classes get a probability above {SURE}")
    if not given.levels:
        print(f"\n{chosen_elsewhere(by_federation)}")


if __name__ == "__main__":
    main()
