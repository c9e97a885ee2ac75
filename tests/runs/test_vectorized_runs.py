"""Runs whose silos are trained side by side: what their folders keep of it, and that they go on as they began."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TINY, sets
from commands import caveat as command
from faults.bits import bits
from torch import Tensor

import caveat
from caveat.engines import vectorization
from caveat.runs.progress import Silent

SGD = caveat.Training(batch_size=8, optimizer="sgd", lr=0.05)
TEMPERED = caveat.Uncertainty(mc_samples=2, familiarity=False)


def tables(count: int = 6, **more: Any) -> caveat.data.Silos:
    generator = np.random.default_rng(0)
    found = {}
    for k in range(count):
        x = generator.normal(size=(40 + 4 * k, 3)).astype("float32")
        found[f"clinic-{k}"] = (x, (x[:, 0] > 0).astype("int64"))
    return caveat.data.from_arrays(found, **more)


def trained(folder: Path, method: Any = None, silos: caveat.data.Silos | None = None, **more: Any) -> caveat.Run:
    """A run of three rounds in which all is vectorized that can be."""
    given = {"rounds": 3, "training": SGD, "uncertainty": TEMPERED, "vectorized": "on", "out": folder} | more
    return caveat.run(silos or tables(), method or caveat.SCAFFOLD(), **given)


class Ends(Silent):
    """Interrupts a run after some of its rounds."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, number: int, *told: object) -> None:
        if number == self.after:
            raise KeyboardInterrupt


def test_a_run_says_which_works_were_vectorized_and_why_others_were_not(tmp_path: Path) -> None:
    training = caveat.Training(batch_size=8, optimizer="sgd", lr=0.05)
    uncertainty = caveat.Uncertainty(temperature_scaling=False, familiarity=False)
    found = caveat.run(
        tables(),
        caveat.MOON(),
        rounds=2,
        training=training,
        uncertainty=uncertainty,
        vectorized="on",
        out=tmp_path / "run",
    )
    vectorized = found.summary["vectorized"]
    assert vectorized["train"]["vectorized"]
    assert vectorized["train (previous)"] == {
        "vectorized": False, "why": "it reads context.train, which vectorized silos do not provide",
    }  # fmt: skip
    kept = json.loads((tmp_path / "run" / "state" / "checkpoint.json").read_text())
    assert kept["vectorization"] == "on"
    assert len(kept["vectorized"]) == 2


