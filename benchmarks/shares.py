"""Measure how a default run spends its time: `caveat run`'s recipes with fewer rounds, from their summaries.

python benchmarks/shares.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from caveat.config import load
from caveat.runs.start import start

RUNS = {
    "digits, uefl": ["baselines=[]"],
    "digits, fedavg": ["baselines=[]", "method.name=fedavg"],
    "digits, fedpn": ["baselines=[]", "method.name=fedpn"],
}


def main() -> None:
    for name, sets in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            run = start(load("digits", [*sets, "rounds=10"]), Path(folder) / "run")
            seconds = json.loads((run / "summary.json").read_text())["seconds"]
        total = sum(seconds.values())
        print(f"{name}: " + ", ".join(f"{key} {value / total:.0%}" for key, value in seconds.items()), flush=True)


if __name__ == "__main__":
    main()
