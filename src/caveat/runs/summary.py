"""The state of a run that is under way, and what it comes to: rows, and `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import metrics
from .._version import __version__
from ..core import Method, Payload, SiloId, State, Tensors
from ..core.silo_info import SiloInfo
from ..core.tensors import size
from ..engines.rounds import Done
from ..metrics.streams import INSIDE, by_model, summarise_streams
from ..uncertainty import grid
from .base import BaseRun

MEANS = ("accuracy", "nll", "brier", "ece", "entropy", "aleatoric", "epistemic")
"""The figures of a domain."""


@dataclass
class RunState:
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
    def of(cls, record: Mapping[str, Any]) -> RunState:
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})


def rows(method: Method, silo: SiloInfo, payload: Payload) -> list[dict[str, Any]]:
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
    plan: BaseRun,
    run_state: RunState,
    test: Mapping[SiloId, Payload],
    server: State,
    privacy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `summary.json` holds: figures on the test split after the last round, of the silos that gave them."""
    method, personal = plan.method, plan.own_models
    silos = [
        silo_record(method, silo, test[silo.name])
        | ({"model": personal[silo.name].name} if "local" in test[silo.name] and silo.name in personal else {})
        for silo in (plan.info.silo_infos[name] for name in plan.measured if name in test)
    ]
    absent = [name for name in plan.measured if name not in test]
    streams = summarise_streams(method, test)
    inside = streams[INSIDE]
    headline = next(iter(inside["models"].values()))
    worst = min(silos, key=lambda silo: (silo["test"]["accuracy"], silo["name"]))
    pooled = metrics.merge(payload["sums"] for payload in test.values())
    return {
        "schema": 1,
        "version": __version__,
        "method": method.name,
        "policy": {"name": plan.spec.uncertainty.policy or method.policy},
        "seed": plan.spec.seed,
        "rounds_run": run_state.number,
        "complete": True,
        "classes": list(plan.info.classes),
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
        "milestones": run_state.milestones,
        "traffic": {
            "bytes_up": sum(entry["up"] for entry in run_state.traffic),
            "bytes_down": sum(entry["down"] for entry in run_state.traffic),
            "per_round": run_state.traffic,
        },
        "seconds": run_state.seconds,
    }


def silo_record(method: Method, silo: SiloInfo, payload: Payload) -> dict[str, Any]:
    sums = payload["sums"]
    streams = summarise_streams(method, {silo.name: payload})
    null = metrics.ece_null(sums)
    return {
        "name": silo.name,
        "domain": silo.domain,
        **{f"n_{split}": count for split, count in silo.examples.items()},
        "class_counts": list(silo.class_counts),
        "test": {**metrics.figures(sums), **({"ece_null": null} if null else {}), **metrics.errors(sums)},
        **({"entropy_error": error} if (error := entropy_error(sums)) is not None else {}),
        "reliability": metrics.reliability(sums),
        "decisions": metrics.decisions(sums),
        **({"models": _means(streams[INSIDE])["models"]} if len(method.models) > 1 else {}),
        **({"streams": {name: _means(found) for name, found in streams.items()}} if len(streams) > 1 else {}),
        **_of_method(method, payload),
    }


def entropy_error(sums: Tensors) -> float | None:
    """The standard error of the mean entropy, in nats, to the resolution of its histogram; None below two inputs."""
    counts, edges = sums["score.total"].sum(0), grid.edges("total")
    n = float(counts.sum())
    if n < 2:
        return None
    lower, upper = edges[:-1].clamp_min(0), edges[1:]
    middles = ((lower + upper) / 2).nan_to_num(posinf=float(edges[-2]))
    mean = counts @ middles / n
    return float((counts @ (middles - mean).square() / (n - 1) / n).sqrt())


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
