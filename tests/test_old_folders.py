"""Folders that version 0.1 wrote: they still predict, report, resume and continue, and nothing is done twice.

What they hold and how they were made is in fixtures/v0_1/README.md.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import old_calls
import pytest
import torch
from commands import caveat as command
from old_calls import AS_THEN, AUDIT, COMPARE, HERE, HOME, HOSPITALS, METHODS, MODELS, Told, figures, predictions

import caveat
from caveat.core import ConfigurationError, Method, Tensors
from caveat.files.payloads import read_payload, to_bytes
from caveat.runs.begun import check_goes_on
from caveat.wrappers.switched import Switched


def without_schema(found: dict[str, Any]) -> dict[str, Any]:
    """What a file says, whichever version wrote it in the end."""
    return {key: value for key, value in found.items() if key != "schema"}


EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text(), object_hook=without_schema)
CALLS: dict[str, Any] = json.loads((HERE / "calls.json").read_text())
TENSORS: dict[str, Any] = json.loads((HERE / "tensors.json").read_text())


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all folders, as the current one."""
    copy = tmp_path / "old"
    shutil.copytree(HERE, copy)
    monkeypatch.chdir(copy)
    monkeypatch.delenv("CAVEAT_DATA", raising=False)
    return copy


def done(*arguments: object) -> Any:
    result = command(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def refusal(*arguments: object) -> str:
    """The error of a command that is refused before anything is done."""
    result = command(*arguments)
    assert result.exit_code == 2, result.stderr
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("error: "))
    return line.removeprefix("error: ")


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """All files of a folder but its pages, and when they were written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html"]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files if path.name != "lock"}


def counted(run: Path) -> bytes:
    """The rows of the rounds that an interrupted run had completed, with a mark that only those can have."""
    run_state = json.loads((run / "state" / "checkpoint.json").read_text())
    rows = run / "rounds.jsonl"
    found = rows.read_bytes()
    marked = found[: run_state["rows"]].replace(b'"domain"', b'"Domain"', 1)
    rows.write_bytes(marked + found[run_state["rows"] :])
    assert 0 < len(marked) <= len(found)
    return marked


def assert_close(found: Any, expected: Any, tolerance: float, place: str = "") -> None:
    """The same structure, and the same values but for what another processor may round otherwise."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key, value in expected.items():
            # Where training went on, one test sample more or less may be right.
            near = 0.11 if key == "accuracy" and tolerance > 1e-5 else tolerance
            assert_close(found[key], value, near, f"{place}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for k, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_close(one, other, tolerance, f"{place}/{k}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance), place
    else:
        assert found == expected, place


# A finished run


@pytest.mark.parametrize("silo", ["silo-0", "silo-1", "silo-2"])
def test_a_finished_run_is_loaded_and_predicts_the_same(old: Path, silo: str) -> None:
    run = caveat.load("finished")
    assert_close(predictions(run, silo), EXPECTED["finished"]["predictions"][silo], 1e-6)
    assert_close(figures(run.folder), EXPECTED["finished"]["figures"], 0)


def test_the_command_predicts_the_same(old: Path) -> None:
    said = done("predict", "finished", "inputs.npz", "--silo", "silo-1").stdout
    found, expected = (list(csv.reader(text.splitlines())) for text in (said, EXPECTED["finished"]["predict"]))
    assert found[0] == expected[0]
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert (one[:2], one[-1]) == (other[:2], other[-1])
        assert [float(value) for value in one[2:-1]] == pytest.approx([float(value) for value in other[2:-1]], abs=1e-6)


def test_a_finished_run_is_reported_and_left_as_it_is(old: Path) -> None:
    before = contents(old / "finished")
    done("report", "finished")
    page = (old / "finished" / "report.html").read_text()
    assert "fedpn" in page
    assert "fedavg" in page
    resumed = done("resume", "finished")
    assert "nothing is left of the run itself" in resumed.stderr
    assert contents(old / "finished") == before


# Interrupted runs


def test_an_interrupted_run_is_resumed_after_its_last_round(old: Path) -> None:
    run = old / "interrupted"
    done("report", run)
    rows = counted(run)
    resumed = done("resume", run)
    assert "round 3/" in resumed.stderr
    assert "round 1/" not in resumed.stderr
    assert "round 2/" not in resumed.stderr
    assert (run / "rounds.jsonl").read_bytes().startswith(rows)
    assert_close(figures(run), EXPECTED["interrupted"]["figures"], 1e-3)
    assert "uefl" in (run / "report.html").read_text()
    assert len(caveat.load(run).silos) == 3


