"""How well a finished run tells foreign inputs from its silos' own test inputs, by every score that it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from ...core import Decision, Prediction
from ...runs.local import Run
from .inputs import MOST, foreign

OWN = "own test inputs"
"""The kind of inputs that are not foreign."""
UNKNOWN = 1e9
"""What a score that is no number counts as: the least certain."""


@dataclass(frozen=True)
class Row:
    """One kind of inputs under one score, as means over a run's silos; a row of `foreign.csv`."""

    federation: str
    method: str
    seed: int
    inputs: str
    far: bool
    score: str
    silos: int
    auroc: float | None
    """Of foreign against own test inputs; None for own ones."""
    worst_silo: float | None
    fpr95: float | None
    """Share of own inputs that are flagged where 95 % of the foreign ones are."""
    flagged: float
    """Share that is called unfamiliar."""
    answered: float
    """Share that is not abstained from."""
    wrong: float | None
    """Share of errors among own inputs that are answered; None for foreign ones, which have no right answer."""


def measure(run: Run, federation: str, seed: int) -> list[Row]:
    """A row per kind of inputs and score of a finished run. Test labels only say which own answers are wrong."""
    found: dict[tuple[str, bool, str], list[tuple[float, float]]] = defaultdict(list)
    about: dict[tuple[str, bool], list[tuple[float, float, float | None]]] = defaultdict(list)
    for silo in run.silos:
        predict = run.predictor(silo.name)
        own = predict(silo.test.x[:MOST])
        about[OWN, False].append((*_shares(own), _wrong(own, silo.test.y[:MOST])))
        for kind, far, x in foreign(silo, seed):
            told = predict(x)
            about[kind, far].append((*_shares(told), None))
            for score in own.scores:
                found[kind, far, score].append(_separation(own.score(score), told.score(score)))
    method = run.experiment.method.name
    rows = [Row(federation, method, seed, OWN, False, "", *_counted(about[OWN, False]))]
    for (kind, far, score), pairs in found.items():
        aurocs, rates = zip(*pairs, strict=True)
        shares = _counted(about[kind, far])
        rows.append(
            Row(federation, method, seed, kind, far, score, shares[0], fmean(aurocs), min(aurocs), fmean(rates),
                *shares[4:])
        )  # fmt: skip
    return rows


def _counted(
    shares: Sequence[tuple[float, float, float | None]],
) -> tuple[int, None, None, None, float, float, float | None]:
    flagged, answered, wrong = zip(*shares, strict=True)
    known = [each for each in wrong if each is not None]
    return len(shares), None, None, None, fmean(flagged), fmean(answered), fmean(known) if known else None


def _shares(found: Prediction) -> tuple[float, float]:
    """What share is called unfamiliar, and what share is answered."""
    answered = found.decision != Decision.ABSTAIN
    return float(found.alarmed.double().mean()), float(answered.double().mean())


def _wrong(found: Prediction, y: Tensor) -> float | None:
    answered = found.decision != Decision.ABSTAIN
    return float((found.label != y)[answered].double().mean()) if answered.any() else None


def _separation(own: Tensor, told: Tensor) -> tuple[float, float]:
    """AUROC and FPR at 95 % found, foreign inputs being positive."""
    from sklearn.metrics import roc_auc_score, roc_curve  # scikit-learn takes a second to import

    label = torch.cat([torch.zeros(len(own)), torch.ones(len(told))]).numpy()
    values = torch.cat([own, told]).double().nan_to_num(nan=UNKNOWN, posinf=UNKNOWN, neginf=-UNKNOWN).numpy()
    false, true, _ = roc_curve(label, values)
    return float(roc_auc_score(label, values)), float(false[(true >= 0.95).argmax()])


def means(rows: Iterable[Row]) -> dict[tuple[str, str, str, bool, str], tuple[float, float, int]]:
    """By federation, method, inputs, whether far, and score: mean AUROC over seeds, mean share flagged, and seeds."""
    cells: dict[tuple[str, str, str, bool, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.auroc is not None:
            cells[row.federation, row.method, row.inputs, row.far, row.score].append(row)
    return {
        cell: (fmean(row.auroc or 0.0 for row in each), fmean(row.flagged for row in each), len(each))
        for cell, each in cells.items()
    }
