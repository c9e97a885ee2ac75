"""The examples: short, and each does what its first lines say, on less than it is for."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import caveat
from caveat.files import read_ledger
from caveat.nn.efficientnet import PACKAGES

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
DATA = os.environ.get("CAVEAT_DATA", "")


def example(name: str, folder: Path = FOLDER) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_at_most_60_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("name", "model", "dtype", "method"),
    [
        pytest.param("transformer_on_tokens", "Transformer", torch.int64, caveat.FedAvg, marks=pytest.mark.long),
        ("cnn_on_series", "SeriesCNN", torch.float32, caveat.FedAvg),
        pytest.param("cnn_on_series", "SeriesCNN", torch.float32, caveat.TrFedDis, marks=pytest.mark.long),
    ],
)
def test_own_models_learn_tokens_and_series(name: str, model: str, dtype: torch.dtype, method: type) -> None:
    module = example(name)
    silos = module.silos()
    assert silos.dtype == dtype
    training = caveat.Training(lr=0.003, batch_size=32, local_epochs=2)
    run = caveat.run(silos, method(rounds=2, training=training, mc_samples=2), model=getattr(module, model), every=2)
    assert run.summary["mean"]["accuracy"] > 0.2  # ten classes
    said = run.predictor("silo-0")(silos[0].test.x)
    assert said.familiarity is not None
    assert (said.familiarity > 0.05).double().mean() > 0.8


@pytest.mark.long
@pytest.mark.skipif(not DATA, reason="CAVEAT_DATA is not set: no Office-Caltech10")
@pytest.mark.skipif(not all(map(find_spec, PACKAGES)), reason=f"not installed: {', '.join(PACKAGES)}")
def test_a_frozen_encoder_sees_every_image_once_and_a_linear_head_is_all_that_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))
    module = example("pretrained_encoder")
    whole = module.silos(Path(DATA))
    parts = {each.name: (whole.to_image(each.train.x[:20]), each.train.y[:20].numpy()) for each in whole}
    silos = caveat.data.from_arrays(parts, normalize=whole.normalize, classes=whole.classes)
    model = caveat.ModelSettings(encoder=module.lite0, frozen=True, hidden=0)
    training = caveat.Training(batch_size=6, optimizer="sgd", lr=0.1)
    run = caveat.run(silos, caveat.FedAvg(rounds=10, training=training), model=model, every=10, out=tmp_path / "run")
    assert run.summary["mean"]["accuracy"] > 0.3  # ten classes, 12 images of a silo
    kept = sum(len(np.load(file)) for file in (tmp_path / "cache").rglob("*.ids.npy"))
    assert kept == 4 * 20
    trained = [
        each for each in read_ledger(run.folder / "ledger.jsonl").messages if each.phase == "train" and not each.split
    ]
    assert {each.bytes for each in trained} == {4 * (1280 * 10 + 10)}
    assert len(trained) == 40


def test_every_method_and_control_behind_the_frozen_encoder_has_its_row_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which the benchmark adds the examples
    rows = example("behind_encoder", ROOT / "benchmarks").ROWS
    assert {name for name in rows if "," not in name} == set(caveat.METHODS)
    assert all(row.method == name for name, row in rows.items() if "," not in name)
    page = (ROOT / "docs" / "how-to" / "models.md").read_text()
    assert [name for name in rows if f"\n| {name} |" not in page] == []
