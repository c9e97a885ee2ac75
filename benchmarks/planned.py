"""Compare the estimates of `caveat plan` with actual runs: seconds and bytes.

    [CAVEAT_DATA=DIR] python benchmarks/planned.py [--repeats N] [NAME...]

Each configuration is planned and then run, each in a separate process, in turns. Seconds of a run are from its
summaries, including baselines. Of a range, the middle is compared. Names are those of `RUNS`; those whose data are not
in $CAVEAT_DATA are omitted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ALONE = "baselines=[]"
RUNS: dict[str, tuple[str, list[str]]] = {
    "make run": ("digits", []),
    "uefl": ("digits", [ALONE]),
    "fedpn": ("digits", [ALONE, "method.name=fedpn", "rounds=10"]),
    "perceptron, 100 silos": (
        "digits",
        [
            ALONE, "method.name=fedavg", "model.name=mlp", "data.n_silos=100", "data.shift.angles=[0]",
            "training.batch_size=4", "training.local_epochs=2", "rounds=20",
        ],
    ),
    "lenet5": ("fedpn-fmnist", ["rounds=5", "evaluation.every=1", "method.personal_epochs=2"]),
}  # fmt: skip
"""By name a recipe and what is set."""
DATA = {"lenet5": "fashion_mnist.npz"}


def command(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "caveat", *words], capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def once(config: str, sets: list[str]) -> tuple[float, float, int, int]:
    """Expected and taken seconds, expected and sent bytes of rounds, without figures."""
    options = [word for each in sets for word in ("--set", each)]
    plan = json.loads(command("plan", config, *options, "--json"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command("run", config, *options, "--quiet", "--out", str(folder))
        summaries = [json.loads(file.read_text()) for file in folder.glob("**/summary.json")]
    sent = sum(summary["traffic"]["bytes_up"] for summary in summaries)
    planned = sum(
        phase["total_up"][1] for each in plan["methods"] for phase in each["phases"] if phase["kind"] != "evaluation"
    )
    return sum(plan["seconds"]) / 2, sum(sum(summary["seconds"].values()) for summary in summaries), planned, sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *RUNS])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print(f"{'run':<24}{'expected':>10}{'taken':>10}{'ratio':>8}{'bytes expected':>18}{'bytes sent':>16}")
    there = [
        name for name in RUNS if name not in DATA or (Path(os.environ.get("CAVEAT_DATA", "")) / DATA[name]).exists()
    ]
    for name in given.names or there:
        found = [once(*RUNS[name]) for _ in range(given.repeats)]
        expected, taken = (median(each[i] for each in found) for i in range(2))
        ratio = median(each[0] / each[1] for each in found)
        print(f"{name:<24}{expected:>8.1f} s{taken:>8.1f} s{ratio:>8.2f}{found[0][2]:>18,}{found[0][3]:>16,}")


if __name__ == "__main__":
    main()
