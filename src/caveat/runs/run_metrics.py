"""Metrics of a run: per stream of test inputs and model, per class, and custom metrics."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..core import ConfigurationError, Method, Payload, Prediction, Silo, SiloId, Tensors
from ..core.errors import short_repr
from ..files import schema
from ..metrics import OperatingPoint
from ..metrics.classification import classification
from ..metrics.custom_metrics import LONGEST, OwnMetric, is_name, number_of
from ..metrics.sums import class_sums
from ..uncertainty import histograms

SWITCH = "switch"
"""The name, among models, of the choice between the local and the global model."""
MIXED = {"mix": (schema.INSIDE, "ood_local")}
"""Streams that are unions of other streams."""
BOTH = ("local", "global")
"""The names of a silo's two models, if it has two."""
STEP, FINE = 10, 0.5
"""Bin widths of log-evidence in nats; the fine one is for a range below 30."""
BySilo = Mapping[SiloId, Mapping[str, Tensors]]
"""The sums of each silo by model; the first model is the silo's prediction."""


def by_model(method: Method, payload: Payload, stream: str = schema.INSIDE) -> dict[str, Tensors]:
    """Return the sums of the silo's predictions, which are first, and of each model if there are two; empty without the
    stream."""
    if stream in MIXED:
        parts = [by_model(method, payload, part) for part in MIXED[stream]]
        return {name: metrics.merge(part[name] for part in parts) for name in parts[0]} if all(parts) else {}
    prefix = "" if stream == schema.INSIDE else f"{stream}."
    if f"{prefix}sums" not in payload:
        return {}
    others = {name: payload[prefix + name] for name in BOTH if prefix + name in payload}
    # With two models, the global one is first; the local one may be missing until the last round.
    return {SWITCH if others else method.models[0].name.lower(): payload[f"{prefix}sums"], **others}


def summarize_streams(method: Method, payloads: Mapping[SiloId, Payload]) -> dict[str, schema.Stream]:
    """Return, per stream that some silo has, metrics of every model over silos, decisions, how well scores separate it
    from known inputs, and the gain of choosing between two models, compared with the best possible choice."""
    names = dict.fromkeys((schema.INSIDE, "ood_local", *MIXED, "ood_global"))
    found = {name: {silo: by_model(method, p, name) for silo, p in payloads.items()} for name in names}
    found = {name: _alike({silo: sums for silo, sums in each.items() if sums}) for name, each in found.items()}
    made = {name: _stream(name, each, found[schema.INSIDE], payloads) for name, each in found.items() if each}
    if len(made) > 1:
        for name in made.keys() - MIXED.keys():
            first, sums = next(iter(made[name].models)), [next(iter(own.values())) for own in found[name].values()]
            record = made[name].models[first].model_copy(update={"uncertainty": _uncertainty(metrics.merge(sums))})
            made[name] = made[name].model_copy(update={"models": made[name].models | {first: record}})
    return made


def _alike(each: Mapping[SiloId, dict[str, Tensors]]) -> dict[SiloId, dict[str, Tensors]]:
    """Complete the sums if only some silos choose between two models: a silo with a single model always uses it."""
    if not any(SWITCH in sums for sums in each.values()):
        return dict(each)
    return {silo: own if SWITCH in own else {SWITCH: next(iter(own.values())), **own} for silo, own in each.items()}


def _models(each: BySilo) -> list[str]:
    return list(dict.fromkeys(model for sums in each.values() for model in sums))


def _stream(name: str, each: BySilo, inside: BySilo, payloads: Mapping[SiloId, Payload]) -> schema.Stream:
    decided = metrics.merge(next(iter(found.values())) for found in each.values())
    # A silo that was absent when others trained local models has only the global one.
    names = set(_models(each))
    compared = {silo: sums for silo, sums in each.items() if names <= sums.keys()} or each
    return schema.Stream(
        silos=len(each),
        examples=int(decided["examples"]),
        models={model: _model(model, compared, each) for model in _models(each)},
        decisions=metrics.decisions(decided),
        quadrants={
            f"{whose}_{what}": int(decided["quadrants"][i, j])
            for i, whose in enumerate(("global", "local"))
            for j, what in enumerate(("sure", "unsure"))
        },
        oracle=_oracle(name, compared, payloads),
        outside=_outside(each, inside) if name.startswith("ood") else {},
    )


