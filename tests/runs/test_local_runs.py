"""Whole runs on real digits: files, resume, the same bits, and nothing decided on test data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import caveat
from caveat.config import load
from caveat.core import CaveatError, ConfigurationError, Data, RunError
from caveat.data.silo_collection import Silos
from caveat.files import locked, read_payload
from caveat.runs.execution import finish
from caveat.runs.finished_run import Run, open_run
from caveat.runs.local_run import LocalRun
from caveat.runs.progress import Silent
from caveat.runs.resume import resume
from caveat.runs.start import start

SETTINGS = [
    "data.source=digits", "data.n_silos=6", "data.shift.angles=[0, -50, 120]", "model.name=mlp", "method.name=uefl",
    "method.codewords=8", "method.threshold=0.0", "method.margin=0.0", "method.iterations=2", "method.extra_rounds=2",
    "rounds=4", "training.batch_size=32", "training.lr=0.01", "uncertainty.mc_samples=5", "baselines=[\"fedavg\"]",
    "engine.workers=1",
]  # fmt: skip


def summary(run: Path) -> dict[str, Any]:
    """All figures but times."""
    result: dict[str, Any] = json.loads((run / "summary.json").read_text())
    del result["files"]["run.json"]  # which has the number of workers
    del result["seconds"], result["sha256"]  # which is of the times too
    return result


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(load(None, SETTINGS), tmp_path_factory.mktemp("runs") / "whole")


def assert_same_run(one: Path, other: Path) -> None:
    for folder in (Path(), Path("baselines/fedavg")):
        assert summary(one / folder) == summary(other / folder)
        assert (one / folder / "rounds.jsonl").read_text() == (other / folder / "rounds.jsonl").read_text()
        for file in in_both(one / folder, other / folder):
            assert (one / folder / file).read_bytes() == (other / folder / file).read_bytes(), file.name


def in_both(one: Path, other: Path) -> list[Path]:
    """The files of tensors of two runs. One that takes long keeps a state from on the way that the other has not."""
    ours, theirs = (
        {file.relative_to(run) for part in ("state", "model") for file in (run / part).rglob("*.safetensors")}
        for run in (one, other)
    )
    both = sorted(ours & theirs)
    assert max(ours) == max(theirs) == both[-1]
    assert Path("model/model.safetensors") in both
    assert {file for file in ours ^ theirs if file.parts[0] != "state"} == set()
    return both


def test_run_writes_what_the_interface_names(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names >= {"config.toml", "splits.json", "rounds.jsonl", "state", "model", "summary.json", "gallery.json"}
    result = summary(whole)
    assert result["schema"] == 1
    assert result["complete"] is True
    assert result["rounds_run"] == 6
    assert {s["codewords"]["private"] for s in result["silos"]} == {0, 8}
    assert result["worst"]["accuracy"] == min(s["test"]["accuracy"] for s in result["silos"])
    accuracy = np.mean([s["test"]["accuracy"] for s in result["silos"]])
    assert result["mean"]["accuracy"] == pytest.approx(accuracy)
    n = sum(s["n_test"] for s in result["silos"])
    pooled = sum(s["n_test"] * s["test"]["accuracy"] for s in result["silos"]) / n
    assert result["pooled"]["accuracy"] == pytest.approx(pooled)
    up = sum(entry["up"] for entry in result["traffic"]["per_round"])
    assert result["traffic"]["bytes_up"] == up > 0


def test_method_beside_has_as_many_rounds_of_training(whole: Path) -> None:
    assert summary(whole / "baselines" / "fedavg")["rounds_run"] == summary(whole)["rounds_run"]


def test_rows_are_one_per_round_split_and_silo(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "rounds.jsonl").read_text().splitlines()]
    keys = [(row["round"], row["phase"], row["split"], row["silo"], row["model"]) for row in rows]
    # The final model once more on both splits: silos scored themselves after the last evaluation.
    assert len(keys) == len(set(keys)) == 6 * 6 + 6 + 6
    assert {row["split"] for row in rows if row["phase"] == "final"} == {"validation", "test"}
    assert {row["split"] for row in rows if row["round"] < 6} == {"validation"}
    assert sum(row["split"] == "test" for row in rows) == 6


def test_two_workers_write_the_same_run(whole: Path, tmp_path: Path) -> None:
    other = start(load(None, [*SETTINGS, "engine.workers=2"]), tmp_path / "two")
    assert_same_run(whole, other)


COMMAND = [sys.executable, "-c", "import sys; from caveat.cli import main; sys.exit(main())"]


@pytest.mark.long
@pytest.mark.parametrize("wait", [0.02, 0.8])
def test_run_killed_at_any_moment_ends_the_same_after_resume(whole: Path, tmp_path: Path, wait: float) -> None:
    out = tmp_path / "killed"
    sets = [part for item in SETTINGS for part in ("--set", item)]
    command = [*COMMAND, "run", "digits", *sets, "--set", "engine.workers=2", "--out", str(out), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not (out / "splits.json").exists():
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if wait < 0.5:
        assert not (out / "baselines" / "fedavg" / "summary.json").exists(), "killed too late to mean anything"
    resume(out)
    assert_same_run(whole, out)


def test_permuting_all_test_labels_changes_no_bit_of_what_is_learned(whole: Path, tmp_path: Path) -> None:
    run = open_run(whole)
    permuted = Silos(
        tuple(replace(silo, test=Data(silo.test.x, silo.test.y.roll(1))) for silo in run.silos), run.silos.classes,
        run.silos.normalize,
    )  # fmt: skip
    again = LocalRun(spec=run.experiment.spec, silos=permuted, folder=tmp_path / "permuted")
    other = Run(again)
    other.folder.mkdir()
    again.prepare()
    finish(again, Silent())
    for file in in_both(whole, other.folder):
        assert (whole / file).read_bytes() == (other.folder / file).read_bytes(), file.name
    validation = [line for line in (whole / "rounds.jsonl").read_text().splitlines() if '"validation"' in line]
    assert validation == [
        line for line in (other.folder / "rounds.jsonl").read_text().splitlines() if '"validation"' in line
    ]
    assert other.summary["milestones"] == run.summary["milestones"]
    assert other.summary["mean"]["accuracy"] < run.summary["mean"]["accuracy"] - 0.2
    for name in ("silo-0", "silo-5"):
        x = run.silos.named(name).test.x
        assert torch.equal(run.predictor(name)(x).probs, other.predictor(name)(x).probs)
        assert torch.equal(run.predictor(name)(x).decision, other.predictor(name)(x).decision)


def test_finished_run_predicts_what_it_reported(whole: Path) -> None:
    run = caveat.load(whole)
    silo = run.silos.named("silo-5")
    prediction = run.predictor("silo-5")(silo.test.x)
    entry = next(s for s in run.summary["silos"] if s["name"] == "silo-5")
    assert float((prediction.label == silo.test.y).double().mean()) == entry["test"]["accuracy"]
    assert float(prediction.total.mean()) == pytest.approx(entry["test"]["entropy"])
    raw = (run.silos.to_image(silo.test.x[:4])).squeeze(-1)
    torch.testing.assert_close(run.predictor("silo-5")(raw).probs, prediction.probs[:4], atol=0.02, rtol=0)


def test_private_codewords_are_not_in_the_model_that_is_sent(whole: Path) -> None:
    sent = read_payload(whole / "model" / "model.safetensors")
    assert "codebook.private" not in sent["model"]
    kept = sorted((whole / "state" / "silos").glob("*/*.safetensors"))
    assert any(int(read_payload(file)["model"]["codebook.used"]) for file in kept)


def test_gallery_is_sorted_from_both_ends(whole: Path) -> None:
    gallery = json.loads((whole / "gallery.json").read_text())
    for silo in gallery["silos"]:
        certain = [item["total"] for item in silo["certain"]]
        uncertain = [item["total"] for item in silo["uncertain"]]
        assert certain == sorted(certain)
        assert uncertain == sorted(uncertain, reverse=True)
        assert certain[-1] <= uncertain[-1]


def test_failed_run_keeps_its_state_and_continues(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caveat.files import ServerStore

    save, calls = ServerStore.save, []

    def full(self: ServerStore, t: int, *rest: Any) -> None:
        calls.append(t)
        if len(calls) == 3:
            raise RunError("cannot write: No space left on device; earlier files are kept")
        save(self, t, *rest)

    monkeypatch.setattr(ServerStore, "save", full)
    with pytest.raises(RunError, match="No space left"):
        start(load(None, SETTINGS), tmp_path / "full")
    monkeypatch.undo()
    assert_same_run(whole, resume(tmp_path / "full"))


@pytest.mark.parametrize("changed", ["x", "y"])
def test_other_data_than_the_run_began_with_are_refused(tmp_path: Path, changed: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays(0))
    sets = [*SETTINGS, f"data.source=npz:{tmp_path / 'd.npz'}", "data.n_silos=3", "rounds=1", "baselines=[]"]
    run = start(load(None, sets), tmp_path / "run")
    np.savez(tmp_path / "d.npz", **arrays(0) | {changed: arrays(1)[changed]})
    for reread in (resume, lambda folder: open_run(folder).silos):
        with pytest.raises(RunError, match="have changed since the run started"):
            reread(run)


def arrays(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 255, (300, 8, 8), dtype=np.uint8)
    return {"x": x, "y": np.concatenate([np.arange(3), generator.integers(0, 3, 297)])}


@pytest.mark.parametrize(("bad", "message"), [
    ("data.n_silos=4000", "silos"), ("training.batch_size=1000", "batch of 1000"), ("model.name=nonet", "model"),
    ("method.segments=3", "segments"), ("federation.min_silos=7", "federation.min_silos = 7"),
    ("training.momentum=0.5", "momentum = 0.5"), ("data.source=npz:nowhere.npz", "nowhere.npz"),
])  # fmt: skip
def test_bad_configuration_writes_nothing(tmp_path: Path, bad: str, message: str) -> None:
    with pytest.raises(CaveatError, match=message):
        start(load(None, [*SETTINGS, bad]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# The Python API


def silos() -> Silos:
    return caveat.data.rotated(caveat.data.digits(), angles=(0, 90), silos_per_angle=2, seed=0)


def test_python_api_runs_and_predicts() -> None:
    model, training = caveat.ModelSettings(name="mlp"), caveat.Training(batch_size=32, lr=0.01)
    result = caveat.run(silos(), caveat.FedAvg(), rounds=8, model=model, training=training, every=4)
    prediction = result.predictor("silo-1")(silos()[1].test.x)
    assert isinstance(prediction, caveat.Prediction)
    assert result.summary["rounds_run"] == 8
    assert result.summary["mean"]["accuracy"] > 0.6
    assert set(prediction.decision.tolist()) == {caveat.Decision.GLOBAL}


def test_python_api_continues_what_was_interrupted(tmp_path: Path) -> None:
    def run(out: Path, progress: Silent | None = None) -> Run:
        model = caveat.ModelSettings(name="mlp")
        return caveat.run(silos(), caveat.FedAvg(), rounds=4, model=model, out=out, progress=progress)

    class Stop(Silent):
        def round(self, number: int, *rest: object) -> None:
            if number == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", Stop())
    assert summary(run(tmp_path / "a").folder) == summary(run(tmp_path / "b").folder)


def test_two_processes_cannot_run_in_one_folder(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    code = f"from pathlib import Path; from caveat.files.locks import locked\nwith locked(Path({folder!r})): pass"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True).returncode == 0
    with locked(tmp_path / "state"):
        second = subprocess.run(command, capture_output=True, text=True)
    assert second.returncode != 0
    assert "is being run by another process" in second.stderr


def test_python_api_refuses_a_folder_with_a_run(whole: Path) -> None:
    with pytest.raises(ConfigurationError, match="already has a"):
        caveat.run(silos(), caveat.FedAvg(), out=whole)


def test_environment_is_left_as_it_was() -> None:
    before = (torch.get_num_threads(), torch.get_rng_state(), dict(os.environ))
    caveat.run(silos(), caveat.Local(), rounds=1, model=caveat.ModelSettings(name="mlp"))
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert dict(os.environ) == before[2]


def test_a_run_that_measures_some_of_its_silos_is_continued(tmp_path: Path) -> None:
    few = ["baselines=[]", "model.name=mlp", "rounds=1", "data.n_silos=3", "evaluation.n_silos=2", "method.name=fedavg"]
    folder = start(load(None, few), tmp_path / "run")
    before = (folder / "summary.json").read_bytes()
    assert len(json.loads((folder / "splits.json").read_text())) == 2
    resume(folder)
    assert (folder / "summary.json").read_bytes() == before
    assert open_run(folder).folder == folder
