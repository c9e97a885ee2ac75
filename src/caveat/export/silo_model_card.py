"""The card of a silo's model: its description, its metrics and guarantees, and information that caveat cannot know.

`contents` is the card as JSON; `card_text` renders it as Markdown with the metadata of Hugging Face.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._version import __version__
from ..core import ConfigurationError, SiloId
from ..core.errors import one_of
from ..core.quantity import Quantity
from ..core.text import percent, plain, without_folders
from ..files import RunFolder, read_run, sum_of
from ..files.schema import SiloRecord, Summary
from ..html.run.classification import ALONE, Judged, judged, judged_together
from ..html.run.guarantee import alone
from ..html.run.quantity_silos import is_time
from ..runs.finished_run import Run
from ..runs.initial_model import MODEL
from ..uncertainty.statistical_tests import wilson
from .exported_function import RawInputs, outputs
from .exported_metadata import DECISIONS, FIGURES, figure_text, measured, promises, recorded, task
from .exported_model_card import LIMITS, described_inputs

STATED = {
    "developer": "who is responsible for the model", "contact": "where to report a problem", "license": "licence",
    "intended_use": "what the model is for", "users": "who may use it", "population": "for whom it was made",
    "out_of_scope": "what it is not for", "risk": "risk level, and what a wrong answer costs",
    "oversight": "who acts on an abstention", "data_source": "where the data are from, and when",
    "consent": "consent and legal basis", "funding": "funding", "maintenance": "until when it is maintained",
    "stage": "stage of the release", "released": "date of the release", "availability": "where it is available",
    "stakeholders": "who was consulted", "publications": "publications",
}  # fmt: skip
"""Information that caveat cannot know, the keys of card.toml."""
BLANK = "not stated"
NOTICED = (
    "inputs unlike the silo's own (alarms, and `caveat watch` for all inputs together)",
    "answers that are less certain than those to the silo's own inputs",
    "rows with values that the data dictionary does not allow, rows without values, and unseen categories",
    "columns in another unit, in batches of at least five rows",
)
UNNOTICED = (
    "wrong labels, and inputs that look like the silo's own but have another outcome",
    "changes of the relation between inputs and outcomes, unless outcomes come back (`caveat watch --target`)",
    "whether an abstention is acted on",
)


def stated(path: Path | None) -> dict[str, str]:
    """Return the entries of a card.toml by key, "not stated" for missing and blank ones. Raises ConfigurationError for
    an unreadable file and for unknown keys."""
    given: Mapping[str, Any] = {}
    if path is not None:
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"--card {path}: {error}") from None
    for name, value in given.items():
        if name not in STATED:
            raise ConfigurationError(f"--card {path}: {name!r}: no such key{one_of(name, list(STATED))}")
        if not isinstance(value, str):
            raise ConfigurationError(f"--card {path}: {name} = {value!r}, expected a text")
    return {name: str(given.get(name, "")).strip() or BLANK for name in STATED}


def contents(run: Run, silo: SiloId, card: Path | None = None) -> dict[str, Any]:
    """Return the card as JSON values. Raises ConfigurationError for an unknown silo, and what `stated` raises."""
    names = run.preparation.names
    if silo not in names:
        raise ConfigurationError(f"--silo {silo}: no such silo{one_of(silo, names)}")
    folder, raw, target = read_run(run.folder), RawInputs(run.preparation, silo), run.preparation.target
    summary, record = recorded(run.experiment, silo)
    record = record or SiloRecord(name=silo)
    figures = _figures(folder, silo) if target is None else _errors(folder, silo, target)
    trial = run.experiment.predictor(silo)(raw.prepared(raw.batch(1)))
    sizes = {part: getattr(record, f"n_{part}") for part in ("train", "validation", "calibration", "test")}
    return {
        "model": {
            "method": summary.method, "silo": silo, "caveat": __version__,
            **({"classes": list(run.preparation.classes)} if target is None else
               {"predicts": target.predicts, "target": target.name}),
            "task": task(raw), "sha256": str(sum_of(run.folder / MODEL).sha256),
            "run_sha256": str(sum_of(run.folder / "summary.json").sha256),
        },
        "stated": stated(card),
        "data": {
            "source": without_folders(folder.source or "in memory"), "silos": len(names),
            "rows": {part: n for part, n in sizes.items() if n is not None},
            "training_rows_by_class": {} if target is not None else
            dict(zip(run.preparation.classes, record.class_counts or [], strict=False)),
            "inputs": list(described_inputs(raw)),
        },
        "training": {
            "rounds": summary.rounds_run, "seed": summary.seed, "model": dict(folder.section("model")),
            "settings": dict(folder.section("training")), "uncertainty": dict(folder.section("uncertainty")),
        },
        "figures": {**figures, "other": {FIGURES[k]: v for k, v in measured(record).items() if FIGURES[k] not in figures
                                         and not k.startswith("reference")}},
        "groups": list(_groups(summary)),
        "promises": list(promises(run.experiment, silo, tuple(outputs(trial)), exported=False)),
        "warnings": [each.sentences for each in summary.warnings
                     if silo in (each.silos or [silo]) and not each.of_data],  # which name values of silos
        "noticed": list(NOTICED), "not_noticed": list(UNNOTICED),
        "privacy": None if summary.privacy is None else {
            "epsilon": summary.privacy.epsilon, "delta": summary.privacy.delta,
            "clip_norm": summary.privacy.clip_norm, "noise_multiplier": summary.privacy.noise_multiplier,
            "covers": summary.privacy.covers, "not_covered": summary.privacy.not_covered,
        },
        "limits": LIMITS,
    }  # fmt: skip


def _errors(folder: RunFolder, silo: SiloId, target: Quantity) -> dict[str, Any]:
    """Return the errors of a quantity or a time, beside those without inputs, of training alone and of all silos, and
    the coverage of intervals."""
    record = next((each for each in folder.summary.silos if each.name == silo), None) if folder.summary else None
    if record is None:
        return {}
    test, n, local = record.test, record.n_test or 0, folder.baselines.get(ALONE)
    alone = next((each.test for each in local.silos if each.name == silo), None) if local is not None else None
    found: dict[str, Any] = {}
    for name in ("c_index", "integrated_brier") if is_time(folder) else ("mae", "crps"):
        label, known = FIGURES[name], f"reference_{name}"
        found[label] = _single(getattr(test, name), n)
        if known in FIGURES:
            without = figure_text(known, target).partition(" of ")[2]
            found[f"{label}, without inputs ({without})"] = _single(getattr(test, known), n)
        found[f"{label}, training alone"] = None if alone is None else _single(getattr(alone, name), n)
        found[f"{label}, mean over silos"] = _single(getattr(folder.mean, name))
    if (covered := test.interval_coverage) is not None:
        found[FIGURES["interval_coverage"]] = _share(round(covered * n), n)
    found[FIGURES["interval_width"]] = _single(test.interval_width, n)
    return {name: each for name, each in found.items() if each is not None}


def _single(value: float | None, count: int = 0) -> dict[str, Any] | None:
    """Return a figure that is no share and has no interval."""
    return None if value is None else {"value": value, "of": count or None, "share": False}


def _figures(folder: RunFolder, silo: SiloId) -> dict[str, Any]:
    """Return accuracies with their intervals, next to the majority class, training alone and all silos."""
    own, local = _judged(folder, silo), folder.baselines.get(ALONE)
    found = {"accuracy": _ranged(own), "training alone": None if local is None else _ranged(_judged(local, silo))}
    majority = None if own is None or own.majority is None else own.majority
    found["majority class"] = None if majority is None else {"value": majority.share, "of": majority.inputs}
    for name in ("auroc", "sensitivity", "specificity"):
        found[name] = _ranged(own, name)
    found["accuracy at all silos"] = _ranged(judged_together(folder))
    return {name: value for name, value in found.items() if value is not None}


def _judged(folder: RunFolder, silo: SiloId) -> Judged | None:
    pairs = zip(folder.silos, judged(folder), strict=True)
    return next((each for known, each in pairs if known.name == silo), None)


def _ranged(of: Judged | None, name: str = "accuracy") -> dict[str, Any] | None:
    found = None if of is None else getattr(of, name)
    if found is None:
        return None
    return {"value": found.value, "of": found.of or (of.inputs if of else 0), "interval_95": found.interval}


def _groups(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield the figures of each group of people (`data.subgroups`), over the test inputs of all silos."""
    for each in summary.subgroups:
        if each.accuracy is None:
            errors = {
                FIGURES[k]: _single(getattr(each, k), each.examples) for k in ("mae", "c_index", "integrated_brier")
            }
            if each.interval_coverage is not None:
                covered = round(each.interval_coverage * each.examples)
                errors[FIGURES["interval_coverage"]] = _share(covered, each.examples)
            yield {"group": each.name, **{name: value for name, value in errors.items() if value is not None}}
            continue
        kept, right = alone(each, each.examples), round(each.accuracy * each.examples)
        found = {"group": each.name, "accuracy": _share(right, each.examples)}
        if kept is not None and each.coverage is not None:
            found["answered"] = _share(kept.answered, each.examples)
            found["accuracy of answers"] = _share(kept.answered - kept.wrong, kept.answered)
        yield {name: value for name, value in found.items() if value is not None}