def mean_of_silos(method: Method, payloads: Mapping[SiloId, Payload]) -> schema.Metrics:
    """Return the mean over all silos of their metrics on their test splits, for any models that they have."""
    predicted = [next(iter(by_model(method, payload).values())) for payload in payloads.values()]
    return schema.Metrics.model_validate(_over_silos(predicted)["mean"])


def _over_silos(sums: Iterable[Tensors]) -> dict[str, dict[str, float]]:
    return metrics.across({str(i): metrics.figures(s) | metrics.errors(s) for i, s in enumerate(sums)})


def _model(name: str, compared: BySilo, each: BySilo) -> schema.ModelRecord:
    """Return one model's metrics over the compared silos, and pooled over the inputs of all silos with that model."""
    sums = [found[name] for found in compared.values() if name in found]
    over, pooled = _over_silos(sums), metrics.merge(found[name] for found in each.values() if name in found)
    return schema.ModelRecord(
        mean=schema.Metrics.model_validate(over["mean"]),
        worst=schema.Metrics.model_validate(over["worst"]),
        silos=len(sums),
        pooled=schema.Metrics.model_validate(metrics.figures(pooled) | metrics.errors(pooled)),
        log_evidence=_coarse(pooled["score.log_evidence"]) if "score.log_evidence" in pooled else None,
    )


def _coarse(histogram: Tensor) -> schema.Histogram:
    """Return a histogram of log-evidence, in steps of some nats."""
    edges = histograms.measured_edges("log_evidence")
    middle = -(edges[:-1] + edges[1:]) / 2
    found = [(value, count) for value, count in zip(middle.tolist(), histogram.sum(0).tolist(), strict=True)
             if count and abs(value) < math.inf]  # fmt: skip
    values = [value for value, _ in found] or [0.0]
    step = FINE if max(values) - min(values) < 3 * STEP else STEP
    counts: dict[float, float] = {}
    for value, count in found:
        start = float(step * math.floor(value / step))
        counts[start] = counts.get(start, 0.0) + count
    count = [counts[start] for start in sorted(counts)]
    return schema.Histogram.model_validate({"from": sorted(counts), "count": count, "step": float(step)})


_ENTROPIES = 20
"""Bins of equal width of the entropy of predictions, from 0 to ln C for C classes."""


def _uncertainty(sums: Tensors) -> dict[str, schema.Histogram]:
    """Return the entropy of right and of wrong predictions, as if evenly spread within the bins in which silos count;
    empty for a quantity."""
    if "crps" in sums:
        return {}
    classes = len(sums["class_bin_count"])
    step = math.log(max(classes, 2)) / _ENTROPIES
    edges = histograms.measured_edges("total", classes).clamp(0, _ENTROPIES * step).numpy()
    starts = [i * step for i in range(_ENTROPIES)]
    found = {}
    for kind, counts in zip(("right", "wrong"), sums["score.total"].numpy(), strict=True):
        below = np.interp(starts, edges, np.concatenate([[0.0], counts.cumsum()]))
        count = np.diff(below, append=counts.sum()).tolist()
        found[kind] = schema.Histogram.model_validate({"from": starts, "count": count, "step": step})
    return found


def _outside(each: BySilo, inside: BySilo) -> dict[str, dict[str, schema.SeparationOverSilos]]:
    """Return, per model and score, how well a silo separates the stream's inputs from known ones."""
    found: dict[str, dict[str, schema.SeparationOverSilos]] = {}
    for model in _models(each):
        silos = [silo for silo in each if model in each[silo] and model in inside[silo]]
        known, others = (metrics.merge(part[silo][model] for silo in silos) for part in (inside, each))
        found[model] = {}
        for score in (name.removeprefix("score.") for name in others if name.startswith("score.")):
            over = metrics.across(
                {silo: metrics.ood_detection(inside[silo][model], each[silo][model], score) for silo in silos}
            )
            pooled = schema.Separation.model_validate(metrics.ood_detection(known, others, score))
            worst = schema.Separation.model_validate(over["worst"])
            found[model][score] = schema.SeparationOverSilos.model_validate(
                over["mean"] | {"worst": worst, "pooled": pooled}
            )
    return found


