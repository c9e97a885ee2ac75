"""Answers do not depend on who asks at the same time, on new models, or on a killed process."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from commands import caveat
from rounding import Arrays
from table_runs import DICTIONARY, table

from caveat import Run, export_model
from caveat.files import read
from caveat.files.locks import held
from caveat.files.schema import WatchFile
from caveat.serving.inference_thread import AnsweringThread, Served, read_together
from caveat.serving.served_model import Given, OnnxModel, Refusal, RunModel, ServedInputs, ServedModel
from caveat.serving.watch import Watch

pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.filterwarnings("ignore::caveat.core.DataWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with warnings.catch_warnings(action="ignore"):
        return table(tmp_path_factory.mktemp("run"), DICTIONARY, words=("1", "2", "3"))


@pytest.fixture(scope="module")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(run, "coast", out=tmp_path_factory.mktemp("onnx") / "model.onnx", training_features=True)


@pytest.fixture(scope="module", params=["run", "onnx"])
def model(request: pytest.FixtureRequest, run: Run, exported: Path) -> ServedModel:
    return RunModel(run, "coast") if request.param == "run" else OnnxModel(exported)


def row(drawn: random.Random) -> dict[str, Any]:
    """A row of which some values are missing, outside the dictionary, or of a wrong type."""
    return {
        "age": drawn.choice([drawn.randint(20, 80), drawn.randint(20, 80), None, "61", 610]),
        "value": drawn.choice([drawn.gauss(2, 3), drawn.randint(-3, 3), None, 1e39]),
        "smokes": drawn.choice(["1", 2, 3.0, None, "9", True]),
    }


def given(*rows: dict[str, Any], groups: list[str] | None = None) -> Given:
    return Given(len(rows), {name: [each[name] for each in rows] for name in rows[0]}, groups=groups)


def told(answer: dict[str, Any] | Exception) -> Any:
    """What has to be the same, whoever asks."""
    return str(answer) if isinstance(answer, Exception) else Arrays(answer)


def alone(model: ServedModel, one: Given) -> Any:
    try:
        asked = model.rows(one.columns or {})
    except Refusal as refusal:
        return told(refusal)
    return told(model.ask([asked])[0])


def test_requests_read_together_are_read_as_each_alone(model: ServedModel) -> None:
    drawn = random.Random(0)
    every = [given(*(row(drawn) for _ in range(drawn.choice([1, 1, 1, 2, 7])))) for _ in range(200)]
    for one, found in zip(every, read_together(model, every), strict=True):
        (by_itself,) = read_together(model, [one])
        if isinstance(found, ServedInputs) and isinstance(by_itself, ServedInputs):
            assert np.asarray(found.x).tobytes() == np.asarray(by_itself.x).tobytes()
            assert np.asarray(found.rows).tobytes() == np.asarray(by_itself.rows).tobytes()
            assert (found.notes, found.told) == (by_itself.notes, by_itself.told)
        else:
            assert str(found) == str(by_itself)


def test_an_answer_has_the_same_bits_in_every_batch(model: ServedModel) -> None:
    drawn = random.Random(2)
    rows = [model.rows(given(row(drawn) | {"value": drawn.gauss(2, 3), "age": 45}).columns or {}) for _ in range(40)]
    known = [told(model.ask([one])[0]) for one in rows]
    for count in (2, 3, 15, 16, 17, 33, 64, 65, 130, 257):
        chosen = drawn.choices(range(len(rows)), k=count)
        found = model.ask([rows[k] for k in chosen])
        assert [told(each) for each in found] == [known[k] for k in chosen]


def compared(model: ServedModel, each: int) -> None:
    drawn = random.Random(1)
    rows = [given(row(drawn)) for _ in range(60)]
    known, worker = [alone(model, one) for one in rows], AnsweringThread([Served("heart", model)])
    worker.thread.start()

    def ask(thread: int) -> int:
        mine, wrong = random.Random(thread), 0
        for _ in range(each):
            k = mine.randrange(len(rows))
            answer = worker.submit(worker.find("heart"), rows[k])
            problem = answer.exception(60)
            wrong += told(problem if isinstance(problem, Exception) else answer.result().found) != known[k]
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 0
    worker.close()
    assert worker.batches < 8 * each


def test_threads_get_what_each_gets_alone(model: ServedModel) -> None:
    compared(model, 40)


@pytest.mark.long
def test_two_thousand_times(model: ServedModel) -> None:
    compared(model, 250)


def test_a_new_model_takes_over_without_a_lost_or_a_wrong_answer(run: Run, exported: Path, tmp_path: Path) -> None:
    """Each request is answered by the model that was served when it arrived, and watched there, once."""
    old, new = (Served("heart", each, Watch(each, 0.01)) for each in (RunModel(run, "coast"), OnnxModel(exported)))
    other = Served("hill", RunModel(run, "hill"))
    turns = [[new, other], [old, other]] * 6

    def reopen(_: Sequence[Served]) -> Sequence[Served]:
        return turns.pop()

    worker = AnsweringThread([new, other], reopen=reopen)
    worker.thread.start()
    drawn, lock, requests = random.Random(2), threading.Lock(), []

    def ask(thread: int) -> None:
        for i in range(60):
            with lock:
                age, value = drawn.randint(20, 80), drawn.gauss(2, 3)
                served = worker.find("heart")
                one = given({"age": age, "value": value, "smokes": "1"}, groups=[f"{thread}-{i}"])
                answer = worker.submit(served, one)
                requests.append((served, one, answer))
            if thread % 2:
                answer.result(60)
            if i % 20 == 10:
                worker.reload()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    found = [(served, one, answer.result(60)) for served, one, answer in requests]
    worker.close()
    assert {served for served, _, _ in found} == {old, new}
    assert not turns
    for served, one, answer in found:
        assert told(answer.found) == alone(served.model, one)
    for served in (old, new):
        assert served.watch is not None
        assert (served.watch.count, served.watch.repeats) == (sum(each is served for each, _, _ in found), 0)


def test_answers_go_on_after_a_failed_reload(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def reopen(_: Sequence[Served]) -> Sequence[Served]:
        raise KeyError("SECRET")

    worker = AnsweringThread([Served("heart", RunModel(run, "coast"))], reopen=reopen)
    worker.thread.start()
    worker.reload()
    one = given({"age": 61, "value": 2.5, "smokes": "1"})
    assert len(worker.submit(worker.find(), one).result(20).found["label"]) == 1
    worker.close()
    assert "the old models go on answering: KeyError" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_state_that_was_not_saved_is_saved_later(run: Run, tmp_path: Path) -> None:
    class Full(Watch):
        tries = 0

        def save(self, path: Path) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError("disk full")
            super().save(path)

    model = RunModel(run, "coast")
    watch = Full(model, 0.01)
    worker = AnsweringThread([Served("heart", model, watch, tmp_path / "state.json")])
    worker.thread.start()
    worker.submit(worker.find(), given({"age": 61, "value": 2.5, "smokes": "1"})).result(20)
    worker.reload()
    worker.close()
    assert watch.tries == 2
    kept, known = read(tmp_path / "state.json", WatchFile), watch.record()
    assert (kept.ids, kept.monitors["inputs"]["t"]) == (known.ids, 1)


def test_a_stream_replayed_after_a_crash_counts_once(run: Run, tmp_path: Path) -> None:
    """From any state that was saved, all inputs again leave the bits of no crash."""
    model, drawn = RunModel(run, "coast"), random.Random(3)
    rows = [{"age": drawn.randint(20, 80), "value": drawn.gauss(2, 3), "smokes": "1"} for _ in range(40)]

    def fed(watch: Watch, count: int) -> Watch:
        for i, each in enumerate(rows[:count]):
            one = given(each)
            watch.add(model.ask([model.rows(one.columns or {})])[0], model.rows(one.columns or {}), [str(i)])
        return watch

    whole = fed(Watch(model, 0.01), 40)
    for crash in (0, 7, 40):
        fed(Watch(model, 0.01), crash).save(tmp_path / f"{crash}.json")
        again = fed(Watch.opened(tmp_path / f"{crash}.json", model, 0.01), 40).record()
        kept = whole.record()
        assert (again.monitors, again.points, again.alarms) == (kept.monitors, kept.points, kept.alarms)


def test_a_folder_of_watches_has_one_process(exported: Path, tmp_path: Path) -> None:
    """Two would overwrite each other's counts."""
    with socket.socket() as bound, held(tmp_path / ".lock", ""):
        bound.bind(("127.0.0.1", 0))
        told = caveat("serve", exported, "--watch", tmp_path, "--port", bound.getsockname()[1])
    assert "is used by another process" in told.stderr


