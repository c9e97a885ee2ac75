"""Measure the effect of huge pages (THP_MEM_ALLOC_ENABLE=1) on a program that calls `caveat.run`: processes in turns.

`CAVEAT_DATA=DIR python benchmarks/huge_pages.py` takes a minute or two.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

VARIABLE = "THP_MEM_ALLOC_ENABLE"
PAIRS = 7
JOB = """
import os, sys, time, torch
torch.zeros(1 << 22).add_(1)  # torch has read the variable by now
import caveat
path = os.path.join(os.environ["CAVEAT_DATA"], "mnist.npz")
settings = caveat.data.DataSettings(source=f"npz:{path}", n_silos=3, samples_per_silo=200, test_per_silo=100)
silos = caveat.data.load(settings, 0)
model = caveat.ModelSettings(name=sys.argv[1])
method = caveat.FedAvg(training=caveat.Training(local_epochs=1))
caveat.run(silos, method, model=model, rounds=1)
began = time.process_time()
caveat.run(silos, method, model=model, rounds=2)
print(time.process_time() - began)
"""


def seconds(model: str, huge: bool) -> float:
    """CPU seconds of two rounds and their evaluation, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {VARIABLE: "1"} if huge else {}
    done = subprocess.run([sys.executable, "-c", JOB, model], env=environment, text=True, capture_output=True)
    done.check_returncode()
    return float(done.stdout)


def main() -> None:
    for model in ("lenet5", "residual"):
        ratios = [seconds(model, False) / seconds(model, True) for _ in range(PAIRS)]
        told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{model}: without huge pages {median(ratios):.2f} times as long (pairs: {told})")


if __name__ == "__main__":
    main()