def _oracle(stream: str, each: BySilo, payloads: Mapping[SiloId, Payload]) -> schema.Metrics | None:
    """Return the accuracy of the best choice between two models; None if no silo has two."""
    groups = ["choice" if part == schema.INSIDE else f"{part}.choice" for part in MIXED.get(stream, (stream,))]
    two = {silo for silo in each if all(group in payloads[silo] for group in groups)}
    if not two or any("crps" in next(iter(sums.values())) for sums in each.values()):
        return None  # a quantity has no right answers
    best = []
    for silo, sums in each.items():
        if silo in two:
            right = torch.stack([payloads[silo][group]["right"] for group in groups]).sum(0)
            best.append(1 - float(right[0, 0].sum() / right.sum()))
        else:
            only = next(iter(sums.values()))
            best.append(float(only["correct"] / only["examples"]))
    return schema.Metrics(accuracy=sum(best) / len(best))


GROUP = "classes"
"""The group of `class_sums` in a silo's measurements on its test split."""
MOST_CLASSES = 20
"""Maximum number of classes for storing each silo's confusion matrix; the pooled one is always stored."""


@dataclass(frozen=True)
class Classification:
    """Classification metrics of the federation's silos and of newcomers, which are not part of pooled sums."""

    payloads: Mapping[SiloId, Payload]
    newcomers: Mapping[SiloId, Payload]
    positive: int
    """Index of the positive class of two."""
    name: str
    """Name of the positive class."""
    sensitivity: float | None
    """Target sensitivity of thresholds; None for Youden's J."""

    def figures(self, silo: SiloId) -> dict[str, float]:
        """Return the metrics of a silo; empty if the silo sent no sums for them."""
        return metrics.classification(self.sums[silo], self.positive) if silo in self.sums else {}

    @property
    def over_silos(self) -> dict[str, dict[str, float]]:
        """The "mean" and "worst" of the federation's silos."""
        return metrics.across({silo: self.figures(silo) for silo in self.payloads})

    @cached_property
    def pooled(self) -> dict[str, float]:
        return metrics.classification(self._merged, self.positive) if self._merged else {}

    def of_silo(self, silo: SiloId) -> schema.ClassificationRecord | None:
        """Return a silo's record without the metrics."""
        if silo not in self.sums:
            return None
        own = self.sums[silo]
        few = len(own["confusion"]) <= MOST_CLASSES
        return schema.ClassificationRecord(
            confusion=own["confusion"].int().tolist() if few else None,
            operating=self._operating(own, self._point(silo), "federation" if self._own(silo) is None else "silo"),
        )

    @property
    def of_all(self) -> schema.ClassificationRecord | None:
        """The record of all silos' inputs together, each classified at its silo's threshold."""
        if not self._merged:
            return None
        two = len(self._merged["confusion"]) == 2
        target = f"sensitivity {self.sensitivity:g}" if self.sensitivity is not None else "Youden's J"
        return schema.ClassificationRecord(
            positive=self.name if two else "",
            rule=target if two else "",
            confusion=self._merged["confusion"].int().tolist(),
            operating=self._operating(self._merged, self._federation, "federation"),
        )

    @cached_property
    def sums(self) -> dict[SiloId, Tensors]:
        """The sums of each silo, including those at its threshold, if any."""
        every = {**self.payloads, **self.newcomers}
        return {silo: self._with_called(silo, payload[GROUP]) for silo, payload in every.items() if GROUP in payload}

    def _with_called(self, silo: SiloId, sums: Tensors) -> Tensors:
        known = {name: sums[name] for name in ("confusion", "ranks")}
        if (point := self._point(silo)) is None:
            return known
        return known | metrics.called(point, *metrics.by_class(sums, self.positive)[0])

    @cached_property
    def _merged(self) -> Tensors:
        parts = [self.sums[silo] for silo in self.payloads if silo in self.sums]
        return metrics.merge(parts) if parts else {}

    def _point(self, silo: SiloId) -> OperatingPoint | None:
        """Return a silo's threshold, or else the federation's."""
        return self._own(silo) or self._federation

    def _own(self, silo: SiloId) -> OperatingPoint | None:
        """Return a silo's threshold, or None if it has too few calibration inputs of a class."""
        payload = self.payloads[silo] if silo in self.payloads else self.newcomers[silo]
        found = self._chosen([payload])
        return found if found is not None and found.enough else None

    @cached_property
    def _federation(self) -> OperatingPoint | None:
        return self._chosen(list(self.payloads.values()))

    def _chosen(self, payloads: list[Payload]) -> OperatingPoint | None:
        """Return the threshold from the calibration inputs of these silos together."""
        parts = [{"ranks": p[GROUP]["calibration"][None]} for p in payloads if "calibration" in p.get(GROUP, {})]
        if not parts:
            return None
        (pair,) = metrics.by_class(metrics.merge(parts), self.positive)
        return metrics.operating_point(*pair, self.sensitivity)

    @staticmethod
    def _operating(sums: Tensors, point: OperatingPoint | None, whose: str) -> schema.OperatingRecord | None:
        if point is None or "called" not in sums:
            return None
        (right_no, false_yes), (false_no, right_yes) = sums["called"].int().tolist()
        return schema.OperatingRecord(
            threshold=point.threshold, whose=whose, positives=point.positives, negatives=point.negatives,
            true_positives=right_yes, false_negatives=false_no, false_positives=false_yes, true_negatives=right_no,
        )  # fmt: skip


