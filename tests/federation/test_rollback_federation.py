"""A federation that goes back to an earlier round by command, without a silo or with all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import caveat, one_error
from federations import assert_same
from flwr.app import ArrayRecord, Message
from hospitals import NAMES, Federation, losing, summary
from html_page import Page

from caveat.config import load
from caveat.core import RunError
from caveat.core.errors import Diverged
from caveat.federation.server.log import lock_of, log_of
from caveat.federation.server.status import status_of
from caveat.files import held, read_ledger, read_payload
from caveat.html.run.page import write_report

pytestmark = pytest.mark.long


def same(one: Federation, other: Federation) -> None:
    """Both came to the same bits, at the server and at the silos."""
    ours, theirs = (summary(each.run) for each in (one, other))
    ours.pop("rollbacks", None)
    assert ours == theirs
    for log in ("rounds.jsonl", "ledger.jsonl"):
        assert (one.run / log).read_text() == (other.run / log).read_text()
    files = [Path("model/model.safetensors")]
    assert_same(*(read_payload(each.run / files[0]) for each in (one, other)))
    for name in NAMES:
        places = [each.kept(name) / "state" / "silos" / name for each in (one, other)]
        newest = [sorted(place.glob("*.safetensors"))[-1:] for place in places]
        assert [path.name for path in newest[0]] == [path.name for path in newest[1]]
        for mine, path in zip(*newest, strict=True):
            assert_same(read_payload(mine), read_payload(path))


@pytest.mark.parametrize(("method", "number"), [("scaffold", 6), ("fedbn", 6), ("fedpn", 3), ("uefl", 2)])
def test_a_finished_federation_goes_back_and_on_to_the_same_bits(method: str, number: int, tmp_path: Path) -> None:
    whole, other = (Federation(tmp_path / each, method, rounds=number) for each in ("a", "b"))
    if method == "uefl":
        few = ["method.iterations=2", "method.extra_rounds=1"]
        for each in (whole, other):
            each.config = load(str(each.folder / "config.toml"), few)
    whole.serve()
    run = other.serve()
    sent = len(read_ledger(other.kept("hill") / "ledger.jsonl").messages)
    said = caveat("rollback", run).stdout.splitlines()
    rounds = [int(line.split()[0]) for line in said[1:-1]]
    assert len(rounds) >= min(number, 5)
    assert caveat("rollback", run, "--to", rounds[0]).exit_code == 0
    assert not (run / "summary.json").exists()
    other.serve()
    same(other, whole)
    # What a silo has sent it has sent: its own ledger goes back to nothing.
    assert len(read_ledger(other.kept("hill") / "ledger.jsonl").messages) > sent
    assert [each["to"] for each in summary(run)["rollbacks"]] == [rounds[0]]


def test_a_silo_that_is_left_out_after_going_back_counts_no_more(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "scaffold", rounds=5)
    run = federation.serve()
    assert caveat("rollback", run, "--to", 3).exit_code == 0
    del federation.grid.node_config[federation.node["valley"]]  # as after `flwr supernode unregister`
    federation.grid.apps.pop(federation.node["valley"], None)
    federation.serve()
    trained = [m for m in read_ledger(run / "ledger.jsonl").messages if m.phase == "train" and m.split is None]
    assert {m.round for m in trained if m.silo == "valley"} == {1, 2, 3}
    assert {m.round for m in trained if m.silo == "hill"} == {1, 2, 3, 4, 5}
    assert summary(run)["absent"] == ["valley"]


def test_a_run_under_way_is_refused_and_the_log_says_what_was_done(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedbn", rounds=4, quorum=3, start_timeout=0.5)
    federation.grid.tamper[federation.node["hill"]] = losing(6)
    with pytest.raises(RunError, match="fewer than the quorum"):
        federation.serve()
    run = federation.run
    log_of(run).write_text("2026-01-01 00:00:00 round  2/4  train\n")
    with held(lock_of(run), ""):
        assert "is being run by another process" in one_error(caveat("rollback", run, "--to", 1), 4)
    done = caveat("rollback", run, "--to", 1)
    assert done.exit_code == 0, done.stderr
    assert "the same run.sh" in done.stdout
    assert f"{run} was rolled back to round 1" in log_of(run).read_text()
    assert "1 of up to 4 rounds" in status_of(run)[0]
    federation.grid.tamper.clear()
    federation.serve()
    whole = Federation(tmp_path / "whole", "fedbn", rounds=4, quorum=3)
    whole.serve()
    same(federation, whole)
    assert json.loads((run / "summary.json").read_text())["rollbacks"][0]["to"] == 1


def longer(times: float, first: int) -> Callable[[Message], Message]:
    """A silo whose models are so many times as large, once it was asked a few times."""
    calls = iter(range(10**6))

    def lie(reply: Message) -> Message:
        if next(calls) >= first and reply.has_content() and "group.model" in reply.content:
            record = reply.content["group.model"]
            assert isinstance(record, ArrayRecord)
            state = {k: v * times if v.is_floating_point() else v for k, v in record.to_torch_state_dict().items()}
            reply.content["group.model"] = ArrayRecord(torch_state_dict=state)
        return reply

    return lie


def test_the_command_is_suggested_beside_a_silo_that_is_noted_and_where_training_diverged(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=3, start_timeout=0.5)
    federation.grid.tamper[federation.node["hill"]] = longer(1e4, 2)  # the first round and its evaluation
    run = federation.serve()
    found = [note for note in federation.notes if f"`caveat rollback {run} --to " in note]
    assert [note.partition(",")[0] for note in found] == ["to undo round 2", "to undo round 3"]
    assert "lists the rounds that the run can be rolled back to" in (run / "report.html").read_text()
    assert not summary(run).get("rollbacks")  # never automatic
    other = Federation(tmp_path / "other", "fedavg", rounds=4, start_timeout=0.5)
    for name in ("hill", "valley"):
        other.grid.tamper[other.node[name]] = longer(1e4, 4)
    with pytest.raises(Diverged, match="diverged"):
        other.serve()
    (said,) = [note for note in other.notes if note.startswith("if a silo is the cause, exclude it")]
    assert f"`caveat rollback {other.run}` lists earlier rounds" in said
    page = write_report(other.run).read_text()
    assert "If a silo is the cause, exclude it" in page
    assert f"caveat rollback {other.run.name}" in Page(page).text
