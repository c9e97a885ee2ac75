"""What the silos' evaluations come to: figures per stream of test inputs and per model that could answer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .. import metrics
from ..core import Decision, Method, Payload, SiloId, Tensors
from ..files.schema.figures import INSIDE, Histogram, Metrics, ModelRecord, Separation, SeparationOverSilos, Stream
from ..uncertainty import histograms

SWITCH = "switch"
"""The name, among models, of the choice between the local and the global one."""
MIXED = {"mix": (INSIDE, "ood_local")}
"""Streams that are others together."""
BOTH = ("local", "global")
"""The names of a silo's two models, where it has two."""
STEP, FINE = 10, 0.5
"""Nats of a step in which log-evidence is counted; the fine ones are for log-evidence that spans less than 30."""
BySilo = Mapping[SiloId, Mapping[str, Tensors]]
"""The sums of each silo by model, the first of which is what the silo predicts."""


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


def summarize_streams(method: Method, payloads: Mapping[SiloId, Payload]) -> dict[str, Stream]:
    """Per stream that some silo has: figures of every model over silos, decisions, how well scores tell it from
    what the silo knows, and what the choice between two models gained, beside the best that could be chosen.
    """
    names = dict.fromkeys((INSIDE, "ood_local", *MIXED, "ood_global"))
    found = {name: {silo: by_model(method, p, name) for silo, p in payloads.items()} for name in names}
    found = {name: _alike({silo: sums for silo, sums in each.items() if sums}) for name, each in found.items()}
    return {name: _stream(name, each, found[INSIDE], payloads) for name, each in found.items() if each}


def _alike(each: Mapping[SiloId, dict[str, Tensors]]) -> dict[SiloId, dict[str, Tensors]]:
    """Where some silos choose between two models, the only answer of a silo that has one is its choice too."""
    if not any(SWITCH in sums for sums in each.values()):
        return dict(each)
    return {
        silo: sums if SWITCH in sums else {SWITCH: next(iter(sums.values())), **sums} for silo, sums in each.items()
    }


def _models(each: BySilo) -> list[str]:
    return list(dict.fromkeys(model for sums in each.values() for model in sums))


def _stream(name: str, each: BySilo, inside: BySilo, payloads: Mapping[SiloId, Payload]) -> Stream:
    decided = metrics.merge(next(iter(found.values())) for found in each.values())
    compared = _with_all_models(each)
    choice = _choice(name, compared, payloads)
    return Stream(
        silos=len(each),
        examples=int(decided["examples"]),
        models={model: _model(model, compared, each) for model in _models(each)},
        decisions=metrics.decisions(decided),
        quadrants={
            f"{whose}_{what}": int(decided["quadrants"][i, j])
            for i, whose in enumerate(("global", "local"))
            for j, what in enumerate(("sure", "unsure"))
        },
        oracle=choice.oracle,
        right=choice.right,
        outside=_outside(each, inside) if name.startswith("ood") else {},
    )


def _with_all_models(each: BySilo) -> BySilo:
    """The silos over which models are compared: those that have each of them, where there are any.

    A silo that was away when others made models of their own has the federation's alone.
    """
    names = set(_models(each))
    return {silo: sums for silo, sums in each.items() if names <= sums.keys()} or each


def mean_of_silos(method: Method, payloads: Mapping[SiloId, Payload]) -> Metrics:
    """The mean over all silos of what each predicts on its test split, whichever models it has."""
    predicted = [next(iter(by_model(method, payload).values())) for payload in payloads.values()]
    return Metrics.model_validate(_over_silos(predicted)["mean"])


def _over_silos(sums: Iterable[Tensors]) -> dict[str, dict[str, float]]:
    return metrics.across({str(i): metrics.figures(s) | metrics.errors(s) for i, s in enumerate(sums)})


def _model(name: str, compared: BySilo, each: BySilo) -> ModelRecord:
    """One model's figures over the silos that are compared, and over the inputs of all that have it."""
    sums = [found[name] for found in compared.values() if name in found]
    over, pooled = _over_silos(sums), metrics.merge(found[name] for found in each.values() if name in found)
    return ModelRecord(
        mean=Metrics.model_validate(over["mean"]),
        worst=Metrics.model_validate(over["worst"]),
        silos=len(sums),
        pooled=Metrics.model_validate(metrics.figures(pooled) | metrics.errors(pooled)),
        log_evidence=_coarse(pooled["score.log_evidence"]) if "score.log_evidence" in pooled else None,
    )


def _coarse(histogram: Tensor) -> Histogram:
    """Log-evidence in steps of some nats, where there is any: lower ends and counts."""
    middle = -(histograms.edges("log_evidence")[:-1] + histograms.edges("log_evidence")[1:]) / 2
    found = [(value, count) for value, count in zip(middle.tolist(), histogram.sum(0).tolist(), strict=True)
             if count and abs(value) < math.inf]  # fmt: skip
    values = [value for value, _ in found] or [0.0]
    step = FINE if max(values) - min(values) < 3 * STEP else STEP
    counts: dict[float, float] = {}
    for value, count in found:
        start = float(step * math.floor(value / step))
        counts[start] = counts.get(start, 0.0) + count
    count = [counts[start] for start in sorted(counts)]
    return Histogram.model_validate({"from": sorted(counts), "count": count, "step": float(step)})


def _outside(each: BySilo, inside: BySilo) -> dict[str, dict[str, SeparationOverSilos]]:
    """Per model and score, how well a silo tells the stream's inputs from those it knows."""
    found: dict[str, dict[str, SeparationOverSilos]] = {}
    for model in _models(each):
        silos = [silo for silo in each if model in each[silo] and model in inside[silo]]
        known, others = (metrics.merge(part[silo][model] for silo in silos) for part in (inside, each))
        found[model] = {}
        for score in (name.removeprefix("score.") for name in others if name.startswith("score.")):
            over = metrics.across(
                {silo: metrics.ood_detection(inside[silo][model], each[silo][model], score) for silo in silos}
            )
            pooled = Separation.model_validate(metrics.ood_detection(known, others, score))
            worst = Separation.model_validate(over["worst"])
            found[model][score] = SeparationOverSilos.model_validate(over["mean"] | {"worst": worst, "pooled": pooled})
    return found


@dataclass(frozen=True)
class Choice:
    """The accuracy of the best choice between two models, and who was right: what was decided, in counts."""

    oracle: Metrics | None = None
    right: dict[str, dict[str, int]] = field(default_factory=dict)


def _choice(stream: str, each: BySilo, payloads: Mapping[SiloId, Payload]) -> Choice:
    """What could be chosen, and what was; nothing where no silo has two models."""
    groups = ["choice" if part == INSIDE else f"{part}.choice" for part in MIXED.get(stream, (stream,))]
    best, counts = [], []
    for silo, sums in each.items():
        if all(group in payloads[silo] for group in groups):
            right = torch.stack([payloads[silo][group]["right"] for group in groups]).sum(0)
            counts.append(right)
            best.append(1 - float(right[0, 0].sum() / right.sum()))
        else:
            only = next(iter(sums.values()))
            best.append(float(only["correct"] / only["examples"]))
    if not counts:
        return Choice()
    total = torch.stack(counts).sum(0)
    cells = {"neither": total[0, 0], "only_local": total[0, 1], "only_global": total[1, 0], "both": total[1, 1]}
    return Choice(
        Metrics(accuracy=sum(best) / len(best)),
        {name: {decision.name.lower(): int(cell[decision]) for decision in Decision} for name, cell in cells.items()},
    )
