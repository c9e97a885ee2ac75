"""Compare all methods with a frozen EfficientNet-lite0: Office-Caltech10, a silo per domain, all its test images.

    python benchmarks/behind_encoder.py --data DIR --out FILE.csv [--rows NAME...] [--seeds 0 1 2]

Appends a line per row and seed to FILE.csv; repeat the command to continue. When all lines exist, it prints the table.
`--rows` takes names of `ROWS`, which also contains controls: rows without one of their parts. Accuracy and calibration
are on test images, as means over silos. Bytes are those of one silo in the largest training round. Seconds are CPU time
of one process: of the training rounds, which the table shows, and of the whole run, in which the first run also fills
the encoder's cache. Settings were chosen on validation images of seeds 100, 101 and 102. Encoder and silos are those of
examples/pretrained_encoder.py.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any, NamedTuple

import caveat
from caveat.runs.progress import Silent

sys.path.append(str(Path(__file__).parent.parent / "examples"))
import pretrained_encoder as office

ROUNDS = 50
SETS = 0.9
"""Share of inputs whose set of classes is to hold the true one."""
DOMAINS = tuple(f"accuracy_{name}" for name in office.DOMAINS)
FIELDS = (
    "row", "seed", "accuracy", "worst", *DOMAINS, "nll", "ece", "unfamiliar", "set_coverage", "set_size",
    "bytes_up", "bytes_down", "rounds_seconds", "seconds",
)  # fmt: skip


def sgd(lr: float, momentum: float = 0.9) -> caveat.Training:
    return caveat.Training(optimizer="sgd", lr=lr, momentum=momentum)


class Row(NamedTuple):
    """A method, what is trained behind the encoder, and how."""

    method: str
    head: dict[str, Any]
    training: caveat.Training
    more: Mapping[str, Any] = MappingProxyType({})


LINEAR: dict[str, Any] = {"hidden": 0}
ADAPTER: dict[str, Any] = {"adapter": 64, "hidden": 0}
HIDDEN: dict[str, Any] = {"hidden": 128}
NORMED: dict[str, Any] = {"hidden": 128, "norm": True}
BOOK: dict[str, Any] = {"segments": 32, "codewords": 64, "rounds": 30}
"""30 rounds, and 4 iterations of 5 in which codebooks may grow: 50."""
ROWS = {
    "local": Row("local", LINEAR, sgd(0.1)),
    "fedavg": Row("fedavg", LINEAR, sgd(0.1)),
    "fedavg, plain sgd": Row("fedavg", LINEAR, sgd(0.1, 0)),
    "fedprox": Row("fedprox", LINEAR, sgd(0.1)),
    "fedavg, normalized head": Row("fedavg", NORMED, sgd(0.03)),
    "fedbn": Row("fedbn", NORMED, sgd(0.03)),
    "scaffold": Row("scaffold", LINEAR, sgd(0.1, 0)),
    "moon": Row("moon", ADAPTER, sgd(0.03)),
    "feddyn": Row("feddyn", LINEAR, sgd(0.03)),
    "feddc": Row("feddc", LINEAR, sgd(0.1, 0)),
    "feddisco": Row("feddisco", LINEAR, sgd(0.1)),
    "ifca": Row("ifca", LINEAR, sgd(0.1)),
    "fedsr": Row("fedsr", ADAPTER, sgd(0.03)),
    "fediir": Row("fediir", LINEAR, sgd(0.1)),
    "fedper": Row("fedper", ADAPTER, sgd(0.1)),
    "fedrep": Row("fedrep", ADAPTER, sgd(0.03), {"head_epochs": 5}),
    "fedbabu": Row("fedbabu", ADAPTER, sgd(0.03)),
    "perfedavg": Row("perfedavg", LINEAR, sgd(0.1)),
    "apfl": Row("apfl", LINEAR, sgd(0.1)),
    "ditto": Row("ditto", LINEAR, sgd(0.1)),
    "fedrod": Row("fedrod", LINEAR, sgd(0.1)),
    "fedbe": Row("fedbe", LINEAR, sgd(0.1)),
    "pfedbayes": Row("pfedbayes", LINEAR, sgd(0.1)),
    "distrans": Row("distrans", ADAPTER, sgd(0.03)),
    "fedcr": Row("fedcr", ADAPTER, sgd(0.03)),
    "fedala": Row("fedala", LINEAR, sgd(0.1)),
    "fedproto": Row("fedproto", ADAPTER, sgd(0.1)),
    "fml": Row("fml", LINEAR, sgd(0.1)),
    "fmlu": Row("fmlu", LINEAR, sgd(0.1)),
    "trfeddis": Row("trfeddis", HIDDEN, caveat.Training(lr=0.001)),
    "trfeddis, adapter": Row("trfeddis", ADAPTER, sgd(0.03)),
    "fedpn": Row("fedpn", {"adapter": 64}, caveat.Training(lr=0.003), {"personal_steps": 0}),
    "uefl": Row("uefl", ADAPTER, sgd(0.03), BOOK),
    "uefl, codebooks that never grow": Row("uefl", ADAPTER, sgd(0.03), {**BOOK, "rounds": ROUNDS, "iterations": 1}),
    "fedavg, adapter": Row("fedavg", ADAPTER, sgd(0.03)),
    "uefl, one segment": Row("uefl", ADAPTER, sgd(0.03), {**BOOK, "segments": 1}),
    "uefl, no adapter": Row("uefl", LINEAR, sgd(0.03), BOOK),
    "uefl, adam": Row("uefl", ADAPTER, caveat.Training(lr=0.003), BOOK),
    "uefl, adam, hidden layer": Row("uefl", {"adapter": 64}, caveat.Training(lr=0.003), BOOK),
}
"""By name; those with a comma are controls."""


class Clock(Silent):
    """Processor time from the first round to the last in which a method trains or scores."""

    def begin(self, title: str, rounds: int) -> None:
        self.began, self.seconds = time.process_time(), 0.0

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        if phase in ("train", "score"):
            self.seconds = time.process_time() - self.began


def measure(row: Row, seed: int, data: Path) -> dict[str, float]:
    """A run, as a line of the file without its first two entries."""
    model = caveat.ModelSettings(encoder=office.lite0, frozen=True, **row.head)
    method = caveat.METHODS[row.method](training=row.training, **{"rounds": ROUNDS, **row.more})
    silos = office.silos(data, seed)
    own = "always" if method.policy == "blend" else None  # its paper's prediction
    began, clock, uncertainty = time.process_time(), Clock(), caveat.Uncertainty(set_coverage=SETS, policy=own)
    run = caveat.run(
        silos, method, model=model, seed=seed, every=10**6, splits=["test"], uncertainty=uncertainty, progress=clock
    )
    seconds = time.process_time() - began
    summary = run.summary
    trained = [each for each in summary["traffic"]["per_round"] if each["phase"] == "train"]
    found = {key: summary["mean"][key] for key in FIELDS if key in summary["mean"]}
    found |= {f"accuracy_{silo['name']}": silo["test"]["accuracy"] for silo in summary["silos"]}
    bytes_of = {key: max(each[key] // each["silos"] for each in trained) for key in ("up", "down")}
    return found | {
        "worst": summary["worst"]["accuracy"],
        "bytes_up": bytes_of["up"],
        "bytes_down": bytes_of["down"],
        "rounds_seconds": round(clock.seconds, 2),
        "seconds": round(seconds, 2),
    }


def read(path: Path) -> dict[tuple[str, int], dict[str, float]]:
    """The lines of a file, by row and seed; none if there is no such file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != FIELDS:
            sys.exit(f"{path}: these are not the columns of this benchmark; give --out another file")
        return {
            (line["row"], int(line["seed"])): {key: float(line[key]) for key in FIELDS[2:] if line[key]}
            for line in lines
        }


