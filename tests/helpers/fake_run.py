"""Folders as a run leaves them behind, with made-up figures: for tests of what reads them."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from caveat.files import sums_of_folder
from caveat.files.schema import as_json, sealed

SEALED = {"run.json", "summary.json", "failure.json", "federation.json"}
"""Files that say what their content hashes to."""
SILOS, ROUNDS, EXTENSION = 9, 25, 20
DOMAINS = ("rotate(0)", "rotate(-50)", "rotate(120)")
CONFIG = """\
seed = 0
rounds = 25

[data]
source = "digits"

[method]
name = "{method}"
"""


def describe(folder: Path, method: str, **changed: Any) -> None:
    """Write the description of a run, and its configuration."""
    (folder / "config.toml").write_text(CONFIG.format(method=method))
    spec = {"seed": 0, "data": {"source": "digits"}, "method": {"name": method, "rounds": 25}, "baselines": {}}
    spec |= {"model": {}, "personal": []} | changed.pop("spec", {})
    content = {"schema": 1, "spec": spec, "engine": {"name": "single_machine"}, **changed}
    write_json(folder / "run.json", content)


def fake_run(folder: Path, beside: bool = True, method: str = "uefl", shift: float = 0.0, silos: int = SILOS) -> Path:
    """A finished run of silos in 3 domains; the last domain's silos get 32 codewords of their own at round 20."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    codebook = method == "uefl"
    describe(folder, method)
    hard = [silo * len(DOMAINS) // silos for silo in range(silos)]
    rows = [row(i, hard[i], at, random, codebook, shift) for at in range(1, ROUNDS + 1) for i in range(silos)]
    rows += [{**row(i, hard[i], ROUNDS, random, codebook, shift), "split": "test"} for i in range(silos)]
    write_rows(folder, rows)
    write_json(folder / "summary.json", summary(method, hard, random, codebook, shift))
    write_json(folder / "gallery.json", gallery(hard, random))
    write_json(folder / "features.json", features(hard, random, codebook))
    if beside:
        fake_run(folder / "baselines" / "fedavg", beside=False, method="fedavg", shift=0.07, silos=silos)
    return folder


def minimal_run(folder: Path) -> Path:
    """A finished run of a method without codebook, nothing beside it, tabular data."""
    folder.mkdir(parents=True)
    describe(folder, "fedavg")
    measured = {"round": 1, "phase": "train", "split": "validation", "domain": "", "model": "global", "examples": 10}
    write_rows(folder, [{**measured, "silo": name, "accuracy": 0.5, "entropy": 0.6} for name in ("a", "b")])
    silos = [{"name": name, "domain": "", "n_train": 40, "n_test": 10, "test": {"accuracy": 0.75}} for name in "ab"]
    content = {"schema": 1, "method": "fedavg", "rounds_run": 1, "complete": True, "silos": silos}
    write_json(
        folder / "summary.json", {**content, "mean": {"accuracy": 0.75}, "worst": {"silo": "a", "accuracy": 0.75}}
    )
    item = {"label": 1, "predicted": 0, "probability": 0.61, "total": 0.66}
    write_json(folder / "gallery.json", {"classes": ["ill", "well"], "silos": [{"name": "a", "uncertain": [item]}]})
    return folder


def confident_run(
    folder: Path, sure: list[tuple[int, int, float]], off: int, temperature: bool = False, unfamiliar: float = 0.05
) -> Path:
    """A finished run of silos with as many test inputs in their bin of highest confidence as `sure` says, together
    with how many of these are right and how sure they are; the ECE of the first `off` silos is beyond chance.
    """
    folder.mkdir(parents=True)
    describe(folder, "uefl")
    silos = []
    for i, (count, correct, confidence) in enumerate(sure):
        test = {"accuracy": correct / count, "ece": 0.2 if i < off else 0.02, "ece_null": {"mean": 0.05, "upper": 0.1}}
        counts = {"n_train": 100, "n_calibration": 30, "n_test": count}
        reliability = {"count": [0, count], "confidence": [0.0, count * confidence], "correct": [0, correct]}
        test["unfamiliar"] = unfamiliar
        silos.append({"name": f"silo-{i}", **counts, "test": test, "reliability": reliability})
    right = sum(correct for _, correct, _ in sure) / sum(count for count, _, _ in sure)
    content = {"schema": 1, "method": "uefl", "rounds_run": 1, "complete": True, "silos": silos}
    content |= {"mean": {"accuracy": right}, "pooled": {"accuracy": right, "ece": 0.015}}
    content["pooled"]["ece_null"] = {"mean": 0.01, "upper": 0.02}
    content |= {"temperature": {"global": 1.5}} if temperature else {}
    content["risk_coverage"] = {"coverage": [0.5, 0.9, 1.0], "risk": [0.0, 0.01, 1 - right]}
    write_json(folder / "summary.json", content)
    return folder


def decided_run(folder: Path, guaranteed: bool = True) -> Path:
    """A finished run of two silos with 100 test inputs each, which choose between two models under a guarantee."""
    folder.mkdir(parents=True)
    describe(folder, "fedpn")
    ind = stream(200, {"local": 0.9, "global": 0.5, "switch": 0.92}, 0.95, (0.7, 0.2, 0.1), answered=0.95)
    ood_local = stream(200, {"local": 0.0, "global": 0.5, "switch": 0.45}, 0.5, (0.1, 0.6, 0.3), answered=0.6)
    mix = stream(400, {"local": 0.45, "global": 0.5, "switch": 0.685}, 0.725, (0.4, 0.4, 0.2), answered=0.82)
    nobody = stream(200, dict.fromkeys(("local", "global", "switch"), 0.0), 0.0, (0.02, 0.18, 0.8), answered=0.0)
    for outside in (ood_local, nobody):
        told = {"auroc": 0.875, "auroc_tolerance": 0.001, "fpr95": 0.4321}
        tied = {"auroc": 0.5, "auroc_tolerance": 0.25, "fpr95": 1.0}
        outside["outside"] = {"switch": {"total": told}, "local": {"total": told, "vacuity": tied}}
    streams = {"ind": ind, "ood_local": ood_local, "mix": mix, "ood_global": nobody}
    silos = [decided_silo(name, streams) for name in "ab"]
    content = {"schema": 1, "method": "fedpn", "rounds_run": 1, "complete": True, "silos": silos, "streams": streams}
    content |= {"models": ind["models"] | {"oracle": {"mean": ind["oracle"]}}, "decisions": ind["decisions"]}
    content |= {"mean": ind["models"]["switch"]["mean"], "pooled": ind["models"]["switch"]["pooled"]}
    content["guarantee"] = promised(guaranteed)
    content["temperature"] = {"local": 1.25, "global": 0.8}
    content["temperature_spread"] = {"global": 0.1}
    content["risk_coverage"] = {"coverage": [0.1, 0.5, 1.0], "risk": [0.0, 0.02, 0.08]}
    write_json(folder / "summary.json", content)
    return folder


def quadrant_run(folder: Path) -> Path:
    """The same with quadrants, log-evidence in steps of 10 nats, and a gallery with examples of three quadrants."""
    decided_run(folder)
    content = json.loads((folder / "summary.json").read_text())
    counts = {"ind": (140, 2, 40, 18), "ood_local": (20, 0, 120, 60), "ood_global": (4, 1, 36, 159)}
    for name, found in counts.items():
        quadrants = ("local_sure", "local_unsure", "global_sure", "global_unsure")
        content["streams"][name]["quadrants"] = dict(zip(quadrants, found, strict=True))
    models = {name: content["streams"][name]["models"] for name in counts}
    models["ind"]["local"]["log_evidence"] = {"from": [0.0, 10.0, 20.0], "count": [50.0, 100.0, 50.0]}
    models["ood_local"]["local"]["log_evidence"] = {"from": [-30.0, 0.0], "count": [150.0, 50.0]}
    models["ood_global"]["local"]["log_evidence"] = {"from": [-50000.0, -10.0], "count": [180.0, 20.0]}
    models["ind"]["global"]["log_evidence"] = {"from": [0.0], "count": [200.0]}
    models["ood_global"]["global"]["log_evidence"] = {"from": [0.0], "count": [200.0]}
    write_json(folder / "summary.json", content)
    image = picture(np.random.default_rng(0))
    item = {"image": image, "label": 1, "predicted": 1, "probability": 0.9, "decision": "local"}
    cells = [("ind", "local", False, 1), ("ood_global", "global", True, -1), ("ood_local", "global", False, 0)]
    quadrant = [
        {"stream": stream, "model": model, "abstained": abstained, "items": [item | {"label": label}] * 3}
        for stream, model, abstained, label in cells
    ]
    silos = [{"name": name, "certain": [item], "uncertain": [item], "quadrants": quadrant} for name in "ab"]
    write_json(folder / "gallery.json", {"classes": ["ill", "well"], "silos": silos})
    return folder


def stream(
    examples: int, accuracies: dict[str, float], oracle: float, shares: tuple[float, float, float], answered: float
) -> dict[str, Any]:
    """`shares` of local, global and abstain; `answered`, the accuracy among the answered inputs of both silos."""
    models = {
        name: {"mean": {"accuracy": accuracy}, "worst": {"accuracy": accuracy}, "pooled": {"accuracy": accuracy}}
        for name, accuracy in sorted(accuracies.items(), reverse=True)
    }
    models["switch"]["pooled"] |= {"coverage": 1 - shares[2], "answered_accuracy": answered}
    decisions = dict(zip(("local", "global", "abstain"), shares, strict=True))
    record = {"silos": 2, "examples": examples, "models": models, "decisions": decisions}
    return record | {"oracle": {"accuracy": oracle}}


def decided_silo(name: str, streams: dict[str, Any]) -> dict[str, Any]:
    each = {stream: {"decisions": found["decisions"]} for stream, found in streams.items()}
    test = streams["ind"]["models"]["switch"]["pooled"]
    return {"name": name, "n_test": 100, "test": test, "decisions": each["ind"]["decisions"], "streams": each}


def promised(guaranteed: bool) -> dict[str, Any]:
    found = {
        "limit": 0.5,
        "risk": 0.1,
        "confidence_level": 0.9,
        "answered": 90,
        "errors": 3,
        "total": 100,
        "upper": 0.08,
    }
    if guaranteed:
        return found | {"guaranteed": True, "statement": "answers 90 % of inputs with at most 10 % errors among them"}
    return found | {"guaranteed": False, "limit": None, "statement": "no share of inputs can be answered"}


def interrupted_run(folder: Path) -> Path:
    """A run that was killed while it wrote the line after its 14th round."""
    fake_run(folder, beside=False)
    for name in ("summary", "gallery", "features"):
        (folder / f"{name}.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join(lines[: 14 * SILOS]) + "\n" + lines[14 * SILOS][:40])
    return folder


def row(silo: int, hard: int, at: int, random: np.random.Generator, codebook: bool, shift: float) -> dict[str, Any]:
    gain = 0.05 if codebook and hard == 2 and at >= EXTENSION else 0.0
    accuracy = 0.97 - 0.05 * hard - shift + gain - 0.7 * math.exp(-at / 5) + 0.012 * float(random.normal())
    entropy = 0.08 + 0.12 * hard + shift - 2 * gain + 1.6 * math.exp(-at / 6) + 0.015 * abs(float(random.normal()))
    content = {"round": at, "phase": "train", "split": "validation", "silo": f"silo-{silo}", "domain": DOMAINS[hard]}
    content |= {"model": "global", "examples": 200, "accuracy": min(accuracy, 1.0), "entropy": entropy, "ece": 0.03}
    content |= {"nll": 0.3, "brier": 0.1, "aleatoric": 0.9 * entropy, "epistemic": 0.1 * entropy}
    if codebook:
        own = 32 if hard == 2 and at >= EXTENSION else 0
        content |= {"codewords": {"shared": 32, "private": own}, "perplexity": 18 + own / 4}
    return content


def summary(method: str, hard: list[int], random: np.random.Generator, codebook: bool, shift: float) -> dict[str, Any]:
    silos = [silo_summary(silo, hard[silo], random, codebook, shift) for silo in range(len(hard))]
    accuracies = {silo["name"]: silo["test"]["accuracy"] for silo in silos}
    worst = min(accuracies, key=lambda name: accuracies[name])
    content = {
        "schema": 1,
        "version": "0.1.0",
        "method": method,
        "seed": 0,
        "rounds_run": ROUNDS,
        "complete": True,
        "classes": list("0123456789"),
        "silos": silos,
        "mean": {m: float(np.mean([silo["test"][m] for silo in silos])) for m in ("accuracy", "entropy", "ece")},
        "worst": {"silo": worst, "accuracy": accuracies[worst]},
        "pooled": {"ece": 0.0217, "ece_null": {"mean": 0.012, "upper": 0.018}},
        "traffic": {"bytes_up": 123_456_789, "bytes_down": 223_456_789, "per_round": []},
        "seconds": {"train": 71.2, "evaluate": 12.5, "engine": 0.4},
    }
    if codebook:
        content["milestones"] = [
            {"round": EXTENSION, "iteration": 1, "threshold": 0.2, "lowest": 0.151, "highest": 0.402},
            {"round": ROUNDS, "iteration": 2, "threshold": 0.2, "lowest": 0.149, "highest": 0.197},
        ]
        content["models"] = {
            name: {"mean": {"accuracy": accuracy, "entropy": 0.2, "nll": 0.31}}
            for name, accuracy in (("local", 0.871), ("global", 0.922), ("switch", 0.931))
        }
        content["decisions"] = {"local": 0.8, "global": 0.15, "abstain": 0.05}
    return content


def silo_summary(silo: int, hard: int, random: np.random.Generator, codebook: bool, shift: float) -> dict[str, Any]:
    count = 200
    accuracy = 0.968 - 0.017 * hard - 0.004 * (silo % 3) - shift
    own = 32 if codebook and hard == 2 else 0
    content: dict[str, Any] = {
        "name": f"silo-{silo}",
        "domain": DOMAINS[hard],
        "n_train": 1400,
        "n_validation": 200,
        "n_calibration": 100,
        "n_test": count,
        "class_counts": random.integers(20, 200, 10).tolist(),
        "test": {
            "accuracy": accuracy,
            "nll": 0.101 + 0.1 * hard,
            "brier": 0.05 + 0.03 * hard,
            "ece": 0.021 + 0.018 * hard,
            "ece_null": {"mean": 0.03, "upper": 0.05},
            "entropy": 0.12 + 0.03 * hard + shift,
            "aleatoric": 0.11 + 0.02 * hard,
            "epistemic": 0.01 + 0.01 * hard,
            "auroc_error": 0.91 - 0.02 * hard,
            "augrc": 0.0112,
        },
        "entropy_error": 0.01,
        "reliability": bins(random, count, 0.03 * hard),
    }
    if codebook:
        use = np.concatenate([random.geometric(0.01, 32) * (random.random(32) > 0.15), random.geometric(0.02, own)])
        content |= {
            "codewords": {"shared": 32, "private": own},
            "perplexity": 20.1 + own / 3,
            "codeword_use": use.astype(int).tolist(),
            "decisions": {"local": 0.8 - 0.2 * hard, "global": 0.15 + 0.15 * hard, "abstain": 0.05 + 0.05 * hard},
        }
    return content


def bins(random: np.random.Generator, count: int, over: float) -> dict[str, Any]:
    confidence = random.beta(5, 0.7, count)
    correct = random.random(count) < confidence - over
    place = np.minimum((confidence * 15).astype(int), 14)
    return {
        "count": np.bincount(place, minlength=15).tolist(),
        "confidence": np.bincount(place, confidence, minlength=15).tolist(),
        "correct": np.bincount(place[correct], minlength=15).tolist(),
    }


def gallery(hard: list[int], random: np.random.Generator) -> dict[str, Any]:
    """Of 20 silos at most, as a run has it."""

    def items(probability: float, right: float, decision: str) -> list[dict[str, Any]]:
        labels = random.integers(0, 10, 5).tolist()
        predicted = [label if random.random() < right else (label + 3) % 10 for label in labels]
        doubt = 1 - probability
        uncertain = {"total": doubt, "aleatoric": 0.8 * doubt, "epistemic": 0.2 * doubt}
        common = {"probability": probability, **uncertain, "decision": decision}
        return [
            {"image": picture(random), "label": a, "predicted": b, **common}
            for a, b in zip(labels, predicted, strict=True)
        ]

    silos = [
        {
            "name": f"silo-{i}",
            "domain": DOMAINS[hard[i]],
            "certain": items(0.9987, 1, "global"),
            "uncertain": items(0.41, 0.5, "abstain"),
        }
        for i in range(min(len(hard), 20))
    ]
    return {"classes": list("0123456789"), "silos": silos}


def features(hard: list[int], random: np.random.Generator, codebook: bool) -> dict[str, Any]:
    """Domains side by side; after discretisation inputs share few places."""
    shown = range(min(len(hard), 20))
    silos = [{"name": f"silo-{i}", "domain": DOMAINS[hard[i]], "labels": [0] * 60} for i in shown]
    for i, silo in enumerate(silos):
        before = random.normal((3.0 * hard[i], 0.0), size=(60, 2))
        silo["points"] = {"encoder": before.round(3).tolist()}
        silo["points"] |= {"discretised": before.round().tolist()} if codebook else {}
    return {"schema": 1, "stages": ["encoder", "discretised"][: 1 + codebook], "explained": [0.5, 0.25], "silos": silos}


def picture(random: np.random.Generator) -> str:
    stored = io.BytesIO()
    Image.fromarray(random.integers(0, 255, (8, 8), dtype=np.uint8)).save(stored, "PNG")
    return base64.b64encode(stored.getvalue()).decode()


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    rewrite(folder / "rounds.jsonl", "".join(json.dumps(one) + "\n" for one in rows))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of a run, with a checksum where it has one, and have the run's summary know of it."""
    path.write_text(json.dumps(sealed(content) if path.name in SEALED else content))
    rebook(path.parent)


def rewrite(path: Path, text: str) -> None:
    """Write a file of a run, and have the run's summary know of it, unless that is what is no JSON then."""
    path.write_text(text)
    with contextlib.suppress(ValueError):
        if path.name in SEALED:
            path.write_text(json.dumps(sealed(json.loads(text))))
        rebook(path.parent)


def rebook(folder: Path) -> None:
    """Have the summary of a finished run know the files of its folder as they are now."""
    path = folder / "summary.json"
    if path.exists():
        found = json.loads(path.read_text())
        files = {place: as_json(known) for place, known in sums_of_folder(folder).items()}
        path.write_text(json.dumps(sealed(found | {"files": files})))
