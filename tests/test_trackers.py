"""Trackers of experiments hold what the run came to, go on where it goes on, and never end it."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TINY, one_error, sets
from commands import caveat as command

import caveat
from caveat.core import ConfigurationError
from caveat.core.errors import CallbackWarning
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays

BLOCK, FULL, LAST = 32768, 1, 4
MODEL = caveat.ModelSettings(name="mlp", hidden=4)


@pytest.fixture(scope="module")
def silos() -> Silos:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, 100, 3)).astype("float32")
    return from_arrays({name: (part, part[:, 0] > 0) for name, part in zip("ab", x, strict=True)})


def run(silos: Silos, out: Path, *callbacks: caveat.Callback, rounds: int = 2) -> dict[str, Any]:
    method = caveat.FedAvg(rounds=rounds, training=caveat.Training(batch_size=16))
    return caveat.run(silos, method, model=MODEL, out=out, callbacks=callbacks).summary


def expected(summary: dict[str, Any]) -> dict[str, float]:
    """Figures that every tracker is asked for."""
    silos = {f"silo/{silo['name']}/nll": silo["test"]["nll"] for silo in summary["silos"]}
    return {"mean/accuracy": summary["mean"]["accuracy"], "pooled/nll": summary["pooled"]["nll"], **silos}


class Record(caveat.Callback):
    def __init__(self, fail: str = "") -> None:
        self.told, self.fail = list[str](), fail

    def begin(self, title: str, rounds: int) -> None:
        self._tell("begin", title, rounds)

    def settings(self, folder: str, values: Mapping[str, object]) -> None:
        self._tell("settings", Path(folder).name, values["training.batch_size"])

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        self._tell("round", number, *sorted(metrics))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._tell("finish", summary["rounds_run"])

    def end(self) -> None:
        self._tell("end")

    def _tell(self, *what: object) -> None:
        self.told.append(" ".join(map(str, what)))
        if what[0] == self.fail:
            raise ValueError("no\nspace left")


def test_a_callback_is_told_everything_in_order(silos: Silos, tmp_path: Path) -> None:
    record = Record()
    run(silos, tmp_path / "run", record)
    of_training = [each for each in record.told if not each.endswith(" seconds") or "accuracy" in each]
    assert of_training == [
        "begin FedAvg 2",
        "settings run 16",
        "round 1 accuracy entropy nll seconds",
        "round 2 accuracy entropy nll seconds",
        "finish 2",
        "end",
    ]


@pytest.mark.parametrize("fail", ["begin", "settings", "round", "finish", "end"])
def test_a_callback_that_fails_is_told_no_more_and_ends_no_run(silos: Silos, tmp_path: Path, fail: str) -> None:
    failing, other = Record(fail), Record()
    with pytest.warns(
        CallbackWarning, match=f"Record failed in {fail} and will not be called again: ValueError: no space left$"
    ):
        summary = run(silos, tmp_path / "run", failing, other)
    assert summary["complete"]
    assert other.told[-2:] == ["finish 2", "end"]
    names = [each.split()[0] for each in failing.told]
    assert names[-1:] == ["end"]  # so that what it holds open is closed
    assert names.count(fail) == 1


def test_callbacks_change_no_bit_of_the_result(silos: Silos, tmp_path: Path) -> None:
    first, second = run(silos, tmp_path / "a"), run(silos, tmp_path / "b", Record())
    assert first["mean"] == second["mean"]


def test_tensorboard_holds_figures_and_settings(silos: Silos, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    summary = run(silos, tmp_path / "run", caveat.TensorBoard(tmp_path / "tb"))
    (folder,) = (tmp_path / "tb").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    found = {name: events.Scalars(name)[-1].value for name in expected(summary)}
    assert found == pytest.approx(expected(summary), rel=1e-6)
    assert [each.step for each in events.Scalars("round/accuracy")] == [1, 2]
    assert "training.batch_size | 16" in str(events.Tensors("settings/text_summary"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow calls
def test_mlflow_holds_figures_and_settings_and_goes_on_where_the_run_does(silos: Silos, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    class Killed(caveat.Callback):
        def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
            raise KeyboardInterrupt

    tracker = caveat.MLflow(tmp_path / "ml")
    with pytest.raises(KeyboardInterrupt):
        run(silos, tmp_path / "run", tracker, Killed())
    summary = run(silos, tmp_path / "run", tracker)
    client = MlflowClient(f"sqlite:///{tmp_path / 'ml' / 'mlflow.db'}")
    (one,) = client.search_runs([client.get_experiment_by_name("caveat").experiment_id])
    assert {name: one.data.metrics[name] for name in expected(summary)} == pytest.approx(expected(summary))
    assert one.data.params["training.batch_size"] == "16"
    assert one.info.status == "FINISHED"
    assert [each.step for each in client.get_metric_history(one.info.run_id, "round/nll")] == [1, 2]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file, in the format of LevelDB's logs: blocks of 32 KiB, a header of 7 bytes per part."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := BLOCK - place % BLOCK) < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + size > len(data):  # it is still being written
            return
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (FULL, LAST):
            yield whole
            whole = b""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Weights & Biases calls
def test_wandb_writes_offline_what_can_be_read_back(
    silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record as Written

    monkeypatch.delenv("WANDB_MODE", raising=False)
    summary = run(silos, tmp_path / "run", caveat.WandB(tmp_path / "wb"))
    (file,) = (tmp_path / "wb").rglob("*.wandb")
    found, settings = dict[str, Any](), dict[str, Any]()
    until = time.monotonic() + 60
    records: list[Any] = []
    while not any(record.HasField("exit") for record in records):  # its own process writes, and is not waited for
        assert time.monotonic() < until, "the file has no end"
        records = list(map(Written.FromString, wandb_records(file.read_bytes())))
    for record in records:
        found |= {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
        settings |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
    assert {name: found[name] for name in expected(summary)} == pytest.approx(expected(summary))
    assert settings["training.batch_size"] == 16


def test_a_package_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("caveat.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"wandb needs a package .* pip install 'caveat\[wandb\]'"):
        caveat.WandB()
    out = tmp_path / "run"
    assert "pip install 'caveat[mlflow]'" in one_error(command("run", "--out", out, "--tracker", "mlflow"), 2)
    assert not out.exists()


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_a_folder_that_takes_nothing_is_told_before_the_run(
    tracker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(tracker)
    (tmp_path / "file").write_text("")
    option = ("--tracker", f"{tracker}:{tmp_path / 'file' / 'logs'}")
    said = one_error(command("run", "--out", tmp_path / "run", *option), 2)
    assert "file is a file, expected a folder" in said
    monkeypatch.setattr("caveat.trackers.os.access", lambda path, mode: False)
    said = one_error(command("run", "--out", tmp_path / "run", "--tracker", f"{tracker}:{tmp_path / 'logs'}"), 2)
    assert f"{tmp_path} cannot be written to" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tracker", "text"),
    [("tensorbord", "did you mean tensorboard"), ("wandb:", "expected a folder or an address after the colon")],
)
def test_a_tracker_that_there_is_not_is_one_line(tracker: str, text: str, tmp_path: Path) -> None:
    assert text in one_error(command("run", "--out", tmp_path / "run", "--tracker", tracker), 2)


def test_other_things_than_callbacks_are_refused_before_anything_is_written(silos: Silos, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a list of caveat\.Callback"):
        caveat.run(silos, caveat.FedAvg(), out=tmp_path / "run", callbacks=[print])  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()


def test_a_tracker_of_the_command_line_has_the_methods_beside_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tiny = sets(*(each for each in TINY if not each.startswith("baselines")), 'baselines=["local"]')
    made = command("run", "digits", *tiny, "--out", tmp_path / "run", "--tracker", f"tensorboard:{tmp_path / 'tb'}")
    assert made.exit_code == 0, made.stderr
    assert sorted(each.name.rsplit("-", 1)[0] for each in (tmp_path / "tb").iterdir()) == ["local-local", "run-fedavg"]