class Process:
    """`caveat serve` on a free port."""

    def __init__(self, *arguments: Any) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            self.port = int(bound.getsockname()[1])
        command = [sys.executable, "-m", "caveat", "serve", *map(str, arguments), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        waited(lambda: self.get("/ping"))

    def get(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"http://127.0.0.1:{self.port}{path}", data), timeout=30) as answer:
            return json.loads(answer.read())

    def stopped(self, number: int) -> str:
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)[1]


def waited(for_: Callable[[], Any]) -> Any:
    for _ in range(600):
        try:
            return for_()
        except OSError:
            time.sleep(0.1)
    raise AssertionError("no answer in a minute")


@pytest.mark.long
def test_killed_under_load_and_swapped_it_answers_rightly_and_counts_once(
    run: Run, exported: Path, tmp_path: Path
) -> None:
    drawn, place = random.Random(4), tmp_path / "model.onnx"
    place.write_bytes(exported.read_bytes())
    rows = [{"age": drawn.randint(20, 80), "value": drawn.gauss(2, 3), "smokes": "1"} for _ in range(300)]
    model = OnnxModel(place)
    found = [model.ask([model.rows(given(each).columns or {})])[0] for each in rows]
    known = [each["typicality"].tolist() for each in found]
    watch = tmp_path / "watch"

    def asked(server: Process, i: int) -> None:
        body = {"rows": [rows[i]], "groups": [str(i)]}
        (answer,) = server.get("/predict", body)["answers"]
        assert [answer["typicality"]] == known[i]

    def until_killed(server: Process, i: int) -> None:
        try:
            asked(server, i)
        except OSError:
            return

    server = Process(place, "--watch", watch)
    killing = threading.Timer(1.5, lambda: server.process.kill())
    killing.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: until_killed(server, i), range(300)))
    server.process.communicate(timeout=60)
    server = Process(place, "--watch", watch)
    with ThreadPoolExecutor(4) as pool:
        for i in (100, 200):
            threading.Timer(0.1 * i / 100, lambda: server.process.send_signal(signal.SIGHUP)).start()
        list(pool.map(lambda i: asked(server, i), range(300)))
    assert "Traceback" not in server.stopped(signal.SIGTERM)
    (state,) = watch.glob("*.json")
    kept = read(state, WatchFile)
    assert {name: each["t"] for name, each in kept.monitors.items()} == {"inputs": 300}
