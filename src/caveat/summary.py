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
from .core import Data, Method, Payload, SiloId, State
from .data import Silos
from .loop import Done
from .prediction import Decision, Prediction
from .roster import Card
from .store import size
from .tally import INSIDE, by_model, of_streams

if TYPE_CHECKING:
    from .plan import Plan

MEANS = ("accuracy", "nll", "brier", "ece", "entropy", "aleatoric", "epistemic")
"""The figures of a domain."""
SHOWN = 6
"""Most and least certain inputs per silo in the gallery."""
EXAMPLES = 3
"""Inputs per stream and quadrant in the gallery."""
GALLERIES = 20
"""Silos with a gallery at most, so that a report of many silos stays readable."""


@dataclass
class Books:
    """What is counted along the way; saved with every checkpoint."""

    number: int = 0
    """Rounds of training so far."""
    last: int = -1
    """The schedule's position of the last round carried out."""
    measured: int = -1
    """The schedule's position of the last round after which silos were evaluated."""
    rows: int = 0
    """Bytes of rounds.jsonl that belong to completed rounds."""
    ledger: int = 0
    """The same of ledger.jsonl."""
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


def rows(method: Method, silo: Card, payload: Payload) -> list[dict[str, Any]]:
    """A silo's rows of rounds.jsonl: of what it predicts, and of each model where there are two."""
    about = {"silo": silo.name, "domain": silo.domain}
    extra = _of_method(method, payload)
    extra.pop("codeword_use", None)  # long, and the summary has it
    first, *others = (
        about | {"model": name, "examples": int(sums["examples"]), **metrics.figures(sums)}
        for name, sums in by_model(method, payload).items()
    )
    return [first | extra, *others]


