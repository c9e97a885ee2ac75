"""Late hospitals: one that misses the last messages, and one that joins the finished federation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from machines import Failed, Machine

from caveat.api import load
from caveat.config import load as load_config
from caveat.core import horizon
from caveat.runs.spec import spec_of


def last_training(config: Path) -> int:
    """The position in the schedule of the last round of training."""
    return horizon(spec_of(load_config(str(config))).method.schedule()) - 1


def deliver(server: Machine, run: Path, silos: list[str], rounds: int) -> None:
    """Have silos get the finished model. Raises Failed unless all do."""
    command = [sys.executable, "-m", "caveat", "flower", "deliver", str(run), "--project", str(server.folder)]
    command += ["--rounds", str(rounds), *(word for silo in silos for word in ("--silo", silo))]
    with server.log("deliver").open("ab") as log:
        done = subprocess.run(command, env=server.environment, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise Failed(f"the model was not delivered; see {server.log('deliver')}")


def check_model(machine: Machine, run: Path, name: str, table: Path, out: Path) -> float:
    """Raises Failed unless a hospital keeps the finished model and predicts with it; return its accuracy."""
    (kept,) = machine.folder.glob("state/*/*/silo.json")
    ours, theirs = ((folder / "model" / "model.safetensors").read_bytes() for folder in (kept.parent, run))
    if ours != theirs:
        raise Failed(f"{name} keeps another model than the server")
    command = [sys.executable, "-m", "caveat", "predict", str(kept.parent), str(table), "--silo", name]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{name} cannot predict: {done.stderr}")
    found = load(kept.parent)
    state = found.experiment.at(name).state
    if not state.get("likelihood"):
        raise Failed(f"{name} has no temperature of its own")
    return _accuracy(table, out)


def _accuracy(table: Path, predicted: Path) -> float:
    """Of all rows of a table, most of which it was trained on."""
    labels = [line.rsplit(",", 1)[1] for line in table.read_text().splitlines()[1:]]
    rows = predicted.read_text().splitlines()
    place = rows[0].split(",").index("label")
    said = [{"healthy": "0", "ill": "1"}[row.split(",")[place]] for row in rows[1:]]
    return sum(a == b for a, b in zip(labels, said, strict=True)) / len(labels)


def trained(run: Path, silo: str) -> int:
    """How many rounds of training a silo has carried out by itself, by what left it, which has to be nothing."""
    lines = [json.loads(line) for line in (run / "delivered" / "ledger.jsonl").read_text().splitlines()]
    own = [line for line in lines if line.get("silo") == silo and "split" not in line]
    if any(line["bytes"] for line in own):
        raise Failed(f"{silo} has sent something of its training")
    return sum(line["phase"] == "train" for line in own)