def append(path: Path, row: str, seed: int, found: dict[str, float]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        lines = csv.DictWriter(file, FIELDS)
        if new:
            lines.writeheader()
        lines.writerow({"row": row, "seed": seed, **found})


def table(done: dict[tuple[str, int], dict[str, float]], rows: Sequence[str], seeds: Sequence[int]) -> str:
    lines = [
        "| row | after the encoder | mean | sd | worst silo | ECE | unfamiliar | sets | kB up | down | s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        found = [done[row, seed] for seed in seeds]
        of = {key: mean(each[key] for each in found) for key in FIELDS[2:]}
        spread = stdev(each["accuracy"] for each in found) if len(found) > 1 else 0
        figures = [three(of["accuracy"]), three(spread), three(of["worst"]), three(of["ece"])]
        shares = [f"{100 * of[key]:.1f} %" for key in ("unfamiliar", "set_coverage")]
        costs = [f"{of['bytes_up'] / 1000:.0f}", f"{of['bytes_down'] / 1000:.0f}", f"{of['rounds_seconds']:.1f}"]
        lines.append(f"| {' | '.join([row, head_of(ROWS[row].head), *figures, *shares, *costs])} |")
    return "\n".join(lines)


def three(share: float) -> str:
    return f"{share:.3f}".removeprefix("0")


def head_of(settings: dict[str, Any]) -> str:
    """What is trained behind the encoder, in words."""
    adapter = [f"adapter {settings['adapter']}"] if "adapter" in settings else []
    hidden = settings.get("hidden", 128)
    return ", ".join([*adapter, f"hidden {hidden}" if hidden else "linear", *(["norm"] if "norm" in settings else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of office_caltech10_DOMAIN.npz")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    done = read(given.out)
    for row in given.rows:
        for seed in given.seeds:
            if (row, seed) not in done:
                done[row, seed] = measure(ROWS[row], seed, given.data)
                append(given.out, row, seed, done[row, seed])
                print(f"{row}, seed {seed}: {done[row, seed]['accuracy']:.3f}", file=sys.stderr, flush=True)
    print(table(done, given.rows, given.seeds))


if __name__ == "__main__":
    main()
