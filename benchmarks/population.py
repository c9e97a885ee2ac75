"""A population of 1,000 to 1,000,000 silos, 50 of them a round: start, time per round, memory, checkpoint.

python benchmarks/population.py [COUNT METHOD]      a table of all, or one run with its figures as JSON
"""

from __future__ import annotations

import json
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
from caveat.progress import Silent

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
COHORT, ROUNDS, RUNS = 50, 12, 3
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
                measured=10,
                model=caveat.ModelSettings(name="lenet5"), every=10**6, out=out, progress=clock,
            )  # fmt: skip
        checkpoint = sum(path.stat().st_size for path in (out / "state").glob("*") if path.is_file())
    rounds = [after - before for before, after in pairwise(clock.ends)]
    return {
        "start": clock.ends[0] - began, "round": median(rounds), "checkpoint": checkpoint / 2**20,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(run(int(sys.argv[1]), sys.argv[2])))
        return
    print(f"LeNet-5, {COHORT} silos a round; start to the end of the first round, median of {RUNS} runs")
    for method in METHODS:
        for count in COUNTS:
            runs = [json.loads(subprocess.run([sys.executable, __file__, str(count), method], check=True,
                                              capture_output=True, text=True).stdout) for _ in range(RUNS)]  # fmt: skip
            found = {key: median(each[key] for each in runs) for key in runs[0]}
            print(
                f"  {method:8} {count:>9,} silos: start {found['start']:.1f} s, round {found['round']:.3f} s, "
                f"memory {found['memory']:.0f} MB, checkpoint {found['checkpoint']:.2f} MB", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