@pytest.mark.parametrize(("began", "other"), [("on", "off"), ("off", "auto")])
def test_a_run_goes_on_as_it_began(began: str, other: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        trained(folder, vectorized=began, progress=Ends(1))
    with pytest.raises(
        caveat.ConfigurationError, match=rf"engine\.vectorized = '{other}', but the run started with '{began}'"
    ):
        trained(folder, vectorized=other)
    assert trained(folder, vectorized=began).summary["rounds_run"] == 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with silos' states and a round after training."""
    return trained(tmp_path_factory.mktemp("undisturbed") / "run", participation=0.7).folder


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 1)])
def test_an_interrupted_run_comes_to_the_same_bits(
    before: int, after: int, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint says what was decided: nothing is tried again but of works that were not carried out yet."""
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", participation=0.7, workers=before, progress=Ends(2))
    tried, check_same = list[str](), vectorization.check_same

    def noted(sample: Any) -> int:
        tried.append(sample.address.rpartition(".")[2])
        return check_same(sample)

    monkeypatch.setattr(vectorization, "check_same", noted)
    trained(tmp_path / "run", participation=0.7, workers=after)
    assert "temperature" in tried
    assert "train" not in tried
    kept = json.loads((undisturbed / "state" / "checkpoint.json").read_text())["vectorized"]
    assert any(record["vectorized"] for record in kept.values())
    assert bits(tmp_path / "run") == bits(undisturbed)


class Notes(caveat.Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rounds, self.notes, self.results = list[int](), list[str](), list[Any]()

    def round(self, number: int, phase: str, metrics: Any) -> None:
        self.rounds.append(number)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self, summary: Any) -> None:
        self.results.append(summary)


def test_training_ends_early_and_callbacks_are_told(tmp_path: Path) -> None:
    told, training = Notes(), replace(SGD, lr=0.5, local_epochs=5)
    noise = np.random.default_rng(0)
    silos = caveat.data.from_arrays({name: (noise.normal(size=(60, 5)), noise.integers(0, 2, 60)) for name in "abcd"})
    run = trained(
        tmp_path / "run",
        caveat.MOON(),
        silos,
        rounds=12,
        training=training,
        early_stopping_patience=1,
        every=1,
        callbacks=[told],
    )
    ended = run.summary["rounds_run"]
    assert 1 < ended < 12
    assert told.rounds[-1] >= ended
    assert any(f"early stopping after round {ended}" in note for note in told.notes)
    assert "train (previous): silos were trained one after the other" in " ".join(told.notes)
    assert told.results[0]["vectorized"] == run.summary["vectorized"]
    assert run.summary["vectorized"]["train"] == {
        "vectorized": True,
        "bytes": run.summary["vectorized"]["train"]["bytes"],
    }


def test_methods_beside_it_are_vectorized_too_and_more_rounds_can_follow(tmp_path: Path) -> None:
    more = [
        *TINY[1:],
        "baselines=['fedper']",
        "method.name=fedavg",
        "uncertainty.source=dropout",
        "engine.vectorized=on",
    ]
    for name, rounds in (("one", 3), ("two", 2)):
        done = command("run", "digits", *sets(*more, f"rounds={rounds}"), "--out", tmp_path / name, "--quiet")
        assert done.exit_code == 0, done.output
    done = command("resume", tmp_path / "two", "--rounds", 3, "--quiet")
    assert done.exit_code == 0, done.output
    for part in (".", "baselines/fedper"):
        found = json.loads((tmp_path / "two" / part / "summary.json").read_text())
        assert all(record["vectorized"] for record in found["vectorized"].values())
    assert model(tmp_path / "one") == model(tmp_path / "two")
    assert model(tmp_path / "one" / "baselines" / "fedper") == model(tmp_path / "two" / "baselines" / "fedper")


def model(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def noisy(x: Tensor) -> Tensor:
    return x + 0.1 * x.new_empty(x.shape).normal_()


def mapped(folder: Path) -> caveat.data.Silos:
    """Tables that are read from files as they are needed."""
    found = {}
    for k in range(3):
        np.save(folder / f"{k}.npy", np.random.default_rng(k).normal(size=(40, 3)).astype("float32"))
        x = np.load(folder / f"{k}.npy", mmap_mode="r")
        found[f"clinic-{k}"] = (x, (x[:, 0] > 0).astype("int64"))
    return caveat.data.from_arrays(found)


@pytest.mark.parametrize("kind", ["augment", "lazy", "bfloat16"])
def test_what_is_never_vectorized_is_trained_one_after_the_other_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    silos = {"augment": lambda: tables(3, augment=noisy), "lazy": lambda: mapped(tmp_path)}.get(kind, tables)()
    training = replace(SGD, precision="bfloat16") if kind == "bfloat16" else SGD
    given: dict[str, Any] = {"method": caveat.FedAvg(), "silos": silos, "training": training, "rounds": 1}
    vectorized, apart = trained(tmp_path / "on", **given), trained(tmp_path / "off", vectorized="off", **given)
    why = {
        "augment": "training data are randomly augmented",
        "lazy": "inputs are read on access",
        "bfloat16": "training.precision = 'bfloat16'",
    }
    assert vectorized.summary["vectorized"] == {"train": {"vectorized": False, "why": why[kind]}}
    assert model(vectorized.folder) == model(apart.folder)


def test_without_it_a_folder_says_nothing_of_it(finished: tuple[Path, object]) -> None:
    folder, _ = finished
    assert "vectorization" not in json.loads((folder / "state" / "checkpoint.json").read_text())
    assert "vectorized" not in json.loads((folder / "summary.json").read_text())


def test_another_mode_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(caveat.ConfigurationError, match="vectorized"):
        caveat.run(tables(2), caveat.FedAvg(), vectorized="always", out=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
    said = command("run", "digits", "--vectorized", "always", "--out", tmp_path / "other")
    assert said.exit_code != 0
    assert "engine.vectorized" in said.output
