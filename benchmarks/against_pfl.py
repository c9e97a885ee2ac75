"""Compare caveat with pfl-research in pfl's own CIFAR-10 setting, and with the bare loop, in turns.

PFL_PYTHON=PYTHON python benchmarks/against_pfl.py      PYTHON: of an environment with pfl[pytorch]==0.6.0 and torch
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

SIDES = {"pfl": ("pfl", "1"), "bare": ("bare", "1"), "one worker": ("caveat", "1"), "two workers": ("caveat", "2")}
RUNS, ROUNDS = 5, 6


def seconds(side: str) -> float:
    """The median round of a run, the first two apart."""
    python = os.environ["PFL_PYTHON"] if side == "pfl" else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [
            python,
            "-W",
            "ignore",
            str(Path(__file__).with_name("pfl_job.py")),
            *SIDES[side],
            str(ROUNDS),
            str(out),
        ]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        return median(after - before for before, after in list(pairwise(json.loads(out.read_text())))[2:])


def main() -> None:
    if "PFL_PYTHON" not in os.environ:
        print("pfl-research: left out, PFL_PYTHON names no environment with it")
        return
    found = [{side: seconds(side) for side in SIDES} for _ in range(RUNS)]
    print(f"1,000 users x 50 images, 50 a round, {RUNS} runs each, median of ratios:")
    for one, other in (("pfl", "one worker"), ("pfl", "two workers"), ("one worker", "bare"), ("pfl", "bare")):
        print(f"  {one} over {other}: {median(run[one] / run[other] for run in found):.2f}")


if __name__ == "__main__":
    main()
