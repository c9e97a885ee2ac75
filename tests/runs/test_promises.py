"""A run whose silos have promises and prediction sets of their own: what its summary and its predictions say."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import caveat
from caveat.cli.prediction_output import prediction_rows
from caveat.data.silo_collection import Silos
from caveat.html.run.page import write_report

SMALL: dict[str, Any] = {"rounds": 3, "model": caveat.ModelSettings(name="mlp", width=8, features=4, hidden=8)}
ASKED = caveat.Uncertainty(policy="guaranteed", guarantee_scope="silo", risk=0.3, set_coverage=0.8)


@pytest.fixture(scope="module")
def silos() -> Silos:
    draw = np.random.default_rng(0)
    sizes = {"silo-0": 1200, "silo-1": 1200, "silo-2": 110, "silo-3": 200}
    label = {name: np.arange(n) % 2 for name, n in sizes.items()}
    arrays = {name: (draw.normal(size=(n, 4)) + 1.5 * label[name][:, None], label[name]) for name, n in sizes.items()}
    return caveat.data.from_arrays(arrays, split=caveat.data.Split(calibration=0.1))


@pytest.fixture(scope="module")
def run(silos: Silos, tmp_path_factory: pytest.TempPathFactory) -> caveat.Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return caveat.run(silos, caveat.FedAvg(), uncertainty=ASKED, newcomers=["silo-3"], out=folder, **SMALL)


def test_a_summary_has_every_silo_s_promise_and_sets(run: caveat.Run) -> None:
    summary = run.summary
    found = {silo["name"]: silo for silo in summary["silos"]}
    assert summary["policy"]["guarantee_scope"] == "silo"
    assert summary["sets"] == {"coverage": 0.8, "least": 4}
    for name in ("silo-0", "silo-1"):
        promised = found[name]["promise"]
        assert (promised["whose"], promised["guaranteed"], promised["total"]) == (
            "silo",
            True,
            found[name]["n_calibration"],
        )
        assert promised["statement"].startswith("for this silo by itself: answers ")
    assert found["silo-2"]["promise"]["whose"] == "federation"
    assert found["silo-2"]["promise"]["total"] == summary["guarantee"]["total"]
    assert "promise" not in found["silo-3"]  # took no part
    for silo in found.values():
        assert 1 <= silo["test"]["set_size"] <= 2
        assert 0.5 < silo["test"]["set_coverage"] <= 1
    assert summary["guarantee"]["statement"].startswith("every silo has its own guarantee, at 90 % confidence")


def test_predictions_have_sets_and_a_newcomer_abstains(run: caveat.Run) -> None:
    for silo in run.silos:
        prediction = run.predictor(silo.name)(silo.test.x)
        assert prediction.sets is not None
        assert prediction.sets.shape == prediction.probs.shape
        assert bool(prediction.sets.gather(1, prediction.label[:, None]).all())
        abstained = prediction.decision == caveat.Decision.ABSTAIN
        # A newcomer has no promise, and a silo alone with too few inputs none that 30 of them could give.
        assert bool(abstained.all()) == (silo.name in ("silo-2", "silo-3"))


def test_rows_of_predictions_have_the_names_of_the_classes_in_a_set(run: caveat.Run) -> None:
    prediction = run.predictor("silo-0")(run.silos[0].test.x[:20])
    assert prediction.sets is not None
    rows = csv.DictReader(prediction_rows(prediction, ["ill", "well"]).splitlines())
    expected = [
        [name for name, held in zip(("ill", "well"), row, strict=True) if held] for row in prediction.sets.tolist()
    ]
    assert [row["set"].split("; ") for row in rows] == expected


def test_the_report_has_a_row_per_promise(run: caveat.Run) -> None:
    text = write_report(run.folder).read_text()
    assert "guarantee of" in text
    assert text.count("the silo</td>") == 2
    assert "label in set" in text


def test_promises_are_the_same_with_two_workers(silos: Silos, run: caveat.Run, tmp_path: Path) -> None:
    again = caveat.run(
        silos, caveat.FedAvg(), uncertainty=ASKED, newcomers=["silo-3"], out=tmp_path / "two", workers=2, **SMALL
    )
    assert again.summary["silos"] == run.summary["silos"]
    assert again.summary["guarantee"] == run.summary["guarantee"]
    assert torch.equal(
        again.predictor("silo-0")(silos[0].test.x).decision, run.predictor("silo-0")(silos[0].test.x).decision
    )
