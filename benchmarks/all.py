"""Measure every ratio of `docs/results/performance.md`; write them and the machine to benchmarks/RESULTS.md.

python benchmarks/all.py [SCRIPT ...]      scripts of this folder; those of SCRIPTS by default (about 40 minutes)

Results of the given scripts replace theirs in the file; other results stay.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from caveat import __version__

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
SCRIPTS = (
    "engine", "against_flower", "against_pfl", "mc_dropout", "answers", "precision", "population", "aggregation",
    "shares", "vectorized",
)  # fmt: skip


def machine() -> str:
    """Processor, cores, load, system and versions."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, caveat {__version__}; load before: {load}"
    )


def sections(text: str) -> dict[str, str]:
    """What the file has by script."""
    parts = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def main() -> None:
    about = "`make bench` writes this file. Times depend on the machine; ratios compare alternating runs."
    found = sections(RESULTS.read_text()) if sys.argv[1:] and RESULTS.exists() else {}
    for name in sys.argv[1:] or SCRIPTS:
        before, began = machine(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py")],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        text = done.stdout if done.returncode == 0 else f"failed:\n{done.stderr[-2000:]}"
        found[name] = f"\n{before}; {time.perf_counter() - began:.0f} s\n\n```\n{text.rstrip()}\n```\n\n"
        print(f"## {name}\n{found[name]}", flush=True)
        RESULTS.write_text(f"# Results\n\n{about}\n\n" + "".join(f"## {n}\n{part}" for n, part in found.items()))


if __name__ == "__main__":
    main()