def _share(hits: int, count: int) -> dict[str, Any] | None:
    return {"value": hits / count, "of": count, "interval_95": wilson(hits, count)} if count else None


def title(model: Mapping[str, Any]) -> str:
    return f"{model['method']} at silo {plain(model['silo'])}"


def card_text(found: Mapping[str, Any]) -> str:
    """Return the card as Markdown."""
    model, said = found["model"], found["stated"]
    parts = [
        "\n".join(_head(found, title(model))), f"# {title(model)}",
        "## Use\n\n" + _list({STATED[name]: text for name, text in said.items()}),
        "## Data\n\n" + "\n".join(_data(found["data"])),
        "## Training\n\n" + _list(_flat(found["training"])),
        "## Figures\n\n" + "\n".join(_table(found["figures"])),
        "## Groups of people\n\n" + "\n".join(_group_table(found["groups"])),
        "## Guarantees\n\n" + _items(found["promises"]),
        "## What is noticed\n\n" + _items(found["noticed"]),
        "## What is not noticed\n\n" + _items(found["not_noticed"]),
        "## Warnings\n\n" + (_items(found["warnings"]) or "None."),
        "## Privacy\n\n" + (_list(_flat(found["privacy"] or {})) or "No noise was added: epsilon is infinite."),
        "## Decisions\n\n" + _items(DECISIONS.values()),
        "## Limits\n\n" + found["limits"],
        "## Hashes\n\n" + _list({name: model[name] for name in ("sha256", "run_sha256")}),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _head(found: Mapping[str, Any], title: str) -> Iterator[str]:
    licence = found["stated"]["license"]
    yield from ("---", "library_name: caveat", f"pipeline_tag: {found['model']['task']}")
    yield "tags: [caveat, federated-learning, uncertainty-quantification, selective-prediction]"
    if licence != BLANK:
        known = re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence)  # the form of the identifiers of Hugging Face
        yield f"license: {json.dumps(licence if known else 'other')}"
        yield from () if known else (f"license_name: {json.dumps(licence)}",)
    names = {"accuracy": "accuracy", "mae": FIGURES["mae"], "c_index": FIGURES["c_index"]}
    metric = next((name for name, label in names.items() if label in found["figures"]), None)
    if metric is not None:
        task = found["model"]["task"]
        yield from ("model-index:", f"- name: {json.dumps(title)}", "  results:", "  - task:", f"      type: {task}")
        yield from ("    dataset:", f"      name: {json.dumps('test split of silo ' + found['model']['silo'])}")
        yield from ("      type: private", "    metrics:", f"    - type: {metric}")
        yield f"      value: {found['figures'][names[metric]]['value']:.6g}"
    yield "---"


