"""Results of a run: rows of `rounds.jsonl` for each round, and `summary.json` at the end."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .. import metrics
from .._version import __version__
from ..core import ConfigurationError, Method, Payload, Replies, SiloId, State, Tensors
from ..core.aggregation import size
from ..core.devices import device_model, versions
from ..core.errors import short_repr
from ..core.silo import TOGETHER, FederationInfo, SiloInfo, positive_class
from ..engines.rounds import FinishedRound
from ..engines.secure_sums import unsecured
from ..files import schema
from ..uncertainty import histograms
from .base import BaseRun
from .run_metrics import Classification, by_model, mean_of_silos, own_of_silo, own_records, summarize_streams


def check_vectorized(folder: Path, mode: str, kept: str) -> None:
    """Raise ConfigurationError if the checkpoint has another mode, because rounding differs between modes."""
    if mode != kept:
        raise ConfigurationError(
            f"{folder}: engine.vectorized = {mode!r}, but the run started with {kept!r}; use {kept!r}, or start a "
            "new run",
            "engine.vectorized",
        )


def training_tasks(
    decided: Mapping[str, schema.VectorizedRecord], method: Method
) -> dict[str, schema.VectorizedRecord]:
    """Return the decisions on batching for tasks that train or were batched, by name and stored groups of silos."""
    training = {step.name for step in method.schedule() if step.trains}
    found = {}
    for address, record in decided.items():
        path, space, groups = address.partition(" ")
        name = path.rpartition(".")[2]
        if record.vectorized or name in training:
            found[name + space + groups] = record
    return found


def not_batched(tasks: Mapping[str, schema.VectorizedRecord]) -> list[str]:
    """Return a note for each task that should have been batched but was not."""
    return [
        f"{name}: {'some ' if record.vectorized else ''}silos were trained one after the other: {record.why}"
        for name, record in tasks.items()
        if record.why
    ]


MEANS = ("accuracy", "nll", "brier", "ece", "entropy", "aleatoric", "epistemic", "mae", "rmse", "crps", "c_index")
"""The metrics of a domain."""
FREE = {
    "policy",
    "source",
    "guarantee",
    "sets",
    "intervals",
    "alarms",
    "temperature",
    "temperature_spread",
    "class_bias",
}
"""Entries of a summary that methods and their wrappers provide."""
FREE_OF_SILOS = {"codewords", "perplexity", "codeword_use", "promise"}
"""Entries of a silo that methods and their wrappers provide."""


def count(run_state: schema.RunState, done: FinishedRound, phase: str) -> None:
    """Add a round's traffic to the run's state."""
    up = done.replies.sent
    down = size(done.sent) * len(done.cohort)
    run_state.last = done.t
    run_state.traffic.append(
        schema.RoundTraffic(round=done.number, phase=phase, silos=len(done.cohort), up=up, down=down)
    )


def measured_in(replies: Replies) -> dict[SiloId, Payload]:
    """Return the measurements of each silo, or of `TOGETHER` if only their sum is known."""
    if replies.totals is not None:
        return {TOGETHER: replies.totals}
    return {silo: update.payload for silo, update in replies.updates.items()}


def infos_of(info: FederationInfo, silos: Iterable[SiloId], payloads: Mapping[SiloId, Payload]) -> list[SiloInfo]:
    """Return the metadata of `silos`, or of all of them together if only a sum is known."""
    infos = [info.silo_infos[name] for name in silos]
    return [SiloInfo.of_sum(infos)] if TOGETHER in payloads else infos


def rows(method: Method, silo: SiloInfo, payload: Payload, about: Mapping[str, Any]) -> list[schema.RoundRow]:
    """Return a silo's rows of rounds.jsonl: for its predictions and, if there are two models, for each of them. `about`
    has the round, phase and split."""
    extra = _of_method(method, payload)
    extra.pop("codeword_use", None)  # large, and already in the summary
    found = list[schema.RoundRow]()
    for name, sums in by_model(method, payload).items():
        of = {"silo": silo.name, "domain": silo.domain, "model": name, "examples": int(sums["examples"])}
        found.append(
            schema.RoundRow.model_validate({**about, **of, **metrics.figures(sums), **({} if found else extra)})
        )
    return found


def summarize(
    run: BaseRun,
    run_state: schema.RunState,
    tested: Replies,
    server: State,
    privacy: schema.PrivacyRecord | None,
    newcomers: Mapping[SiloId, Payload],
) -> schema.Summary:
    """Return the summary: metrics on the test split after the last round, of the silos that replied. Newcomers, which
    did not take part, have marked entries and are excluded from all other metrics."""
    method, test = run.complete_method, measured_in(tested)
    outcome = check_outcome(method, method.outcome(server))
    personal = {silo: own.name for silo, own in run.personal_settings.items() if "local" in test.get(silo, {})}
    positive = positive_class(run.info.positive, run.info.classes)
    classes = Classification(
        test, newcomers, positive, run.info.classes[positive], run.spec.evaluation.target_sensitivity
    )
    silos = [
        _with_classes(classes, silo_record(method, info, test[info.name])).model_copy(
            update={"model": personal[info.name]} if info.name in personal else {}
        )
        for info in infos_of(run.info, [name for name in run.measured if name in tested.updates], test)
    ]
    streams = summarize_streams(method, test)
    inside = streams[schema.INSIDE] = _stream_with_classes(classes, streams[schema.INSIDE])
    pooled = metrics.merge(payload["sums"] for payload in test.values())
    return schema.Summary(
        schema=schema.SCHEMA,
        version=__version__,
        method=method.name,
        policy=schema.Policy.model_validate(
            outcome.pop("policy", {"name": run.spec.uncertainty.policy or method.policy})
        ),
        seed=run.spec.seed,
        rounds_run=run_state.number,
        stopped=run_state.stopped,
        complete=True,
        classes=list(run.info.classes),
        target=None if run.info.target is None else schema.QuantityRecord.model_validate(asdict(run.info.target)),
        silos=[*silos, *_newcomers(run, newcomers, classes)],
        absent=[name for name in run.measured if name not in tested.updates],
        domains=_domains(silos),
        mean=_with(mean_of_silos(method, test), classes.over_silos["mean"]),
        worst=None if TOGETHER in test else _worst(silos),
        secure=_secure(method, tested),
        metrics=own_records(run.spec.known_metrics, test),
        pooled=schema.Metrics.model_validate(
            metrics.figures(pooled) | metrics.errors(pooled) | _null(pooled) | classes.pooled
        ),
        subgroups=_subgroups(test, run.info.subgroups),
        risk_coverage=None
        if run.info.target
        else schema.Selective.model_validate(metrics.risk_coverage(pooled, "total", len(run.info.classes))),
        classification=classes.of_all,
        models=inside.models | ({"oracle": schema.ModelRecord(mean=inside.oracle)} if inside.oracle else {}),
        decisions=inside.decisions,
        quadrants=inside.quadrants,
        streams=streams if len(streams) > 1 else {},
        privacy=privacy,
        **outcome,
        milestones=run_state.milestones,
        traffic=schema.Traffic(
            bytes_up=sum(entry.up for entry in run_state.traffic),
            bytes_down=sum(entry.down for entry in run_state.traffic),
            per_round=run_state.traffic,
        ),
        seconds=run_state.seconds,
        device=_device(run.devices),
        newcomers=_newcomers_mean(method, newcomers, classes),
        reset=run_state.reset,
        rollbacks=run_state.rollbacks,
        largest=run_state.largest,
        vectorized=training_tasks(run_state.vectorized, method),
    )


def _secure(method: Method, tested: Replies) -> schema.SecureRecord | None:
    """Return the record of secure aggregation; None without secure aggregation."""
    if tested.totals is None:
        return None
    names = dict.fromkeys(step.name for step in method.schedule())
    single = unsecured(method)
    return schema.SecureRecord(
        silos=list(tested.updates), sums=[name for name in names if name not in single], single=list(single)
    )


def _subgroups(test: Mapping[SiloId, Payload], names: Sequence[str]) -> list[schema.SubgroupRecord]:
    """Return the metrics by subgroup of the silos' test inputs together."""
    parts = [payload["subgroups"] for payload in test.values() if "subgroups" in payload]
    if not parts or not names:
        return []
    found = metrics.subgroup_figures(metrics.merge(parts), names)
    return [schema.SubgroupRecord.model_validate({"name": name, **values}) for name, values in found.items()]


