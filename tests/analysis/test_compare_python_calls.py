"""`caveat.compare`: the runs are those of `caveat.run`, the tables those of the command line, and it goes on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caveat
from caveat.core import ConfigurationError, DataError, RunError
from caveat.core.settings import frozen_settings
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays
from caveat.files import read_payload

MODEL = caveat.ModelSettings(name="mlp", width=4, features=6, hidden=6)
TRAINING = caveat.Training(batch_size=16, lr=0.05)
GIVEN: dict[str, Any] = {"model": MODEL, "training": TRAINING, "rounds": 2}


def silos(seed: int = 0) -> Silos:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2, 100, 3)).astype("float32")
    return from_arrays(
        {name: (part, (part[:, 0] > 0).astype(int)) for name, part in zip("ab", x, strict=True)}, seed=seed
    )


@frozen_settings
class Breaks(caveat.FedAvg):
    """Fails with seed 1."""

    def train(self, down: Any, state: Any, context: Any) -> Any:
        if (down["model"]["head.1.bias"] * 0 + self.training.lr).sum() > 1:
            raise RunError("no luck")
        return super().train(down, state, context)


METHODS = {"mean": caveat.FedAvg(), "near": caveat.FedProx(mu=1.0)}


def test_tables_are_of_the_runs_that_calls_make(tmp_path: Path) -> None:
    found = caveat.compare(silos, METHODS, out=tmp_path / "it", seeds=[0, 3], **GIVEN)
    rows = found.to_rows()
    assert [(row["method"], row["seed"], row["silo"]) for row in rows] == [
        (method, seed, silo) for seed in (0, 3) for method in ("mean", "near") for silo in "ab"
    ]
    one = caveat.run(silos(3), METHODS["near"], seed=3, **GIVEN).summary
    figures = {(row["method"], row["seed"], row["silo"]): row["accuracy"] for row in rows}
    assert {silo["name"]: silo["test"]["accuracy"] for silo in one["silos"]} == {
        silo: figures["near", 3, silo] for silo in "ab"
    }
    assert [row.method for row in found.rows] == ["fedavg", "fedprox"]
    assert "near" in (tmp_path / "it" / "report.html").read_text()
    assert caveat.load_comparison(tmp_path / "it") == found
    title, header, *rows_shown = str(found).splitlines()
    assert (title.endswith(", 2 seeds"), header.split()[:3]) == (True, ["method", "accuracy,", "%"])
    result = found.result(found.rows[0], found.columns[0], found.measures[0])
    assert rows_shown[0].startswith(f"mean    {100 * (result.mean or 0):.1f} ")
    assert len(rows_shown) == 2
    assert max(map(len, str(found).splitlines())) <= 80
    assert repr(found) == str(found)


def test_a_frame_has_the_means_of_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    found = caveat.compare(silos, METHODS, out=tmp_path / "it", seeds=[0, 3], **GIVEN)
    means = found.to_frame().groupby("method").accuracy.mean()
    for row in found.rows:
        assert means[row.name] == pytest.approx(found.result(row, found.columns[0], found.measures[0]).mean)


def test_what_test_inputs_contribute_is_kept_of_evaluated_silos_and_made_up_for(tmp_path: Path) -> None:
    given = {"out": tmp_path / "it", "seeds": [0, 3], "n_silos": 1, **GIVEN}
    found = caveat.compare(silos, METHODS, **given)
    assert all(table.inputs_sampled for table in found.tables if table.measure in ("accuracy", "nll", "ece"))
    files = sorted((tmp_path / "it" / "runs").rglob("*.inputs.safetensors"))
    assert [len(read_payload(file)) for file in files] == [1] * 4
    files[0].unlink()
    assert caveat.compare(silos, METHODS, **given) == found


def test_the_same_call_trains_nothing_again_and_another_is_refused(tmp_path: Path) -> None:
    first = caveat.compare(silos(), METHODS, out=tmp_path / "it", seeds=[0], **GIVEN)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "it" / "runs").rglob("*") if file.is_file()}
    again = caveat.compare(silos(), METHODS, out=tmp_path / "it", seeds=[0], **GIVEN)
    assert again == first
    assert before == {file: file.stat().st_mtime_ns for file in before}
    more = caveat.compare(silos(), METHODS, out=tmp_path / "it", seeds=[0, 1], **GIVEN)
    assert len(more.runs(status="done")) == 4
    with pytest.raises(ConfigurationError, match=r"training\.lr"):
        caveat.compare(
            silos(), METHODS, out=tmp_path / "it", seeds=[0],
            **GIVEN | {"training": dataclasses.replace(TRAINING, lr=0.1)},
        )  # fmt: skip


def test_a_run_that_fails_is_failed_in_the_tables_and_the_others_go_on(tmp_path: Path) -> None:
    broken = Breaks(training=dataclasses.replace(TRAINING, lr=2.0))
    given = {"model": MODEL, "rounds": 1}
    found = caveat.compare(
        silos(), {"breaks": broken, "local": caveat.Local(training=TRAINING)}, out=tmp_path / "it", seeds=[0], **given
    )
    assert [(run.row, run.status) for run in found.cells] == [("breaks", "failed"), ("local", "done")]
    assert "no luck" in found.cells[0].error
    assert json.loads((tmp_path / "it" / "comparison.json").read_text())["cells"][0]["status"] == "failed"


@pytest.mark.parametrize(
    ("methods", "more", "text"),
    [
        ({}, {}, "expected a mapping from names to methods"),
        ({"a": caveat.FedAvg}, {}, r"expected a name and a method such as caveat\.FedAvg\(\)"),
        ({"a": caveat.FedAvg(), "a ": caveat.FedAvg()}, {}, "more than one row would use the folder 'a'"),
        (METHODS, {"seeds": [1, 1]}, r"seeds = \[1, 1\]: expected one or more seeds, all different"),
        (METHODS, {"seed": 1}, "seed cannot be passed to compare"),
    ],
)
def test_what_cannot_be_compared_is_one_line(methods: Any, more: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=text):
        caveat.compare(silos(), methods, out=tmp_path / "it", **more)
    assert not (tmp_path / "it").exists()


def test_a_method_that_cannot_run_on_the_silos_is_told_before_any_trains(tmp_path: Path) -> None:
    wrong = {"mean": caveat.FedAvg(), "pn": caveat.SCAFFOLD()}
    given = GIVEN | {"training": caveat.Training(batch_size=16, momentum=0.9, optimizer="sgd")}
    with pytest.raises(ConfigurationError, match="pn: scaffold needs"):
        caveat.compare(silos(), wrong, out=tmp_path / "it", seeds=[0], **given)
    large = GIVEN | {"training": caveat.Training(batch_size=1000)}
    with pytest.raises(DataError, match="fewer than a batch of 1000"):
        caveat.compare(silos(), METHODS, out=tmp_path / "it", seeds=[0], **large)
    assert not (tmp_path / "it").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="exists and is not a comparison"):
        caveat.compare(silos(), METHODS, out=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_silos_can_be_vectorized(tmp_path: Path) -> None:
    """`vectorized` is an argument of `caveat.run`, and is checked like the others before anything runs."""
    caveat.compare(silos, METHODS, out=tmp_path / "it", seeds=[0], vectorized="on", **GIVEN)
    (run,) = (tmp_path / "it").rglob("mean/**/summary.json")
    assert json.loads(run.read_text())["vectorized"]["train"]["vectorized"]
    with pytest.raises(ConfigurationError, match="mean: vectorized = 'some'"):
        caveat.compare(silos, METHODS, out=tmp_path / "other", vectorized="some", **GIVEN)
    assert not (tmp_path / "other").exists()
