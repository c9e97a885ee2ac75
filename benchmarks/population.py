"""Measure a population of 1,000 to 1,000,000 silos, 50 of them per round: start, time per round, memory, checkpoint.

python benchmarks/population.py [COUNT METHOD]      a table of all, or one run with its results as JSON

Run folders are in memory (/dev/shm) if possible, and also on disk: with 1,000 silos, many sampled silos already have a
folder; with 100,000, hardly any, so the time includes creating folders.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

import caveat
from caveat.core import Data, Silo
from caveat.runs.progress import Silent

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
COHORT, ROUNDS, RUNS = 50, 12, 3
FOLDERS = [str(folder) for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())) if folder.is_dir()]
METHODS = {
    "scaffold": caveat.SCAFFOLD(),
    "uefl": caveat.UEFL(codewords=16, iterations=1, mc_samples=2),
}


def make(number: int, name: str) -> Silo:
    """50 images of 28x28 that depend on the number alone."""
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(50, 1, 28, 28, generator=generator), torch.randint(10, (50,), generator=generator)
    return Silo(name, "", *(Data(x[i:j], y[i:j]) for i, j in ((0, 32), (32, 38), (38, 44), (44, 50))))


class Enough(Exception):
    """Enough rounds were seen; what comes after them, measurements of all silos among it, is not the subject."""


class Clock(Silent):
    """When each round was done."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def round(self, *args: object) -> None:
        self.ends.append(time.perf_counter())
        if len(self.ends) == ROUNDS:
            raise Enough


def run(count: int, method: str) -> dict[str, float]:
    began, clock = time.perf_counter(), Clock()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        silos = caveat.data.population(count, make, [str(k) for k in range(10)])
        training = caveat.Training(batch_size=16, optimizer="sgd", lr=0.05)
        with suppress(Enough):
            caveat.run(
                silos, METHODS[method], rounds=10 * ROUNDS, training=training, participation=COHORT / count,
                n_silos=10,
                model=caveat.ModelSettings(name="lenet5"), every=10**6, out=out, progress=clock,
            )  # fmt: skip
        checkpoint = sum(path.stat().st_size for path in (out / "state").glob("*") if path.is_file())
    rounds = [after - before for before, after in pairwise(clock.ends)]
    return {
        "start": clock.ends[0] - began,
        "round": median(rounds),
        "checkpoint": checkpoint / 2**20,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def other_process(count: int, method: str, folder: str) -> dict[str, float]:
    command = [sys.executable, __file__, str(count), method]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"TMPDIR": folder})
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(run(int(sys.argv[1]), sys.argv[2])))
        return
    print(f"LeNet-5, {COHORT} silos a round; start to the end of the first round, median of {RUNS} runs in turns")
    for method in METHODS:
        cells = [(count, folder) for count in COUNTS for folder in FOLDERS]
        runs = [[other_process(count, method, folder) for count, folder in cells] for _ in range(RUNS)]
        found = {
            cell: {key: median(each[key] for each in of_cell) for key in of_cell[0]}
            for cell, of_cell in zip(cells, zip(*runs, strict=True), strict=True)
        }
        for count in COUNTS:
            here = found[count, FOLDERS[0]]
            rounds = ", ".join(f"{found[count, folder]['round']:.3f} s in {folder}" for folder in FOLDERS)
            print(
                f"  {method:8} {count:>9,} silos: start {here['start']:.1f} s, round {rounds}, "
                f"memory {here['memory']:.0f} MB, checkpoint {here['checkpoint']:.2f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
