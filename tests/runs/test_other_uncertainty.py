"""Another source of uncertainty continues from trained models, with the bits of a run of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import caveat
from caveat.core import ConfigurationError
from caveat.runs.other_uncertainty import TRAINED, with_uncertainty
from caveat.wrappers.ensembles import has_rounds_after_training

ROUNDS: dict[str, Any] = {"rounds": 2, "training": caveat.Training(local_epochs=1, batch_size=16)}
METHODS = {
    "fedavg": caveat.FedAvg(**ROUNDS),
    "ditto": caveat.Ditto(**ROUNDS),  # a private model
    "trfeddis": caveat.TrFedDis(**ROUNDS),  # evidence
    "uefl": caveat.UEFL(**ROUNDS, iterations=2, extra_rounds=1),  # phases
}
SOURCES = {
    "one": caveat.Uncertainty(mc_samples=1),
    "laplace": caveat.Uncertainty(source="laplace", policy="guaranteed"),
    "ensemble": caveat.Uncertainty(source="ensemble", ensemble_size=2),
    "snapshots": caveat.Uncertainty(source="snapshots", ensemble_size=2),
}


@pytest.fixture(scope="module")
def silos() -> caveat.data.Silos:
    generator = torch.Generator().manual_seed(0)
    arrays = {}
    for k in range(3):
        x = torch.randn(150, 4, generator=generator)
        arrays[f"silo-{k}"] = (x.numpy(), (x[:, 0] + 0.3 * k * x[:, 1] > 0).long().numpy())
    return caveat.data.from_arrays(arrays)


def arguments(uncertainty: caveat.Uncertainty) -> dict[str, Any]:
    return {"seed": 3, "every": 10**6, "splits": ["test"], "uncertainty": uncertainty}


@pytest.mark.parametrize(
    "name", [name if name == "ditto" else pytest.param(name, marks=pytest.mark.long) for name in METHODS]
)
def test_every_source_has_the_bits_of_a_run_of_its_own(name: str, silos: caveat.data.Silos, tmp_path: Path) -> None:
    method = METHODS[name]
    sources = (
        SOURCES if not has_rounds_after_training(method) else {k: v for k, v in SOURCES.items() if k != "snapshots"}
    )
    kept = replace(TRAINED, source="snapshots", ensemble_size=2) if "snapshots" in sources else TRAINED
    trained = caveat.run(silos, method, **arguments(kept))
    for source, uncertainty in sources.items():
        if source == "laplace" and not method.softmax:
            continue
        found = with_uncertainty(trained, uncertainty, tmp_path / source)
        whole = caveat.run(silos, method, **arguments(uncertainty))
        for silo in silos:
            ours, theirs = (run.predictor(silo.name)(silo.test.x) for run in (found, whole))
            assert torch.equal(ours.probs, theirs.probs), source
            assert torch.equal(ours.decision, theirs.decision)
            assert ours.typicality is not None
            assert theirs.typicality is not None
            assert torch.equal(ours.typicality, theirs.typicality)
        assert found.summary["mean"] == whole.summary["mean"]
        assert found.summary["traffic"]["bytes_up"] < whole.summary["traffic"]["bytes_up"]


def test_a_run_that_did_more_than_train_cannot_be_continued(silos: caveat.data.Silos, tmp_path: Path) -> None:
    run = caveat.run(silos, METHODS["fedavg"], **arguments(caveat.Uncertainty()))
    with pytest.raises(ConfigurationError, match="expected a run of this process that only trained"):
        with_uncertainty(run, caveat.Uncertainty(mc_samples=1), tmp_path / "other")
