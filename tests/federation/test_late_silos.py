"""Silos that come when training is over: they are no part of the run, are told so, and join by delivery."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from flwr.app import Message
from hospitals import NAMES, Federation, Notes, losing, summary
from html_page import Page
from test_delivery import LATE, arrives, delivered, files

import caveat
from caveat.core import RunError
from caveat.federation.server.log import logged
from caveat.federation.server.run import serve
from caveat.federation.server.status import status_of
from caveat.files import read_ledger, read_run
from caveat.files.schema import NO_PART

pytestmark = pytest.mark.filterwarnings("ignore:column 'smoker'")

TEMPERED = "\n[uncertainty]\ntemperature_scaling = true\n"
OWN = {"fedpn": "own", "fmlu": "own", "fedper": "model", "uefl": "model"}
"""By method what of a silo's state is its own, and not of the temperature and the like, which silos have by any."""


class After(Notes):
    """Does something after a round of training, and keeps what is said."""

    def __init__(self, number: int, do: Callable[[], None]) -> None:
        super().__init__()
        self.number, self.do = number, do

    def round(self, number: int, phase: str, metrics: Any) -> None:
        if number == self.number and phase == "train":
            self.do()


def trained(run: Path) -> dict[str, set[str]]:
    """The phases in which each silo was counted, in a ledger."""
    found: dict[str, set[str]] = {}
    for message in read_ledger(run / "ledger.jsonl").messages:
        found.setdefault(message.silo, set()).add(message.phase or "")
    return found


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "fedbn", *OWN])
def test_a_silo_that_comes_after_training_is_no_part_of_the_run_and_joins_by_delivery(
    tmp_path: Path, method: str
) -> None:
    """Its figures are without what the others have of their own, and would be mixed into their means."""
    federation = Federation(tmp_path, method, start_timeout=60, more=TEMPERED)
    last = 23 if method == "uefl" else 3
    progress = After(last, lambda: arrives(federation))
    serve(federation.config, federation.grid, federation.run, progress)
    found = summary(federation.run)
    assert [silo["name"] for silo in found["silos"]] == NAMES
    assert {each.get("silos", 3) for each in found["models"].values() if "silos" in each} == {3}
    assert LATE not in trained(federation.run)
    (said,) = [note for note in progress.notes if note.startswith(f"silo {LATE} {NO_PART}")]
    assert f"caveat flower deliver RUN --silo {LATE}" in said
    assert {row.left_out for row in read_run(federation.run).left_out} == {NO_PART}
    # Nothing of its sizes or classes was asked for.
    assert not list(federation.homes[LATE].glob("state/*/config.toml"))
    run = files(federation.run)
    notes = delivered(federation, LATE)
    assert any(note.startswith(f"{LATE} has the model of {method} after") for note in notes)
    assert files(federation.run) == run
    assert {"train", "temperature"} <= trained(federation.run / "delivered")[LATE]
    kept = caveat.load(federation.kept(LATE)).experiment.at(LATE).state
    assert kept["likelihood"]
    assert method not in OWN or kept[OWN[method]]


