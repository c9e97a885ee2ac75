"""Comparisons as they are written down, with made-up figures: for tests of what reads them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t, ttest_1samp

METHODS = ("uefl", "fedavg", "fedbn", "local")
DOMAINS = ("rotate(0)", "rotate(-50)", "rotate(120)")
LEVELS = {"accuracy": 0.93, "entropy": 0.21, "nll": 0.3, "ece": 0.04, "auroc_error": 0.86}
SLOPES = {"accuracy": -0.017, "entropy": 0.06, "nll": 0.05, "ece": 0.012, "auroc_error": -0.02}
"""How much a figure changes from each method to the next."""
MEASURES = [
    {"name": "accuracy", "figure": "accuracy", "higher": True, "percent": True},
    {"name": "entropy", "figure": "entropy", "higher": None, "percent": False},
    {"name": "NLL", "figure": "nll", "higher": False, "percent": False},
    {"name": "ECE", "figure": "ece", "higher": False, "percent": False},
    {"name": "AUROC error", "figure": "auroc_error", "higher": True, "percent": False},
]
ERROR = "DivergedError: the loss of silo-3 is not finite <b>at</b> round 4"


def fake_comparison(
    methods: Sequence[str] = METHODS,
    seeds: int = 3,
    silos: int = 9,
    settings: Sequence[str] = ("",),
    failed: Sequence[tuple[str, str, int]] = (),
    missing: Sequence[tuple[str, str, int]] = (),
    paper: bool = True,
    tuned: bool = True,
    rounds: int = 16,
) -> dict[str, Any]:
    """What comparison.json would hold; `failed` and `missing` are runs as method, setting and seed.

    A method is the worse, the later it comes in `methods`. A method none of whose runs is done has no figures.
    """
    random = np.random.default_rng(0)
    states = dict.fromkeys(failed, "failed") | dict.fromkeys(missing, "missing")
    cells = [
        _cell(row, i, column, seed, states.get((row, column, seed), "done"), silos, rounds, tuned, random)
        for column in settings
        for i, row in enumerate(methods)
        for seed in range(seeds)
    ]
    return {
        "schema": 1,
        "version": "0.1.0",
        "title": "Nine silos in three domains",
        "command": f"caveat compare digits --methods {','.join(methods)} --seeds 0..{seeds - 1} --out DIR",
        "about": "Handwritten digits, turned by three angles.",
        "seeds": list(range(seeds)),
        "rows": [{"name": name, "method": name, "sets": [f"method.name={name}"]} for name in methods],
        "columns": [{"name": name, "sets": [f"data.source={name}"] if name else []} for name in settings],
        "tuning": _tuning(methods) if tuned else None,
        "measures": MEASURES,
        "cells": cells,
        "tables": [table_of(cells, methods, column, m) for column in settings for m in MEASURES],
        "paper": _paper(methods, settings) if paper else None,
    }


def _cell(
    row: str,
    i: int,
    column: str,
    seed: int,
    status: str,
    silos: int,
    rounds: int,
    tuned: bool,
    random: np.random.Generator,
) -> dict[str, Any]:
    folder = f"runs/{column or 'all'}/{row}/seed-{seed}"
    known = {"row": row, "column": column, "seed": seed, "status": status, "error": "", "folder": folder}
    if status != "done":
        return {**known, "error": ERROR if status == "failed" else ""}
    shift = random.normal(0, 0.006)
    placed = [
        {"name": f"silo-{k}", "domain": DOMAINS[k * len(DOMAINS) // silos], "figures": _figures(i, k, shift, random)}
        for k in range(silos)
    ]
    curve = [
        [at, 0.9 - 0.02 * i - 0.6 * np.exp(-at / 4) + 3 * shift, 0.2 + 0.06 * i + 1.5 * np.exp(-at / 4) - 5 * shift]
        for at in range(1, rounds + 1)
    ]
    trials = [{"value": value, "score": 0.94 - 8 * abs(value - 0.003) - 0.01 * i} for value in (0.001, 0.003, 0.01)]
    return {
        **known,
        "tuned": {"training.lr": 0.003} if tuned else {},
        "tuning": trials if tuned and seed == 0 else [],
        "rounds": rounds,
        "seconds": 60.0 + 25 * i + 3 * seed,
        "bytes_up": 1_200_000 * (i + 1),
        "bytes_down": 1_300_000 * (i + 1),
        "silos": placed,
        "curve": curve,
    }


def _figures(i: int, silo: int, shift: float, random: np.random.Generator) -> dict[str, float]:
    return {
        name: float(
            level
            + i * SLOPES[name]
            + (shift - 0.003 * (silo % 5)) * np.sign(-SLOPES[name]) * -1
            + random.normal(0, 0.004)
        )
        for name, level in LEVELS.items()
    }


def _tuning(methods: Sequence[str]) -> dict[str, Any]:
    values = {name: [0.001, 0.003, 0.01] for name in methods}
    return {"key": "training.lr", "values": values, "seed": 0, "by": "accuracy on validation data", "runs": 3}


def _values(cells: Sequence[Mapping[str, Any]], row: str, column: str, figure: str) -> dict[int, dict[str, float]]:
    return {
        cell["seed"]: {silo["name"]: silo["figures"][figure] for silo in cell["silos"]}
        for cell in cells
        if cell["row"] == row and cell["column"] == column and cell["status"] == "done"
    }


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and 95 % t interval; no bounds of a single value."""
    if not values:
        return {"mean": None, "low": None, "high": None}
    mean = float(np.mean(values))
    if len(values) == 1:
        return {"mean": mean, "low": None, "high": None}
    half = float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def table_of(
    cells: Sequence[Mapping[str, Any]], methods: Sequence[str], column: str, measure: Mapping[str, Any]
) -> dict[str, Any]:
    figure = measure["figure"]
    values = {row: _values(cells, row, column, figure) for row in methods}
    domains = {s["name"]: s["domain"] for cell in cells if cell["status"] == "done" for s in cell["silos"]}
    known = [row for row in methods if values[row]]
    rows = []
    for i, row in enumerate(methods):
        found = values[row]
        silos = {name: _interval([one[name] for one in found.values()]) for name in domains} if found else {}
        means = [float(np.mean(list(one.values()))) for one in found.values()]
        worst = [one["mean"] for one in silos.values() if one["mean"] is not None]
        rows.append({
            "row": row,
            **_interval(means),
            "seeds": len(found),
            "failed": sum(c["row"] == row and c["column"] == column and c["status"] == "failed" for c in cells),
            "worst": (min if measure["higher"] else max)(worst) if worst and measure["higher"] is not None else None,
            "rank": 1.0 + 0.9 * i if measure["higher"] is not None and found else None,
            "domains": {
                domain: _interval([v for one in found.values() for n, v in one.items() if domains[n] == domain])
                for domain in DOMAINS
            } if found else {},
            "silos": silos,
        })  # fmt: skip
    return {"column": column, "measure": measure["name"], "rows": rows, "pairs": _pairs(values, known)}