def test_a_call_that_was_killed_is_continued_by_the_same_call(old: Path) -> None:
    done("report", "call")
    rows, told = counted(old / "call"), Told()
    how = r"caveat\.Uncertainty\(temperature=False, familiarity=False\), beside what it was given"
    with pytest.raises(ConfigurationError, match=f"version 0.1 began it, .*{how}"):
        old_calls.call(old / "call")  # the defaults are others now
    run = old_calls.call(old / "call", told, **AS_THEN)
    assert told.rounds[0] == 3
    assert run.summary["rounds_run"] == 4
    assert (old / "call" / "rounds.jsonl").read_bytes().startswith(rows)
    assert_close(figures(old / "call"), EXPECTED["called"]["figures"], 1e-3)
    assert run.predictor("silo-0")(run.silos[0].test.x).probs.isfinite().all()
    done("report", "call")
    assert "trfeddis" in (old / "call" / "report.html").read_text()


def measured(folder: Path) -> None:
    """Have all runs of a folder say that they are with temperatures."""
    for path in (*folder.rglob("config.toml"), *folder.rglob("plan.json")):
        text = path.read_text()
        path.write_text(re.sub('^( *"?temperature"?)( = |: )false', r"\1\2true", text, flags=re.MULTILINE))
        assert path.read_text() != text


def add_group(run: Path, group: str, tensors: Tensors) -> None:
    """Put one more group into the state of a run's server."""
    (state,) = (run / "state").glob("server-*.safetensors")
    state.write_bytes(to_bytes({**read_payload(state), group: tensors}))


def test_temperatures_of_another_kind_are_left_to_version_0_1(old: Path) -> None:
    run = old / "interrupted"
    measured(run)
    add_group(run, "temperature global", {"b": torch.ones(1)})
    before = contents(run / "state")
    told = refusal("resume", run, "--quiet")
    assert told.startswith(f"{run}: version 0.1 began this run with uncertainty.temperature = true; ")
    assert told.endswith(": finish it with version 0.1, or begin another run")
    assert contents(run / "state") == before


def test_a_guarantee_by_other_scores_is_left_to_version_0_1(old: Path) -> None:
    run = old / "interrupted"
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("# policy =", 'policy = "guaranteed"'))
    add_group(run, "decision", {"ready": torch.tensor(True), "limit": torch.tensor(0.5), "counts": torch.zeros(2, 9)})
    told = refusal("resume", run, "--quiet")
    assert 'version 0.1 began this run with uncertainty.policy = "guaranteed"; ' in told