Metric = Callable[[Prediction, Tensor], float]
"""A function from a prediction of N inputs and their labels or quantities (N,) to a number."""
OWN = "own"
"""The group of custom metrics in a silo's measurements on its test split."""


def own_records(metrics: Iterable[OwnMetric], test: Mapping[SiloId, Payload]) -> dict[str, schema.OwnMetricRecord]:
    """Return custom metrics by name over the silos where they are defined, with equal weights."""
    found = {}
    for own in metrics:
        values = [float(sums[own.name]) for payload in test.values() if own.name in (sums := payload.get(OWN, {}))]
        ends = {} if not values else {
            "mean": math.fsum(values) / len(values), "worst": (min if own.higher_is_better else max)(values)
        }  # fmt: skip
        found[own.name] = schema.OwnMetricRecord(higher_is_better=own.higher_is_better, silos=len(values), **ends)
    return found


def own_of_silo(payload: Payload) -> dict[str, schema.Figure]:
    """Return the custom metrics of a silo's test split by name."""
    return {name: float(value) for name, value in payload.get(OWN, {}).items()}


def own_figures(
    metrics: Mapping[str, Metric], silos: Iterable[Silo], predictor: Callable[[SiloId], Callable[..., Prediction]]
) -> dict[str, Any]:
    """Return "silos": custom metrics of test splits by silo and name; and "mean": their means over silos by name.
    Raises ConfigurationError for invalid names and functions, and for results that are not finite numbers."""
    _check(metrics)
    found: dict[SiloId, dict[str, float]] = {}
    for silo in silos:
        prediction = predictor(silo.name)(silo.test.x, silo.subgroups.get("test"))
        found[silo.name] = {
            name: _number(metric(prediction, silo.values.get("test", silo.test.y)), name, silo.name)
            for name, metric in metrics.items()
        }
    means = {name: math.fsum(each[name] for each in found.values()) / len(found) for name in metrics}
    return {"silos": found, "mean": means}


def _check(metrics: object) -> None:
    if not isinstance(metrics, Mapping) or not metrics:
        raise ConfigurationError(
            f"metrics = {short_repr(metrics)}: expected a mapping from names to functions", "metrics"
        )
    for name, metric in metrics.items():
        if not is_name(name):
            raise ConfigurationError(
                f"metrics: name {short_repr(name)}, expected text of 1 to {LONGEST} characters", "metrics"
            )
        if not callable(metric):
            raise ConfigurationError(
                f"metrics[{name!r}] has type {type(metric).__name__}, expected a function of a Prediction and labels",
                "metrics",
            )


def _number(value: Any, name: str, silo: SiloId) -> float:
    number = number_of(value, f"metrics[{name!r}]", "metrics", f" at silo {silo!r}")
    if not math.isfinite(number):
        raise ConfigurationError(
            f"metrics[{name!r}] returned {number} at silo {silo!r}, expected a finite number", "metrics"
        )
    return number


def evaluated(prediction: Prediction, y: Tensor, positive: int = 1) -> dict[str, Any]:
    """Return metrics by name, and "confusion" (C, C), whose rows are labels, unless there are too many classes.
    `positive` is the index of the positive class of two."""
    sums = metrics.measure(prediction, y)
    found: dict[str, Any] = {"examples": len(y), **metrics.figures(sums), **metrics.errors(sums)}
    if prediction.target is not None:
        return found
    if null := metrics.ece_null(sums):
        found["ece_null"] = null
    if classes := class_sums(prediction, y):
        found |= classification(classes, positive)
        found["confusion"] = classes["confusion"].long().tolist()
    return found
