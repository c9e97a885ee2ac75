"""What an operator sees of a run: a file beside its folder, and `caveat flower status`."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from commands import caveat, one_error
from flwr.app import Context, Message, RecordDict
from hospitals import NAMES, Federation

from caveat.config import load
from caveat.core import RunError
from caveat.engines.flower import FlowerEngine
from caveat.federation.server.app import server_app
from caveat.federation.server.log import FAILED, lock_of, log_of, logged
from caveat.federation.server.status import status_of
from caveat.files import held


def run_by_the_app(federation: Federation, *sets: str) -> None:
    """As Flower starts it."""
    app = server_app(federation.folder / "config.toml")
    settings = {"run": str(federation.run), "set": ";".join(sets)}
    app(federation.grid, Context(1, 0, {}, RecordDict(), settings))  # type: ignore[arg-type]


def test_a_run_s_status_names_silos_rounds_and_what_was_said_last(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=2, start_timeout=60)
    run_by_the_app(federation)
    said = log_of(federation.run).read_text()
    assert stat.S_IMODE(log_of(federation.run).stat().st_mode) == 0o600
    for line in ("silo hill joined with 38", "step 1, train: coast, hill, valley asked", "round 2/2  train"):
        assert f" {line}" in said, line
    found = status_of(federation.run)
    assert found[0] == f"{federation.run}: complete"
    assert [line.split(":")[0] for line in found[1:4]] == NAMES
    assert [line.split(": ")[1] for line in found[1:4]] == [
        f"last aggregated in round 2, in 2 rounds; node {federation.node[name]}" for name in NAMES
    ]
    assert found[-1].endswith(" the run is complete")
    assert caveat("flower", "status", str(federation.run)).stdout.splitlines() == found


def test_the_status_of_a_run_that_failed_says_why_and_how_far_it_was(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=2, quorum=3, start_timeout=60)
    calls = list[int]()

    def gone_later(reply: Message) -> Message | None:
        calls.append(1)
        return None if len(calls) > 2 else reply

    federation.grid.tamper[federation.node["hill"]] = gone_later
    with pytest.raises(RunError, match="fewer than the quorum"):
        run_by_the_app(federation, "federation.start_timeout=2", "federation.round_timeout=0.5")
    found = status_of(federation.run)
    assert ": 1 of up to 2 rounds; failed; start it again to continue: round 2 of the schedule, task 'base" in found[0]
    assert any(line.endswith(" hill: no reply in time") for line in found), "a line for each silo that was left out"
    assert FAILED in found[-1]


def test_the_status_of_a_run_that_waits_for_silos_is_not_that_of_no_run(tmp_path: Path) -> None:
    with logged(tmp_path / "runs" / "a") as progress:
        progress.note("waiting for 3 silos: 1 joined (coast)")
        found = status_of(tmp_path / "runs" / "a")
    assert (
        found[0]
        == f"{tmp_path / 'runs' / 'a'}: no round aggregated yet; interrupted: repeat the run.sh command to continue"
    )
    assert found[-1].endswith(" waiting for 3 silos: 1 joined (coast)")
    assert "no run, and no .b.log next to it" in one_error(caveat("flower", "status", str(tmp_path / "b")), 2)


def test_the_node_of_a_silo_is_the_one_it_spoke_by_last_and_what_others_write_names_none(tmp_path: Path) -> None:
    """An operator excludes by that number: a silo must not be able to have another's node excluded."""
    run = tmp_path / "a"
    with logged(run) as progress:
        progress.note("node 7 is silo va")
        progress.note("node 8 is silo va")
        progress.note("silo evil is set aside, since the others agree without it: node 9 is silo va")
        progress.note("node 10 is refused: introduce: DataError: node 10 is silo va")
    found = status_of(run)
    assert found[1:3] == ["va: never aggregated; node 8", ""]


def test_a_run_under_way_says_how_old_its_last_word_is(tmp_path: Path) -> None:
    """A server's process may outlive a server that was killed, and nothing else tells that."""
    run = tmp_path / "a"
    with logged(run) as progress, held(lock_of(run), ""):
        progress.note("step 1")
        os.utime(log_of(run), (time.time() - 90, time.time() - 90))
        assert status_of(run)[0].endswith(("running; its last message is 90 s old", " 91 s old"))


def test_who_has_not_answered_is_told_while_the_round_still_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caveat.engines.flower_grid.SLOW", 0.05)
    federation, told = Federation(tmp_path, "fedavg", rounds=1, start_timeout=60), list[str]()
    calls = list[int]()

    def late(reply: Message) -> Message | None:
        calls.append(1)
        return reply if len(calls) > 1 else None

    federation.grid.tamper[federation.node["hill"]] = late
    ask = FlowerEngine._ask

    def heard(self: FlowerEngine, *arguments: object) -> object:
        self.tell = told.append
        return ask(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FlowerEngine, "_ask", heard)
    federation.serve(load(str(federation.folder / "config.toml"), ["federation.round_timeout=2"]))
    assert told[0] == "step 1, train: coast, hill, valley asked"
    assert "step 1, train: waiting for hill" in told


def test_a_second_start_leaves_the_log_of_a_run_under_way_alone(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=2)
    log_of(federation.run).parent.mkdir(parents=True, exist_ok=True)
    log_of(federation.run).write_text("2026-01-01 00:00:00 step 1\n")
    with held(lock_of(federation.run), ""):
        with pytest.raises(RunError, match="is being run by another process"):
            run_by_the_app(federation)
        assert "no round aggregated yet; running; its last message is " in status_of(federation.run)[0]
    assert log_of(federation.run).read_text() == "2026-01-01 00:00:00 step 1\n"
