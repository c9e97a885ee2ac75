"""More rounds on a run: the bits of a run of so many rounds from the beginning, or a refusal in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import caveat as command
from commands import one_error

from caveat.config import load
from caveat.core import ConfigurationError, DataError, RunError
from caveat.files import TrainedStore, read, sum_of, write_record
from caveat.files.schema import Checkpoint, KeptState, RunFile
from caveat.html.run.page import write_report
from caveat.runs import start as resuming
from caveat.runs.progress import Silent
from caveat.runs.resume import resume
from caveat.runs.spec import RunSpec
from caveat.runs.start import start

SMALL = [
    "model.name=mlp", "model.hidden=8", "data.n_silos=3", "engine.workers=1", "uncertainty.mc_samples=2",
    "training.local_epochs=1", "training.batch_size=32", "engine.sync_seconds=0",
]  # fmt: skip
CASES: dict[str, list[str]] = {
    "personal models and a guarantee": ["method.name=fedbabu", "method.fine_tune_epochs=1", "uncertainty.risk=0.5",
                                        "uncertainty.policy=guaranteed", "baselines=[]"],
    "densities": ["method.name=fedpn", "method.layers=2", "method.personal_epochs=1", "method.density_rounds=1",
                  "method.personal_steps=5",
                  "baselines=[\"apfl\"]"],
    "states of optimisers": ["method.name=fedper", "training.optimizer_state=average", "server.optimizer=adam",
                             "baselines=[\"local\"]"],
    "nothing after training": ["method.name=fedavg", "uncertainty.temperature_scaling=false",
                               "uncertainty.familiarity=false",
                               "baselines=[]"],
}  # fmt: skip
each = pytest.mark.parametrize("case", CASES)


def began(folder: Path, case: str, rounds: int) -> Path:
    return start(load(None, [*SMALL, *CASES[case], f"rounds={rounds}"]), folder)


def rounds_of(run: Path) -> list[int]:
    rounds: list[int] = json.loads((run / "run.json").read_text()).get("rounds", [])
    return rounds


def results(run: Path) -> dict[str, Any]:
    """All that a run has come to, without times."""
    found: dict[str, Any] = {}
    for part in (run, *sorted(run.glob("baselines/*"))):
        name = str(part.relative_to(run))
        summary = json.loads((part / "summary.json").read_text())
        found[name] = {key: value for key, value in summary.items() if key not in ("seconds", "sha256")}
        del found[name]["files"]["run.json"]  # it tells that the run was extended
        for log in ("rounds.jsonl", "ledger.jsonl", "state/states.jsonl"):
            found[f"{name}/{log}"] = (part / log).read_text() if (part / log).exists() else ""
        found[f"{name}/spec"] = json.loads((part / "run.json").read_text())["spec"]
        for file in part.rglob("*.safetensors"):
            found[str(file.relative_to(run))] = file.read_bytes()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What runs of three rounds come to."""
    folder = tmp_path_factory.mktemp("whole")
    return {case: results(began(folder / str(k), case, 3)) for k, case in enumerate(CASES)}


class Cut(Exception):
    """Stops a run."""


class CutsAt:
    """A progress that stops a run after so many rounds of any kind."""

    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, title: str, rounds: int) -> None: ...

    def round(self, number: int, phase: str, metrics: object) -> None:
        self.left -= 1
        if not self.left:
            raise Cut

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


def test_a_method_beside_a_run_begins_with_the_same_model_of_another(tmp_path: Path) -> None:
    for seed in range(2):
        start(
            load(None, [*SMALL, "method.name=fedavg", "baselines=[]", "rounds=1", f"seed={seed}"]), tmp_path / str(seed)
        )
    more = ["method.name=fedavg", 'baselines=["fedbn"]', "rounds=1", f"init_from={tmp_path / '0'}"]
    with pytest.raises(Cut):
        start(load(None, [*SMALL, *more]), tmp_path / "run", CutsAt(2))
    (tmp_path / "0").rename(tmp_path / "kept")
    (tmp_path / "1").rename(tmp_path / "0")
    shutil.rmtree(tmp_path / "run" / "baselines", ignore_errors=True)
    with pytest.raises(
        RunError, match=r"baselines/fedbn: init_from = .* has a different model than when .*run started"
    ):
        resume(tmp_path / "run")
    (tmp_path / "0").rename(tmp_path / "1")
    (tmp_path / "kept").rename(tmp_path / "0")
    resume(tmp_path / "run")