def _device(devices: Sequence[torch.device]) -> schema.DeviceRecord | None:
    """Return the record of devices; None for the CPU, whose results depend on the recorded libraries."""
    if devices[0].type == "cpu":
        return None
    return schema.DeviceRecord(
        names=list(map(str, devices)), kind=device_model(devices[0]), versions=versions(devices[0])
    )


def _with_classes(classes: Classification, silo: schema.SiloRecord) -> schema.SiloRecord:
    """Add classification metrics to a silo's record."""
    figures = _with(silo.test, classes.figures(silo.name))
    return silo.model_copy(update={"test": figures, "classification": classes.of_silo(silo.name)})


def _stream_with_classes(classes: Classification, inside: schema.Stream) -> schema.Stream:
    """Add classification metrics over silos to the stream of test inputs."""
    (name, chosen), over = next(iter(inside.models.items())), classes.over_silos
    if chosen.silos != inside.silos:  # models are compared over only some silos
        over = {"mean": {}, "worst": {}}
    record = chosen.model_copy(
        update={
            "mean": _with(chosen.mean, over["mean"]),
            "worst": _with(chosen.worst, over["worst"]),
            "pooled": _with(chosen.pooled, classes.pooled),
        }
    )
    return inside.model_copy(update={"models": inside.models | {name: record}})


