"""Every ratio that `docs/performance.md` speaks of, written to benchmarks/RESULTS.md with the machine they are of.

python benchmarks/all.py [SCRIPT ...]      scripts of this folder; those named in SCRIPTS by default (about an hour)
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from caveat import __version__

HERE = Path(__file__).parent
SCRIPTS = (
    "engine", "against_flower", "against_pfl", "mc_dropout", "answers", "precision", "population", "aggregation",
    "shares",
)  # fmt: skip


def machine() -> str:
    """Processor, cores, load, system and versions."""
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, caveat {__version__}; load before: {load}"
    )


def main() -> None:
    chosen = sys.argv[1:] or SCRIPTS
    about = "Written by `make bench`. Seconds hold for this machine and moment, ratios are of runs in turns."
    sections = [f"# Results\n\n{about}\n\n{machine()}\n"]
    for name in chosen:
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py")], capture_output=True, text=True, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        text = done.stdout if done.returncode == 0 else f"failed:\n{done.stderr[-2000:]}"
        sections.append(f"## {name}\n\n```\n{text.rstrip()}\n```\n\n{time.perf_counter() - began:.0f} s\n")
        print(sections[-1], flush=True)
        (HERE / "RESULTS.md").write_text("\n".join(sections))


if __name__ == "__main__":
    main()
