"""UEFL as published beside FedAvg with the paper's encoder (128 channels) and 2,000 training images per silo, on a GPU.

CAVEAT_DATA=DIR python benchmarks/full_width.py rates|runs|table --out OUT [--device cuda] [--processes 4]

`rates` trains both rows for eight rounds with each learning rate, on MNIST and seed 100, which the table does not use.
`runs` trains the rows of the table with the rates that are best on validation data; each run is a folder, a finished
one is kept, and an interrupted one is continued. `table` prints accuracy by run, domain and round. Several runs share
the device. DIR contains mnist.npz and fashion_mnist.npz.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

DATA = {"MNIST": "uefl-mnist", "Fashion-MNIST": "uefl-fmnist"}
SEEDS, RATES = (0, 1, 2), (0.0001, 0.0003, 0.001)
SETS = (
    "baselines=[]", "data.samples_per_silo=2500", "data.test_per_silo=500", "data.split.train=0.8",
    "data.split.validation=0.04", "data.split.calibration=0.16", "model.width=128", "training.local_epochs=2",
    "training.batch_size=128", "training.lr_hold=0", "training.lr_decay=1.0", "evaluation.every=10",
)  # fmt: skip
ROWS = {
    "FedAvg": ("method.name=fedavg", "rounds=30"),
    "UEFL as published": (
        "method.name=uefl", "rounds=20", "method.segments=1", "method.own_norm=false", "method.normalize=false",
        "method.margin=0", "method.floor=0", 'method.until="certain"', "method.iterations=3", "method.extra_rounds=5",
    ),
}  # fmt: skip


def trained(out: Path, data: str, row: str, seed: int, lr: float, device: str, precision: str, *more: str) -> None:
    """Train a run, or continue it."""
    if (out / "summary.json").exists():
        return
    sets = (*SETS, *ROWS[row], f"seed={seed}", f"training.lr={lr}", f"training.precision={precision}", *more)
    command = ["run", DATA[data], *(part for each in sets for part in ("--set", each)), "--out", str(out)]
    command = ["resume", str(out)] if (out / "config.toml").exists() else command
    out.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{out}.log").open("a") as log:
        done = subprocess.run(
            [sys.executable, "-m", "caveat", *command, "--device", device, "--workers", "1", "--quiet"],
            stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    print(f"{out.name}: status {done.returncode}", flush=True)


def name_of(data: str, row: str, seed: int, precision: str) -> str:
    return f"{data}-{row.replace(' ', '-')}-{seed}-{precision}"


def runs() -> list[tuple[str, str, int, str]]:
    """Return data, row, seed and precision of each run of the table; FedAvg is also trained in float32."""
    table = [(data, row, seed, "bfloat16") for data in DATA for seed in SEEDS for row in ROWS]
    return [("MNIST", "FedAvg", 0, "float32"), *table]


def validation(folder: Path) -> float:
    """Return the mean accuracy over silos on validation data, at the end."""
    of = [each for each in rows_of(folder) if each.get("split") == "validation" and each["phase"] == "final"]
    return fmean(each["accuracy"] for each in of)


def chosen(out: Path, row: str) -> float:
    """Return the learning rate with the highest validation accuracy."""
    return max(RATES, key=lambda lr: validation(tried(out, row, lr)))


def tried(out: Path, row: str, lr: float) -> Path:
    return out / "rates" / f"{row.replace(' ', '-')}-{lr:g}"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics; none before its first evaluation."""
    file = folder / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def grouped(rows: list[dict[str, Any]], key: str) -> dict[Any, float]:
    """Return the mean accuracy in percent by a key of the rows."""
    found = {row[key]: [each["accuracy"] for each in rows if each[key] == row[key]] for row in rows}
    return {name: 100 * fmean(values) for name, values in found.items()}


def told(found: dict[Any, float]) -> str:
    return ", ".join(f"{name}: {value:.1f}" for name, value in found.items())


def table(out: Path) -> None:
    """Print validation accuracy by learning rate, test accuracy of each run by domain, and validation accuracy over
    rounds, also of runs that have not ended."""
    for row in ROWS:
        rates = {lr: 100 * validation(tried(out, row, lr)) for lr in RATES}
        print(f"{row}, % of validation inputs by learning rate: {told(rates)}")
    print("| data | row | seed | precision | accuracy, % | entropy | rounds | by domain | validation, by round |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | --- | --- |")
    for data, row, seed, precision in runs():
        rows = rows_of(folder := out / name_of(data, row, seed, precision))
        curve = [each for each in rows if each.get("split") == "validation" and each["phase"] == "train"]
        ended, text = folder / "summary.json", " | | "
        if ended.exists():
            run = json.loads(ended.read_text())
            accuracy, entropy = (fmean(silo["test"][key] for silo in run["silos"]) for key in ("accuracy", "entropy"))
            text = f"{100 * accuracy:.1f} | {entropy:.3f} | {run['rounds_run']}"
        tested = [each for each in rows if each.get("split") == "test" and each["phase"] == "final"]
        places = told(grouped(tested, "domain"))
        print(f"| {data} | {row} | {seed} | {precision} | {text} | {places} | {told(grouped(curve, 'round'))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["rates", "runs", "table"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=4)
    given = parser.parse_args()
    with ThreadPoolExecutor(given.processes) as pool:
        if given.task == "rates":
            for lr in RATES:
                for row in ROWS:
                    short = ("rounds=8", "evaluation.every=8", *(("method.iterations=1",) if row != "FedAvg" else ()))
                    pool.submit(
                        trained, tried(given.out, row, lr), "MNIST", row, 100, lr, given.device, "bfloat16", *short
                    )
        elif given.task == "runs":
            for data, row, seed, precision in runs():
                folder = given.out / name_of(data, row, seed, precision)
                pool.submit(trained, folder, data, row, seed, chosen(given.out, row), given.device, precision)
    if given.task == "table":
        table(given.out)


if __name__ == "__main__":
    main()
