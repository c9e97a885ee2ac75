"""A run's books, and what they come to: rows, `summary.json`, the gallery."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from . import metrics
from ._version import __version__
from .core import Method, Payload, Silo, SiloId
from .data import Silos
from .loop import Done
from .prediction import Decision, Prediction
from .store import size

if TYPE_CHECKING:
    from .experiment import Experiment

MEANS = ("accuracy", "nll", "brier", "ece", "entropy", "aleatoric", "epistemic")
SHOWN = 6
"""Most and least certain inputs per silo in the gallery."""
GALLERIES = 20
"""Silos with a gallery at most, so that a report of many silos stays readable."""


@dataclass
class Books:
    """What is counted along the way; saved with every checkpoint."""

    number: int = 0
    """Rounds of training so far."""
    last: int = -1
    """The schedule's position of the last round carried out."""
    rows: int = 0
    """Bytes of rounds.jsonl that belong to completed rounds."""
    traffic: list[dict[str, Any]] = field(default_factory=list)
    milestones: list[dict[str, float]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0, "engine": 0.0})

    def count(self, done: Done, phase: str) -> None:
        up = sum(size(update.payload) for update in done.replies.updates.values())
        down = size(done.sent) * len(done.cohort)
        self.last = done.t
        self.traffic.append({"round": done.number, "phase": phase, "silos": len(done.cohort), "up": up, "down": down})

    def record(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Books:
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})


def row(method: Method, silo: Silo, payload: Payload) -> dict[str, Any]:
    """A silo's row of rounds.jsonl."""
    sums = payload["sums"]
    about = {"silo": silo.name, "domain": silo.domain, "model": method.answers.name.lower()}
    extra = _of_method(method, payload)
    extra.pop("codeword_use", None)  # long, and the summary has it
    return {**about, "examples": int(sums["examples"]), **metrics.figures(sums), **extra}


def summarise(experiment: Experiment, books: Books, test: Mapping[SiloId, Payload]) -> dict[str, Any]:
    """What `summary.json` holds: figures on the test split after the last round."""
    silos = [
        _silo(experiment.method, silo, test[silo.name], len(experiment.silos.classes)) for silo in experiment.silos
    ]
    mean = _mean(silos)
    worst = min(silos, key=lambda silo: (silo["test"]["accuracy"], silo["name"]))
    pooled = metrics.merge(payload["sums"] for payload in test.values())
    return {
        "schema": 1,
        "version": __version__,
        "method": type(experiment.method).__name__.lower(),
        "seed": experiment.seed,
        "rounds_run": books.number,
        "complete": True,
        "classes": list(experiment.silos.classes),
        "silos": silos,
        "domains": _domains(silos),
        "mean": mean,
        "worst": {"silo": worst["name"], "accuracy": worst["test"]["accuracy"]},
        "pooled": metrics.figures(pooled) | {"ece_null": metrics.ece_null(pooled)},
        "models": {experiment.method.answers.name.lower(): {"mean": mean}},
        "decisions": metrics.decisions(pooled),
        "milestones": books.milestones,
        "traffic": {
            "bytes_up": sum(entry["up"] for entry in books.traffic),
            "bytes_down": sum(entry["down"] for entry in books.traffic),
            "per_round": books.traffic,
        },
        "seconds": books.seconds,
    }


def _silo(method: Method, silo: Silo, payload: Payload, classes: int) -> dict[str, Any]:
    sums = payload["sums"]
    ranks = {name: float(value) for name, value in payload["rank"].items()}
    counts = torch.bincount(silo.train.y, minlength=classes)
    return {
        "name": silo.name,
        "domain": silo.domain,
        **{f"n_{split}": len(getattr(silo, split)) for split in ("train", "validation", "calibration", "test")},
        "class_counts": counts.tolist(),
        "test": {**metrics.figures(sums), "ece_null": metrics.ece_null(sums), **ranks},
        "reliability": metrics.reliability(sums),
        "decisions": metrics.decisions(sums),
        **_of_method(method, payload),
    }


def _of_method(method: Method, payload: Payload) -> dict[str, Any]:
    return method.summarise(payload["method"]) if payload["method"] else {}


def _mean(silos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The macro mean: every silo counts once."""
    return {name: sum(silo["test"][name] for silo in silos) / len(silos) for name in MEANS}


def _domains(silos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(silo["domain"] for silo in silos))
    groups = {name: [silo for silo in silos if silo["domain"] == name] for name in names}
    return [{"domain": name, "silos": len(group), **_mean(group)} for name, group in groups.items()]


def gallery(silos: Silos, predictor: Callable[[SiloId], Callable[[torch.Tensor], Prediction]]) -> dict[str, Any]:
    """The most and the least certain test inputs of every silo. A silo's own business: it never leaves a silo."""
    shown = []
    for silo in silos[:GALLERIES]:
        prediction = predictor(silo.name)(silo.test.x)
        order = prediction.total.argsort(stable=True).tolist()
        ends = {"certain": order[:SHOWN], "uncertain": order[::-1][:SHOWN]}
        items = {end: [_item(silos, silo, prediction, i) for i in chosen] for end, chosen in ends.items()}
        shown.append({"name": silo.name, "domain": silo.domain, **items})
    return {"classes": list(silos.classes), "silos": shown}


def _item(silos: Silos, silo: Silo, prediction: Prediction, i: int) -> dict[str, Any]:
    item = {
        "label": int(silo.test.y[i]),
        "predicted": int(prediction.label[i]),
        "probability": float(prediction.probs[i].max()),
        **{name: float(values[i]) for name, values in prediction.uncertainty.items()},
        "decision": Decision(int(prediction.decision[i])).name.lower(),
    }
    return {"image": _png(silos, silo.test.x[i]), **item} if silos.images else item


def _png(silos: Silos, x: torch.Tensor) -> str:
    array = silos.to_image(x)
    image = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