def _with(found: schema.Metrics, more: Mapping[str, float]) -> schema.Metrics:
    return schema.Metrics.model_validate({**schema.as_json(found), **more})


def _newcomers(run: BaseRun, payloads: Mapping[SiloId, Payload], classes: Classification) -> list[schema.SiloRecord]:
    """Return the records of newcomers, marked as such."""
    found = (silo_record(run.complete_method, run.info.silo_infos[name], payload) for name, payload in payloads.items())
    return [_with_classes(classes, record).model_copy(update={"newcomer": True}) for record in found]


def _newcomers_mean(
    method: Method, payloads: Mapping[SiloId, Payload], classes: Classification
) -> schema.Newcomers | None:
    if not payloads:
        return None
    mean = summarize_streams(method, payloads)[schema.INSIDE].chosen.mean
    more = metrics.across({silo: classes.figures(silo) for silo in payloads})["mean"]
    return schema.Newcomers(mean=_with(mean, more))


def _null(sums: Tensors) -> dict[str, Any]:
    """Return the ECE that a calibrated model would have; empty for a quantity, which has no ECE."""
    return {} if "crps" in sums else {"ece_null": metrics.ece_null(sums) or None}


def _worst(silos: Sequence[schema.SiloRecord]) -> schema.Worst | None:
    """Return the silo with the lowest accuracy, the first by name if several; None for a quantity."""
    known = [(silo.test.accuracy, silo.name) for silo in silos if silo.test.accuracy is not None]
    if not known:
        return None
    accuracy, name = min(known)
    return schema.Worst(silo=name, accuracy=accuracy)