def _data(data: Mapping[str, Any]) -> Iterator[str]:
    rows = ", ".join(f"{n:,} {part}" for part, n in data["rows"].items())
    yield f"Source `{plain(str(data['source']))}`; {data['silos']} silos. Rows of this silo: {rows or 'not known'}."
    if counts := data["training_rows_by_class"]:
        yield "\nTraining rows by class: " + ", ".join(f"{plain(k)} {n:,}" for k, n in counts.items()) + "."
    yield from ("\nInputs:\n", *data["inputs"])


def _table(figures: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| on the silo's test split | value | 95 % interval | inputs |", "| --- | ---: | --- | ---: |")
    for name, each in figures.items():
        if name != "other":
            yield _row(name, each)
    for name, value in figures["other"].items():
        yield f"| {name} | {value:.4g} | | |"


def _group_table(groups: Any) -> Iterator[str]:
    if not groups:
        yield f"{BLANK}: the run declares no groups (`data.subgroups`)."
        return
    yield from ("| on the test inputs of all silos | value | 95 % interval | inputs |", "| --- | ---: | --- | ---: |")
    for group in groups:
        for name, each in group.items():
            if name != "group":
                yield _row(f"{plain(group['group'])}: {name}", each)


def _row(name: str, found: Mapping[str, Any]) -> str:
    low_high = found.get("interval_95")
    interval = f"{percent(low_high[0])} to {percent(low_high[1])}" if low_high else ""
    value = percent(found["value"]) if found.get("share", True) else f"{found['value']:.4g}"
    return f"| {name} | {value} | {interval} | {found['of'] or ''} |"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _list(values: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {plain(str(value), 2000)}" for name, value in values.items() if value is not None)


def _items(texts: Any) -> str:
    return "\n".join(f"- {each}" for each in texts)
