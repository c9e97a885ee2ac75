"""UEFL as published beside FedAvg with the paper's encoder (128 channels) and 2,000 training images per silo, on a GPU.

CAVEAT_DATA=DIR python benchmarks/full_width.py rates|runs|table --out OUT [--device cuda] [--processes 4]

`rates` trains both rows for eight rounds with each learning rate, on MNIST and seed 100, which the table does not use.
`runs` trains the rows of the table with the rates that are best on validation data; each run is a folder, a finished
one is kept, and an interrupted one is continued. `table` prints the table of the finished runs. Several runs share the
device. DIR contains mnist.npz and fashion_mnist.npz.
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
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    of = [each for each in rows if each.get("split") == "validation" and each["phase"] == "final"]
    return fmean(each["accuracy"] for each in of)


def chosen(out: Path, row: str) -> float:
    """Return the learning rate with the highest validation accuracy."""
    return max(RATES, key=lambda lr: validation(tried(out, row, lr)))


def tried(out: Path, row: str, lr: float) -> Path:
    return out / "rates" / f"{row.replace(' ', '-')}-{lr:g}"


def table(out: Path) -> None:
    for row in ROWS:
        at = {lr: tried(out, row, lr) for lr in RATES}
        rates = {lr: validation(folder) for lr, folder in at.items() if (folder / "summary.json").exists()}
        print(row, ", ".join(f"rate {lr:g}: {100 * value:.1f} % of validation inputs" for lr, value in rates.items()))
    print("| data | row | precision | accuracy, % | by seed | entropy | rounds |")
    print("| --- | --- | --- | ---: | --- | ---: | --- |")
    for data in DATA:
        for row in ROWS:
            for precision in ("bfloat16", "float32"):
                folders = [out / name_of(data, row, seed, precision) for seed in SEEDS]
                found = [json.loads((f / "summary.json").read_text()) for f in folders if (f / "summary.json").exists()]
                if found:
                    each = [100 * fmean(silo["test"]["accuracy"] for silo in run["silos"]) for run in found]
                    entropy = fmean(fmean(silo["test"]["entropy"] for silo in run["silos"]) for run in found)
                    seeds = ", ".join(f"{value:.1f}" for value in each)
                    rounds = ", ".join(str(run["rounds_run"]) for run in found)
                    print(f"| {data} | {row} | {precision} | {fmean(each):.1f} | {seeds} | {entropy:.3f} | {rounds} |")


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
