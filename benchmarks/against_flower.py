"""Compare the single-machine engine (two workers) with Flower's simulation on Ray (two actors): same jobs, in turns.

python benchmarks/against_flower.py [JOB ...]      jobs: compute, overhead, idle-62k, idle-11m; all by default
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
JOBS = {
    "compute": ("9 silos x 2,000 examples, LeNet-5", ("9", "2000", "lenet5"), 8, 5),
    "overhead": ("100 silos x 20 examples, LeNet-5", ("100", "20", "lenet5"), 8, 5),
    "idle-62k": ("100 silos that train nothing, 62 thousand parameters", ("100", "0", "62062"), 10, 5),
    "idle-11m": ("100 silos that train nothing, 11 million parameters", ("100", "0", "11011000"), 3, 2),
}
"""What, its arguments, rounds per run, and pairs of runs."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def run(script: str, arguments: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """What a script measured, and the peak of the memory of all its processes, in MB (PSS)."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        out = Path(folder) / "out.json"
        environment = os.environ | QUIET | {"RAY_TMPDIR": folder, "FLWR_HOME": folder}
        began = time.time()
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments, str(rounds), str(out)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, memory(folder, process.pid))
            time.sleep(0.5)
        if process.returncode or not out.exists():
            raise SystemExit(f"{script}: {process.communicate()[1][-2000:]}")
        ends = json.loads(out.read_text())
        later = [after - before for before, after in pairwise(ends)]
        return {"start": ends[0] - began, "rounds": later, "memory": peak}


def memory(folder: str, root: int) -> float:
    """PSS in MB of a process and of all that have its folder in their environment."""
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (
                int(entry.name) == root or folder.encode() in (entry / "environ").read_bytes()
            ):
                lines = (entry / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 1024


def compare(name: str) -> dict[str, Any]:
    """Medians over pairs of runs of both, and of their ratios."""
    about, arguments, rounds, pairs = JOBS[name]
    found = [(run("flower_job.py", arguments, rounds), run("own_job.py", arguments, rounds)) for _ in range(pairs)]
    ratios = {
        "round": median(median(theirs["rounds"]) / median(ours["rounds"]) for theirs, ours in found),
        "start": median(theirs["start"] / ours["start"] for theirs, ours in found),
        "memory": median(theirs["memory"] / ours["memory"] for theirs, ours in found),
    }
    sides = {
        side: {
            key: median(median(each[i][key]) if key == "rounds" else each[i][key] for each in found)
            for key in ("rounds", "start", "memory")
        }
        for i, side in enumerate(("flower", "caveat"))
    }
    return {"job": about, "pairs": pairs, "ratios": ratios, **sides}


def main() -> None:
    for name in sys.argv[1:] or JOBS:
        found = compare(name)
        print(f"{found['job']}, {found['pairs']} pairs of runs")
        ratios = ", ".join(f"{key} {value:.2f}" for key, value in found["ratios"].items())
        print(f"  Flower over caveat: {ratios}", flush=True)
        for side in ("flower", "caveat"):
            seconds, start, memory = (found[side][key] for key in ("rounds", "start", "memory"))
            print(f"  {side}: {seconds:.3f} s a round, {start:.1f} s to the end of the first, {memory:.0f} MB")


if __name__ == "__main__":
    main()
