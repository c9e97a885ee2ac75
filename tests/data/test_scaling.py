"""Series are standardised per channel, by the real steps of training splits alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import caveat
from caveat import data
from caveat.core import ConfigurationError, DataError
from caveat.data import agreement
from caveat.data.settings import DataSettings

RNG = np.random.default_rng(0)
N, T = 60, 9
Y = np.arange(N) % 2
WHOLE = {name: (RNG.normal(1e4 * k, 3 + k, (N, T, 2)).astype(np.float32), Y) for k, name in enumerate(("a", "b"))}
RAGGED: dict[str, Any] = {
    name: ([RNG.normal(5 + k, 2 + k, (3 + i % 7, 2)) for i in range(N)], Y) for k, name in enumerate(("a", "b"))
}


def real_steps(silos: data.Silos, name: str, masked: bool) -> np.ndarray[Any, Any]:
    x = silos[name].train.x.double().numpy()
    return x[x[..., -1] > 0][:, :-1] if masked else x.reshape(-1, x.shape[-1])


@pytest.mark.parametrize(("arrays", "masked"), [(WHOLE, False), (RAGGED, True)])
def test_it_is_by_the_pooled_values_of_training_steps(arrays: Any, masked: bool) -> None:
    raw = data.from_arrays(arrays, kind="series")
    own, pooled = (data.from_arrays(arrays, kind="series", standardize=each) for each in ("silo", "federation"))
    together = np.concatenate([real_steps(raw, name, masked) for name in arrays])
    for name in arrays:
        steps = real_steps(raw, name, masked)
        assert own.scalings[name].means == pytest.approx(steps.mean(0), rel=1e-12)
        assert own.scalings[name].scales == pytest.approx(steps.std(0), rel=1e-9)
        assert pooled.scalings[name].means == pytest.approx(together.mean(0), rel=1e-12)
        assert pooled.scalings[name].scales == pytest.approx(together.std(0), rel=1e-9)
        expected = (real_steps(raw, name, masked) - together.mean(0)) / together.std(0)
        np.testing.assert_allclose(real_steps(pooled, name, masked), expected, atol=2e-3)
        again = own.prepare(arrays[name][0], name)
        assert torch.equal(own[name].test.x, again[own[name].indices["test"]])
        if masked:
            x = own[name].test.x
            assert torch.equal(x[..., -1], raw[name].test.x[..., -1]), "the mask stays"
            assert not x[..., :-1][x[..., -1] == 0].any(), "padded steps stay zeros"
    with pytest.raises(DataError, match="pass silo, the silo of these inputs"):
        own.prepare(arrays["a"][0])


def test_a_channel_that_is_the_same_everywhere_becomes_zero() -> None:
    flat = {name: (np.dstack([x, np.full((N, T), 0.1)]), y) for name, (x, y) in WHOLE.items()}
    silos = data.from_arrays(flat, kind="series", standardize="silo")
    assert silos["a"].train.x[..., 2].abs().max() < 1e-6


def test_files_and_a_silo_elsewhere_have_it_too(tmp_path: Path) -> None:
    for name, (x, y) in WHOLE.items():
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", x)
        np.save(tmp_path / name / "y.npy", y)
    settings = DataSettings(source=f"npy:{tmp_path}", kind="series", standardize="silo")
    held, lazily = data.from_arrays(WHOLE, kind="series", standardize="silo"), data.load(settings, 0)
    assert held.scalings == lazily.scalings
    assert torch.equal(held["b"].train.x, lazily["b"].train.x[:])
    schemas = {name: agreement.own_schema(settings, 0, name) for name in WHOLE}
    own = agreement.own_silos(settings, 0, "b", agreement.shared_schema(schemas, settings))
    assert torch.equal(own["b"].train.x[:], held["b"].train.x)


def test_a_run_that_travels_standardises_new_series(tmp_path: Path) -> None:
    silos = data.from_arrays(RAGGED, kind="series", standardize="silo")
    method = caveat.FedAvg(rounds=1, training=caveat.Training(batch_size=8))
    run = caveat.run(silos, method, model=caveat.ModelSettings(name="mlp", width=4), out=tmp_path / "run")
    there = caveat.load(tmp_path / "run")
    assert there.preparation.scalings == silos.scalings
    raw = RAGGED["b"][0][:5]
    assert torch.equal(there.preparation.prepare(raw, "b"), silos.prepare(raw, "b"))
    assert torch.equal(run.predictor("b")(raw).probs, there.predictor("b")(raw).probs)


def test_what_it_does_not_fit_is_refused() -> None:
    features = {name: (x[:, 0], y) for name, (x, y) in WHOLE.items()}
    with pytest.raises(ConfigurationError, match=r"data.standardize = 'silo' is for series only"):
        data.from_arrays(features, standardize="silo")
    with pytest.raises(ConfigurationError, match=r"data.standardize = 'federation' needs the data of all silos"):
        DataSettings(source="on_site", kind="series", standardize="federation")
    own = data.from_arrays(WHOLE, kind="series", standardize="silo")
    with pytest.raises(DataError, match=r"set data.standardize to 'federation'"):
        data.with_streams(own, ood_local="domains")
