"""Three hospitals with tables of their own, behind a Grid in this process, and the server of their federation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flower_grid import InProcessGrid
from flwr.app import Message

from caveat.config import Config, load
from caveat.engines.flower import silo_app_of
from caveat.federation.server.run import StartCommand, serve
from caveat.federation.silo.app import NodeHandler
from caveat.runs.progress import Silent
from caveat.runs.start import start

CONFIG = """
seed = 3
rounds = {rounds}
[data]
source = "on_site"
target = "outcome"
classes = ["ill", "well"]
categorical = ["site"]
[model]
name = "mlp"
width = 8
hidden = 8
features = 6
[method]
name = "{method}"
[training]
batch_size = 8
[engine]
name = "flower"
[federation]
min_available_silos = {silos}
quorum = {quorum}
round_timeout = 0.3
start_timeout = {start_timeout}
"""
SILO = """
silo = "{name}"
state = "state"
[data]
source = "csv:{name}.csv"
target = "outcome"
categorical = ["site", "smoker"]
small_counts = true
"""
NAMES = ["coast", "hill", "valley"]


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


STANDARDIZED = 'predict = "quantity"\nstandardize_target = "silo"'
KEYS = {
    "quantity": 'predict = "quantity"',
    "standardized": STANDARDIZED,
    "time": 'predict = "time"\nevent = "died"\nhorizons = [2]',
}
"""What replaces the classes in a federation that predicts a quantity or a time."""


def hospital(folder: Path, name: str, seed: int, rows: int = 80, predict: str = "classes") -> Path:
    """A hospital's table and its `silo.toml`."""
    rng = np.random.default_rng(seed)
    here = folder / name
    here.mkdir(parents=True)
    x = rng.normal(seed, 1, (rows, 2))
    y = np.where(x.sum(1) + rng.normal(0, 0.3, rows) > 2 * seed, "ill", "well")
    kind = rng.choice(["a", "b", f"only {name}"], rows)
    lines = ["age,site,pressure,smoker,outcome" + ",died" * (predict == "time")]
    if predict != "classes":
        y = np.abs(x.sum(1) + rng.normal(0, 0.3, rows)).round(2)
    died = [f",{int(each)}" for each in rng.random(rows) < 0.7] if predict == "time" else [""] * rows
    for i in range(rows):
        pressure = "" if rng.random() < 0.1 and name == "hill" else f"{x[i, 1]:.4f}"
        lines.append(f"{x[i, 0]:.4f},{i % 3 + seed % 2},{pressure},{kind[i]},{y[i]}{died[i]}")
    (here / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (here / "silo.toml").write_text(SILO.format(name=name))
    return here


class Federation:
    """Three hospitals behind a Grid, and a server's folder."""

    def __init__(
        self,
        folder: Path,
        method: str = "scaffold",
        rounds: int = 3,
        quorum: int = 2,
        start_timeout: float = 3,
        more: str = "",
        names: Sequence[str] = NAMES,
        predict: str = "classes",
    ) -> None:
        self.folder, self.run, self.names = folder, folder / "run", names
        self.homes = {n: hospital(folder / "silos", n, seed, predict=predict) for seed, n in enumerate(names)}
        text = CONFIG.format(method=method, rounds=rounds, quorum=quorum, start_timeout=start_timeout, silos=len(names))
        classes = 'classes = ["ill", "well"]'
        (folder / "config.toml").write_text(text.replace(classes, KEYS.get(predict, classes)) + more)
        self.config = load(str(folder / "config.toml"))
        self.node = {name: 7 + k for k, name in enumerate(names)}
        self.grid = InProcessGrid({node: silo_app_of(NodeHandler()) for node in self.node.values()})
        self.grid.node_config = {self.node[n]: {"silo": str(home / "silo.toml")} for n, home in self.homes.items()}
        self.notes: list[str] = []

    def serve(self, config: Config | None = None, start: StartCommand | None = None) -> Path:
        progress = Notes()
        self.notes = progress.notes
        return serve(config or self.config, self.grid, self.run, progress, start)

    def embedded(self) -> Path:
        """The same run on one machine that has the tables of all silos from the beginning."""
        table = self.folder / "config.toml"
        sources = ",".join(str(self.homes[name] / f"{name}.csv") for name in self.names)
        text = table.read_text().replace('"on_site"', f'"csv:{sources}"')
        text = text.replace('name = "flower"', 'name = "single_machine"')
        lines = [
            line
            for line in text.splitlines()
            if not line.startswith(("min_available_silos", "quorum", "round_timeout", "start_timeout"))
        ]
        (self.folder / "single_machine.toml").write_text("\n".join(lines))
        return start(load(str(self.folder / "single_machine.toml")), self.folder / "single_machine")

    def kept(self, name: str) -> Path:
        """What a silo keeps of the federation."""
        (found,) = self.homes[name].glob("state/*/*/silo.json")
        return found.parent


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    # "largest" is said where silos are believed what they say to have.
    return {key: value for key, value in found.items() if key not in ("seconds", "sha256", "files", "largest")}


def losing(first: int) -> Callable[[Message], Message | None]:
    """Lose all replies but the first few."""
    calls = iter(range(10**6))
    return lambda reply: reply if next(calls) < first else None