def silo_record(method: Method, silo: SiloInfo, payload: Payload) -> schema.SiloRecord:
    """Return the record of a silo, from its measurements on its test split."""
    sums = payload["sums"]
    streams = summarize_streams(method, {silo.name: payload})
    return schema.SiloRecord(
        name=silo.name,
        domain=silo.domain,
        n_train=silo.examples["train"],
        n_validation=silo.examples["validation"],
        n_calibration=silo.examples["calibration"],
        n_test=silo.examples["test"],
        class_counts=list(silo.class_counts),
        dropped=dict(silo.dropped),
        test=schema.Metrics.model_validate({**metrics.figures(sums), **_null(sums), **metrics.errors(sums)}),
        entropy_error=entropy_error(sums),
        metrics=own_of_silo(payload),
        pit=sums["pit"].tolist() if "pit" in sums else [],
        reliability=None if "crps" in sums else schema.Reliability.model_validate(metrics.reliability(sums)),
        decisions=metrics.decisions(sums),
        models=_means(streams[schema.INSIDE]).models if len(method.models) > 1 else {},
        streams={name: _means(found) for name, found in streams.items()} if len(streams) > 1 else {},
        **_of_method(method, payload),
    )


def entropy_error(sums: Tensors) -> float | None:
    """Return the standard error of the mean entropy in nats, from its histogram; None for fewer than two inputs, and
    for a quantity."""
    if "crps" in sums:
        return None
    counts, edges = sums["score.total"].sum(0), histograms.measured_edges("total", len(sums["class_bin_count"]))
    n = float(counts.sum())
    if n < 2:
        return None
    lower, upper = edges[:-1].clamp_min(0), edges[1:]
    middles = ((lower + upper) / 2).nan_to_num(posinf=float(edges[-2]))
    mean = counts @ middles / n
    return float((counts @ (middles - mean).square() / (n - 1) / n).sqrt())


def _means(stream: schema.Stream) -> schema.SiloStream:
    """Return a stream's record for a single silo."""
    means = {name: found.mean for name, found in stream.models.items()}
    return schema.SiloStream.model_validate(schema.as_json(stream) | {"models": means})


def _of_method(method: Method, payload: Payload) -> dict[str, Any]:
    return check_silo_entries(method, method.summarize(payload["method"])) if payload["method"] else {}


def check_outcome(method: Method, found: Mapping[str, object]) -> dict[str, Any]:
    """Check the result of `Method.outcome`. Raises ConfigurationError for a reserved key, or an invalid value."""
    return _entries(f"{method.name}: outcome()", found, {"schema", *schema.Summary.model_fields} - FREE)


def check_silo_entries(method: Method, found: Mapping[str, object]) -> dict[str, Any]:
    """Check the result of `Method.summarize`. Raises ConfigurationError for a reserved key, or an invalid value."""
    taken = schema.SiloRecord.model_fields.keys() | schema.RoundRow.model_fields.keys()
    return _entries(f"{method.name}: summarize()", found, taken - FREE_OF_SILOS)


def _entries(hook: str, found: Mapping[str, object], taken: set[str]) -> dict[str, Any]:
    for key, value in found.items():
        if key in taken:
            raise ConfigurationError(f"{hook} returns {key!r}, a key that every summary has; rename it")
        try:
            json.dumps({key: value})
        except (TypeError, ValueError):
            about = "expected numbers, strings, or lists and dictionaries of them"
            raise ConfigurationError(f"{hook} returns {short_repr(key)} = {short_repr(value)}: {about}") from None
    return dict(found)


def _domains(silos: Sequence[schema.SiloRecord]) -> list[schema.DomainRecord]:
    groups: dict[str, dict[str, dict[str, float]]] = {}
    for silo in silos:
        figures = {name: value for name, value in schema.as_json(silo.test).items() if name in MEANS}
        groups.setdefault(silo.domain, {})[silo.name] = figures
    return [
        schema.DomainRecord.model_validate({"domain": name, "silos": len(group), **metrics.across(group)["mean"]})
        for name, group in groups.items()
    ]
