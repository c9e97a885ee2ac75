"""The recipes on the data they name, cut short; tables of four hospitals. They need CAVEAT_DATA."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from caveat.config import load
from caveat.data.new_inputs import read_inputs
from caveat.runs.finished_run import open_run
from caveat.runs.start import start

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="CAVEAT_DATA does not name prepared real data"),
]
SHORT = [
    "rounds=1",
    "training.local_steps=4",
    "method.iterations=1",
    "baselines=[]",
    "evaluation.every=9",
    "model.width=4",
    "uncertainty.mc_samples=2",
]
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@pytest.mark.parametrize(("recipe", "silos", "test"), [
    ("uefl-mnist", 9, 500), ("uefl-mnist-unbalanced", 5, 500), ("uefl-fmnist", 9, 500), ("uefl-cifar10", 9, 400),
    ("uefl-gtsrb", 9, 400), ("uefl-cifar100", 9, 400),
])  # fmt: skip
def test_recipe_runs_on_its_data(tmp_path: Path, recipe: str, silos: int, test: int) -> None:
    run = start(load(recipe, SHORT), tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    assert [silo["n_test"] for silo in summary["silos"]] == [test] * silos
    assert {silo["domain"] for silo in summary["silos"]} == {"rotate(0)", "rotate(-50)", "rotate(120)"}
    splits = json.loads((run / "splits.json").read_text())
    hashes = [silo[split]["sha256"] for silo in splits.values() for split in ("train", "calibration", "test")]
    assert len(set(hashes)) == len(hashes)


def test_a_domain_of_photographs_and_drawings_is_left_out(tmp_path: Path) -> None:
    summary = json.loads((start(load("uefl-pacs", SHORT), tmp_path / "run") / "summary.json").read_text())
    kinds = {silo["domain"]: silo.get("newcomer", False) for silo in summary["silos"]}
    assert kinds == {"pacs_art_painting": False, "pacs_cartoon": False, "pacs_photo": False, "pacs_sketch": True}
    assert summary["newcomers"]["mean"]["accuracy"] > 0


@pytest.mark.parametrize("recipe", ["fedpn-mnist", "fedpn-fmnist"])
def test_fedpn_recipe_decides_on_all_streams(tmp_path: Path, recipe: str) -> None:
    short = [
        "rounds=3",
        "training.local_steps=8",
        "method.personal_epochs=10",
        "evaluation.every=9",
        "engine.workers=2",
    ]
    config = load(recipe, [*short, "data.samples_per_silo=300", "data.test_per_silo=40"])
    summary = json.loads((start(config, tmp_path / "run") / "summary.json").read_text())
    assert {len([n for n in silo["class_counts"] if n]) for silo in summary["silos"]} <= {2, 3}
    assert set(summary["streams"]) == {"ind", "ood_local", "mix", "ood_global"}
    for name, stream in summary["streams"].items():
        assert set(stream["models"]) == {"switch", "local", "global"}
        assert sum(stream["decisions"].values()) == pytest.approx(1)
        if name != "ood_global":
            mean = {model: found["mean"]["accuracy"] for model, found in stream["models"].items()}
            assert (
                stream["oracle"]["accuracy"] >= max(mean.values()) - 1e-12
            )  # means of silos are summed in other orders
    # The silo's own model has learnt no other class, and what it does know it knows better than chance.
    assert summary["streams"]["ood_local"]["models"]["local"]["mean"]["accuracy"] < 0.1
    assert summary["models"]["local"]["mean"]["accuracy"] > 0.5
    assert summary["streams"]["ood_global"]["models"]["switch"]["mean"]["accuracy"] == 0
    outside = summary["streams"]["ood_local"]["outside"]["local"]
    assert outside["log_evidence"]["auroc"] > 0.5


@pytest.mark.filterwarnings("ignore:columns with one value")
@pytest.mark.filterwarnings("ignore:column 'chol'. medians are 0 at uci_heart_switzerland")
@pytest.mark.filterwarnings("ignore:column '(chol|trestbps)' has 0 in [0-9]+ of [0-9]+ rows")
def test_four_hospitals_train_and_predict(tmp_path: Path) -> None:
    sources = ",".join(f"uci_heart_{hospital}.csv" for hospital in HOSPITALS)
    sets = [
        f"data.source=csv:{sources}", "data.target=disease", "model.name=mlp", "model.dropout=0.2", "rounds=8",
        "training.batch_size=16", "training.lr=0.01", "method.name=uefl", "method.iterations=2", "baselines=[]",
    ]  # fmt: skip
    run = open_run(start(load(None, sets), tmp_path / "run"))
    summary = run.summary
    assert [silo["name"] for silo in summary["silos"]] == [f"uci_heart_{h}" for h in HOSPITALS]
    cleveland = summary["silos"][0]
    counts = cleveland["class_counts"]
    assert cleveland["test"]["accuracy"] > max(counts) / sum(counts) + 0.1, "no better than the commoner class"
    inputs = read_inputs(str(Path(os.environ["CAVEAT_DATA"], "uci_heart_va.csv")), run.silos, "uci_heart_va")
    assert len(run.predictor("uci_heart_va")(inputs)) == 200
