"""Going back to an earlier round by command: to the bits of a run that never went on, or a refusal in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import caveat, one_error, sets
from test_extension import Cut, CutsAt

from caveat.config import load
from caveat.files import locked, read_ledger
from caveat.runs.resume import resume
from caveat.runs.start import start

SMALL = [
    "model.name=mlp", "model.hidden=8", "data.n_silos=3", "engine.workers=1", "uncertainty.mc_samples=2",
    "baselines=[]",
    "training.local_epochs=1", "training.batch_size=32", "engine.sync_seconds=0", "engine.keep_checkpoints=5",
]  # fmt: skip
KEPT = ["training.optimizer=adam", "training.optimizer_state=keep"]
PARTS = ["federation.participation=0.5"]
CASES: dict[str, list[str]] = {
    "fedavg": ["method.name=fedavg", *KEPT],
    "fedbn": ["method.name=fedbn", "model.name=normed", "model.width=4", *PARTS],
    "fedpn": ["method.name=fedpn", "method.layers=2", "method.personal_epochs=1", "method.density_rounds=1",
              "method.personal_steps=5", *PARTS],
    "uefl": ["method.name=uefl", "method.iterations=2", "method.extra_rounds=1"],
    "scaffold": ["method.name=scaffold", *PARTS],
    "fedper": ["method.name=fedper", *KEPT, *PARTS, "engine.workers=2"],
}  # fmt: skip


def began(folder: Path, case: str, *more: str, rounds: int = 7) -> Path:
    return start(load(None, [*SMALL, *CASES[case], f"rounds={rounds}", *more]), folder)


def results(run: Path) -> dict[str, Any]:
    """All that a run has come to, without times and without what it says of going back."""
    summary = json.loads((run / "summary.json").read_text())
    for key in ("seconds", "sha256", "rollbacks", "files"):
        summary.pop(key, None)
    logs = ("rounds.jsonl", "ledger.jsonl", "state/states.jsonl")
    found: dict[str, Any] = {log: (run / log).read_text() for log in logs if (run / log).exists()}
    files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.safetensors")}
    return {"summary": summary, **found, **files}


def rounds(run: Path) -> list[int]:
    """What the command lists."""
    lines = caveat("rollback", run).stdout.splitlines()
    return [int(line.split()[0]) for line in lines[1:-1]]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_after_going_back_a_run_comes_to_the_bits_of_one_that_was_left_alone(case: str, tmp_path: Path) -> None:
    whole = results(began(tmp_path / "whole", case))
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "whole", run)
    last = rounds(run)[-1]
    assert rounds(run) == list(range(last - 4, last + 1))
    for to in (last - 1, last - 4):
        assert caveat("rollback", run, "--to", to).exit_code == 0
        assert not (run / "summary.json").exists()
        resume(run)
        assert results(run) == whole
    # ... and from the middle of training, which is then interrupted once more
    assert caveat("rollback", run, "--to", last - 2).exit_code == 0
    with pytest.raises(Cut):
        resume(run, CutsAt(1))
    assert caveat("rollback", run, "--to", last - 4).exit_code == 0
    resume(run)
    assert results(run) == whole
    assert [each["to"] for each in json.loads((run / "summary.json").read_text())["rollbacks"]] == [
        last - 1, last - 4, last - 2, last - 4
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return began(tmp_path_factory.mktemp("rollback") / "run", "scaffold", "uncertainty.familiarity=false", rounds=3)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_what_is_undone_is_set_aside_and_the_page_says_so(run: Path) -> None:
    ledger, rows = (run / "ledger.jsonl").read_text(), (run / "rounds.jsonl").read_text()
    said = caveat("rollback", run, "--to", 1).stdout
    assert f"{run} was rolled back to round 1: rounds 2 to 3 of training are undone" in said
    assert f"continue with `caveat resume {run}`" in said
    undone = run / "undone" / "1"
    assert (run / "rounds.jsonl").read_text() + (undone / "rounds.jsonl").read_text() == rows
    messages = [*read_ledger(run / "ledger.jsonl").messages, *read_ledger(undone / "ledger.jsonl").messages]
    (undone.parent / "all.jsonl").write_text(ledger)
    assert messages == read_ledger(undone.parent / "all.jsonl").messages
    (undone.parent / "all.jsonl").unlink()
    assert "undone/1: " in caveat("flower", "ledger", run).stdout
    assert rounds(run) == [1]
    assert caveat("resume", run, "--quiet").exit_code == 0
    assert "by command: after round 3 to round 1" in (run / "report.html").read_text()
    assert rounds(run) == [1, 2, 3]


def test_the_list_changes_nothing_and_names_the_silos_that_were_noted(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    noted = {"round": 2, "phase": "train", "silo": "silo-1", "noted": "its update was not finite"}
    away = {"round": 3, "phase": "train", "silo": "silo-9", "left_out": "not connected"}
    kept = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text("".join([kept, *(json.dumps(row) + "\n" for row in (noted, away))]))
    lines = caveat("rollback", run).stdout.splitlines()
    # two silos are too few to test whether one is unlike the others
    assert [line.split(None, 3)[3].split() for line in lines[1:-1]] == [
        ["2", "not", "tested", "none"], ["2", "silo-1", "none"], ["2", "not", "tested", "silo-9"]
    ]  # fmt: skip
    assert '"not tested" means that unusual updates were not detected, because the round had fewer than 4' in lines[-1]
    (run / "rounds.jsonl").write_text(kept)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_cannot_be_gone_back_to_is_refused_in_a_line(run: Path, tmp_path: Path) -> None:
    said = one_error(caveat("rollback", run, "--to", 9), 2)
    assert said == f"error: --to 9: {run} can be rolled back to the training rounds 1, 2, 3"
    assert "not the folder of a run" in one_error(caveat("rollback", tmp_path / "nothing", "--to", 1), 2)
    with locked(run / "state"):
        assert "is being run by another process" in one_error(caveat("rollback", run, "--to", 1), 4)
    assert (run / "summary.json").exists()
    assert caveat("rollback", run, "--to", 2).exit_code == 0
    assert "already continues after round 2" in one_error(caveat("rollback", run, "--to", 2), 2)


@pytest.mark.parametrize(
    "place", ["server-000001.safetensors", "checkpoint-000001.json", "silos/silo-0/000001.safetensors"]
)
def test_a_damaged_checkpoint_is_named_before_anything_is_changed(place: str, run: Path) -> None:
    file = run / "state" / place
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = caveat("rollback", run, "--to", 2)
    assert result.exit_code in (3, 4)
    assert str(file) in result.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_by_default_a_run_on_one_machine_keeps_its_newest_checkpoint_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = [each for each in SMALL if not each.startswith("engine.keep_checkpoints")]
    start(load(None, [*given, "method.name=fedavg", "rounds=2"]), run)
    assert "has no earlier checkpoint to go back to; engine.keep_checkpoints" in caveat("rollback", run).stdout
    assert "keeps no round to roll back to" in one_error(caveat("rollback", run, "--to", 1), 2)
    assert not list((run / "state").glob("checkpoint-0*"))


@pytest.mark.long
def test_epsilon_counts_what_was_sent_in_rounds_that_are_undone(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    given = [
        *SMALL,
        "method.name=fedavg",
        "privacy.clip_norm=1",
        "privacy.noise_multiplier=1",
        "uncertainty.temperature_scaling=false",
    ]
    given.append("uncertainty.familiarity=false")
    run = start(load(None, [*given, "rounds=3"]), tmp_path / "run")
    longer = start(load(None, [*given, "rounds=5"]), tmp_path / "longer")
    assert caveat("rollback", run, "--to", 1).exit_code == 0
    resume(run)
    found, known = (json.loads((each / "summary.json").read_text())["privacy"] for each in (run, longer))
    assert (found["epsilon"], found["epsilon_server"]) == (known["epsilon"], known["epsilon_server"])
    assert caveat("rollback", run, "--to", 2).exit_code == 0
    (run / "undone" / "1" / "ledger.jsonl").write_text("")
    assert "undone/1/ledger.jsonl differs from what was written" in one_error(caveat("resume", run, "--quiet"), 3)


def test_the_key_is_checked_and_may_change_while_a_run_is_interrupted(run: Path) -> None:
    assert "engine.keep_checkpoints" in one_error(caveat("config", "digits", *sets("engine.keep_checkpoints=0")), 2)
    assert caveat("rollback", run, "--to", 2).exit_code == 0
    resume(run, sets=["engine.keep_checkpoints=2"])
    assert rounds(run) == [2, 3]
