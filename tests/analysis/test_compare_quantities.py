"""Comparisons of methods that predict a quantity or a time: metrics, contrasts, baselines and texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import caveat
from caveat import data
from caveat.analysis.compare.grid import asked
from caveat.analysis.compare.runner import compare, opened
from caveat.core import ConfigurationError
from caveat.files import read_comparison
from caveat.files.schema import Contrast
from caveat.metrics import contributions
from caveat.runs.progress import Silent

SETS = ["rounds=2", "training.lr=0.01"]


def silos(kind: str) -> data.Silos:
    rng, found = np.random.default_rng(0), dict[str, Any]()
    for name in ("north", "south"):
        x = rng.normal(size=(120, 3))
        y = np.exp(x[:, 0] + 0.3 * rng.normal(size=120))
        pairs = np.stack([y, rng.random(120) < 0.7], 1)
        found[name] = x, (y if kind == "quantity" else pairs if kind == "time" else (y > 1).astype(np.int64))
    return data.from_arrays(found, predict=kind)


def test_a_comparison_of_a_quantity_has_its_metrics_and_no_accuracy(tmp_path: Path) -> None:
    grid = asked("diabetes", "fedavg,local", (), "0,1", SETS, (), None, 1, None)
    grid = replace(grid, contrasts=(Contrast("sharing helps", "fedavg", "local", figure="crps", margin=2.0),))
    page = compare(grid, tmp_path / "out", 1, Silent())
    record = read_comparison(tmp_path / "out")
    assert [measure.name for measure in record.measures][:3] == ["crps", "mae", "rmse"]
    run = opened(tmp_path / "out").done(grid.at(grid.rows[0], grid.columns[0], 0, ()))
    cell = next(each for each in record.cells if each.row == "fedavg" and each.seed == 0)
    for silo, compared in zip(run.silos, cell.silos, strict=True):
        assert compared.figures["crps"] == silo.test.crps
        assert compared.figures["interval_coverage"] == silo.test.interval_coverage
        own = run.inputs[silo.name]
        for name in ("crps", "mae", "rmse", "interval_coverage", "spread"):
            assert float(own[f"own/{name}"].mean()) == pytest.approx(getattr(silo.test, name), rel=1e-4)
    wanted = np.mean([silo.test.reference_crps for silo in run.silos])
    assert cell.without_inputs["crps"] == pytest.approx(wanted)
    assert all(pair.inputs_sampled for pair in record.tables if pair.measure == "crps")
    (contrast,) = record.contrasts
    assert contrast.seeds == 2
    assert contrast.mean is not None
    texts = [page.read_text(), *((tmp_path / "out" / name).read_text() for name in ("runs.csv", "tables.md"))]
    assert all("accuracy" not in text.lower() and "frequent class" not in text for text in texts)
    assert "no inputs" in texts[0]


def test_a_comparison_of_times_and_a_mix_of_kinds(tmp_path: Path) -> None:
    methods = {"FedAvg": caveat.FedAvg(rounds=2), "Local": caveat.Local(rounds=2)}
    found = caveat.compare(silos("time"), methods, seeds=(0, 1), out=tmp_path / "time")
    assert {"c_index", "integrated_brier"} <= {measure.name for measure in found.measures}
    assert all(0 < each.without_inputs["integrated_brier"] < 0.5 for each in found.cells)
    assert "accuracy" not in (tmp_path / "time" / "report.html").read_text().lower()
    with pytest.raises(ConfigurationError, match="some runs predict 'classes' and others 'time'"):
        caveat.compare(lambda seed: silos(("time", "classes")[seed]), methods, seeds=(0, 1), out=tmp_path / "mix")
    with pytest.raises(ConfigurationError, match="some runs predict 'classes' and others 'quantity'"):
        asked("diabetes", "fedavg", (), "0", (), ('data.predict="quantity","classes"',), None, 1, None).check()


@pytest.mark.parametrize("kind", ["quantity", "time"])
def test_contributions_are_per_input_and_their_mean_is_the_metric(kind: str) -> None:
    run = caveat.run(silos(kind), caveat.FedAvg(rounds=2))
    for silo in run.silos:
        found = contributions(run.predictor(silo.name)(silo.test.x), silo.values["test"])
        test = next(each for each in run.summary["silos"] if each["name"] == silo.name)["test"]
        assert all(each.shape == (len(silo.test.y),) for each in found.values())
        assert {name: float(each.mean()) for name, each in found.items()} == pytest.approx(
            {name: test[name] for name in found}
        )
        assert torch.stack(list(found.values())).isfinite().all()