@pytest.mark.parametrize(("method", "why"), [
    (caveat.SCAFFOLD(), "its control variates were weighted otherwise than its models: finish it with version 0.1"),
    (caveat.APFL(training=caveat.Training(weight_decay=0.1)), "weight decay drew its alpha to 0: finish it with"),
])  # fmt: skip
def test_training_by_other_rules_is_left_to_version_0_1(old: Path, tmp_path: Path, method: Method, why: str) -> None:
    for folder in (old / "interrupted", old / "interrupted" / "beside" / method.name, old / "call"):
        with pytest.raises(ConfigurationError, match=f'method.name = "{method.name}"; {why}'):
            check_goes_on(Switched(method), {"decision": {}}, folder, trains=True)
        check_goes_on(method, {}, folder, trains=False)
        check_goes_on(caveat.APFL(), {}, folder, trains=True)
    check_goes_on(method, {}, tmp_path, trains=True)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_s_call_is_the_one_that_began(tmp_path: Path, method: str) -> None:
    text = json.dumps(CALLS[method])
    (tmp_path / "call.json").write_text(text)
    assert old_calls.described(method, tmp_path) == CALLS[method]
    assert (tmp_path / "call.json").read_text() == text
    (tmp_path / "call.json").write_text(text.replace('"class": "', '"class": "Other < ', 1))
    with pytest.raises(ConfigurationError, match=r"interrupted run with method\.class = 'Other < "):
        old_calls.described(method, tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_states_and_models_of_every_method_have_the_same_tensors(tmp_path: Path, method: str) -> None:
    known = TENSORS[method]
    if method == "SCAFFOLD":  # of which interrupted runs are left to version 0.1
        known = known | {"state": [*known["state"], *(f"seen/{name} F64 []" for name in ("silos", "total", "weight"))]}
    assert old_calls.tensors_of_method(method, tmp_path) == known


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_the_same_tensors(tmp_path: Path, model: str) -> None:
    assert old_calls.tensors_of_model(model, tmp_path) == TENSORS[model]


# Comparisons and audits


def test_a_comparison_without_a_run_is_reported(old: Path) -> None:
    done("report", "comparison")
    record = json.loads(Path("comparison/comparison.json").read_text())
    assert {cell["row"]: cell["status"] for cell in record["cells"]} == {"fedavg": "done", "slow": "missing"}
    assert "slow" in Path("comparison/report.html").read_text()


def test_the_same_comparison_continues_with_what_is_lacking(old: Path) -> None:
    runs = Path("comparison/runs/hidden=8")
    begun, before, rows = runs / "slow" / "seed-0", contents(runs / "fedavg"), counted(runs / "slow" / "seed-0")
    done(*COMPARE)
    assert contents(runs / "fedavg") == before
    assert (begun / "rounds.jsonl").read_bytes().startswith(rows)
    found = {name: figures(runs / name / "seed-0") for name in ("fedavg", "slow")}
    assert_close(found, EXPECTED["compared"]["figures"], 1e-3)
    cells = json.loads(Path("comparison/comparison.json").read_text())["cells"]
    assert [cell["status"] for cell in cells] == ["done", "done"]
    after = contents(runs)
    done(*COMPARE)
    assert contents(runs) == after


def test_the_same_audit_continues_with_what_is_lacking(old: Path) -> None:
    runs = Path("audit/runs")
    before, plan, begun = contents(runs / "share-0.5-seed-0"), Path("audit/plan.json"), runs / "share-1-seed-0"
    agreed = plan.read_text()
    run_state = json.loads((begun / "state" / "checkpoint.json").read_text())
    # Nothing is measured on the way, so that the time spent tells that the first round was not made again.
    run_state["seconds"]["train"] = 1000.0
    (begun / "state" / "checkpoint.json").write_text(json.dumps(run_state))
    done(*AUDIT)
    assert contents(runs / "share-0.5-seed-0") == before
    assert json.loads((begun / "summary.json").read_text())["seconds"]["train"] > 1000
    assert plan.read_text() == agreed
    assert_close(json.loads(Path("audit/audit.json").read_text())["runs"], EXPECTED["audited"]["runs"], 1e-3)
    assert "fmlu" in Path("audit/audit.html").read_text().lower()
    after = contents(runs)
    done(*AUDIT, "--quiet")
    assert contents(runs) == after


def test_what_is_added_to_a_comparison_is_by_the_defaults_that_it_began_with(old: Path) -> None:
    told = refusal(*COMPARE, "--set", "uncertainty.familiarity=true")
    assert "uncertainty.familiarity = False, now True" in told
    more = [*COMPARE]
    more[more.index("--seeds") + 1] = "0,1"
    done(*more)
    for name in ("fedavg", "slow"):
        text = Path(f"comparison/runs/hidden=8/{name}/seed-1/config.toml").read_text()
        assert "\ntemperature = false\n" in text
        assert "\nfamiliarity = false\n" in text


def test_temperatures_of_two_kinds_are_not_compared(old: Path) -> None:
    measured(old / "comparison")
    before = contents(old / "comparison" / "runs")
    told = refusal(*COMPARE, "--set", "uncertainty.temperature=true")
    assert "comparison was begun by version 0.1, which fitted temperatures in other rounds" in told
    assert contents(old / "comparison" / "runs") == before
    grid = old / "comparison" / "grid.json"
    grid.write_text(grid.read_text().replace('"rounds=4"', '"rounds=4", "uncertainty.temperature=true"'))
    done("report", "comparison")


def test_runs_by_two_rules_are_neither_compared_nor_judged_together(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose method's rules are others since, which is said here of the methods of the folders."""
    for kind in (caveat.TrFedDis, caveat.FMLU):
        monkeypatch.setattr(kind, "changed_since_0_1", "it counted otherwise")
    before = contents(old / "comparison" / "runs"), contents(old / "audit" / "runs")
    told = refusal(*COMPARE)
    assert "comparison was begun by version 0.1, with which " in told
    assert told.endswith("would be another run: it counted otherwise; name a new folder")
    told = refusal(*AUDIT)
    assert "audit was begun by version 0.1, whose runs cannot be judged together with others: it counted" in told
    assert before == (contents(old / "comparison" / "runs"), contents(old / "audit" / "runs"))


def test_an_audit_goes_on_with_what_it_began_with_or_says_how(old: Path) -> None:
    told = refusal(*AUDIT, "--set", "uncertainty.familiarity=true")
    assert "audit with other settings: uncertainty; version 0.1 began it" in told
    assert "uncertainty=caveat.Uncertainty(temperature=False, familiarity=False)" in told
    measured(old / "audit")
    told = refusal(*AUDIT, "--set", "uncertainty.temperature=true")
    assert "audit was begun by version 0.1, which fitted temperatures in other rounds" in told


# Federations


@pytest.fixture
def home(old: Path) -> Path:
    """The federation's folder, with the paths in its files leading to it."""
    pytest.importorskip("flwr")  # `make lowest` goes without it
    folder = old / "federation"
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace(HOME, str(folder)))
    return folder


def test_silos_predict_with_what_they_keep(home: Path) -> None:
    for name in HOSPITALS:
        kept = caveat.load(old_calls.kept(home, name))
        assert [silo.name for silo in kept.silos] == [name]
        assert_close(predictions(kept, name), EXPECTED["federated"]["predictions"][name], 1e-6)
    table = home / "silos" / "hill" / "hill.csv"
    said = done("predict", old_calls.kept(home, "hill"), table, "--silo", "hill").stdout
    assert len(said.splitlines()) == len(table.read_text().splitlines())


def told(run: Path) -> dict[str, Any]:
    """What silos told before the first round."""
    found: dict[str, Any] = json.loads((run / "federation.json").read_text())
    return {key: value for key, value in found.items() if key not in ("schema", "sha256")}


def test_a_federation_goes_on_where_its_server_and_silos_were_killed(home: Path) -> None:
    done("report", home / "run")
    run, states = home / "run", {name: old_calls.kept(home, name) / "state" / "silos" / name for name in HOSPITALS}
    begun, rows = told(run), counted(run)
    sent = {name: (old_calls.kept(home, name) / "ledger.jsonl").read_bytes() for name in HOSPITALS}
    second = {name: (states[name] / "000001.safetensors").read_bytes() for name in HOSPITALS}
    for folder in states.values():  # of a round that was never counted: whoever continues with it fails
        (folder / "000002.safetensors").write_bytes(b"")
    old_calls.federate(home)
    assert told(run) == begun
    assert (run / "rounds.jsonl").read_bytes().startswith(rows)
    assert_close(figures(run), EXPECTED["federated"]["figures"], 1e-3)
    for name in HOSPITALS:
        kept = old_calls.kept(home, name)
        assert (kept / "ledger.jsonl").read_bytes().startswith(sent[name])
        # The state that it had is one that the run may go back to.
        assert {path.name for path in states[name].iterdir()} == {f"{t:06d}.safetensors" for t in (1, 2, 3)}
        assert (states[name] / "000001.safetensors").read_bytes() == second[name]
        assert (states[name] / "000003.safetensors").read_bytes() != second[name]
        assert caveat.load(kept).predictor(name)(caveat.load(kept).silos[0].test.x).probs.isfinite().all()
    assert "coast" in (run / "report.html").read_text()
    done("flower", "ledger", run)
    done("flower", "ledger", old_calls.kept(home, "hill"))


def test_resuming_a_federation_asks_the_project_that_is_named(home: Path) -> None:
    script, run = home / "project" / "run.sh", home / "run"
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$(dirname "$0")/said"\nexit 1\n')
    script.chmod(0o755)
    result = command("resume", run, "--project", home / "project")
    assert result.exit_code == 4
    assert "has not completed" in result.stderr
    said = (home / "project" / "said").read_text().splitlines()
    assert said == [str(run), "federation.patience=3", "federation.deadline=0.3"]
