"""What was asked of version 0.1 when it left the folders of fixtures/v0_1: asked again, it has to go on there."""

from __future__ import annotations

import dataclasses
import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import caveat
from caveat.data import Silos

HERE = Path(__file__).parents[1] / "fixtures" / "v0_1"
HOME = "/srv/federation"
"""Stands in the files for the folder in which a federation was at home."""
HOSPITALS = ("coast", "hill")
UEFL = ["method.name=uefl", "rounds=2", "method.codewords=4", "method.threshold=0.0", "method.margin=0.0"]
UEFL += ["evaluation.every=1", "data.test_per_silo=20", "method.iterations=2", "method.extra_rounds=2", "beside=[]"]
SLOW = "slow: method.name=trfeddis training.lr=0.001"
COMPARE = ["compare", "table.toml", "--methods", "fedavg", "--variant", SLOW, "--sweep", "model.hidden=8"]
COMPARE += ["--set", "rounds=4", "--seeds", "0", "--workers", "1", "--out", "comparison"]
AUDIT = ["audit", "audit.toml", "--seeds", "0", "--shares", "1/2,1", "--out", "audit"]
SMALL = caveat.ModelSettings(name="mlp", width=8, features=4, hidden=8)
OWN = (
    caveat.PersonalModel(name="mlp", width=4, features=4, hidden=4, silos=("silo-1",)),
    caveat.PersonalModel(name="mlp", width=6, features=4, hidden=4),
)
METHODS = [
    "APFL", "FML", "FMLU", "MOON", "SCAFFOLD", "UEFL", "FedAvg", "FedBABU", "FedBN", "FedDC", "FedDyn", "FedPer",
    "FedPN", "FedProx", "FedRep", "Local", "PerFedAvg", "TrFedDis",
]  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "lenet5": {"features": 4}, "residual": {"width": 2}, "cnn": {"width": 2}, "normed": {"width": 2, "norm": True},
    "mlp": {"width": 8, "features": 4, "second": 4, "norm": True},
}  # fmt: skip


AS_THEN: dict[str, Any] = {"temperature": False, "familiarity": False}
"""What calls have to say of `uncertainty`, as the defaults were those of version 0.1."""


class Told:
    """Notes what a run tells, and stops it before its first round if it is told to."""

    def __init__(self, stop: bool = False) -> None:
        self.stop, self.begun, self.rounds = stop, list[str](), list[int]()

    def begin(self, title: str, rounds: int) -> None:
        self.begun.append(title)
        if self.stop:
            raise KeyboardInterrupt

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        self.rounds.append(number)

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


def silos() -> Silos:
    """Three silos with features that every machine has the same bits of."""
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    return caveat.data.from_arrays(
        {f"silo-{k}": (draw.integers(-8, 9, (60, 4)) / 4 + y[:, None] + k, y) for k in range(3)}
    )


def images() -> Silos:
    """Two silos with small images."""
    draw = np.random.default_rng(0)
    made = {f"silo-{k}": (draw.integers(0, 256, (30, 8, 8), dtype=np.uint8), np.arange(30) % 3) for k in range(2)}
    return caveat.data.from_arrays(made)


def call(out: Path, progress: Told | None = None, **as_then: Any) -> caveat.Run:
    """The call that was killed after two of four rounds, and what a later version has to be told of it."""
    training = caveat.Training(batch_size=16, lr=0.01, local_steps=2)
    return caveat.run(
        silos(), caveat.TrFedDis(), rounds=4, seed=1, model=SMALL, training=training, out=out, progress=progress,
        uncertainty=caveat.Uncertainty(policy="switch", outliers=0.2, abstain=0.2, **as_then),
        newcomers=["silo-2"], every=2,
    )  # fmt: skip


OTHERS: dict[str, dict[str, Any]] = {"UEFL": {"segments": 1}}
"""Settings of methods whose defaults were others: who goes on with an old call passes them."""


