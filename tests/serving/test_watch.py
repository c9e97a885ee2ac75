"""`caveat watch` keeps its state between batches, names the column that has changed, and counts repeats once."""

from __future__ import annotations

import json
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import caveat, one_error
from table_runs import table

from caveat import Run
from caveat.export.wrong_outcomes import Promised
from caveat.files import read
from caveat.files.schema import WatchFile
from caveat.serving.app import service
from caveat.serving.inference_thread import AnsweringThread, Served
from caveat.serving.served_model import RunModel
from caveat.serving.watch import Watch

pytestmark = pytest.mark.filterwarnings("ignore::caveat.core.DataWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with warnings.catch_warnings(action="ignore"):
        return table(tmp_path_factory.mktemp("run"))


def batch(path: Path, seed: int, rows: int = 40, factor: float = 1) -> Path:
    rng = np.random.default_rng(seed)
    lines = ["patient,age,value,smokes,ill"]
    for row in range(rows):
        age, value = rng.integers(20, 80), rng.normal(2, 3)
        lines.append(f"{seed}-{row},{factor * age:g},{value:.2f},{rng.choice(['yes', 'no', 'before'])},"
                     f"{'yes' if age > 50 else 'no'}")  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_column_in_another_unit_is_named_and_repeats_are_not_counted(run: Run, nowhere: Path) -> None:
    def watch(path: Path) -> tuple[int, str]:
        done = caveat("watch", run.folder, path, "--silo", "coast", "--id", "patient", "--state", "state.json")
        assert done.stderr == ""
        return done.exit_code, done.stdout

    clean = batch(nowhere / "clean.csv", 1)
    status, told = watch(clean)
    assert (status, "no alarm" in told) == (0, True)
    assert stat.S_IMODE(Path("state.json").stat().st_mode) == 0o600
    before = read(nowhere / "state.json", WatchFile)
    status, told = watch(clean)
    after = read(nowhere / "state.json", WatchFile)
    assert (after.monitors, after.repeats) == (before.monitors, 40)
    assert "40 repeats were not counted" in told
    status, told = watch(batch(nowhere / "months.csv", 2, factor=12))
    assert status == 1
    assert "ALARM of columns in column age at input" in told
    alarm = read(nowhere / "state.json", WatchFile).alarms
    assert {each.column: abs(each.since - 41) <= 10 for each in alarm if each.monitor == "columns"} == {"age": True}
    assert not any(name in Path("state.json").read_text() for name in ("1-39", "patient"))


def test_two_batches_leave_the_same_bits_as_one(run: Run, nowhere: Path) -> None:
    whole = batch(nowhere / "whole.csv", 3).read_text().splitlines()
    (nowhere / "one.csv").write_text("\n".join(whole[:20]))
    (nowhere / "two.csv").write_text("\n".join([whole[0], *whole[20:]]))
    for state, paths in (("a.json", ["whole.csv"]), ("b.json", ["one.csv", "two.csv"])):
        for path in paths:
            assert caveat("watch", run.folder, path, "--silo", "coast", "--state", state).exit_code == 0
    first, second = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    for name in ("monitors", "points", "alarms"):
        assert first[name] == second[name]


def test_mistakes_are_one_line(run: Run, nowhere: Path) -> None:
    batch(nowhere / "rows.csv", 1, 6)
    watch = ("watch", run.folder, "rows.csv", "--silo", "coast")
    assert "--id name: " in one_error(caveat(*watch, "--id", "name"), 2)
    assert "no such silo; did you mean coast?" in one_error(caveat(*watch[:3], "--silo", "cost"), 2)
    assert caveat(*watch).exit_code == 0
    (state,) = nowhere.glob("*-coast.watch.json")
    assert "the alarm rate of a watch cannot change" in one_error(caveat(*watch, "--alarm", 0.05), 2)
    assert "--alarm or --between, not both" in one_error(caveat(*watch, "--alarm", 0.01, "--between", 50), 2)
    assert "silo coast has two states" in one_error(caveat(*watch, "--with", state), 2)
    other = ("watch", run.folder, "rows.csv", "--silo", "hill", "--state", state)
    assert "is the state of a different model, of silo coast" in one_error(caveat(*other), 3)
    state.write_text(state.read_text().replace('"t": 6', '"t": 7'))
    assert "does not match its content" in one_error(caveat(*watch), 3)


def test_serve_says_what_is_wrong_before_it_serves(run: Run, nowhere: Path) -> None:
    assert "no such silo" in one_error(caveat("serve", run.folder, "--silo", "cost"), 2)
    assert (
        "--host 192.0.2.1 --port 8000: " in caveat("serve", run.folder, "--silo", "hill", "--host", "192.0.2.1").stderr
    )
    pytest.importorskip("onnxruntime")
    (nowhere / "m.onnx").write_text("no model")
    assert "m.onnx: not a readable ONNX file" in one_error(caveat("serve", "m.onnx"), 2)


def test_an_endless_watch_goes_on_after_an_alarm_and_the_mean_counts_several_silos(run: Run, nowhere: Path) -> None:
    watch = ("watch", run.folder, "rows.csv", "--silo", "coast")
    batch(nowhere / "rows.csv", 4, factor=12)
    assert caveat(*watch, "--state", "a.json", "--page", "page.html").exit_code == 1
    page = Path("page.html").read_text()
    assert "column age: changed, likely since input" in page
    assert "check the unit" in page
    assert "src=" not in page
    done = caveat("watch", run.folder, "rows.csv", "--silo", "hill", "--state", "b.json", "--with", "a.json")
    assert "mean over 2 silos: evidence" in done.stdout
    assert "ALARM: inputs or outcomes have changed at several silos" in done.stdout
    assert caveat(*watch, "--state", "c.json", "--between", 50).exit_code == 1
    assert len(read(nowhere / "c.json", WatchFile).alarms) > 2
    assert "not with --between" in one_error(caveat(*watch, "--state", "d.json", "--with", "c.json"), 2)
    assert not Path("d.json").exists()
    assert "expected --between 50, as in c.json: the alarm rate of a watch cannot change" in one_error(
        caveat(*watch, "--state", "c.json"), 2
    )


def test_an_endless_watch_shows_its_alarms_and_exits_with_1_only_for_new_ones(run: Run, nowhere: Path) -> None:
    watch = ("watch", run.folder, "rows.csv", "--silo", "coast", "--between", 50, "--state", "a.json")
    batch(nowhere / "rows.csv", 4, factor=12)
    assert caveat(*watch).exit_code == 1
    state = read(nowhere / "a.json", WatchFile)
    assert max(share for _, share in state.points) >= 1
    assert state.points[-1][0] == state.monitors["columns"]["t"] == 40
    again = caveat(*watch)
    assert (again.exit_code, "40 repeats" in again.stdout, "ALARM of columns" in again.stdout) == (0, True, True)


def test_alarms_are_printed_although_the_page_cannot_be_written(run: Run, nowhere: Path) -> None:
    batch(nowhere / "rows.csv", 4, factor=12)
    done = caveat("watch", run.folder, "rows.csv", "--silo", "coast", "--page", nowhere / "no" / "page.html")
    assert "ALARM of columns" in done.stdout
    assert (done.exit_code, "--page " in done.stderr) == (2, True)


def test_outcomes_count_once_by_the_id_of_the_answer_also_after_a_restart(run: Run, tmp_path: Path) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    rows = [{"age": age, "value": age and 1.5, "smokes": age and "no"} for age in (61, 34, None, 70)]
    model, state = RunModel(run, "coast"), tmp_path / "state.json"
    model.promised = Promised(0.2)

    @contextmanager
    def asked() -> Iterator[Any]:
        worker = AnsweringThread([Served("heart", model, Watch.opened(state, model, 0.01), state)])
        with testclient.TestClient(service(worker), "http://localhost:8000") as client:
            yield client

    def sent(client: Any, *outcomes: tuple[str, int, Any]) -> Any:
        body = {"outcomes": [{"id": id, "row": row, "label": label} for id, row, label in outcomes]}
        told = client.post("/outcomes", json=body).json()
        return told.get("error") or (told["counted"], told["not_counted"])

    with asked() as client:
        first, again = (client.post("/predict", json={"rows": rows}).json() for _ in range(2))
        labels = [each["label"] for each in first["answers"]]
        wrong = "yes" if labels[0] == "no" else "no"
        id = first["id"]
        assert first["answers"][2]["decision"] == "abstain"
        assert sent(client, (id, 0, wrong), (id, 1, "maybe")) == "row 1, column 'label', expected a class of the model"
        assert sent(client, (id, 0, wrong), (id, 0, wrong), (id, 2, "no"), (again["id"], 1, "no"), ("x", 0, "no")) == (
            1, [1, 2, 3, 4]
        )  # fmt: skip
        for body in ({}, {"outcomes": [{"id": 1}]}, {"outcomes": [{"id": id, "row": True, "label": "no"}]}):
            assert client.post("/outcomes", json=body).status_code == 422
    with asked() as client:
        assert sent(client, (id, 0, wrong), (id, 1, labels[1])) == (1, [0])
    kept = read(state, WatchFile)
    assert (kept.monitors["outcomes"]["t"], kept.monitors["outcomes"]["errors"], len(kept.answered)) == (2, 1, 1)
    assert kept.monitors["inputs"]["t"] == len(rows)


def test_outcomes_raise_an_alarm_if_answers_are_wrong_more_often_than_promised(run: Run) -> None:
    model, drawn = RunModel(run, "coast"), np.random.default_rng(0)
    model.promised = Promised(0.1)
    watch = Watch(model, 0.01)
    for i in range(200):
        asked = model.rows({"age": [int(drawn.integers(20, 80))], "value": [float(drawn.normal())], "smokes": ["no"]})
        (found,) = model.ask([asked])
        watch.add(found, asked, [str(i)], answer=str(i))
        watch.add_outcome(str(i), 0, int(found["label"][0]) ^ int(i > 50 and i % 2))
    (alarm,) = (each for each in watch.alarms if each.monitor == "outcomes")
    assert 45 <= alarm.since <= 60 < alarm.at < 90
    assert len({t for t, _ in watch.points}) == len(watch.points)