def _pairs(values: Mapping[str, Mapping[int, Mapping[str, float]]], known: Sequence[str]) -> list[dict[str, Any]]:
    pairs: list[dict[str, Any]] = []
    for a, b in itertools.combinations(known, 2):
        shared = sorted(set(values[a]) & set(values[b]))
        gaps = [float(np.mean([values[a][s][n] - values[b][s][n] for n in values[a][s]])) for s in shared]
        p = float(ttest_1samp(gaps, 0.0).pvalue) if len(gaps) > 1 and np.ptp(gaps) > 1e-9 else None
        pairs.append({"a": a, "b": b, **_interval(gaps), "p": p})
    return [{**p, "p_adjusted": None if p["p"] is None else min(1.0, len(pairs) * p["p"])} for p in pairs]


def _paper(methods: Sequence[str], settings: Sequence[str]) -> dict[str, Any]:
    figures = [
        {"row": row, "column": column, "measure": "accuracy", "paper": 0.9 - 0.03 * i, "ours": 0.93 - 0.017 * i,
         "low": 0.91 - 0.017 * i, "high": 0.95 - 0.017 * i, "difference": 0.03 + 0.013 * i}
        for column in settings
        for i, row in enumerate(methods[:2])
    ]  # fmt: skip
    differs = "Fewer rounds and a narrower encoder than the paper's, and thresholds set on validation data."
    return {"source": "UEFL, Table 1", "differs": differs, "claims": ["UEFL > FedAvg in accuracy"], "figures": figures}
