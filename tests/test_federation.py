"""A federation whose silos have data of their own: the same run as on one machine, from nothing but messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install caveat[flower]")

from federations import assert_same
from flower_grid import InProcessGrid
from flwr.app import Message

import caveat
from caveat import ledger
from caveat.config import Config, load
from caveat.core import ConfigurationError, RunError
from caveat.engines.flower import pack, silo_app_of, unpack
from caveat.experiment import start
from caveat.federation.node import Node
from caveat.federation.server import serve
from caveat.progress import Silent
from caveat.store import read

CONFIG = """
seed = 3
rounds = {rounds}
[data]
source = "silos"
target = "outcome"
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
begin_with = 3
quorum = {quorum}
deadline = 0.3
patience = 3
"""
NAMES = ["coast", "hill", "valley"]


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def hospital(folder: Path, name: str, seed: int, rows: int = 80) -> Path:
    """A hospital's table and its `silo.toml`."""
    rng = np.random.default_rng(seed)
    here = folder / name
    here.mkdir(parents=True)
    x = rng.normal(seed, 1, (rows, 2))
    y = np.where(x.sum(1) + rng.normal(0, 0.3, rows) > 2 * seed, "ill", "well")
    kind = rng.choice(["a", "b", f"only {name}"], rows)
    lines = ["age,site,pressure,smoker,outcome"]
    for i in range(rows):
        pressure = "" if rng.random() < 0.1 and name == "hill" else f"{x[i, 1]:.4f}"
        lines.append(f"{x[i, 0]:.4f},{i % 3 + seed % 2},{pressure},{kind[i]},{y[i]}")
    (here / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (here / "silo.toml").write_text(f'silo = "{name}"\nstate = "state"\n[data]\nsource = "csv:{name}.csv"\n')
    return here


class Federation:
    """Three hospitals behind a Grid, and a server's folder."""

    def __init__(self, folder: Path, method: str = "scaffold", rounds: int = 3, quorum: int = 2) -> None:
        self.folder, self.run = folder, folder / "run"
        self.homes = {name: hospital(folder / "silos", name, seed) for seed, name in enumerate(NAMES)}
        (folder / "config.toml").write_text(CONFIG.format(method=method, rounds=rounds, quorum=quorum))
        self.config = load(str(folder / "config.toml"))
        self.node = {name: 7 + k for k, name in enumerate(NAMES)}
        self.grid = InProcessGrid({node: silo_app_of(Node()) for node in self.node.values()})
        self.grid.node_config = {self.node[n]: {"silo": str(home / "silo.toml")} for n, home in self.homes.items()}
        self.notes: list[str] = []

    def serve(self, config: Config | None = None) -> Path:
        progress = Notes()
        self.notes = progress.notes
        return serve(config or self.config, self.grid, self.run, progress)

    def embedded(self) -> Path:
        """The same run on one machine that has all three tables."""
        table = self.folder / "config.toml"
        sources = ",".join(str(self.homes[name] / f"{name}.csv") for name in NAMES)
        text = table.read_text().replace('"silos"', f'"csv:{sources}"').replace('name = "flower"', 'name = "embedded"')
        lines = [line for line in text.splitlines()
                 if not line.startswith(("begin_with", "quorum", "deadline", "patience"))]  # fmt: skip
        (self.folder / "embedded.toml").write_text("\n".join(lines))
        return start(load(str(self.folder / "embedded.toml")), self.folder / "embedded")

    def kept(self, name: str) -> Path:
        """What a silo keeps of the federation."""
        (found,) = self.homes[name].glob("state/*/*/silo.json")
        return found.parent


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return {key: value for key, value in found.items() if key != "seconds"}


def states(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("method", ["scaffold", "uefl", "fedpn", "fmlu"])
def test_a_federation_of_separate_silos_is_the_run_of_one_machine(method: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, method)
    run, here = federation.serve(), federation.embedded()
    assert not [note for note in federation.notes if "without" in note or "not admitted" in note]
    assert_same(read(run / "model" / "model.safetensors"), read(here / "model" / "model.safetensors"))
    for name in NAMES:
        there, ours = federation.kept(name) / "state" / "silos" / name, here / "state" / "silos" / name
        assert states(there).keys() == states(ours).keys()
        for file, path in states(there).items():
            assert_same(read(path), read(ours / file))
    assert summary(run) == summary(here)
    assert (run / "rounds.jsonl").read_text() == (here / "rounds.jsonl").read_text()
    assert json.loads((run / "splits.json").read_text()) == json.loads((here / "splits.json").read_text())
    assert (run / "report.html").exists()


def test_the_ledger_says_what_left_the_silos_at_the_server_and_at_each_of_them(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    run = federation.serve()
    entries = ledger.read(run / "ledger.jsonl")
    trained = [message for message in entries.messages if message["phase"] == "train" and "split" not in message]
    assert [(message["round"], message["silo"]) for message in trained] == [(r, n) for r in (1, 2, 3) for n in NAMES]
    model = read(run / "model" / "model.safetensors")["model"]
    form = entries.forms[trained[0]["form"]]
    assert {name: entry["shape"] for name, entry in form.items()} == {
        f"model/{n}": list(t.shape) for n, t in model.items()
    }
    assert (
        trained[0]["bytes"] == sum(entry["bytes"] for entry in form.values()) == sum(t.nbytes for t in model.values())
    )
    for name in NAMES:
        own = ledger.read(federation.kept(name) / "ledger.jsonl")
        sent = [(m["t"], m["form"], m["bytes"]) for m in entries.messages if m["silo"] == name]
        assert [(m["t"], m["form"], m["bytes"]) for m in own.messages] == sent
        assert own.forms.keys() == {form for _, form, _ in sent}


def losing(first: int) -> Callable[[Message], Message | None]:
    """Lose all replies but the first few."""
    calls = iter(range(10**6))
    return lambda reply: reply if next(calls) < first else None


def test_a_server_that_gives_up_continues_to_the_same_bits(tmp_path: Path) -> None:
    federation, whole = Federation(tmp_path / "a", quorum=3), Federation(tmp_path / "b", quorum=3)
    federation.grid.tamper[federation.node["hill"]] = losing(2)
    with pytest.raises(RunError, match="fewer than the quorum; hill: no reply in time"):
        federation.serve()
    assert (federation.run / "state" / "checkpoint.json").exists()
    federation.grid.tamper.clear()
    federation.serve()
    whole.serve()
    assert_same(read(federation.run / "model" / "model.safetensors"), read(whole.run / "model" / "model.safetensors"))
    assert summary(federation.run) == summary(whole.run)
    assert (federation.run / "ledger.jsonl").read_text() == (whole.run / "ledger.jsonl").read_text()
    for name in NAMES:
        ours, theirs = (states(f.kept(name) / "state" / "silos" / name) for f in (federation, whole))
        assert [read(path) and path.name for path in ours.values()] == [path.name for path in theirs.values()]
        for file, path in ours.items():
            assert_same(read(path), read(theirs[file]))


def test_who_is_left_out_is_named_in_rows_log_and_summary(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    federation.grid.tamper[federation.node["hill"]] = losing(2)
    run = federation.serve()
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    left_out = {
        (row["round"], row.get("split", "train"), row["silo"], row["left_out"]) for row in rows if "left_out" in row
    }
    assert (2, "train", "hill", "no reply in time") in left_out
    assert (3, "test", "hill", "no reply in time") in left_out
    assert "round 2, train: without hill: no reply in time" in federation.notes
    found = summary(run)
    assert found["absent"] == ["hill"]
    assert [silo["name"] for silo in found["silos"]] == ["coast", "valley"]


def nan(reply: Message) -> Message:
    payload = unpack(reply.content)
    for tensors in payload.values():
        for tensor in tensors.values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
    reply.content = pack(payload, examples=52)
    return reply


def test_a_hostile_silo_is_named_and_the_others_are_as_without_it(tmp_path: Path) -> None:
    hostile, without = Federation(tmp_path / "a", "fedavg"), Federation(tmp_path / "b", "fedavg")
    hostile.grid.tamper[hostile.node["hill"]] = nan
    without.grid.tamper[without.node["hill"]] = losing(0)
    runs = [federation.serve() for federation in (hostile, without)]
    assert_same(*(read(run / "model" / "model.safetensors") for run in runs))
    assert summary(runs[0]) == summary(runs[1])
    rows = [json.loads(line) for line in (runs[0] / "rounds.jsonl").read_text().splitlines()]
    named = {(row["round"], row.get("split", "train")) for row in rows if "left_out" in row and row["silo"] == "hill"}
    assert named >= {(1, "train"), (2, "train"), (3, "train"), (3, "test")}
    assert all("is not finite" in row["left_out"] for row in rows if "left_out" in row)
    assert any("without hill" in note and "is not finite" in note for note in hostile.notes)


def test_a_silo_predicts_with_the_federation_s_model_on_its_own_machine(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedpn")
    federation.serve()
    here = caveat.load(federation.embedded())
    for name in NAMES:
        there = caveat.load(federation.kept(name))
        assert [silo.name for silo in there.silos] == [name]
        x = there.silos.named(name).test.x
        ours, theirs = here.predictor(name)(x), there.predictor(name)(x)
        assert ours.probs.equal(theirs.probs)
        assert ours.decision.equal(theirs.decision)


# Who may take part


def test_a_silo_may_join_later(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=4)
    late = federation.grid.apps.pop(federation.node["valley"])
    calls: list[int] = []

    def arrive(reply: Message) -> Message:
        calls.append(1)
        federation.grid.apps[federation.node["valley"]] = late
        return reply

    federation.grid.tamper[federation.node["coast"]] = arrive
    config = load(str(federation.folder / "config.toml"), ["federation.begin_with=2"])
    run = federation.serve(config)
    trained = [m for m in ledger.read(run / "ledger.jsonl").messages if "split" not in m]
    assert [m["round"] for m in trained if m["silo"] == "valley"] == [3, 4] or [
        m["round"] for m in trained if m["silo"] == "valley"
    ] == [2, 3, 4]
    assert "silo valley has joined: 52 training examples" in federation.notes
    assert list(json.loads((run / "splits.json").read_text())) == NAMES


def test_nobody_is_believed_to_be_a_silo_that_is_connected(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    federation.grid.apps[99] = silo_app_of(Node())
    federation.grid.node_config[99] = federation.grid.node_config[federation.node["hill"]]
    federation.serve()
    assert any("node 99 is not admitted" in note and "another node that is connected is" in note
               for note in federation.notes)  # fmt: skip


class Nonsense:
    def greet(self, context: Any, question: Any) -> dict[str, Any]:
        return {"silo": "x", "sketch": '{"labels": [1, 2, {"a": null}], "shape": "wide"}'}

    def perform(self, *args: Any) -> Any:
        raise NotImplementedError


def test_a_greeting_that_makes_no_sense_stops_nobody(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    federation.grid.apps[1] = silo_app_of(Nonsense())
    run = federation.serve()
    assert len(summary(run)["silos"]) == 3
    assert any(note.startswith("node 1 is not admitted: introduce: DataError") for note in federation.notes)


def test_the_order_of_silos_is_by_name_whoever_is_quicker(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    federation.node = {name: 9 - k for k, name in enumerate(NAMES)}
    federation.grid = InProcessGrid({node: silo_app_of(Node()) for node in sorted(federation.node.values())})
    federation.grid.node_config = {
        federation.node[name]: {"silo": str(home / "silo.toml")} for name, home in federation.homes.items()
    }
    run = federation.serve()
    assert (
        [silo["name"] for silo in summary(run)["silos"]] == NAMES == list(json.loads((run / "splits.json").read_text()))
    )


def test_flower_s_runs_are_not_started_as_others_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"engine.name = 'flower' is for runs that Flower starts"):
        start(load("digits", ["engine.name=flower"]), tmp_path / "run")


def test_too_few_silos_end_the_wait_and_leave_nothing(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    del federation.grid.apps[federation.node["hill"]]
    with pytest.raises(RunError, match=r"3 silos are needed to begin; after 3 s there was coast, valley"):
        federation.serve()
    assert not federation.run.exists()


def test_another_configuration_does_not_continue_a_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    federation.serve()
    with pytest.raises(ConfigurationError, match="began with another configuration"):
        federation.serve(load(str(federation.folder / "config.toml"), ["seed=4"]))


def test_a_changed_table_is_refused_when_the_run_continues(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", quorum=3)
    federation.grid.tamper[federation.node["hill"]] = losing(1)
    with pytest.raises(RunError):
        federation.serve()
    federation.grid.tamper.clear()
    home = federation.homes["hill"]
    table = (home / "hill.csv").read_text().splitlines()
    (home / "hill.csv").write_text("\n".join([table[0], *table[2:]]) + "\n")
    for path in home.glob("state/*/data-*"):
        path.unlink()
    with pytest.raises(RunError, match=r"3 silos are needed|fewer than the quorum"):
        federation.serve()
    assert any("hill" in note and "not those that it joined with" in note for note in federation.notes)