@each
def test_a_finished_run_goes_on_to_the_bits_of_a_longer_one(case: str, whole: Any, tmp_path: Path) -> None:
    run = began(tmp_path / "run", case, 2)
    resume(run, rounds=3)
    assert results(run) == whole[case]
    assert "\nrounds = 3\n" in (run / "config.toml").read_text()


@each
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.long
def test_an_interrupted_run_does_so_too(case: str, after: int, whole: Any, tmp_path: Path) -> None:
    """In training, right after it, and among the rounds that follow it."""
    if after == 3 and case == "nothing after training":
        after = 1
    with pytest.raises(Cut):
        start(load(None, [*SMALL, *CASES[case], "rounds=2"]), tmp_path / "run", CutsAt(after))
    resume(tmp_path / "run", rounds=3)
    assert results(tmp_path / "run") == whole[case]


@pytest.mark.parametrize("at", ["restore", "settings", "configuration"])
@pytest.mark.long
def test_a_crash_on_the_way_leaves_what_the_same_call_goes_on_with(
    at: str, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = "densities"
    run = began(tmp_path / "run", case, 2)

    def crash(*_: object, **__: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        if at == "restore":
            patch.setattr(TrainedStore, "free", crash)
        elif at == "settings":
            patch.setattr(resuming.files, "write_record", crash)
        else:
            patch.setattr(resuming.files, "write_bytes", crash)
        with pytest.raises(Cut):
            resume(run, rounds=3)
    resume(run, rounds=3)
    assert results(run) == whole[case]


def test_it_can_go_on_again_and_again(whole: Any, tmp_path: Path) -> None:
    case = "personal models and a guarantee"
    run = began(tmp_path / "run", case, 1)
    for rounds in (2, 3, 3):
        resume(run, rounds=rounds)
    assert results(run) == whole[case]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return began(tmp_path_factory.mktemp("finished") / "run", "personal models and a guarantee", 2)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def contents(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}


def test_fewer_rounds_than_were_made_are_refused(run: Path) -> None:
    before = contents(run)
    result = command("resume", run, "--rounds", "1", "--quiet")
    assert f"--rounds 1: {run} has already completed 2 training rounds" in one_error(result, 2)
    assert contents(run) == before


def test_the_command_goes_on(run: Path) -> None:
    result = command("resume", run, "--rounds", "3")
    assert result.exit_code == 0, result.stderr
    assert "already finished" not in result.stderr
    assert json.loads((run / "summary.json").read_text())["rounds_run"] == 3


@pytest.mark.parametrize("place", ["model/model.safetensors", "rounds.jsonl", "state/states.jsonl"])
def test_a_finished_run_with_a_damaged_file_is_refused(run: Path, place: str) -> None:
    content = bytearray((run / place).read_bytes())
    content[-2] ^= 1
    (run / place).write_bytes(content)
    with pytest.raises(DataError, match=f"{place} differs from what was written"):
        resume(run)
    result = command("resume", run, "--quiet")
    assert result.exit_code == 3, result.stderr
    assert f"{place} differs from what was written" in result.stderr
    assert not result.stdout


def test_without_its_description_it_is_refused(run: Path) -> None:
    (run / "run.json").unlink()
    before = contents(run)
    for rounds in (2, 3):
        with pytest.raises(DataError, match=r"run\.json is missing"):
            resume(run, rounds=rounds)
    assert contents(run) == before


def test_what_cannot_be_run_any_more_is_refused_before_anything_is_changed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(run)

    def refuses(*_: object) -> None:
        raise ConfigurationError("not with this model")

    monkeypatch.setattr(RunSpec, "check", refuses)
    with pytest.raises(ConfigurationError, match="not with this model"):
        resume(run, rounds=3)
    assert contents(run) == before


def test_a_run_whose_training_would_have_ended_early_in_a_longer_one_is_refused(tmp_path: Path) -> None:
    """In its last round there was nothing left to end."""
    more = [
        "method.name=fedavg",
        "baselines=[]",
        "training.lr=0.03",
        "training.local_epochs=5",
        "evaluation.early_stopping_patience=1",
    ]
    longer = start(load(None, [*SMALL, *more, "rounds=12"]), tmp_path / "longer")
    ended = json.loads((longer / "summary.json").read_text())["rounds_run"]
    assert 1 < ended < 12
    run = start(load(None, [*SMALL, *more, f"rounds={ended}"]), tmp_path / "run")
    assert "stopped" not in json.loads((run / "summary.json").read_text())
    before = contents(run)
    with pytest.raises(ConfigurationError, match=f"early stopping ended training of .* after round {ended},"):
        resume(run, rounds=12)
    assert contents(run) == before


def test_without_the_states_after_training_it_is_refused(run: Path) -> None:
    shutil.rmtree(run / "state" / "trained")
    with pytest.raises(ConfigurationError, match=r"--rounds 3: the states of .* were not kept; start a new run"):
        resume(run, rounds=3)
    assert (run / "summary.json").exists()


def test_damaged_states_are_named_before_anything_is_changed(run: Path) -> None:
    (state,) = (run / "state" / "trained").glob("server-*.safetensors")
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.unlink()
    state.write_bytes(content)
    before = contents(run)
    with pytest.raises(DataError, match=state.name):
        resume(run, rounds=3)
    assert contents(run) == before


@pytest.mark.parametrize("settings", [["method.name=uefl", "method.codewords=4"], ["uncertainty.source=ensemble"]])
def test_methods_whose_rounds_are_followed_by_training_are_refused(settings: list[str], tmp_path: Path) -> None:
    more = ["method.name=fedavg", *settings, "baselines=[]", "rounds=1"]
    if "ensemble" in settings[-1]:
        more.append("uncertainty.ensemble_size=2")
    run = start(load(None, [*SMALL, *more]), tmp_path / "run")
    with pytest.raises(ConfigurationError, match="are followed by other rounds") as raised:
        resume(run, rounds=3)
    assert len(str(raised.value).splitlines()) == 1


def test_a_federation_s_run_is_refused(run: Path) -> None:
    record = read(run / "run.json", RunFile)
    for name in ("state", "summary.json"):
        shutil.rmtree(run / name) if name == "state" else (run / name).unlink()
    flower = record.model_copy(update={"engine": {**record.engine, "name": "flower"}})
    write_record(run / "run.json", flower)
    assert "--rounds 3: " in one_error(command("resume", run, "--rounds", "3"), 2)


@pytest.mark.parametrize("which", ["server", "silo"])
def test_names_in_kept_states_lead_nowhere_else(tmp_path: Path, which: str) -> None:
    """A crafted folder has nothing written outside of it."""
    store = TrainedStore(tmp_path / "run")
    store.root.mkdir(parents=True)
    (tmp_path / "mine").write_text("my own")
    server = "../../../mine" if which == "server" else "server-000001.safetensors"
    files = {f"state/{server}": sum_of(tmp_path / "mine")}
    (store.root / "server-000001.safetensors").write_text("my own")
    checkpoint = {"schema": 1, "t": 1, "server": server, "files": files}
    write_record(store.root / "checkpoint.json", Checkpoint.model_validate(checkpoint))
    line = KeptState(silo="../../../mine", t=1, sha256="0" * 64)
    (tmp_path / "run" / "state" / "states.jsonl").write_text(f"{line.model_dump_json()}\n")
    for act in (store.load, store.restore):
        with pytest.raises(DataError, match=r"expected the name of a file in this folder|silo name"):
            act()
    assert (tmp_path / "mine").read_text() == "my own"


def test_both_numbers_are_kept_and_what_follows_them_is_said(tmp_path: Path) -> None:
    said: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            said.append(text)

    notes, plain = Notes(), ["method.name=fedavg", "baselines=[]", "training.lr_schedule=cosine", "training.lr_decay=1"]
    run = start(load(None, [*SMALL, *plain, "rounds=1"]), tmp_path / "run")
    assert rounds_of(run) == []
    for rounds in (2, 3, 3):
        resume(run, notes, rounds=rounds)
    assert rounds_of(run) == [1, 2, 3]
    assert any("the first 1 rounds" in note and "training.lr_schedule = 'cosine'" in note for note in said)
    assert "started with 1" in write_report(run).read_text()


def test_nothing_is_said_where_nothing_follows_them(tmp_path: Path) -> None:
    run = began(tmp_path / "run", "personal models and a guarantee", 1)
    resume(run, rounds=2)
    assert rounds_of(run) == [1, 2]
    said: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            said.append(text)

    resume(run, Notes(), rounds=3)
    assert not any("the first 1 rounds" in note for note in said)
