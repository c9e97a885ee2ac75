"""What a federation leaves in its run's folder beside figures: a ledger, greetings, and who was left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fake_run import minimal_run, rewrite, write_json

FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "aaaaaaaaaaaa": {
        "model/0.bias": {"shape": [2], "dtype": "float32", "bytes": 8},
        "model/0.weight": {"shape": [2, 4], "dtype": "float32", "bytes": 32},
        "model/steps": {"shape": [], "dtype": "int64", "bytes": 8},
    },
    "bbbbbbbbbbbb": {"sums/nll": {"shape": [], "dtype": "float64", "bytes": 8}},
}
UPDATE, SUMS = FORMS
UPDATE_BYTES, SUMS_BYTES = (sum(tensor["bytes"] for tensor in form.values()) for form in FORMS.values())


def federated_run(folder: Path, rounds: int = 4) -> Path:
    """Three silos of which hill was away in rounds 2 and 3, refused by the last measurement, and so without figures."""
    minimal_run(folder)
    lines = [{"form": name, "tensors": tensors} for name, tensors in FORMS.items()]
    for number in range(1, rounds + 1):
        names = ("a", "b") if number in (2, 3) else ("a", "b", "hill")
        lines += [message(name, number) for name in names]
        lines += [message(name, number, split="validation") for name in names]
    lines += [message(name, rounds, phase="final", split="test") for name in ("a", "b")]
    write_lines(folder / "ledger.jsonl", lines)
    away = [{"round": i, "phase": "train", "silo": "hill", "left_out": "no reply in time"} for i in (2, 3)]
    refused = {"round": rounds, "phase": "final", "split": "test", "silo": "hill", "left_out": "sums/nll is not finite"}
    rows = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(rows + "".join(json.dumps(row) + "\n" for row in [*away, refused]))
    content = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", content | {"rounds_run": rounds, "absent": ["hill"]})
    write_json(folder / "federation.json", greeting())
    return folder


def silo_folder(folder: Path) -> Path:
    """What the silo hill keeps of the same."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = [{"form": name, "tensors": tensors} for name, tensors in FORMS.items()]
    for t, task in enumerate(("base.train", "base.train", "validation", "test")):
        form, count = (UPDATE, UPDATE_BYTES) if task == "base.train" else (SUMS, SUMS_BYTES)
        lines.append({"t": t, "task": task, "silo": "hill", "form": form, "bytes": count, "examples": 40})
    write_lines(folder / "ledger.jsonl", lines)
    return folder


def message(silo: str, number: int, phase: str = "train", split: str | None = None) -> dict[str, Any]:
    """A line of a run's ledger: an update, or figures on a split."""
    form, count = (SUMS, SUMS_BYTES) if split else (UPDATE, UPDATE_BYTES)
    about = {"round": number, "t": number - 1, "phase": phase} | ({"split": split} if split else {})
    return about | {"silo": silo, "form": form, "bytes": count, "examples": 40}


def greeting() -> dict[str, Any]:
    def column(name: str, *categories: str) -> dict[str, Any]:
        return {"name": name, "holds": "texts" if categories else "numbers", "categories": list(categories)}

    smokers = {"a": ("no", "yes"), "b": ("no",), "hill": ("no", "unknown")}
    return {
        "schema": 1,
        "federation": "0123456789abcdef",
        "agreement": {"classes": ["ill", "well"]},
        "silos": {name: {"card": {"name": name}, "record": {}} for name in smokers},
        "sketches": {
            name: {"labels": ["ill", "well"], "shape": [2], "columns": [column("age"), column("smoker", *found)]}
            for name, found in smokers.items()
        },
    }


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    rewrite(path, "".join(json.dumps(line) + "\n" for line in lines))