def summarise(
    plan: Plan, books: Books, test: Mapping[SiloId, Payload], server: State, privacy: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What `summary.json` holds: figures on the test split after the last round, of the silos that gave them."""
    method, personal = plan.method, plan.own_models
    silos = [
        _silo(method, silo, test[silo.name])
        | ({"model": personal[silo.name].name} if "local" in test[silo.name] and silo.name in personal else {})
        for silo in (plan.roster.cards[name] for name in plan.measured if name in test)
    ]
    absent = [name for name in plan.measured if name not in test]
    streams = of_streams(method, test)
    inside = streams[INSIDE]
    headline = next(iter(inside["models"].values()))
    worst = min(silos, key=lambda silo: (silo["test"]["accuracy"], silo["name"]))
    pooled = metrics.merge(payload["sums"] for payload in test.values())
    return {
        "schema": 1,
        "version": __version__,
        "method": method.name,
        "policy": {"name": plan.uncertainty.policy or method.policy},
        "seed": plan.seed,
        "rounds_run": books.number,
        "complete": True,
        "classes": list(plan.roster.classes),
        "silos": silos,
        **({"absent": absent} if absent else {}),
        "domains": _domains(silos),
        "mean": headline["mean"],
        "worst": {"silo": worst["name"], "accuracy": worst["test"]["accuracy"]},
        "pooled": metrics.figures(pooled) | metrics.errors(pooled) | {"ece_null": metrics.ece_null(pooled)},
        "risk_coverage": metrics.risk_coverage(pooled, "total"),
        "models": inside["models"] | ({"oracle": {"mean": inside["oracle"]}} if "oracle" in inside else {}),
        "decisions": inside["decisions"],
        "quadrants": inside["quadrants"],
        **({"streams": streams} if len(streams) > 1 else {}),
        **({"privacy": privacy} if privacy else {}),
        **plan.complete.outcome(server),
        "milestones": books.milestones,
        "traffic": {
            "bytes_up": sum(entry["up"] for entry in books.traffic),
            "bytes_down": sum(entry["down"] for entry in books.traffic),
            "per_round": books.traffic,
        },
        "seconds": books.seconds,
    }


def _silo(method: Method, silo: Card, payload: Payload) -> dict[str, Any]:
    sums = payload["sums"]
    streams = of_streams(method, {silo.name: payload})
    null = metrics.ece_null(sums)
    return {
        "name": silo.name,
        "domain": silo.domain,
        **{f"n_{split}": count for split, count in silo.examples.items()},
        "class_counts": list(silo.class_counts),
        "test": {**metrics.figures(sums), **({"ece_null": null} if null else {}), **metrics.errors(sums)},
        "reliability": metrics.reliability(sums),
        "decisions": metrics.decisions(sums),
        **({"models": _means(streams[INSIDE])["models"]} if len(method.models) > 1 else {}),
        **({"streams": {name: _means(found) for name, found in streams.items()}} if len(streams) > 1 else {}),
        **_of_method(method, payload),
    }


def _means(stream: Mapping[str, Any]) -> dict[str, Any]:
    """A stream's figures where there is but one silo to average over."""
    return {**stream, "models": {name: found["mean"] for name, found in stream["models"].items()}}


def _of_method(method: Method, payload: Payload) -> dict[str, Any]:
    return method.summarise(payload["method"]) if payload["method"] else {}


def _domains(silos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for silo in silos:
        groups.setdefault(silo["domain"], {})[silo["name"]] = {k: v for k, v in silo["test"].items() if k in MEANS}
    return [{"domain": d, "silos": len(group), **metrics.across(group)["mean"]} for d, group in groups.items()]


def gallery(
    silos: Silos, names: Sequence[SiloId], predictor: Callable[[SiloId], Callable[[torch.Tensor], Prediction]]
) -> dict[str, Any]:
    """The most and the least certain test inputs of silos, and some of every stream and quadrant: whose answer it is,
    and whether it was abstained from. A silo's own business: it never leaves a silo.
    """
    shown = []
    for silo in map(silos.named, names[:GALLERIES]):
        predict = predictor(silo.name)
        prediction = predict(silo.test.x)
        order = prediction.total.argsort(stable=True).tolist()
        ends = {"certain": order[:SHOWN], "uncertain": order[::-1][:SHOWN]}
        items = {end: [_item(silos, silo.test, prediction, i) for i in chosen] for end, chosen in ends.items()}
        streams = {INSIDE: (silo.test, prediction)} | {n: (d, predict(d.x)) for n, d in silo.streams.items()}
        shown.append({"name": silo.name, "domain": silo.domain, **items, "quadrants": _quadrants(silos, streams)})
    return {"classes": list(silos.classes), "silos": shown}


def _quadrants(silos: Silos, streams: Mapping[str, tuple[Data, Prediction]]) -> list[dict[str, Any]]:
    """The first inputs of each quadrant of each stream; nothing where every input is answered by one model."""
    cells: dict[tuple[str, str, int, bool], list[dict[str, Any]]] = {}
    for stream, (data, prediction) in streams.items():
        decided = zip(prediction.answerer.tolist(), (prediction.decision == Decision.ABSTAIN).tolist(), strict=True)
        for i, (whose, abstained) in enumerate(decided):
            found = cells.setdefault((stream, Decision(whose).name.lower(), whose, abstained), [])
            if len(found) < EXAMPLES:
                found.append(_item(silos, data, prediction, i))
    if len({key[2:] for key in cells}) < 2:
        return []
    return [{"stream": stream, "model": model, "abstained": abstained, "items": items}
            for (stream, model, _, abstained), items in sorted(cells.items())]  # fmt: skip


def _item(silos: Silos, data: Data, prediction: Prediction, i: int) -> dict[str, Any]:
    item = {
        "label": int(data.y[i]),
        "predicted": int(prediction.label[i]),
        "probability": float(prediction.probs[i].max()),
        **{name: float(values[i]) for name, values in prediction.uncertainty.items()},
        "decision": Decision(int(prediction.decision[i])).name.lower(),
    }
    return {"image": _png(silos, data.x[i]), **item} if silos.images else item


def _png(silos: Silos, x: torch.Tensor) -> str:
    array = silos.to_image(x)
    image = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
