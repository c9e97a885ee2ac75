"""What the silos' evaluations come to: figures per stream of test inputs and per model that could answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from . import metrics
from .core import Method, Payload, SiloId, Tensors
from .prediction import Decision

SWITCH = "switch"
"""The name, among models, of the choice between the local and the global one."""
INSIDE = "ind"
"""The stream of what a silo knows: its test split."""
MIXED = {"mix": (INSIDE, "ood_local")}
"""Streams that are others together."""
BOTH = ("local", "global")


def by_model(method: Method, payload: Payload, stream: str = INSIDE) -> dict[str, Tensors]:
    """The sums of what a silo predicts, first, and of each model where it has two; empty without the stream."""
    if stream in MIXED:
        parts = [by_model(method, payload, part) for part in MIXED[stream]]
        return {name: metrics.merge(part[name] for part in parts) for name in parts[0]} if all(parts) else {}
    prefix = "" if stream == INSIDE else f"{stream}."
    if f"{prefix}sums" not in payload:
        return {}
    others = {name: payload[prefix + name] for name in BOTH if prefix + name in payload}
    # Of two models the federation's is there first; the silo's own may come after the last round.
    return {SWITCH if others else method.models[0].name.lower(): payload[f"{prefix}sums"], **others}


def of_streams(method: Method, payloads: Mapping[SiloId, Payload]) -> dict[str, dict[str, Any]]:
    """Per stream that some silo has: figures of every model over silos, decisions, how well scores tell it from
    what the silo knows, and what the choice between two models gained, beside the best that could be chosen.
    """
    names = dict.fromkeys((INSIDE, "ood_local", *MIXED, "ood_global"))
    found = {name: {silo: by_model(method, p, name) for silo, p in payloads.items()} for name in names}
    found = {name: {silo: sums for silo, sums in each.items() if sums} for name, each in found.items()}
    return {
        name: {
            "silos": len(each),
            **_figures(each),
            **_chosen(name, [payloads[silo] for silo in each]),
            **(_outside(each, found[INSIDE]) if name.startswith("ood") else {}),
        }
        for name, each in found.items()
        if each
    }


def _figures(each: Mapping[SiloId, Mapping[str, Tensors]]) -> dict[str, Any]:
    first = next(iter(each.values()))
    models = {}
    for model in first:
        sums = {silo: found[model] for silo, found in each.items() if model in found}
        pooled = metrics.merge(sums.values())
        models[model] = {
            **metrics.across({silo: metrics.figures(s) | metrics.errors(s) for silo, s in sums.items()}),
            "pooled": metrics.figures(pooled) | metrics.errors(pooled),
        }
    headline = metrics.merge(next(iter(found.values())) for found in each.values())
    return {"examples": int(headline["examples"]), "models": models, "decisions": metrics.decisions(headline)}


def _outside(each: Mapping[SiloId, Mapping[str, Tensors]], inside: Mapping[SiloId, Mapping[str, Tensors]]) -> Any:
    """Per model and score, how well a silo tells the stream's inputs from those it knows; means over silos."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for model in next(iter(each.values())):
        scores = [name.removeprefix("score.") for name in next(iter(each.values()))[model] if "score." in name]
        silos = [silo for silo in each if model in each[silo] and model in inside[silo]]
        found[model] = {
            score: metrics.across(
                {silo: metrics.outside(inside[silo][model], each[silo][model], score) for silo in silos}
            )["mean"]
            for score in scores
        }
    return {"outside": found}


def _chosen(stream: str, payloads: list[Payload]) -> dict[str, Any]:
    """How often a choice between two models was possible, which was made, and the accuracy of the best one."""
    parts = MIXED.get(stream, (stream,))
    groups = ["choice" if part == INSIDE else f"{part}.choice" for part in parts]
    counts = [
        torch.stack([p[group]["right"] for group in groups]).sum(0)
        for p in payloads
        if all(group in p for group in groups)
    ]
    if not counts:
        return {}
    total = torch.stack(counts).sum(0)
    cells = {"neither": total[0, 0], "only_local": total[0, 1], "only_global": total[1, 0], "both": total[1, 1]}
    best = [1 - float(count[0, 0].sum() / count.sum()) for count in counts]
    return {
        "oracle": {"accuracy": sum(best) / len(best)},
        "right": {
            name: {decision.name.lower(): int(cell[decision]) for decision in Decision} for name, cell in cells.items()
        },
    }