def described(method: str, out: Path) -> dict[str, Any]:
    """What a call of a method writes of itself before its first round, or compares with what is there."""
    kind = getattr(caveat, method)
    asked: dict[str, Any] = {"uncertainty": caveat.Uncertainty(**AS_THEN)}
    asked["training"] = dataclasses.replace(kind().training, batch_size=16)
    if kind.personal:
        asked["personal"] = OWN
    if method == "FedProx":
        asked["privacy"] = caveat.Privacy(clip=1.0, noise=0.5)
    try:
        caveat.run(
            silos(), kind(rounds=2, **OTHERS.get(method, {})), model=SMALL, out=out, progress=Told(stop=True), **asked
        )
    except KeyboardInterrupt:
        found: dict[str, Any] = json.loads((out / "call.json").read_text())
        return found
    raise AssertionError("it was not stopped")


def tensors_of_method(method: str, out: Path) -> dict[str, list[str]]:
    """The names and shapes of all tensors that a run of a method leaves."""
    kind = getattr(caveat, method)
    training = dataclasses.replace(kind().training, batch_size=16, local_epochs=None, local_steps=1)
    caveat.run(silos(), kind(), rounds=1, model=SMALL, training=training, every=9, out=out,
               uncertainty=caveat.Uncertainty(mc_samples=1, **AS_THEN))  # fmt: skip
    return tensors(out)


def tensors_of_model(name: str, out: Path) -> dict[str, list[str]]:
    """The same of FedAvg with a model of that name."""
    training = caveat.Training(batch_size=16, local_steps=1)
    model = caveat.ModelSettings(name=name, hidden=4, **MODELS[name])  # type: ignore[arg-type]
    caveat.run(images(), caveat.FedAvg(mc_samples=1), rounds=1, model=model, training=training, every=9, out=out,
               uncertainty=caveat.Uncertainty(**AS_THEN))  # fmt: skip
    return tensors(out / "model")


def tensors(run: Path) -> dict[str, list[str]]:
    """Per folder, what the header of its newest file says of its tensors; of the silos only the first one's."""
    found = {}
    for path in sorted(run.rglob("*.safetensors")):
        place = str(path.relative_to(run).parent)
        if "silos/" not in place or "silo-0" in place:
            content = path.read_bytes()
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            header.pop("__metadata__")
            found[place] = [f"{name} {about['dtype']} {about['shape']}" for name, about in sorted(header.items())]
    return found


def federate(home: Path) -> None:
    """Start the server of the federation's project, with its silos behind a Grid in this process."""
    from flower_grid import InProcessGrid
    from flwr.app import Context, RecordDict

    app = runpy.run_path(str(home / "project" / "federation" / "app.py"))
    grid = InProcessGrid({7 + k: app["silo"] for k in range(len(HOSPITALS))})
    grid.node_config = {7 + k: {"silo": str(home / "silos" / name / "silo.toml")} for k, name in enumerate(HOSPITALS)}
    settings: dict[str, Any] = {"run": str(home / "run"), "set": "federation.patience=3; federation.deadline=0.3"}
    app["server"](grid, Context(1, 0, {}, RecordDict(), settings))


def kept(home: Path, silo: str) -> Path:
    """What a silo keeps of the federation."""
    (found,) = (home / "silos" / silo).glob("state/*/*/silo.json")
    return found.parent


def figures(run: Path) -> dict[str, Any]:
    """What a summary says that does not depend on how fast the machine is."""
    found = json.loads((run / "summary.json").read_text())
    wanted = ("accuracy", "entropy", "nll", "epistemic")
    silos = {silo["name"]: {name: silo["test"][name] for name in wanted} for silo in found["silos"]}
    about = {name: found[name] for name in ("method", "rounds_run", "complete", "traffic", "milestones")}
    return about | {"silos": silos}


def predictions(run: caveat.Run, silo: str) -> dict[str, Any]:
    """What a silo's predictor says of its first test inputs."""
    said = run.predictor(silo)(run.silos.named(silo).test.x[:4])
    uncertainty = {name: values.tolist() for name, values in said.uncertainty.items()}
    return {"probs": said.probs.tolist(), "decision": said.decision.tolist(), "uncertainty": uncertainty}
