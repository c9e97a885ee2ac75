"""The metrics of a cell, computed only from its scores per input."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import Decision, Prediction
from ..core.prediction import P_VALUES
from ..files.schema import AlarmShares, CellEce, CellSilo, KeptPromise
from ..metrics import contributions, ece, ece_null
from ..metrics.calibration import calibration_sums
from ..uncertainty.measures import entropy

RISK = 0.05
"""The largest share of errors that a guarantee promises, at confidence 0.9."""
RATE = 0.05
"""Typicality up to which there is an alarm."""
KINDS = {"own": ("own",), "new": ("new",), "near": ("near",), "far": ("far_noise", "far_other")}
"""Kinds of inputs with alarms, and the sets of inputs of each; a kind's share is the mean over its sets."""
LEAST = float(np.finfo(np.float32).tiny)
"""Smallest probability, 1.2e-38: the scores of a cell are float32, where smaller ones are 0. NLL is at most 87 nats."""
Arrays = Mapping[str, NDArray[Any]]


def figures(arrays: Arrays) -> dict[str, dict[str, Any]]:
    """Return by source the metrics of all silos, and the calibration error over all test inputs together."""
    silos: dict[str, list[str]] = defaultdict(list)
    for key in arrays:
        if key.endswith("/own/probs"):
            silos[key.split("/")[0]].append(key.split("/")[1])
    return {
        source: {
            "silos": {name: _silo(arrays, source, name) for name in names},
            "ece": _ece([_own(arrays, source, name) for name in names]),
        }
        for source, names in silos.items()
    }  # fmt: skip


def prediction_of(arrays: Arrays, place: str) -> Prediction:
    """Return the prediction with the scores of "SOURCE/SILO/KIND" and an alarm rate of 5 %."""
    p, between = (torch.from_numpy(arrays[f"{place}/{name}"]).double() for name in ("probs", "epistemic"))
    p = p.clamp_min(LEAST)
    p = p / p.sum(1, keepdim=True)
    total = entropy(p)
    parts = {"total": total, "epistemic": between, "aleatoric": (total - between).clamp_min(0)}
    known: dict[str, Any] = {
        name: torch.from_numpy(arrays[f"{place}/{name}"]) for name in P_VALUES if f"{place}/{name}" in arrays
    }
    decision, rate = torch.full((len(p),), int(Decision.GLOBAL)), float(np.float32(RATE))
    return Prediction(p, parts, decision, false_alarm_rate=rate, **known)


def per_input(arrays: Arrays, source: str, silo: str) -> dict[str, NDArray[np.float64]]:
    """Return the contribution of each test input of a silo to each metric, (N,) by metric."""
    y = torch.from_numpy(arrays[f"{silo}/y"].astype(np.int64))
    found = contributions(prediction_of(arrays, f"{source}/{silo}/own"), y)
    return {name: each.numpy() for name, each in found.items()}


def _own(arrays: Arrays, source: str, silo: str) -> tuple[NDArray[Any], NDArray[Any]]:
    return arrays[f"{source}/{silo}/own/probs"], arrays[f"{silo}/y"]


def _silo(arrays: Arrays, source: str, silo: str) -> CellSilo:
    each, y = per_input(arrays, source, silo), arrays[f"{silo}/y"]
    place = f"{source}/{silo}"
    alarms = {}
    for kind, sets in KINDS.items():
        named = [f"{place}/{name}" for name in sets if len(arrays.get(f"{place}/{name}/probs", ()))]
        if named:
            shares = np.mean([_alarms(arrays, one) for one in named], 0).tolist()
            alarms[kind] = AlarmShares(unfamiliar=shares[0], novel=shares[1], unsure=shares[2])
    error = each.get("auroc_error")
    return CellSilo(
        n=len(y),
        accuracy=float(each["accuracy"].mean()),
        nll=float(each["nll"].mean()),
        augrc=float(each["augrc"].mean()),
        error_auroc=None if error is None else float(error.mean()),
        alarms=alarms,
        guarantee=_promise(arrays, f"{place}/own", y),
    )


def _alarms(arrays: Arrays, place: str) -> list[float]:
    """Return the shares of inputs called unfamiliar, novel and unsure."""
    found = prediction_of(arrays, place)
    return [float(each.double().mean()) for each in (found.is_unfamiliar, found.is_novel, found.is_unsure)]


def _promise(arrays: Arrays, place: str, y: NDArray[Any]) -> KeptPromise | None:
    if f"{place}/answered" not in arrays:
        return None
    answered = arrays[f"{place}/answered"]
    wrong = answered & (arrays[f"{place}/label"] != y)
    return KeptPromise(promised=RISK, answered=int(answered.sum()), wrong=int(wrong.sum()))


def _ece(own: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> CellEce:
    probs, y = (np.concatenate(each) for each in zip(*own, strict=True))
    sums = calibration_sums(torch.from_numpy(probs).double(), torch.from_numpy(y.astype(np.int64)))
    known = {**sums, "known": torch.tensor(float(len(y)))}
    return CellEce(value=ece(known), chance95=ece_null(known)["upper"])
