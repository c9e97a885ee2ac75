"""Frozen encoders: what they say of a silo's data is computed once, kept, and never travels."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from federations import assert_same
from own_models import Plain
from own_runs import MODEL, model_of, run, three_silos
from torch import Tensor, nn

import caveat
from caveat.core import ConfigurationError, Data, DataWarning, Silo
from caveat.data.silo_collection import Silos
from caveat.files import read_ledger, read_payload
from caveat.runs import frozen_features as behind


@pytest.fixture(scope="module")
def silos() -> Silos:
    return three_silos()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Encoder(nn.Module):
    """Counts the inputs that it is asked about."""

    asked: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(len(x))
        out: Tensor = self.layers(x)
        return out


FROZEN = caveat.ModelSettings(encoder=Encoder, frozen=True, hidden=0)


# A frozen encoder


def computed(call: Callable[[], object]) -> int:
    """How many inputs the encoder is asked about, those by which a model is tried left out."""
    Encoder.asked.clear()
    call()
    return sum(Encoder.asked)


def test_what_a_frozen_encoder_says_is_computed_once_and_never_again(silos: Silos, tmp_path: Path, cache: Path) -> None:
    inputs = sum(len(getattr(s, part)) for s in silos for part in ("train", "validation", "calibration", "test"))
    first = computed(lambda: run(silos, tmp_path / "a", model=FROZEN))
    second = computed(lambda: run(silos, tmp_path / "b", model=FROZEN, rounds=6))
    assert second < 60, "only what tries the model"
    assert inputs <= first <= inputs + second
    assert sum(np.load(file).shape[0] for file in (cache / "features").rglob("*.ids.npy")) == inputs


def test_the_bits_do_not_depend_on_what_is_kept(silos: Silos, tmp_path: Path, cache: Path) -> None:
    whole = run(silos, tmp_path / "empty", model=FROZEN)
    blocks = sorted((cache / "features").rglob("*[0-9a-f].npy"))
    blocks = [block for block in blocks if not block.name.endswith("ids.npy")]
    blocks[0].unlink()
    blocks[1].write_bytes(blocks[1].read_bytes()[:-2] + b"xx")
    behind._opened.cache_clear()  # as in another process: damage is noticed when a block is first read
    partly = run(silos, tmp_path / "partly", model=FROZEN)
    two = run(silos, tmp_path / "two", model=FROZEN, workers=2)
    for other in (partly, two):
        assert_same(model_of(whole), model_of(other))
        assert whole.summary["mean"] == other.summary["mean"]


def _run_on_one_thread(silos: Silos, folder: Path) -> None:
    """What a forked process can do: threads that its parent had are not there, and OpenMP would wait for them."""
    torch.set_num_threads(1)
    run(silos, folder, model=FROZEN)


def test_two_processes_that_fill_the_cache_at_once_come_to_the_same_bits(
    silos: Silos, tmp_path: Path, cache: Path
) -> None:
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_run_on_one_thread, args=(silos, tmp_path / name)) for name in "ab"]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [each.exitcode for each in both] == [0, 0]
    one, other = (read_payload(tmp_path / name / MODEL) for name in "ab")
    assert_same(one, other)


def test_a_cache_that_cannot_be_written_costs_time_alone(
    silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "file"))
    with pytest.warns(DataWarning, match="cannot be cached, so every process computes .* CAVEAT_CACHE=FOLDER"):
        without = run(silos, tmp_path / "a", model=FROZEN)
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))
    assert_same(model_of(without), model_of(run(silos, tmp_path / "b", model=FROZEN)))


def test_predicting_writes_nothing_to_the_cache(silos: Silos, tmp_path: Path, cache: Path) -> None:
    finished = run(silos, tmp_path / "a", model=FROZEN)
    before = sorted(cache.rglob("*"))
    x = torch.randn(5, 2)
    said = finished.predictor("s0")(x)
    assert said.familiarity is not None
    assert sorted(cache.rglob("*")) == before
    assert torch.allclose(said.probs[2:3], finished.predictor("s0")(x[2:3]).probs, rtol=1e-6)


def test_nothing_of_a_frozen_encoder_is_in_any_message(silos: Silos, tmp_path: Path, cache: Path) -> None:
    out = run(silos, tmp_path / "a", model=FROZEN).folder
    names = {name for form in read_ledger(out / "ledger.jsonl").forms.values() for name in form if "model/" in name}
    assert names == {"model/head.1.weight", "model/head.1.bias"} or names == {
        "model/head.2.weight",
        "model/head.2.bias",
    }


def test_a_frozen_encoder_is_used_as_in_evaluation(silos: Silos, tmp_path: Path, cache: Path) -> None:
    encoder = Encoder()
    with torch.no_grad():
        encoder.layers[1].running_mean.fill_(0.7)
    finished = run(silos, tmp_path / "a", model=dataclasses.replace(FROZEN, encoder=encoder))
    executor = finished.experiment.executor()
    rows, x = executor.silos["s1"].train.x, silos.named("s1").train.x
    assert torch.allclose(rows[:, :6], encoder.eval()(x), atol=1e-6)
    assert encoder.layers[1].running_mean.eq(0.7).all()


@pytest.mark.parametrize(
    "method",
    [caveat.UEFL(extra_rounds=1, iterations=2, codewords=4), caveat.FML(), caveat.FedPN(layers=2, personal_steps=5)],
)
def test_an_adapter_behind_a_frozen_encoder_learns(method: Any, silos: Silos, tmp_path: Path, cache: Path) -> None:
    settings = dataclasses.replace(FROZEN, adapter=4)
    finished = run(silos, tmp_path / "a", method, model=settings)
    assert finished.summary["mean"]["accuracy"] > 0
    again = run(silos, tmp_path / "b", method, model=settings, workers=2)
    assert_same(model_of(finished), model_of(again))


def test_silos_on_demand_stand_behind_a_frozen_encoder(tmp_path: Path, cache: Path) -> None:
    def make(number: int, name: str) -> Silo:
        x = torch.randn(60, 2, generator=torch.Generator().manual_seed(number))
        parts = [Data(x[i : i + 15], (x[i : i + 15].sum(1) > 0).long()) for i in range(0, 60, 15)]
        return Silo(name, "", *parts)

    crowd = caveat.data.population(12, make, ["no", "yes"])
    settings = {"model": FROZEN, "participation": 0.4, "n_silos": 4, "training": caveat.Training(batch_size=8)}
    one = run(crowd, tmp_path / "a", **settings)
    two = run(crowd, tmp_path / "b", **settings, workers=2)
    assert_same(model_of(one), model_of(two))


def test_inputs_that_are_read_when_they_are_needed_come_to_the_same_rows(tmp_path: Path, cache: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"s{k}": (rng.normal(size=(300, 2)).astype(np.float32), rng.integers(0, 2, 300)) for k in range(2)}
    mapped = {}
    for name, (x, y) in arrays.items():
        np.save(tmp_path / f"{name}.npy", x)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r"), y
    whole, lazy = (
        run(caveat.data.from_arrays(each), tmp_path / out, model=FROZEN)
        for each, out in ((arrays, "whole"), (mapped, "lazy"))
    )
    assert_same(model_of(whole), model_of(lazy))
    blocks = len(list((cache / "features").rglob("*.ids.npy")))
    inputs = sum(len(np.load(file)) for file in (cache / "features").rglob("*.ids.npy"))
    assert (blocks >= 8, inputs) == (True, 600)


def test_augmented_inputs_do_not_go_with_a_frozen_encoder(tmp_path: Path, cache: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"s{k}": (rng.integers(0, 255, (60, 8, 8), np.uint8), rng.integers(0, 2, 60)) for k in range(2)}
    images = caveat.data.from_arrays(arrays, augment=["flip"])

    def encoder(shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))

    with pytest.raises(ConfigurationError, match="augmented inputs change with every batch"):
        run(images, tmp_path / "a", model=caveat.ModelSettings(encoder=encoder, frozen=True))
    assert not (tmp_path / "a").exists()


def test_silos_own_models_stand_behind_the_same_frozen_encoder_or_are_refused(
    silos: Silos, tmp_path: Path, cache: Path
) -> None:
    same = caveat.PersonalModel(encoder=Encoder, frozen=True, hidden=4)
    assert run(silos, tmp_path / "a", caveat.FML(), model=FROZEN, personal=(same,)).summary["rounds_run"] == 2
    other = caveat.PersonalModel(factory=Plain)
    with pytest.raises(ConfigurationError, match="personalized models must have the frozen encoder of"):
        run(silos, tmp_path / "b", caveat.FML(), model=FROZEN, personal=(other,))
