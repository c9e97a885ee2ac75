"""Measure the speed on a GPU: bare loop, vectorized silos, workers, bfloat16, other frameworks, the papers' tables.

python benchmarks/gpu.py [SECTION ...] [--device NAME] [--small] [--data DIR] [--out DIR]

Sections: serial, vectorized, workers, bfloat16, rivals, tables; all by default. `make bench-gpu` runs all. The sides of
a comparison are separate processes and run in turns; a ratio is the median over turns of medians of rounds. `rivals`
needs PFL_PYTHON (see against_pfl.py) and Flower's simulation; `tables` needs --data with the papers' data sets and
takes hours. --small has few silos and rounds, to test the script itself, also with `--device cpu`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from caveat.core.devices import device_model, find_device

HERE = Path(__file__).parent
MODELS = {
    "LeNet-5": {"name": "lenet5"},
    "residual, width 16": {"name": "residual", "width": 16},
    "residual, width 128": {"name": "residual", "width": 128},
}
SILOS, WORKERS, TURNS, ROUNDS, WARM = (9, 100, 1000), (1, 2, 3, 4, 5), 3, 5, 2
TABLES = ("uefl-main", "fedpn-switch", "trfeddis-digits")
BASE: dict[str, Any] = {
    "side": "caveat", "workers": 1, "vectorized": "off", "precision": "float32", "examples": 64, "batch": 32,
    "silos": 9,
}  # fmt: skip


class Bench:
    """Sides of comparisons on one device."""

    def __init__(self, device: str, small: bool, data: Path | None, out: Path) -> None:
        self.device, self.small, self.data, self.out = device, small, data, out
        self.models = dict(list(MODELS.items())[:1]) if small else MODELS
        self.silos, self.workers = ((3, 4), (1, 2)) if small else (SILOS, WORKERS)

    def side(self, **asked: Any) -> dict[str, Any]:
        """What a process measures."""
        rounds = {"rounds": 3 if self.small else ROUNDS + WARM}
        with tempfile.TemporaryDirectory() as folder:
            order, out = Path(folder) / "job.json", Path(folder) / "out.json"
            order.write_text(json.dumps(BASE | rounds | {"device": self.device} | asked))
            subprocess.run(
                [sys.executable, str(HERE / "gpu_job.py"), str(order), str(out)],
                check=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            found: dict[str, Any] = json.loads(out.read_text())
        return found

    def compare(self, sides: Mapping[str, Mapping[str, Any]], **common: Any) -> dict[str, list[dict[str, Any]]]:
        """Every side, in turns."""
        turns = 1 if self.small else TURNS
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for _ in range(turns):
            for name, asked in sides.items():
                found[name].append(self.side(**common, **asked))
        return found

    def serial(self) -> None:
        """One worker, silo after silo, beside the loop that one would write by hand."""
        sides = {"bare": {"side": "bare"}, "caveat": {}}
        for name, model in self.models.items():
            found = self.compare(sides, model=model, examples=128 if self.small else 2000, batch=64)
            print(f"serial, {name}: bare loop over one worker {_ratio(found['bare'], found['caveat']):.3f}", flush=True)

    def vectorized(self) -> None:
        """Silos trained side by side, over one after the other."""
        for name, model in self.models.items():
            for silos in self.silos:
                sides = {"serial": {}, "vectorized": {"vectorized": "on"}, "auto": {"vectorized": "auto"}}
                found = self.compare(sides, model=model, silos=silos)
                gain, auto = (_ratio(found["serial"], found[side]) for side in ("vectorized", "auto"))
                decided = [(each["vectorized"], each["why"]) for each in found["vectorized"][-1]["decided"].values()]
                print(f"vectorized, {name}, {silos} silos: {gain:.2f} x, auto {auto:.2f} x; {decided}", flush=True)

    def several(self) -> None:
        """Processes that share the device."""
        for name, model in self.models.items():
            found = self.compare({str(n): {"workers": n} for n in self.workers}, model=model, silos=self.silos[1])
            told = ", ".join(f"{n}: {_ratio(found['1'], found[str(n)]):.2f} x" for n in self.workers)
            print(f"workers on one device, {name}, {self.silos[1]} silos: {told}", flush=True)

    def bfloat16(self) -> None:
        sides = {"float32": {}, "bfloat16": {"precision": "bfloat16"}}
        for name, model in self.models.items():
            found = self.compare(sides, model=model, examples=128 if self.small else 2000, batch=64)
            print(f"bfloat16, {name}: {_ratio(found['float32'], found['bfloat16']):.2f} x", flush=True)

    def rivals(self) -> None:
        """pfl-research and Flower's simulation on the same device: their scripts say what is compared."""
        for script in ("against_pfl.py", "against_flower.py"):
            arguments = ["overhead"] if script == "against_flower.py" else []
            environment = os.environ | {"CAVEAT_BENCH_DEVICE": self.device}
            subprocess.run([sys.executable, str(HERE / script), *arguments], check=False, env=environment)

    def tables(self) -> None:
        """The papers' tables at their own scale, 3 seeds; an interrupted one continues."""
        if self.data is None:
            print("tables: left out, --data names no folder with the data sets")
            return
        for table in TABLES:
            command = [sys.executable, "-m", "caveat", "reproduce", table, "--scale", "paper", "--seeds", "3"]
            command += ["--device", self.device, "--workers", "1", "--out", str(self.out / table)]
            if self.small:
                print(f"tables: {' '.join(command[1:])}")
                continue
            subprocess.run(command, check=False, env=os.environ | {"CAVEAT_DATA": str(self.data)})


def _ratio(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> float:
    """The median over turns of one side's round over the other's, the first rounds apart."""
    rounds = [[median(each["seconds"][WARM:]) for each in side] for side in (one, other)]
    return median(a / b for a, b in zip(*rounds, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("serial", "vectorized", "workers", "bfloat16", "rivals", "tables")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    asked = parser.parse_args()
    if unknown := sorted(set(asked.sections) - set(sections)):
        parser.error(f"{unknown[0]}: no such section, expected {', '.join(sections)}")
    device = find_device(asked.device, key="--device")
    print(
        f"{device_model(device) if device.type != 'cpu' else 'CPU'}, {os.cpu_count()} cores, torch {torch.__version__}"
    )
    bench = Bench(asked.device, asked.small, asked.data, asked.out)
    for section in asked.sections or sections:
        getattr(bench, "several" if section == "workers" else section)()


if __name__ == "__main__":
    main()
