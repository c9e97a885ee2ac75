"""The service answers as `caveat predict` does, whoever asks at the same time, and never repeats what it was sent."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import os
import random
import stat
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rounding import rounds_by_position
from table_runs import DICTIONARY, table

import caveat
from caveat import Run, export_model
from caveat.cli.prediction_output import prediction_rows
from caveat.core import ConfigurationError
from caveat.data.new_inputs import noted_inputs
from caveat.export.wrong_outcomes import Promised
from caveat.serving.app import service
from caveat.serving.inference_thread import BEGINNING, AnsweringThread, AnswerLog, Served
from caveat.serving.responses import responses
from caveat.serving.served_model import OnnxModel, RunModel, ServedModel
from caveat.serving.watch import Watch

testclient = pytest.importorskip("fastapi.testclient")
pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.filterwarnings("ignore::caveat.core.DataWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
NAMES = ("age", "value", "smokes")
ROWS: list[dict[str, Any]] = [
    {"age": 61, "value": 2.5, "smokes": "1"},
    {"age": 34.5, "value": None, "smokes": 2},
    {"age": 610, "value": 1, "smokes": "3"},
    {"age": 20, "value": -9, "smokes": 7},
    {"age": None, "value": None, "smokes": None},
    {"age": 45, "value": 3, "smokes": "4"},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with warnings.catch_warnings(action="ignore"):
        return table(tmp_path_factory.mktemp("run"), DICTIONARY, words=("1", "2", "3"))


@pytest.fixture(scope="module", params=["run", "onnx"])
def model(request: pytest.FixtureRequest, run: Run, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    if request.param == "run":
        return RunModel(run, "coast")
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return OnnxModel(export_model(run, "coast", out=path, training_features=True))


@contextmanager
def asked(model: ServedModel, audit: Path | None = None, watch: Watch | None = None, **limits: Any) -> Iterator[Any]:
    worker = AnsweringThread([Served("heart", model, watch)], None if audit is None else AnswerLog(audit))
    app = service(worker, **limits)
    with testclient.TestClient(app, "http://localhost:8000", raise_server_exceptions=False) as client:
        client.worker = worker
        yield client


def predicted(run: Run, folder: Path) -> list[dict[str, str]]:
    """The rows that `caveat predict` writes."""
    lines = [",".join("" if row[name] is None else str(row[name]) for name in NAMES) for row in ROWS]
    (folder / "rows.csv").write_text("\n".join([",".join(NAMES), *lines]) + "\n")
    found = run.predictor("coast")(noted_inputs(folder / "rows.csv", run.preparation, "coast"))
    return list(
        csv.DictReader(io.StringIO(prediction_rows(found, run.preparation.classes, {"input_note": found.input_notes})))
    )


def test_rows_are_answered_to_the_digit_of_predict(run: Run, model: ServedModel, tmp_path: Path) -> None:
    with asked(model) as client:
        told = client.post("/predict", json={"rows": ROWS}).json()
    assert told["version"] == model.version[:12]
    assert any(each.startswith("All p-values") for each in told["promises"])
    for answer, row in zip(told["answers"], predicted(run, tmp_path), strict=True):
        assert (answer["label"], answer["decision"], answer["reason"]) == (row["label"], row["decision"], row["reason"])
        assert answer["note"] == row["input_note"]
        close = 0 if isinstance(model, RunModel) else 2e-6
        for name, p in answer["probabilities"].items():
            assert float(f"{p:.9g}") == pytest.approx(float(row[f"p_{name}"]), abs=close, rel=0)
        assert f"{answer['typicality']:.9g}" == row["typicality"]
    assert [each["reason"] for each in told["answers"]][2:5] == ["outside", "outside", "empty"]
    assert {each["decision"] for each in told["answers"][2:5]} == {"abstain"}


def test_the_protocols_give_the_same_answers(model: ServedModel) -> None:
    columns = {name: [row[name] for row in ROWS] for name in NAMES}
    with asked(model) as client:
        answers = client.post("/predict", json={"rows": ROWS}).json()["answers"]
        probabilities = [list(each["probabilities"].values()) for each in answers]
        split = {"columns": list(NAMES), "data": [[row[name] for name in NAMES] for row in ROWS]}
        for body in ({"dataframe_split": split}, {"dataframe_records": ROWS}):
            told = client.post("/invocations", json=body).json()["predictions"]
            assert told["probs"] == probabilities
            assert told["notes"] == [each["note"] for each in answers]
        tensors = [{"name": k, "shape": [6], "datatype": "BYTES", "data": v} for k, v in columns.items()]
        told = client.post("/v2/models/heart/infer", json={"id": "7", "inputs": tensors}).json()
        assert (told["id"], told["model_name"]) == ("7", "heart")
        outputs = {each["name"]: each for each in told["outputs"]}
        assert np.reshape(outputs["probs"]["data"], outputs["probs"]["shape"]).tolist() == probabilities
        about = client.get("/v2/models/heart").json()
        assert [each["name"] for each in about["inputs"]] == list(NAMES)
        assert {each["name"] for each in about["outputs"]} == outputs.keys()
        pandas = pytest.importorskip("pandas")
        sent = pytest.importorskip("mlflow.utils.proto_json_utils").dump_input_data(pandas.DataFrame(ROWS))
        assert "NaN" in sent
        assert client.post("/invocations", content=sent).json()["predictions"]["probs"] == probabilities
        # What Triton's client sends (tritonclient.http 2.73, binary_data=False).
        triton = [each | {"parameters": {"binary_data": False}} for each in tensors]
        body = {"inputs": triton, "parameters": {"binary_data_output": True}}
        assert client.post("/v2/models/heart/infer", json=body).json()["outputs"] == told["outputs"]
        for path in (
            "/ping",
            "/v2",
            "/v2/health/live",
            "/v2/health/ready",
            "/v2/models/heart/ready",
            "/",
            "/openapi.json",
        ):
            assert client.get(path).status_code == 200
        assert "http" not in client.get("/").text


def test_images_are_answered_as_by_the_run(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (120, 9, 9), dtype=np.uint8), np.arange(120) % 3
    given = caveat.data.from_arrays({"a": (x, y), "b": (x[::-1].copy(), y)})
    settings = caveat.ModelSettings(name="mlp", hidden=8)
    trained = caveat.run(given, caveat.FedAvg(rounds=1), model=settings, uncertainty=caveat.Uncertainty(mc_samples=3))
    predictor = trained.predictor("a")
    found = predictor(x[:5])
    for rows in (slice(0, 1), slice(3, 4), slice(2, 40)):
        assert torch.equal(predictor(x[rows]).probs[:2], predictor(x).probs[rows][:2])
    with asked(RunModel(trained, "a")) as client:
        answers = client.post("/predict", json={"inputs": x[:5].tolist()}).json()["answers"]
        assert [list(each["probabilities"].values()) for each in answers] == found.probs.tolist()
        assert [each["typicality"] for each in answers] == found.typicality.tolist()
        for wrong in (x[:5].astype(float).tolist(), [[[256] * 9] * 9], [[1, 2]], [], x[0].tolist()):
            told = client.post("/predict", json={"inputs": wrong})
            assert (told.status_code, "expected" in told.json()["error"]) == (422, True)
        assert client.post("/predict", json={"rows": ROWS}).status_code == 422


def test_many_at_once_get_what_each_gets_alone(model: ServedModel) -> None:
    drawn = random.Random(0)
    rows = [
        {"age": drawn.randint(20, 80), "value": drawn.gauss(2, 3), "smokes": drawn.choice("123")} for _ in range(64)
    ]
    with asked(model) as client:

        def ask(row: dict[str, Any]) -> Any:
            return client.post("/predict", json={"rows": [row]}).json()["answers"][0]

        alone = [ask(row) for row in rows]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(ask, rows))
        assert client.worker.batches <= 2 * len(rows)
    assert [label_and_decision(each) for each in alone] == [label_and_decision(each) for each in together]
    for one, other in zip(numbers_of(alone), numbers_of(together), strict=True):
        assert one == (pytest.approx(other, rel=1e-6, abs=1e-6) if rounds_by_position() else other)


def label_and_decision(answer: dict[str, Any]) -> tuple[Any, ...]:
    return answer["label"], answer["decision"], answer["reason"], answer["note"]


def numbers_of(answers: list[dict[str, Any]]) -> list[dict[str, float]]:
    p_values = ("familiarity", "nearness", "sureness", "typicality")
    return [
        {**each["probabilities"], **each["uncertainty"], **{name: each[name] for name in p_values}} for each in answers
    ]


@pytest.mark.parametrize(("row", "place"), [
    ({"age": [1]}, (1, "age")), ({"age": "SECRET"}, (1, "age")), ({"smokes": {"SECRET": 1}}, (1, "smokes")),
    ({"value": 1e39}, (1, "value")),
])  # fmt: skip
def test_a_wrong_type_is_refused_by_row_and_column(
    row: dict[str, Any], place: tuple[int, str], model: ServedModel
) -> None:
    with asked(model) as client:
        told = client.post("/predict", json={"rows": [ROWS[0], ROWS[0] | row]})
    assert told.status_code == 422
    (found,) = told.json()["detail"]
    assert (found["row"], found["column"]) == place
    assert "SECRET" not in told.text


def test_bodies_have_a_limit_in_bytes_and_in_rows(model: ServedModel) -> None:
    with asked(model, most_bytes=500, most_rows=3) as client:
        assert client.post("/predict", json={"rows": ROWS[:3]}).status_code == 200
        assert client.post("/predict", json={"rows": [{"age": 1}] * 4}).status_code == 422
        assert client.post("/predict", json={"rows": ROWS * 9}).status_code == 413
        assert client.post("/predict", content=(b" " * 100 for _ in range(9))).status_code == 413


@pytest.mark.parametrize(("host", "origin", "status"), [
    ("localhost:8000", None, 200), ("127.0.0.1:8000", None, 200), ("[::1]:8000", None, 200), ("10.0.0.7", None, 200),
    ("Hospital.example", None, 200), ("LOCALHOST:8000", "http://localhost:8000", 200),
    ("hospital.example", "https://hospital.example", 200),
    ("evil.example:8000", None, 403), ("localhost.evil.example", None, 403), ("127.0.0.1.evil.example", None, 403),
    ("x@localhost", None, 403), ("", None, 403), ("evil.example:8000", "http://evil.example:8000", 403),
    ("localhost:8000", "http://evil.example", 403), ("localhost:8000", "null", 403), ("localhost:8000", "", 403),
    ("localhost:8000", "http://localhost:3000", 403), ("localhost:8000", "http://localhost:8000.evil.example", 403),
])  # fmt: skip
def test_pages_of_other_sites_are_refused(run: Run, host: str, origin: str | None, status: int) -> None:
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    with asked(RunModel(run, "coast"), names=("hospital.example",)) as client:
        told = client.post("/predict", content=json.dumps({"rows": ROWS[:1]}), headers=headers)
        assert told.status_code == client.get("/ping", headers=headers).status_code == status
        assert "evil" not in told.text


@pytest.mark.parametrize(("headers", "status"), [
    ([], 408), ([(b"content-length", b"4"), (b"transfer-encoding", b"chunked")], 400),
])  # fmt: skip
def test_a_body_without_a_clear_end_gives_its_connection_back(
    run: Run, headers: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caveat.serving.app.SLOWEST", 0.1)
    sent: list[Any] = []

    async def never() -> Any:
        await asyncio.sleep(60)

    async def kept(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "raw_path": b"/predict", "query_string": b"",
             "headers": [(b"host", b"localhost"), *headers]}  # fmt: skip
    worker = AnsweringThread([Served("heart", RunModel(run, "coast"))])
    asyncio.run(service(worker)(scope, never, kept))
    assert sent[0]["status"] == status
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.parametrize("body", [
    b'{"rows": [], "rows": [{"age": 1, "value": 1, "smokes": "1"}]}',
    b'{"rows": [{"age": 1, "value": 1, "smokes": "1", "age": 90}]}',
])  # fmt: skip
def test_a_name_that_occurs_twice_is_refused(run: Run, body: bytes) -> None:
    with asked(RunModel(run, "coast")) as client:
        assert "repeated names" in client.post("/predict", content=body).json()["error"]


def test_infinite_numbers_are_refused(run: Run) -> None:
    body = b'{"rows": [{"age": %s, "value": 1, "smokes": "1"}]}'
    with asked(RunModel(run, "coast")) as client:
        for number, expected in ((b"Infinity", "without NaN, Infinity"), (b"1e999", "row 0, column 'age', expected a")):
            told = client.post("/predict", content=body % number)
            assert told.status_code == 422
            assert expected in told.json()["error"]


def test_other_routes_and_methods_are_errors_in_json(run: Run) -> None:
    with asked(RunModel(run, "coast")) as client:
        for told, status in ((client.get("/nowhere"), 404), (client.get("/predict"), 405)):
            assert (told.status_code, "no such route" in told.json()["error"]) == (status, True)


def test_a_tensor_has_few_axes(run: Run) -> None:
    """The product of many sizes is a number with millions of digits."""
    tensor = {"name": "inputs", "shape": [1] + [2**31] * 300_000, "datatype": "FP32", "data": [1]}
    with asked(RunModel(run, "coast")) as client:
        assert client.post("/v2/models/heart/infer", json={"inputs": [tensor]}).status_code == 422


PATHS = ("/predict", "/invocations", "/v2/models/heart/infer", "/outcomes", "/v2/repository/index")


def hostile(drawn: random.Random, secret: str) -> Any:
    """A body that no client should send, with a text that must not come back."""
    value = drawn.choice([secret, [secret], {secret: 1}, 10**400, -1, True, None, 1e308, "\ud800", secret * 900, []])
    body: Any = drawn.choice([
        {"rows": [{"age": value, "value": 1, "smokes": "1"}]}, {"rows": [{secret: value}]}, {"rows": value},
        {"inputs": value}, {"inputs": [[value] * 3]}, {"inputs": [[[value]]]}, {"instances": {secret: value}},
        {"dataframe_split": {"columns": [secret, value], "data": [[value]]}}, {"dataframe_split": value},
        {"inputs": [{"name": "age", "shape": [value], "datatype": secret, "data": [value]}]},
        {"inputs": [{"name": name, "shape": [1], "datatype": "BYTES", "data": [value]} for name in NAMES]},
        {"inputs": [{"name": "inputs", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, value]}], "id": value},
        {"rows": [{"age": 1, "value": 1, "smokes": secret}], "groups": [value]}, {"rows": [], "inputs": []}, value,
        {"outcomes": value}, {"outcomes": [{"id": secret, "row": value, "label": value}, {"id": value}]},
    ])  # fmt: skip
    text = json.dumps(body)
    kind = drawn.random()
    if kind < 0.1:
        return text[: drawn.randrange(len(text) + 1)].encode()
    if kind < 0.15:
        return b"\xff\xfe" + text.encode()
    if kind < 0.2:
        return ("[" * 50_000 + secret).encode()
    return (text.replace("1", "NaN", 1) if kind < 0.25 else text).encode()


def fuzzed(model: ServedModel, folder: Path, caplog: Any, capfd: Any, count: int) -> None:
    drawn, audit = random.Random(1), folder / "audit.jsonl"
    statuses, secrets = [], [f"planted{drawn.getrandbits(40):x}" for _ in range(200)]
    errors, model.promised = "", Promised(0.2)  # outcomes are watched
    with caplog.at_level(logging.DEBUG), asked(model, audit, Watch(model, 0.01)) as client:
        for _ in range(count):
            path = drawn.choice(
                ["/predict", "/invocations", "/v2/models/heart/infer", "/v2/repository/index", "/outcomes"]
            )
            path += f"?model={drawn.choice(secrets)}" if drawn.random() < 0.05 else ""
            told = client.post(path, content=hostile(drawn, drawn.choice(secrets)))
            statuses.append(told.status_code)
            errors += told.text if told.status_code != 200 else ""
        assert client.post("/predict", json={"rows": ROWS[:1]}).status_code == 200
    assert {*statuses} <= {200, 404, 422}
    assert 200 in statuses
    ours = "".join(each.getMessage() for each in caplog.records if not each.name.startswith(("httpx", "httpcore")))
    out = capfd.readouterr()
    everything = errors + audit.read_text() + ours + out.out + out.err
    assert not any(secret in everything for secret in secrets)
    assert "Traceback" not in everything


def test_hostile_bodies_are_refused_without_a_trace(
    model: ServedModel, tmp_path: Path, caplog: Any, capfd: Any
) -> None:
    fuzzed(model, tmp_path, caplog, capfd, 200)


@pytest.mark.long
def test_two_thousand_of_them(model: ServedModel, tmp_path: Path, caplog: Any, capfd: Any) -> None:
    fuzzed(model, tmp_path, caplog, capfd, 2000)


def test_a_bug_is_no_leak(run: Run, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = RunModel(run, "coast")

    def broken(asked: Any) -> Any:
        raise ValueError("SECRET")

    monkeypatch.setattr(model, "ask", broken)
    with asked(model) as client:
        told = client.post("/predict", json={"rows": ROWS})
    assert (told.status_code, told.json()) == (500, {"error": "internal error"})
    assert "SECRET" not in caplog.text


def test_the_audit_has_a_line_for_every_answer_and_belongs_to_its_owner(model: ServedModel, tmp_path: Path) -> None:
    with asked(model, tmp_path / "audit.jsonl") as client:
        told = client.post("/predict", json={"rows": ROWS}).json()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(each["id"], each["row"]) for each in lines] == [(told["id"], row) for row in range(len(ROWS))]
    for line, answer in zip(lines, told["answers"], strict=True):
        assert (line["label"], line["decision"], line["reason"]) == tuple(
            answer[name] for name in ("label", "decision", "reason")
        )
        assert line["rank"] / line["of"] == pytest.approx(answer["typicality"])
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


def test_with_an_audit_answers_are_described_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return responses(*arguments)

    for place in ("inference_thread", "app"):
        monkeypatch.setattr(f"caveat.serving.{place}.responses", counted)
    for audit in (tmp_path / "audit.jsonl", None):
        calls.clear()
        with asked(RunModel(run, "coast"), audit) as client:
            assert len(client.post("/predict", json={"rows": ROWS}).json()["answers"]) == len(ROWS)
        assert len(calls) == 1


def test_an_audit_is_no_other_file(tmp_path: Path) -> None:
    other, link, folder = tmp_path / "notes.txt", tmp_path / "link.jsonl", tmp_path / "folder"
    other.write_text("precious")
    other.chmod(0o644)
    link.symlink_to(other)
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path in (other, link, folder, tmp_path / "pipe"):
        before = path.stat().st_mode
        with pytest.raises(ConfigurationError, match="--audit"):
            AnswerLog(path)
        assert path.stat().st_mode == before
    assert other.read_text() == "precious"
    for _ in range(2):
        kept = AnswerLog(tmp_path / "audit.jsonl")
        kept.file.write(BEGINNING.decode() + "\n")
        kept.file.close()


def test_served_inputs_are_watched_and_repeats_count_once(run: Run, tmp_path: Path) -> None:
    model = RunModel(run, "coast")
    watch = Watch(model, 0.01)
    with asked(model, watch=watch) as client:
        for _ in range(3):
            client.post("/predict", json={"rows": ROWS})
        client.post("/predict", json={"rows": ROWS[:2], "groups": ["a", "a"]})
        assert client.get("/watch").json()["lines"] == watch.lines()
    assert (watch.count, watch.repeats) == (7, 13)