@pytest.mark.long
def test_a_silo_that_was_away_for_all_of_training_comes_after_the_run_too(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedpn", start_timeout=60, more=TEMPERED)
    back = federation.grid.apps[federation.node["hill"]]

    def lost(reply: Message) -> Message | None:
        return None

    def comes_back() -> None:
        del federation.grid.tamper[federation.node["hill"]]
        assert federation.grid.apps[federation.node["hill"]] is back

    federation.grid.tamper[federation.node["hill"]] = lost
    with logged(federation.run) as progress:
        told, progress.round = progress.round, None  # type: ignore[method-assign,assignment]

        def round_(number: int, phase: str, metrics: Any) -> None:
            told(number, phase, metrics)
            if number == 3 and phase == "train":
                comes_back()

        progress.round = round_  # type: ignore[method-assign]
        serve(federation.config, federation.grid, federation.run, progress)
    found = summary(federation.run)
    assert [silo["name"] for silo in found["silos"]] == ["coast", "valley"]
    assert found["absent"] == ["hill"]
    status = status_of(federation.run)
    assert [line for line in status[1:] if line.startswith("silo hill did not take part in training")]
    notes = delivered(federation, "hill")
    assert any(note.startswith("hill has the model of fedpn after 3 rounds alone") for note in notes)
    assert caveat.load(federation.kept("hill")).experiment.at("hill").state["own"]


@pytest.mark.long
def test_a_run_that_goes_on_after_training_admits_nobody(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedbn", start_timeout=3, more=TEMPERED)

    def fails() -> None:
        for name in NAMES:
            federation.grid.tamper[federation.node[name]] = lambda reply: None

    with pytest.raises(RunError, match="fewer than the quorum"):
        serve(federation.config, federation.grid, federation.run, After(3, fails))
    federation.grid.tamper.clear()
    arrives(federation)
    federation.serve()
    assert [silo["name"] for silo in summary(federation.run)["silos"]] == NAMES
    assert any(note.startswith(f"silo {LATE} {NO_PART}") for note in federation.notes)


@pytest.mark.long
def test_a_silo_that_missed_one_round_after_training_makes_it_up_with_what_builds_on_it(tmp_path: Path) -> None:
    """A silo's own model of `fedpn` comes in one round, which those after it do not make up for."""
    federation = Federation(tmp_path, "fedpn", start_timeout=60, more=TEMPERED)
    node, missed = federation.node["hill"], list[int]()

    def away(reply: Message) -> Message | None:
        missed.append(1)
        return None if len(missed) == 7 else reply  # three rounds, each measured, then the one of its own model

    federation.grid.tamper[node] = away
    federation.serve()
    assert "personalise" not in trained(federation.run)["hill"]
    assert "own" not in caveat.load(federation.kept("hill")).experiment.at("hill").state
    found = summary(federation.run)
    models = {name: each for name, each in found["models"].items() if name != "oracle"}
    assert [each["silos"] for each in models.values()] == [2, 2, 2]
    best = max(models[name]["mean"]["accuracy"] for name in ("local", "global"))
    assert found["models"]["oracle"]["mean"]["accuracy"] >= best
    assert found["mean"]["accuracy"] == pytest.approx(fmean(silo["test"]["accuracy"] for silo in found["silos"]))
    page = Page((federation.run / "report.html").read_text()).text
    assert all(f"{name} (2 of 3 silos)" in page for name in ("local", "global", "oracle"))
    federation.grid.tamper.clear()
    delivered(federation, "hill")
    made = trained(federation.run / "delivered")["hill"]
    assert {"personalise", "temperature"} <= made
    assert "train" not in made
    assert caveat.load(federation.kept("hill")).experiment.at("hill").state["own"]
    # The same again measures, and does nothing anew.
    before = len(read_ledger(federation.run / "delivered" / "ledger.jsonl").messages)
    delivered(federation, "hill")
    assert len(read_ledger(federation.run / "delivered" / "ledger.jsonl").messages) == before + 1


@pytest.mark.long
def test_joining_that_was_interrupted_goes_on_with_the_rounds_that_are_left(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedper", start_timeout=60, more=TEMPERED)
    federation.serve()
    arrives(federation)
    waits = dataclasses.replace(federation.config.federation, start_timeout=2)
    patient, federation.config = federation.config, dataclasses.replace(federation.config, federation=waits)
    federation.grid.tamper[federation.node[LATE]] = losing(1)
    with pytest.raises(RunError, match=f"no model for {LATE}"):
        delivered(federation, LATE, rounds=3)
    federation.grid.tamper.clear()
    federation.config = patient
    notes = delivered(federation, LATE, rounds=3)
    assert any(note.startswith(f"{LATE} has the model of fedper after 2 rounds alone") for note in notes)
    found = [m for m in read_ledger(federation.run / "delivered" / "ledger.jsonl").messages if m.silo == LATE]
    assert [m.t for m in found if m.phase == "train"] == [0, 1, 2]
