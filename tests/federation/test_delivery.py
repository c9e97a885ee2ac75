"""Models of a finished federation for who is late: what was missed, joining, and nothing else changes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import caveat as cli
from federations import assert_same
from hospitals import NAMES, Federation, Notes, hospital

import caveat
from caveat.core import ConfigurationError, RunError
from caveat.engines.flower import silo_app_of
from caveat.federation.server.app import deliver
from caveat.federation.server.run import serve
from caveat.federation.server.status import status_of
from caveat.federation.silo.app import NodeHandler
from caveat.files import read_ledger, read_payload
from caveat.runs.joining import own_silos_of

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:column 'smoker'")]
LATE, NODE = "lake", 99


class Leaves(Notes):
    """Has a node leave after a round."""

    def __init__(self, federation: Federation, silo: str, after: int) -> None:
        super().__init__()
        self.federation, self.silo, self.after = federation, silo, after

    def round(self, number: int, phase: str, metrics: Any) -> None:
        if number == self.after:
            self.federation.grid.apps.pop(self.federation.node[self.silo], None)


def arrives(federation: Federation, seed: int = 1) -> None:
    """A fourth hospital, with a node of its own."""
    federation.homes[LATE] = hospital(federation.folder / "silos", LATE, seed)
    federation.node[LATE] = NODE
    federation.grid.apps[NODE] = silo_app_of(NodeHandler())
    federation.grid.node_config[NODE] = {"silo": str(federation.homes[LATE] / "silo.toml")}


def delivered(federation: Federation, *silos: str, rounds: int | None = None) -> list[str]:
    progress = Notes()
    deliver(federation.config, federation.grid, federation.run, silos, progress, rounds)
    return progress.notes


def files(folder: Path) -> dict[str, bytes]:
    own = (file for file in folder.rglob("*") if file.is_file() and "delivered" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in own if file.name not in ("lock", "secret")}


def test_a_silo_that_was_away_in_the_end_gets_the_model_and_what_it_missed(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedbn", start_timeout=60)
    app = federation.grid.apps[federation.node["hill"]]
    serve(federation.config, federation.grid, federation.run, Leaves(federation, "hill", 3))
    assert not list(federation.homes["hill"].glob("state/*/*/model/model.json"))
    federation.grid.apps[federation.node["hill"]] = app
    others = {name: files(federation.homes[name] / "state") for name in NAMES if name != "hill"}
    run = files(federation.run)
    notes = delivered(federation, "hill")
    (told,) = [note for note in notes if note.startswith("hill has the model of fedbn: accuracy")]
    assert 0 < float(told.split("that of the majority ")[1].split(",")[0]) <= 1
    assert notes[0] == "fedbn: waiting for hill, at most 60 s"
    assert {name: files(federation.homes[name] / "state") for name in others} == others
    assert files(federation.run) == run
    ours = read_payload(federation.kept("hill") / "model" / "model.safetensors")
    theirs = read_payload(federation.run / "model" / "model.safetensors")
    assert all(torch.equal(t, theirs[group][name]) for group in theirs for name, t in ours[group].items())
    kept = caveat.load(federation.kept("hill")).experiment.at("hill").state
    assert kept["likelihood"]
    assert any(line.startswith("hill: ") and "; its model was delivered" in line for line in status_of(federation.run))
    assert "delivered: what left the silo, in bytes" in cli("flower", "ledger", federation.run).stdout
    # Nothing is trained: its part of training was counted.
    sent = read_ledger(federation.run / "delivered" / "ledger.jsonl").messages
    assert "train" not in {message.phase for message in sent}
    assert all(message.bytes == 0 for message in sent if message.split is None)


def test_a_silo_joins_after_the_end(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedper", start_timeout=60)
    federation.serve()
    run = files(federation.run)
    others = {name: files(federation.homes[name] / "state") for name in NAMES}
    arrives(federation)
    notes = delivered(federation, LATE, rounds=2)
    assert any(note.startswith(f"{LATE} has the model of fedper after 2 rounds alone") for note in notes)
    assert {name: files(federation.homes[name] / "state") for name in NAMES} == others
    assert files(federation.run) == run
    caveat.load(federation.kept("coast"))
    kept = caveat.load(federation.kept(LATE)).experiment.at(LATE).state
    assert kept["model"]
    # The bits of joining the same run on one machine.
    here = caveat.load(federation.embedded())
    table = own_silos_of(here, f"csv:{federation.homes[LATE] / LATE}.csv", LATE)
    ours = caveat.join(here, table, rounds=2, out=tmp_path / "joined").experiment.at(LATE).state
    assert_same(kept, ours)
    sent = read_ledger(federation.run / "delivered" / "ledger.jsonl").messages
    assert [message.phase for message in sent if message.silo == LATE].count("train") == 2
    assert all(message.bytes == 0 for message in sent if message.split is None)
    own = read_ledger(federation.kept(LATE) / "ledger.jsonl").messages
    assert [message.bytes for message in own] == [message.bytes for message in sent]
    # The same again measures and delivers, and trains on nothing.
    delivered(federation, LATE)
    sent = read_ledger(federation.run / "delivered" / "ledger.jsonl").messages
    assert [message.phase for message in sent if message.silo == LATE].count("train") == 2


def test_new_labels_are_refused(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", start_timeout=60)
    federation.serve()
    arrives(federation)
    table = federation.homes[LATE] / f"{LATE}.csv"
    table.write_text(table.read_text().replace(",well", ",cured"))
    with pytest.raises(RunError, match=f"no model for {LATE}"):
        delivered(federation, LATE)


def test_who_does_not_come_is_named_and_others_get_theirs(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", start_timeout=60)
    federation.serve()
    waits = dataclasses.replace(federation.config.federation, start_timeout=8)
    federation.config = dataclasses.replace(federation.config, federation=waits)
    with pytest.raises(RunError, match="no model for nobody"):
        delivered(federation, "hill", "nobody")
    told = [m.silo for m in read_ledger(federation.run / "delivered" / "ledger.jsonl").messages]
    assert told == ["hill"]


def test_before_the_end_there_is_nothing_to_deliver(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    with pytest.raises(ConfigurationError, match="is not finished"):
        delivered(federation, "hill")
    assert json.dumps(federation.notes) == "[]"
